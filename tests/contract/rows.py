"""Small rows for tests: one request with the times it is told, in seconds."""

from __future__ import annotations

from phasemeter.records.request_row import RequestRow


def row(
    i: int = 0, *, ttft: float = 0.2, tpot: float = 0.02, tokens: int = 11, every: float = 0.5, **more: object
) -> RequestRow:
    """An ok request due `i × every` seconds in; `more` overrides fields."""
    due = round(i * every * 1e9)
    first = due + round(ttft * 1e9)
    last = first + round(tpot * 1e9) * (tokens - 1)
    fields: dict[str, object] = {
        "request_id": f"r{i}", "outcome": "ok", "due_ns": due, "send_start_ns": due, "sent_ns": due,
        "first_token_ns": first, "first_output_ns": first, "last_token_ns": last, "stream_end_ns": last,
        "output_tokens": tokens, "output_tokens_source": "usage", "input_tokens": 64,
    }  # fmt: skip
    return RequestRow(**(fields | more))  # type: ignore[arg-type]
