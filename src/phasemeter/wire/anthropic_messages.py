"""Anthropic Messages: typed events, or one message.

Lives here: which events carry output. Must not live here: framing, times, outcome.
`message_start`, `ping`, block starts without text and `signature_delta` are no output; `output_tokens` is a running count.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phasemeter.wire.events import CONTENT, REASONING, TOOL, Reading, Usage, reported_error, strict, usage_of, whole

DELTAS = {
    "text_delta": ("text", CONTENT),
    "thinking_delta": ("thinking", REASONING),
    "input_json_delta": ("partial_json", TOOL),
}
KNOWN = {
    "message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta", "content_block_stop", "ping",
}  # fmt: skip
CACHE_FIELDS = ("cache_read_input_tokens", "cache_creation_input_tokens")


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One event of a stream. The `type` in its data counts; the event's name stands in where that is missing."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    kind = obj.get("type") if isinstance(obj.get("type"), str) else name.decode("utf-8", "replace")
    reading.known = reading.known or kind in KNOWN
    reading.keep_timings(obj)
    index = obj.get("index")
    number = index if isinstance(index, int) else 0
    if kind == "content_block_delta" and isinstance(obj.get("delta"), dict):
        delta = obj["delta"]
        field, channel = DELTAS.get(str(delta.get("type")), ("", ""))
        reading.sealed = reading.sealed or delta.get("type") == "signature_delta"
        text = delta.get(field)
        if isinstance(text, str) and text:
            if channel != TOOL:
                reading.plain = (("delta", field), 0, channel)
            elif number in reading.memory.get("whole", ()):
                return  # the block's opening brought it
            _output(reading, channel, text, read, number)
    elif kind == "content_block_start" and isinstance(obj.get("content_block"), dict):
        _block(reading, obj["content_block"], read, number)
    elif kind == "message_start" and isinstance(obj.get("message"), dict):
        reading.identify(obj["message"])
        _count(reading, obj["message"].get("usage"), read, started=True)
    elif kind == "message_delta":
        delta = obj.get("delta")
        if isinstance(delta, dict) and delta.get("stop_reason"):
            reading.choice(0).finish_reason = str(delta["stop_reason"])
        _count(reading, obj.get("usage"), read)
    elif kind == "message_stop":
        reading.end(read)


def _output(reading: Reading, channel: str, text: str, read: int, number: int) -> None:
    if channel == REASONING:
        reading.reasoning_field = reading.reasoning_field or "thinking"
    reading.output(reading.choice(0), channel, text, read, tool=number)


def _block(reading: Reading, block: dict[str, Any], read: int, number: int) -> None:
    """A block's opening: a tool's name is output, and so are text and arguments, should it bring some (gateways do)."""
    reading.sealed = reading.sealed or block.get("type") == "redacted_thinking" or bool(block.get("signature"))
    for field, channel in (("thinking", REASONING), ("text", CONTENT), ("name", TOOL)):
        text = block.get(field)
        if isinstance(text, str) and text:
            _output(reading, channel, text, read, number)
    if isinstance(block.get("input"), dict) and (block["input"] or not reading.stream):
        reading.memory.setdefault("whole", set()).add(number)
        _output(reading, TOOL, compact(block["input"]), read, number)


def _count(reading: Reading, raw: Any, read: int, started: bool = False) -> None:
    """`input_tokens` leaves out what the cache read or wrote; elsewhere prompt tokens hold all. A field left out stays as told.

    `started`: the opening's `output_tokens` (1) are none that came.
    """
    usage = usage_of(raw)
    if usage is None:
        return
    if started:
        usage.completion_tokens = None
    known: dict[str, int] = reading.memory.setdefault("cache", {})
    known.update({field: count for field in CACHE_FIELDS if (count := whole(raw.get(field))) is not None})
    if usage.prompt_tokens is not None and any(known.values()):
        prompt, cached = usage.prompt_tokens + sum(known.values()), known.get(CACHE_FIELDS[0], 0)
        usage = Usage(prompt, usage.completion_tokens, usage.reasoning_tokens, cached)
    reading.count(usage, read, None)


def on_document(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """The message of a request that did not stream."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.known = "content" in obj
    reading.identify(obj)
    reading.keep_timings(obj)
    blocks = obj.get("content")
    for number, block in enumerate(blocks if isinstance(blocks, list) else []):
        if isinstance(block, dict):
            _block(reading, block, read, number)
    if obj.get("stop_reason"):
        reading.choice(0).finish_reason = str(obj["stop_reason"])
        reading.end(read)
    _count(reading, obj.get("usage"), read)


def compact(value: Any) -> str:
    """A JSON value as its shortest text."""
    return msgspec.json.encode(strict(value)).decode()
