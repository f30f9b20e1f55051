"""The OpenAI API as the emulator hears it: what a request asks for.

Lives here: parsing and checking of bodies, error documents. Must not live here: an answer's bytes (emulator_writer), sockets, clocks.
A prompt's tokens are its words, or the ids that it consists of.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from phasemeter.errors import NOT_JSON

MAX_CHOICES = 128


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
    n: int = 1
    logprobs: int | None = None  # how many alternatives beside each token's own; None: no logprobs at all
    continuous_usage: bool = False


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
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return tuple(prompt)
    raise ApiError(400, "`prompt` must be a string or a list of token ids, one prompt a request", "prompt")


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    """Chat asks with a boolean and counts the alternatives apart, completions ask with their number."""
    if not chat:
        return _integer(body, "logprobs", 0)
    most = _integer(body, "top_logprobs", 0) or 0
    asked = body.get("logprobs") or False
    if not isinstance(asked, bool):
        raise ApiError(400, f"`logprobs` must be true or false, got {asked!r}", "logprobs")
    if most and not asked:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true", "top_logprobs")
    if most > 20:
        raise ApiError(400, f"`top_logprobs` is 20 at most, got {most}", "top_logprobs")
    return most if asked else None


def parse_faults(body: dict[str, Any], header: str | None, default: Faults) -> Faults:
    """Faults of the body's `emulate`, of the header, or the plan's. Raises ApiError for what isn't one."""
    asked: Any = body.get("emulate")
    if asked is None and header is not None:
        try:
            asked = json.loads(header)
        except NOT_JSON as error:
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
    except NOT_JSON as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    model = body.get("model", models[0])
    if model not in models:
        raise ApiError(404, f"The model `{model}` does not exist.", "model", "NotFoundError")
    choices = _integer(body, "n", 1) or 1
    if choices > MAX_CHOICES:
        raise ApiError(400, f"`n` is {MAX_CHOICES} at most, got {choices}", "n")
    prompt = _chat_prompt(body) if chat else _text_prompt(body)
    if not prompt:
        raise ApiError(400, "the prompt is empty", "messages" if chat else "prompt")
    stream = body.get("stream")
    stream = False if stream is None else stream  # null is the default, as in OpenAI's
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
        n=choices,
        logprobs=_logprobs(body, chat=chat),
        continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
    )
