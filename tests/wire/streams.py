"""Small streams to test with: chunks as servers write them, and reading them in one call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from phasemeter.records.capture import Close
from phasemeter.wire.exchange import Asked, Exchange, Received, read_exchange

SSE_HEADERS = (("Content-Type", "text/event-stream"),)
MS = 1_000_000


def event(document: Any, name: str | None = None) -> bytes:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chunk(text: str | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk: `text` is its content; `delta=` replaces the delta, anything else stands at the top."""
    delta = more.pop("delta", {} if text is None else {"content": text})
    return {"id": "r", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more}


def usage(completion: int, prompt: int = 7, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}


DONE = event("[DONE]")


def finished(completion: int | None = None, finish: str = "stop", **more: Any) -> bytes:
    """The last read of a chat stream: finish reason, usage, [DONE]."""
    end = event(chunk(finish=finish))
    if completion is not None:
        end += event({"id": "r", "choices": [], "usage": usage(completion, **more)})
    return end + DONE


def read(
    events: Sequence[tuple[float, bytes]],
    *,
    close: Close | None = "eof",
    at: float | None = None,
    asked: Asked | None = None,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = SSE_HEADERS,
    fast: bool = True,
    line_limit: int = 1 << 26,
) -> Exchange:
    """Reads body bytes at times in ms; the connection closes with the last one unless told otherwise."""
    end = at if at is not None else (events[-1][0] if events else 1.0)
    received = Received(
        reads=[data for _, data in events],
        times_ns=[round(t * MS) for t, _ in events],
        close=close,
        closed_ns=round(end * MS),
        status=status,
        headers=tuple(headers),
    )
    return read_exchange(asked or Asked(), received, fast=fast, line_limit=line_limit)
