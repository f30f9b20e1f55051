"""OpenAI Responses: typed events, or one response object.

Lives here: which events carry output and which end the stream. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.events import (
    CONTENT,
    REASONING,
    REFUSAL,
    TOOL,
    Reading,
    Told,
    error_text,
    reported_error,
    usage_of,
)

DELTAS = {
    "response.output_text.delta": CONTENT,
    "response.refusal.delta": REFUSAL,
    "response.reasoning_text.delta": REASONING,
    "response.reasoning.delta": REASONING,
    "response.reasoning_summary_text.delta": REASONING,
    "response.reasoning_summary.delta": REASONING,
    "response.function_call_arguments.delta": TOOL,
    "response.custom_tool_call_input.delta": TOOL,
    "response.mcp_call_arguments.delta": TOOL,
    "response.mcp_call.arguments_delta": TOOL,
    "response.code_interpreter_call_code.delta": TOOL,
    "response.audio.transcript.delta": CONTENT,
}
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done"}


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One event of a stream. The `type` in its data counts; the event's name stands in where that is missing."""
    kind = obj.get("type") if isinstance(obj.get("type"), str) else name.decode("utf-8", "replace")
    if kind == "error" or (kind not in TERMINAL and obj.get("error")):
        reading.fail("server_error_in_stream", reported_error(obj, b"error") or "")
        return
    reading.known = reading.known or str(kind).startswith("response.")
    channel = DELTAS.get(str(kind))
    if channel is not None:
        _delta(reading, obj, channel, read)
    elif kind == "response.output_item.added":
        item = obj.get("item")
        if isinstance(item, dict) and isinstance(item.get("name"), str) and item["name"]:
            reading.output(reading.choice(0), TOOL, item["name"], read, tool=_number(obj))
    elif isinstance(obj.get("response"), dict):
        reading.keep_timings(obj)
        _response(reading, obj["response"], str(kind), read)


def _number(obj: dict[str, Any]) -> int:
    index = obj.get("output_index")
    return index if isinstance(index, int) else 0


def _delta(reading: Reading, obj: dict[str, Any], channel: str, read: int) -> None:
    text = obj.get("delta")
    if isinstance(text, dict):
        text = text.get("text")
    if not isinstance(text, str) or not text:
        return
    if channel == REASONING:
        reading.reasoning_field = reading.reasoning_field or str(obj.get("type"))
    choice = reading.choice(0)
    if channel != TOOL and isinstance(obj["delta"], str):
        reading.plain = (("delta",), 0, channel)
    reading.output(choice, channel, text, read, tool=_number(obj))
    if isinstance(obj.get("logprobs"), list) and obj["logprobs"]:
        reading.tokens(choice, len(obj["logprobs"]))
        reading.told = Told(len(obj["logprobs"]))


def _response(reading: Reading, response: dict[str, Any], kind: str, read: int) -> None:
    reading.identify(response)
    reading.keep_timings(response)
    if kind not in TERMINAL:
        return
    status = response.get("status")
    if not isinstance(status, str) or status in {"in_progress", "queued"}:
        status = kind.removeprefix("response.")
    if status == "failed" or response.get("error"):
        reading.fail("server_error_in_stream", error_text(response.get("error") or "response.failed"))
        return
    choice = reading.choice(0)
    if not choice.reads:
        _items(reading, response, read)
    choice.finish_reason = status
    reading.count(usage_of(response.get("usage")), read, None)
    reading.end(read)


def _items(reading: Reading, response: dict[str, Any], read: int) -> None:
    """The output of a response object, where no delta brought it before."""
    choice = reading.choice(0)
    items = response.get("output")
    for number, item in enumerate(items if isinstance(items, list) else []):
        if not isinstance(item, dict):
            continue
        for field in ("name", "arguments", "input"):
            if isinstance(item.get(field), str) and item[field]:
                reading.output(choice, TOOL, item[field], read, tool=number)
        reasoning = item.get("type") == "reasoning"
        parts = [*(item.get("content") or []), *((item.get("summary") or []) if reasoning else [])]
        for part in parts:
            if not isinstance(part, dict):
                continue
            text = part.get("text")
            if isinstance(text, str) and text:
                reading.output(choice, REASONING if reasoning else CONTENT, text, read)
            if isinstance(part.get("refusal"), str) and part["refusal"]:
                reading.output(choice, REFUSAL, part["refusal"], read)


def on_document(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """The response object of a request that did not stream."""
    if obj.get("error") or obj.get("type") == "error" or ("status" not in obj and "output" not in obj):
        if reported_error(obj, name) is not None:
            reading.fail("server_error_in_stream", reported_error(obj, name) or "")
        return
    reading.known = True
    status = obj.get("status")
    kind = f"response.{status}" if f"response.{status}" in TERMINAL else "response.completed"
    _response(reading, obj, kind, read)
