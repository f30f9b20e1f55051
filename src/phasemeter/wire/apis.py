"""The APIs by name: how each is framed and who reads its documents.

Lives here: one row an API, variants as data. Must not live here: any reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from phasemeter.errors import UserError
from phasemeter.wire import (
    anthropic_messages,
    llamacpp_native,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
    sglang_generate,
    tgi,
)
from phasemeter.wire.events import Reading

Reader = Callable[[Reading, dict[str, Any], bytes, int], None]


class Api(NamedTuple):
    """`ends_with_done`: whether a stream is closed by `[DONE]` (its absence is then worth a warning).

    `mark`: "event" where only an end event makes a reply whole, "finish" where each choice's finish reason does.
    `last_word`: a pattern of the end of a read after which a stream says nothing more, whether or not its message is closed.
    """

    framing: Literal["sse", "ndjson"]
    on_event: Reader
    on_document: Reader
    ends_with_done: bool
    mark: Literal["event", "finish"]
    path: str  # where the API stands on a server: tells a recording's API from its request line
    last_word: bytes


REST = rb"[^\r\n]*\s*\Z"  # of the line, the last one of its read
DONE = rb"(?:\A|\n)data: ?\[DONE\]\s*\Z"
OLLAMA_DONE = rb'"done": ?true' + REST

APIS: Mapping[str, Api] = {
    "openai.chat": Api(
        "sse", openai_chat.on_event, openai_chat.on_document, True, "finish", "/v1/chat/completions", DONE
    ),
    "openai.completions": Api(
        "sse", openai_completions.on_event, openai_completions.on_event, True, "finish", "/v1/completions", DONE
    ),
    "openai.responses": Api(
        "sse", openai_responses.on_event, openai_responses.on_document, False, "event", "/v1/responses",
        rb'"type": ?"response\.(?:completed|incomplete|failed)"' + REST + b"|" + DONE,
    ),
    "anthropic.messages": Api(
        "sse", anthropic_messages.on_event, anthropic_messages.on_document, False, "finish", "/v1/messages",
        rb'"type": ?"message_stop"' + REST,
    ),
    "ollama.chat": Api("ndjson", ollama.on_event, ollama.on_event, False, "event", "/api/chat", OLLAMA_DONE),
    "ollama.generate": Api("ndjson", ollama.on_event, ollama.on_event, False, "event", "/api/generate", OLLAMA_DONE),
    "llamacpp.completion": Api(
        "sse", llamacpp_native.on_event, llamacpp_native.on_event, False, "event", "/completion",
        rb'"stop": ?true' + REST,
    ),
    "tgi.generate": Api(
        "sse", tgi.on_event, tgi.on_document, False, "event", "/generate_stream", rb'"generated_text": ?"' + REST
    ),
    "sglang.generate": Api(
        "sse", sglang_generate.on_event, sglang_generate.on_event, True, "finish", "/generate", DONE
    ),
}  # fmt: skip
# a read of an event stream that says nothing: comments, blank lines, the sizes of their chunks, and the head before them
HEARTBEAT = rb"(?:HTTP/1\.[01] (?s:.*?)\r\n\r\n)?(?:[0-9a-fA-F]*\r?\n|:[^\r\n]*\r?\n)*"
ALIASES = {
    "chat": "openai.chat",
    "completions": "openai.completions",
    "responses": "openai.responses",
    "openai.completion": "openai.completions",
    "messages": "anthropic.messages",
    "anthropic": "anthropic.messages",
    "ollama": "ollama.chat",
    "llamacpp": "llamacpp.completion",
    "llamacpp.native": "llamacpp.completion",
    "llama.cpp": "llamacpp.completion",
    "tgi": "tgi.generate",
    "tgi.generate_stream": "tgi.generate",
    "sglang": "sglang.generate",
}


def full_name(name: str) -> str:
    """The name in APIS for any that people type; what is unknown as it is."""
    return ALIASES.get(name, name)


def api_of(name: str) -> Api:
    """The row of that name. Raises UserError naming the ones there are."""
    found = APIS.get(full_name(name))
    if found is None:
        raise UserError(f"`{name}` is no API I can read: {', '.join(APIS)}")
    return found


def api_at(path: str) -> str | None:
    """The API that a request path leads to, by its end: `/openai/v1/chat/completions?x=1` → openai.chat."""
    bare = path.partition("?")[0].rstrip("/")
    if bare.endswith("/completions") and "chat" not in bare:
        return "openai.completions"
    tails = {row.path.removeprefix("/v1"): name for name, row in APIS.items()}
    return next((name for tail, name in tails.items() if bare.endswith(tail)), None)
