"""Text Generation Inference, `/generate_stream` and `/generate`: a token an event, details on the last.

Lives here: where an event holds its output. Must not live here: framing, times, outcome.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.events import CONTENT, Choice, Reading, Usage, reported_error, whole


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One event of a stream. A special token (end of sequence) is a token but no text that a user sees."""
    problem = reported_error(obj, name)
    if problem is not None:
        reading.fail("server_error_in_stream", problem)
        return
    reading.known = reading.known or "token" in obj or "generated_text" in obj
    choice = reading.choice(0)
    token = obj.get("token")
    if isinstance(token, dict):
        text = token.get("text")
        if isinstance(text, str) and text and not token.get("special"):
            reading.output(choice, CONTENT, text, read)
        reading.tokens(choice, 1)
    if isinstance(obj.get("generated_text"), str):
        if not choice.reads and not isinstance(token, dict) and obj["generated_text"]:
            reading.output(choice, CONTENT, obj["generated_text"], read)
        _details(reading, choice, obj.get("details"), read)


def _details(reading: Reading, choice: Choice, details: Any, read: int) -> None:
    reading.end(read)
    found = details if isinstance(details, dict) else {}
    choice.finish_reason = str(found.get("finish_reason") or "unknown")
    prefill = found.get("prefill")
    prompt = whole(found.get("input_length")) or (len(prefill) if isinstance(prefill, list) and prefill else None)
    reading.count(Usage(prompt, whole(found.get("generated_tokens"))), read, None)


def on_document(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """The answer of a request that did not stream."""
    on_event(reading, obj, name, read)
