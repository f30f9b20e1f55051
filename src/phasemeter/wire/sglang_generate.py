"""SGLang's own `/generate`: text so far (or, by an option of the server, only what is new) and `meta_info` per event.

Lives here: where an event holds its output. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.events import CONTENT, Choice, Reading, error_text, finish_of, reported_error, usage_of, whole


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One event, or the whole answer: they have the same shape."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.known = reading.known or "meta_info" in obj
    choice = reading.choice(obj.get("index"))
    text = obj.get("text")
    if isinstance(text, str):
        new = _new_text(reading, choice, text)
        if new:
            reading.output(choice, CONTENT, new, read)
    meta = obj.get("meta_info")
    if text is None and obj.get("output_ids") and isinstance(meta, dict):  # a server that does not detokenise
        told = whole(meta.get("completion_tokens")) or 0
        if told > (choice.usage_now or 0):
            reading.output(choice, CONTENT, "", read)
    if not isinstance(meta, dict):
        return
    reading.identify(meta)
    reading.keep_timings(obj)
    reading.count(usage_of(meta), read, choice)
    finish = meta.get("finish_reason")
    if isinstance(finish, dict):
        choice.finish_reason = str(finish.get("type") or "stop")
        if choice.finish_reason == "abort":
            reading.fail("finish_reason_error", error_text(finish))
    else:
        choice.finish_reason = finish_of(finish) or choice.finish_reason


def _new_text(reading: Reading, choice: Choice, text: str) -> str:
    """Text grows from event to event unless the server streams increments; the second event with text tells which."""
    known: tuple[str, bool | None] = reading.memory.get(f"text {choice.index}", ("", None))
    so_far, grows = known
    if grows is None and so_far and text:
        grows = text.startswith(so_far)
    if grows is False:
        new, total = text, ""
    else:
        new, total = text[len(so_far) :] if text.startswith(so_far) else text, text
    reading.memory[f"text {choice.index}"] = (total or so_far, grows)
    return new
