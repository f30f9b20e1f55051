"""OpenAI chat completions: chunks and whole answers.

Lives here: where a chat answer holds its output. Must not live here: framing, times, outcome.
Reasoning comes under `reasoning_content` (DeepSeek, vLLM before 0.11, SGLang, llama.cpp) or `reasoning` (vLLM, OpenRouter,
Ollama); a server that sends both sends the same text twice.
"""

from __future__ import annotations

from typing import Any

from phasemeter.wire.anthropic_messages import compact
from phasemeter.wire.events import (
    CONTENT,
    REASONING,
    REFUSAL,
    TOOL,
    Choice,
    Reading,
    Told,
    error_text,
    finish_of,
    reported_error,
    usage_of,
)

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
FIELD_CHANNELS = {
    **dict.fromkeys((*REASONING_FIELDS, "reasoning_details"), REASONING),
    **dict.fromkeys(("content", "audio", "images"), CONTENT),
    **dict.fromkeys(("tool_calls", "function_call"), TOOL),
    "refusal": REFUSAL,
}


def on_event(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """One chunk of a stream."""
    on_document(reading, obj, name, read)


def on_document(reading: Reading, obj: dict[str, Any], name: bytes, read: int) -> None:
    """A chunk, or the whole answer of a request that did not stream: they differ in `delta` and `message` only."""
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
        on_choice(reading, raw, read)
    usage = obj.get("usage") or _groq_usage(obj)
    if usage is not None:
        owner = reading.choice(listed[0].get("index")) if len(listed) == 1 else None
        reading.count(usage_of(usage), read, owner)
    else:
        _count_inside(reading, listed, read)
    if reading.plain is not None:
        if len(listed) != 1 or finish_of(listed[0].get("finish_reason")):
            reading.plain = None
        else:
            reading.told = Told(tokens_told(listed[0]), usage is not None)


def _count_inside(reading: Reading, listed: list[dict[str, Any]], read: int) -> None:
    """Usage inside a choice (Moonshot)."""
    for raw in listed:
        if raw.get("usage"):
            reading.count(usage_of(raw["usage"]), read, reading.choice(raw.get("index")))
            reading.plain = None


def _groq_usage(obj: dict[str, Any]) -> Any:
    extra = obj.get("x_groq")
    return extra.get("usage") if isinstance(extra, dict) else None


def on_choice(reading: Reading, raw: dict[str, Any], read: int) -> None:
    """One choice of a chunk or answer."""
    if raw.get("error"):  # OpenRouter puts it into the choice too
        reading.fail("server_error_in_stream", error_text(raw["error"]))
    choice = reading.choice(raw.get("index"))
    key = "delta" if isinstance(raw.get("delta"), dict) else "message"
    delta = raw.get(key)
    if isinstance(delta, dict):
        if key == "message" and choice.index in reading.memory.get("deltas", ()):
            delta = _not_said(choice, delta)
        _delta(reading, choice, delta, key, read)
    elif isinstance(raw.get("text"), str) and raw["text"]:
        reading.output(choice, CONTENT, raw["text"], read)
    told = tokens_told(raw)
    if told:
        reading.tokens(choice, told)
    choice.finish_reason = finish_of(raw.get("finish_reason")) or choice.finish_reason


def _not_said(choice: Choice, message: dict[str, Any]) -> dict[str, Any]:
    """What a whole message at the end of a stream (MiniMax) brings that its deltas had not: the channels they left out."""
    said = {channel for channel in (REASONING, CONTENT, REFUSAL, TOOL) if choice.has(channel)}
    return {field: value for field, value in message.items() if FIELD_CHANNELS.get(field) not in said}


def _delta(reading: Reading, choice: Choice, delta: dict[str, Any], key: str, read: int) -> None:
    before = len(choice.reads)
    details = delta.get("reasoning_details")
    if details:
        _nature(reading, details)
    for field in REASONING_FIELDS:
        text = delta.get(field)
        if isinstance(text, str) and text:
            reading.plain = (("choices", 0, key, field), choice.index, REASONING)
            reading.output(choice, REASONING, text, read)
            reading.reasoning_field = reading.reasoning_field or field
            break
    else:
        _details(reading, choice, details, read)
    content = delta.get("content")
    if isinstance(content, str):
        if content:
            reading.plain = (("choices", 0, key, "content"), choice.index, CONTENT)
            reading.output(choice, CONTENT, content, read)
    elif isinstance(content, list):
        _parts(reading, choice, content, read)
    _media(reading, choice, delta, read)
    refusal = delta.get("refusal")
    if isinstance(refusal, str) and refusal:
        reading.output(choice, REFUSAL, refusal, read)
    _tools(reading, choice, delta, read)
    if len(choice.reads) == before:
        if content == "" and not delta.get("role"):
            reading.silent(read)
        else:
            reading.bare_reads.append(read)
    elif key == "delta":
        reading.memory.setdefault("deltas", set()).add(choice.index)


def _media(reading: Reading, choice: Choice, delta: dict[str, Any], read: int) -> None:
    """Sound and pictures are output, with the words that are spoken for their text."""
    audio = delta.get("audio")
    if isinstance(audio, dict) and isinstance(audio.get("transcript"), str) and audio["transcript"]:
        reading.output(choice, CONTENT, audio["transcript"], read)
    elif (isinstance(audio, dict) and audio.get("data")) or delta.get("images"):
        reading.output(choice, CONTENT, "", read)
        reading.plain = None


def _nature(reading: Reading, details: Any) -> None:
    """What typed parts say of the reasoning beside them: a summary of it, or it is sealed (OpenRouter)."""
    kinds = (
        {str(part.get("type")) for part in details if isinstance(part, dict)} if isinstance(details, list) else set()
    )
    reading.summarised = reading.summarised or "reasoning.summary" in kinds
    reading.sealed = reading.sealed or "reasoning.encrypted" in kinds


def _details(reading: Reading, choice: Choice, details: Any, read: int) -> None:
    """Reasoning in typed parts beside the content (OpenRouter), where no plain field holds it too."""
    for part in details if isinstance(details, list) else []:
        text = (part.get("text") or part.get("summary")) if isinstance(part, dict) else None
        if isinstance(text, str) and text:
            reading.output(choice, REASONING, text, read)
            reading.reasoning_field = reading.reasoning_field or "reasoning_details"


def _parts(reading: Reading, choice: Choice, parts: list[Any], read: int) -> None:
    """Content as a list of typed parts (Mistral): thinking parts are reasoning."""
    for part in parts:
        if isinstance(part, str) and part:
            reading.output(choice, CONTENT, part, read)
        if not isinstance(part, dict):
            continue
        inner = part.get("thinking") or (part.get("summary") if part.get("type") == "reasoning" else None)  # Databricks
        if isinstance(inner, list):
            inner = "".join(str(piece.get("text") or "") for piece in inner if isinstance(piece, dict))
        if isinstance(inner, str) and inner:
            reading.output(choice, REASONING, inner, read)
            reading.reasoning_field = reading.reasoning_field or "thinking"
        text = part.get("text")
        if isinstance(text, str) and text:
            reading.output(choice, CONTENT, text, read)


def _tools(reading: Reading, choice: Choice, delta: dict[str, Any], read: int) -> None:
    """Tool calls, several of them perhaps, and the `function_call` they replaced: name and arguments are output."""
    calls = delta.get("tool_calls")
    found = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    legacy = delta.get("function_call")
    if isinstance(legacy, dict):
        found.append({"function": legacy})
    for position, call in enumerate(found):
        function = call.get("function") or call.get("custom")
        if not isinstance(function, dict):
            continue
        number = _number(reading, choice, call, position)
        for field in ("name", "arguments", "input"):
            text = function.get(field)
            if isinstance(text, dict) and text:
                text = compact(text)
            if field == "name" and call.get("id") and choice.tools.get(number, [None])[0] == text:
                continue  # told again with every delta: said once
            if isinstance(text, str) and text:
                reading.output(choice, TOOL, text, read, tool=number)


def _number(reading: Reading, choice: Choice, call: dict[str, Any], position: int) -> int:
    """Which of the choice's calls a piece belongs to: its index, or its place in its list.

    A name under another id there begins a call of its own (Gemini numbers all calls 0; others leave the number out). An id
    without a name begins none: vLLM up to 0.8 gave each piece a new one.
    """
    index, identity = call.get("index"), call.get("id")
    function = call.get("function") or call.get("custom")
    named = isinstance(function, dict) and bool(function.get("name"))
    key: int | str = index if isinstance(index, int) else f"position {position}"
    places: dict[Any, int] = reading.memory.setdefault(f"calls {choice.index}", {})
    owners: dict[int, str] = reading.memory.setdefault(f"ids {choice.index}", {})
    number = places.get(key)
    if not isinstance(index, int) and not position and not named:
        number = places.get("last", number)  # more of the call before
    if number is None:
        number = index if isinstance(index, int) and index not in choice.tools else max(choice.tools, default=-1) + 1
    if isinstance(identity, str) and identity and owners.setdefault(number, identity) != identity and named:
        number = max(choice.tools, default=-1) + 1
        owners[number] = identity
    places[key] = places["last"] = number
    return number


def tokens_told(raw: dict[str, Any]) -> int:
    """How many tokens a choice says it holds: logprobs of chat or completions shape, or token ids; 0 if it doesn't say."""
    logprobs = raw.get("logprobs")
    if isinstance(logprobs, dict):
        told = 0
        for field in ("content", "refusal", "tokens"):
            listed = logprobs.get(field)
            if isinstance(listed, list):
                told += len(listed)
        if told:
            return told
    ids = raw.get("token_ids")
    return len(ids) if isinstance(ids, list) else 0
