"""OpenAI Responses: typed events, or one response object.

Lives here: which events carry output and which end the stream. Must not live here: framing, times, outcome.
A `.done` event repeats what deltas brought; servers that send no deltas for a part bring it there, or in `output_item.done`.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.anthropic_messages import compact
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
    "response.output_audio_transcript.delta": CONTENT,
    "response.shell_call_command.delta": TOOL,
    "response.apply_patch_call_operation_diff.delta": TOOL,
}
# sound and pictures: output without a text
MEDIA = {
    "response.audio.delta": "delta",
    "response.output_audio.delta": "delta",
    "response.image_generation_call.partial_image": "partial_image_b64",
}
# events that hold a part whole: where its text stands, its channel
WHOLES = {
    "response.output_text.done": ("text", CONTENT),
    "response.refusal.done": ("refusal", REFUSAL),
    "response.reasoning_text.done": ("text", REASONING),
    "response.reasoning_summary_text.done": ("text", REASONING),
    "response.function_call_arguments.done": ("arguments", TOOL),
    "response.custom_tool_call_input.done": ("input", TOOL),
    "response.mcp_call_arguments.done": ("arguments", TOOL),
    "response.code_interpreter_call_code.done": ("code", TOOL),
    "response.audio.transcript.done": ("transcript", CONTENT),
}
# calls that the model writes and the client carries out, told as an object
CLIENT_CALLS = {"local_shell_call", "shell_call", "computer_call", "apply_patch_call"}
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done"}


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One event of a stream. The `type` in its data counts; the event's name stands in where that is missing."""
    kind = obj.get("type") if isinstance(obj.get("type"), str) else name.decode("utf-8", "replace")
    if kind == "error" or (kind not in TERMINAL and obj.get("error")):
        reading.fail("server_error_in_stream", reported_error(obj, b"error") or "")
        return
    reading.known = reading.known or str(kind).startswith("response.")
    channel = DELTAS.get(str(kind))
    if "summary" in str(kind):
        if "thought" in reading.memory:
            return  # of reasoning that was streamed, servers with no summariser say it again
        reading.summarised = True
    elif channel == REASONING or kind == "response.reasoning_text.done":
        reading.memory["thought"] = True
        reading.summarised = False
    if channel is not None:
        _delta(reading, obj, channel, read)
    elif kind in MEDIA:
        if obj.get(MEDIA[str(kind)]):
            reading.output(reading.choice(0), CONTENT, "", read)
    elif kind in WHOLES:
        field, channel = WHOLES[str(kind)]
        _whole(reading, obj.get(field), channel, _place(obj), read)
    elif kind == "response.content_part.done" and isinstance(obj.get("part"), dict):
        _part(reading, obj["part"], _place(obj), read)
    elif kind == "response.output_item.added" and isinstance(obj.get("item"), dict):
        _name(reading, obj["item"].get("name"), _number(obj), read)
    elif kind == "response.output_item.done" and isinstance(obj.get("item"), dict):
        _item(reading, obj["item"], _number(obj), read)
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
    number, inner = _place(obj)
    _said(reading).setdefault((number, channel), set()).add(inner)
    if "output_index" not in obj:
        reading.memory["unnumbered"] = True
    if channel != TOOL and isinstance(obj["delta"], str) and not (channel == REASONING and reading.summarised):
        reading.plain = (("delta",), 0, channel)
    reading.output(choice, channel, text, read, tool=_number(obj))
    if isinstance(obj.get("logprobs"), list) and obj["logprobs"]:
        reading.tokens(choice, len(obj["logprobs"]))
        reading.told = Told(len(obj["logprobs"]))


def _place(obj: dict[str, Any]) -> tuple[int, int]:
    """The number of the item that an event is about, and of the part within it."""
    inner = obj.get("content_index", obj.get("summary_index"))
    return _number(obj), inner if isinstance(inner, int) else 0


def _said(reading: Reading) -> dict[tuple[int, str], set[int]]:
    """Which parts brought output so far, by the number of their item and their channel."""
    said: dict[tuple[int, str], set[int]] = reading.memory.setdefault("said", {})
    return said


def _whole(reading: Reading, text: Any, channel: str, place: tuple[int, int | None], read: int) -> None:
    """A part given whole (part None: all of the item's): output where nothing brought it before.

    Servers mix up the items' numbers: text that came under any number is not taken again. Calls of tools may be alike.
    """
    number, inner = place
    if not isinstance(text, str) or not text:
        return
    known = _said(reading).setdefault((number, channel), set())
    choice = reading.choice(0)
    if inner in known or (inner is None and known):
        return
    if (channel != TOOL or "unnumbered" in reading.memory) and text in choice.text_of(channel):
        return
    known.add(inner or 0)
    if channel == REASONING:
        reading.reasoning_field = reading.reasoning_field or "reasoning"
    reading.output(choice, channel, text, read, tool=number)


def _name(reading: Reading, name: Any, number: int, read: int) -> None:
    """A tool's name, once an item."""
    named: set[int] = reading.memory.setdefault("named", set())
    if isinstance(name, str) and name and number not in named:
        named.add(number)
        reading.output(reading.choice(0), TOOL, name, read, tool=number)


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
    """The output of a response object, where nothing brought it before."""
    items = response.get("output")
    for number, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, dict):
            _item(reading, item, number, read)


def _item(reading: Reading, item: dict[str, Any], number: int, read: int) -> None:
    if not _said(reading).get((number, TOOL)):  # a name told after its arguments came earlier, only unseen
        _name(reading, item.get("name"), number, read)
    for field in ("arguments", "input", "code"):
        _whole(reading, item.get(field), TOOL, (number, None), read)
    if str(item.get("type")) in CLIENT_CALLS:
        told = item.get("action") or item.get("operation")
        _whole(reading, compact(told) if isinstance(told, dict) else None, TOOL, (number, None), read)
    if item.get("type") == "image_generation_call" and item.get("result") and not reading.choice(0).reads:
        reading.output(reading.choice(0), CONTENT, "", read)
    reading.sealed = reading.sealed or bool(item.get("encrypted_content"))
    summary, content = item.get("summary"), item.get("content")
    reading.summarised = reading.summarised or bool(summary and not content and "thought" not in reading.memory)
    listed = content or summary
    parts = [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    reasoning = item.get("type") == "reasoning"
    for channel, field in ((REASONING if reasoning else CONTENT, "text"), (REFUSAL, "refusal")):
        texts = [part[field] for part in parts if isinstance(part.get(field), str)]
        _whole(reading, "".join(texts), channel, (number, None), read)


def _part(reading: Reading, part: dict[str, Any], place: tuple[int, int], read: int) -> None:
    reasoning = str(part.get("type")) in {"reasoning_text", "summary_text"}
    _whole(reading, part.get("text"), REASONING if reasoning else CONTENT, place, read)
    _whole(reading, part.get("refusal"), REFUSAL, place, read)


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
