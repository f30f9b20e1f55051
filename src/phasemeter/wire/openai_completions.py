"""OpenAI completions: `text` per choice, whole or in chunks; an echoed prompt is no output.

Lives here: where a completion holds its text. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.events import CONTENT, Choice, Reading, Told, finish_of, reported_error, usage_of
from phasemeter.wire.openai_chat import on_choice, tokens_told


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One chunk of a stream, or the whole answer: they have the same shape."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.identify(obj)
    reading.keep_timings(obj)
    choices = obj.get("choices")
    reading.known = reading.known or "choices" in obj
    listed = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    for raw in listed:
        as_chat = raw.get("text") is None and (
            raw.get("delta") or raw.get("message")
        )  # some gateways answer all as chat
        (on_choice if as_chat else _choice)(reading, raw, read)
    usage = obj.get("usage")
    if usage is not None:
        owner = reading.choice(listed[0].get("index")) if len(listed) == 1 else None
        reading.count(usage_of(usage), read, owner)
    if len(listed) != 1:
        reading.plain = None
    elif reading.plain is not None:
        reading.told = Told(tokens_told(listed[0]), usage is not None)


def _choice(reading: Reading, raw: dict[str, Any], read: int) -> None:
    choice = reading.choice(raw.get("index"))
    text = raw.get("text")
    told, whole = tokens_told(raw), text
    finish = finish_of(raw.get("finish_reason"))
    if isinstance(text, str) and text:
        text = _without_echo(reading, choice, text)
        if text:
            if not finish and not reading.echo_prompt:
                reading.plain = (("choices", 0, "text"), choice.index, CONTENT)
            reading.output(choice, CONTENT, text, read)
        if text != whole:
            told = _after_echo(reading, raw) if text else 0  # the others are the prompt's
    elif text == "":
        reading.silent(read)
    if told:
        reading.tokens(choice, told)
    choice.finish_reason = finish or choice.finish_reason


def _after_echo(reading: Reading, raw: dict[str, Any]) -> int:
    """How many tokens of a chunk that begins with the echoed prompt are no part of it, as their offsets tell; 0 if they don't."""
    logprobs = raw.get("logprobs")
    offsets = logprobs.get("text_offset") if isinstance(logprobs, dict) else None
    begin = len(reading.echo_prompt or "")
    return sum(isinstance(at, int) and at >= begin for at in offsets) if isinstance(offsets, list) else 0


def _without_echo(reading: Reading, choice: Choice, text: str) -> str:
    """With `echo` asked for, servers send the prompt first: what of `text` is not that."""
    if reading.echo_prompt is None:
        return text
    left = reading.echo.setdefault(choice.index, reading.echo_prompt)
    if not left:
        return text
    if text.startswith(left):
        reading.echo[choice.index] = ""
        return text[len(left) :]
    if left.startswith(text):
        reading.echo[choice.index] = left[len(text) :]
        return ""
    reading.echo[choice.index] = ""  # this server does not echo
    return text
