"""Ollama's own API, chat and generate: one JSON document a line, `done` on the last.

Lives here: where a line holds its output. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.anthropic_messages import compact
from phasemeter.wire.events import CONTENT, REASONING, TOOL, Reading, Usage, reported_error, whole


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One line, or the whole answer: they have the same shape. `message.content` in chat, `response` in generate."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.identify(obj)
    reading.keep_timings(obj)
    reading.known = reading.known or "done" in obj
    choice = reading.choice(0)
    message = obj.get("message")
    source = message if isinstance(message, dict) else obj
    thinking = source.get("thinking")
    if isinstance(thinking, str) and thinking:
        reading.reasoning_field = "thinking"
        reading.output(choice, REASONING, thinking, read)
    text = source.get("content") if source is message else source.get("response")
    if isinstance(text, str) and text:
        reading.output(choice, CONTENT, text, read)
    elif isinstance(obj.get("image"), str) and obj["image"]:
        reading.output(choice, CONTENT, "", read)
    _tools(reading, source.get("tool_calls"), read)
    logprobs = obj.get("logprobs")
    if isinstance(logprobs, list) and logprobs:
        reading.tokens(choice, len(logprobs))
    cached = whole(obj.get("prompt_eval_cached_count"))
    reading.count(Usage(whole(obj.get("prompt_eval_count")), whole(obj.get("eval_count")), None, cached), read, None)
    if obj.get("done"):
        reason = obj.get("done_reason")
        choice.finish_reason = str(reason) if reason else "stop"  # before 0.3 there was no done_reason
        reading.end(read)


def _tools(reading: Reading, calls: Any, read: int) -> None:
    """Whole calls, each with its arguments as an object."""
    choice = reading.choice(0)
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        number = len(choice.tools)
        if isinstance(function.get("name"), str) and function["name"]:
            reading.output(choice, TOOL, function["name"], read, tool=number)
        arguments = function.get("arguments")
        if arguments:
            text = arguments if isinstance(arguments, str) else compact(arguments)
            reading.output(choice, TOOL, text, read, tool=number)
