"""The OpenAI API as the emulator speaks it: what a request asks for, and the bytes of an answer.

Lives here: parsing and checking of bodies, error documents, chunk framing. Must not live here: sockets, clocks, the engine.
A prompt's tokens are its words, and an answer's tokens are words of four letters, one a token: any client can count them.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_WORDS = """
able acid aged also area army away baby back ball band bank base bath bear beat
been beer bell belt best bill bird blow blue boat body bomb bond bone book boom
born boss both bowl bulk burn bush busy call calm came camp card care case cash
cast cell chat chip city club coal coat code cold come cook cool cope copy core
"""
TOKENS = tuple(f" {word}".encode() for word in _WORDS.split())


class ApiError(Exception):
    """A request that can't be served. Becomes an OpenAI-style error document."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.kind = status, message, param, kind

    def document(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What should go wrong with one answer, as the body's `emulate` or the header `X-Emulate` (JSON) ask.

    Positions count output tokens already written; durations are seconds.
    """

    error_status: int | None = None  # answer with this instead
    error_after_tokens: int | None = None  # an error event in the stream, then its end
    truncate_after_tokens: int | None = None  # close without an end
    reset: bool = False  # truncation is a reset, not a close
    stall_after_tokens: int | None = None  # nothing is written for stall_s; the engine goes on
    stall_s: float = 0.0
    delay_s: float = 0.0  # slow network: each write this much later
    bytes_per_s: float | None = None  # slow network: no faster than this
    role_early: bool = False  # the role chunk at once, not with the first token
    tokens_per_chunk: int = 1
    reasoning_tokens: int = 0  # the first this many tokens go into `reasoning_content`

    def __post_init__(self) -> None:
        if self.tokens_per_chunk < 1:
            raise ValueError("tokens_per_chunk is 1 or more")
        if self.error_status is not None and not 400 <= self.error_status <= 599:
            raise ValueError("error_status is between 400 and 599")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, checked. `max_tokens` None leaves the length to the plan."""

    chat: bool
    model: str
    prompt: tuple[Any, ...]  # one entry a token
    max_tokens: int | None
    stream: bool
    include_usage: bool
    ignore_eos: bool
    faults: Faults


def _integer(body: dict[str, Any], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ApiError(400, f"`{name}` must be an integer of {least} or more, got {value!r}", name)
    return value


def _content_words(content: Any) -> list[str]:
    if isinstance(content, str):
        return content.split()
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        return " ".join(part for part in parts if isinstance(part, str)).split()
    if content is None:
        return []
    raise ApiError(400, "`content` must be a string or a list of parts", "messages")


def _chat_prompt(body: dict[str, Any]) -> tuple[Any, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "`messages` must be a list of at least one message", "messages")
    words: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "each message needs a `role`", "messages")
        words += _content_words(message.get("content"))
    return tuple(words)


def _text_prompt(body: dict[str, Any]) -> tuple[Any, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tuple(prompt.split())
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return tuple(prompt)
    raise ApiError(400, "`prompt` must be a string or a list of token ids", "prompt")


def parse_faults(body: dict[str, Any], header: str | None, default: Faults) -> Faults:
    """Faults of the body's `emulate`, of the header, or the plan's. Raises ApiError for what isn't one."""
    asked: Any = body.get("emulate")
    if asked is None and header is not None:
        try:
            asked = json.loads(header)
        except ValueError as error:
            raise ApiError(400, f"the header X-Emulate is no JSON: {error}", "X-Emulate") from error
    if asked is None:
        return default
    try:
        return msgspec.convert(asked, Faults)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"emulate: {error}", "emulate") from error


def parse(data: bytes, *, chat: bool, models: tuple[str, ...], fault_header: str | None, default: Faults) -> Ask:
    """What the body asks for. Raises ApiError with OpenAI's status and words for what it can't be."""
    try:
        body = json.loads(data)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    model = body.get("model", models[0])
    if model not in models:
        raise ApiError(404, f"The model `{model}` does not exist.", "model", "NotFoundError")
    if _integer(body, "n", 1) not in {None, 1}:
        raise ApiError(400, "`n` must be 1: this server answers with one choice", "n")
    prompt = _chat_prompt(body) if chat else _text_prompt(body)
    if not prompt:
        raise ApiError(400, "the prompt is empty", "messages" if chat else "prompt")
    stream = body.get("stream", False)
    options = body.get("stream_options") or {}
    if not isinstance(stream, bool) or not isinstance(options, dict):
        raise ApiError(400, "`stream` must be true or false, `stream_options` an object", "stream")
    if options and not stream:
        raise ApiError(400, "`stream_options` needs `stream`: true", "stream_options")
    most = _integer(body, "max_completion_tokens", 1) or _integer(body, "max_tokens", 1)
    return Ask(
        chat=chat,
        model=model,
        prompt=prompt,
        max_tokens=most,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        ignore_eos=bool(body.get("ignore_eos")),
        faults=parse_faults(body, fault_header, default),
    )


def usage(prompt_tokens: int, output_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
    if reasoning_tokens:
        told["completion_tokens_details"] = {"reasoning_tokens": min(reasoning_tokens, output_tokens)}
    return told


def frame(payload: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


END = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


class Writer:
    """The bytes of one stream. A token's chunk is three pieces put together: nothing is encoded while a step goes out."""

    def __init__(self, ask: Ask, response_id: str, created: int) -> None:
        self.ask = ask
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self.about = {"id": response_id, "object": kind, "created": created, "model": ask.model}
        self.content = self._halves("content")
        self.reasoning = self._halves("reasoning_content")

    def _halves(self, field: str) -> tuple[bytes, bytes]:
        delta: dict[str, Any] = {"delta": {field: "\x00"}} if self.ask.chat else {"text": "\x00"}
        whole = event(self.about | {"choices": [{"index": 0, **delta, "logprobs": None, "finish_reason": None}]})
        before, _, after = whole.partition(b"\\u0000")
        return before, after

    def role(self) -> bytes:
        """The chunk that only names the assistant; completions have none."""
        if not self.ask.chat:
            return b""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return frame(event(self.about | {"choices": [choice]}))

    def tokens(self, start: int, count: int) -> bytes:
        """A chunk with tokens `start` … `start + count − 1` (split where reasoning ends)."""
        thinking = max(0, min(count, self.ask.faults.reasoning_tokens - start))
        out = b""
        for (before, after), first, many in (
            (self.reasoning, start, thinking),
            (self.content, start + thinking, count - thinking),
        ):
            if many == 1:
                out += frame(before + TOKENS[first & 63] + after)
            elif many:
                out += frame(before + b"".join(TOKENS[i & 63] for i in range(first, first + many)) + after)
        return out

    def last(self, start: int, count: int, finish: str, metrics: dict[str, float] | None = None) -> bytes:
        """The last tokens with their finish reason, usage (with `metrics` in it) where it was asked for, and the end."""
        thinking = max(0, min(count - 1, self.ask.faults.reasoning_tokens - start))
        chunk = self.tokens(start, thinking) if thinking else b""
        before, after = self.reasoning if start + count <= self.ask.faults.reasoning_tokens else self.content
        after = after.replace(b'"finish_reason":null', b'"finish_reason":"%b"' % finish.encode())
        chunk += frame(before + b"".join(TOKENS[i & 63] for i in range(start + thinking, start + count)) + after)
        if self.ask.include_usage:
            told = usage(len(self.ask.prompt), start + count, self.ask.faults.reasoning_tokens)
            timed = {"metrics": metrics} if metrics else {}
            chunk += frame(event(self.about | {"choices": [], "usage": told} | timed))
        return chunk + frame(END) + LAST_CHUNK

    def error(self, message: str) -> bytes:
        """An error inside the stream, then its end."""
        document = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
        return frame(event(document)) + frame(END) + LAST_CHUNK

    def whole(self, output_tokens: int, finish: str, metrics: dict[str, float] | None = None) -> bytes:
        """The answer to a request that didn't ask for a stream."""
        thinking = min(self.ask.faults.reasoning_tokens, output_tokens)
        words = [TOKENS[i & 63].decode() for i in range(output_tokens)]
        text = "".join(words[thinking:])
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.ask.chat:
            choice["message"] = {"role": "assistant", "content": text}
            if thinking:
                choice["message"]["reasoning_content"] = "".join(words[:thinking])
        else:
            choice["text"] = text
        kind = "chat.completion" if self.ask.chat else "text_completion"
        told = usage(len(self.ask.prompt), output_tokens, self.ask.faults.reasoning_tokens)
        timed = {"metrics": metrics} if metrics else {}
        return json.dumps(self.about | {"object": kind, "choices": [choice], "usage": told} | timed).encode()
