"""Small request rows for tests, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasemeter.records.request_row import ChoiceTimes, RequestRow

MS = 1_000_000


def row(times_ms: Sequence[float] = (), **given: Any) -> RequestRow:
    """An ok streamed request sent at `send_ms` (default 0) whose output events came at `times_ms` since then."""
    send_ms = given.pop("send_ms", 0.0)
    due_ms = given.pop("due_ms", send_ms)
    end_ms = given.pop("end_ms", times_ms[-1] if times_ms else None)
    tokens = given.pop("tokens", None)
    times = tuple(round((send_ms + at) * MS) for at in times_ms)
    fields: dict[str, Any] = {
        "request_id": "r",
        "outcome": "ok",
        "due_ns": round(due_ms * MS),
        "send_start_ns": round(send_ms * MS),
        "sent_ns": round(send_ms * MS),
        "stream_end_ns": None if end_ms is None else round((send_ms + end_ms) * MS),
    }
    if times:
        counts = None if tokens is None else tuple(tokens)
        fields |= {
            "first_token_ns": times[0],
            "first_output_ns": times[0],
            "last_token_ns": times[-1],
            "choices": (ChoiceTimes(times_ns=times, reads=tuple(range(len(times))), tokens=counts),),
            "output_tokens": len(times) if counts is None else sum(counts),
            "output_tokens_source": "usage",
        }
    return RequestRow(**(fields | given))
