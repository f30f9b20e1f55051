"""llama.cpp's own `/completion`: `content` per chunk, `stop` on the last, its counts and `timings` there.

Lives here: where a chunk holds its output. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.events import CONTENT, Reading, Usage, reported_error, whole


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One chunk, or the whole answer: they have the same shape. `tokens` lists the ids where `return_tokens` asked for them."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.identify(obj)
    reading.keep_timings(obj)
    reading.known = reading.known or "content" in obj
    choice = reading.choice(obj.get("index"))
    text = obj.get("content")
    if isinstance(text, str) and text:
        reading.output(choice, CONTENT, text, read)
    stop = bool(obj.get("stop"))
    ids = obj.get("tokens")
    if isinstance(ids, list) and ids and (not stop or not choice.reads or choice.last_event == reading.data_events):
        reading.tokens(choice, len(ids))
    if stop:
        choice.finish_reason = _reason(obj)
        counted = Usage(whole(obj.get("tokens_evaluated")), whole(obj.get("tokens_predicted")))
        reading.count(counted, read, None)
        reading.usage_alone = len(reading.choices) == 1  # of several prompts each last chunk counts its own
        choice.usage_now = counted.completion_tokens
        open_ones = [one for one in reading.choices.values() if not one.finish_reason]
        reading.terminal_read = None if open_ones else read


def _reason(obj: dict[str, Any]) -> str:
    """`stop_type`, or the flags it replaced."""
    kind = obj.get("stop_type")
    if isinstance(kind, str) and kind and kind != "none":
        return kind
    flags = ("limit", "eos", "word")
    return next((flag for flag in flags if obj.get(f"stopped_{flag}")), "stop")
