"""A loopback model server for tests of whole runs: it speaks each API, and its faults are written down by the test.

It lives in a thread with an event loop of its own; `requests` keeps what it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
WORDS = {200: "OK", 302: "Found", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 422: "Unprocessable",
         429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip

HANGS = 0  # a page's status: it is never answered
PATIENCE_S = 60.0  # an end for what never should take so long, however busy the machine is
QUIET_TURNS = 3  # of the loop, without a new connection: then the last one is closed


@dataclass
class Request:
    """One request for text. `number` counts those that belong to the run itself: they alone carry a traceparent."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    number: int | None
    raw: bytes

    @property
    def tokens(self) -> int:
        body = self.body
        nested = [body.get("parameters"), body.get("options"), body.get("sampling_params")]
        for where in [body, *[each for each in nested if isinstance(each, dict)]]:
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "max_new_tokens",
                         "num_predict"):  # fmt: skip
                if isinstance(where.get(name), int):
                    return int(where[name])
        return 4

    @property
    def words(self) -> int:
        """How many words were asked, whatever the API calls them."""
        body = self.body
        told = body.get("prompt", body.get("inputs", body.get("text", body.get("input"))))
        if isinstance(told, list) and told and isinstance(told[0], int):
            return len(told)
        if body.get("input_ids"):
            return len(body["input_ids"])
        messages = body.get("messages") or (told if isinstance(told, list) else [{"content": told or ""}])
        return sum(len(str(message["content"]).split()) for message in messages)


def words_of(request: Request) -> list[str]:
    return [f" w{number}" for number in range(request.tokens)]


@dataclass
class Behaviour:
    """What the server does. `fault(request)` names one of FAULTS, or a (status, body) to answer with."""

    models: tuple[str, ...] | None = ("tiny",)
    ttft_s: float = 0.0
    gap_s: float = 0.0
    usage: bool = True
    refuses: dict[str, int] = field(default_factory=dict)
    fault: Callable[[Request], str | tuple[int, str] | None] = lambda request: None
    key: str | None = None
    keep_alive: bool = True
    answer: Callable[[Request], list[str]] = words_of
    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    template_tokens: int = 5
    under: str = ""  # a path before every API's own, where text is answered too


class Served:
    """A running server: its port and what it was asked. `measured` are the run's own requests."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.port = 0
        self.scheme = "http"
        self.requests: list[Request] = []
        self.paths: list[str] = []
        self.numbers: dict[str, int] = {}
        self.connections = 0
        self.heads: list[bytes] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def measured(self) -> list[Request]:
        return [request for request in self.requests if request.number is not None]

    @property
    def in_order(self) -> list[Request]:
        """The run's own requests as they were planned: on a busy machine two that are due close together may come in turned."""
        return sorted(self.measured, key=lambda request: int(request.headers["x-request-id"].rpartition("-r")[2]))


# ---- what each API's answer looks like


def _sse(document: Any, event: str | None = None) -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(document)}\n\n".encode()


def _line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _openai(request: Request, words: list[str], served: Served) -> list[bytes]:
    chat = request.path.endswith("/chat/completions")
    base = {"id": f"c{request.number}", "model": request.body.get("model"), "object": "chunk"}
    parts = [
        _sse(
            base
            | {
                "choices": [
                    {"index": 0, "finish_reason": None} | ({"delta": {"content": word}} if chat else {"text": word})
                ]
            }
        )
        for word in words
    ]
    parts.append(
        _sse(base | {"choices": [{"index": 0, "finish_reason": "length"} | ({"delta": {}} if chat else {"text": ""})]})
    )
    if served.behaviour.usage and (request.body.get("stream_options") or {}).get("include_usage"):
        parts.append(_sse(base | {"choices": [], "usage": _usage(request, words, served)}))
    return [*parts, b"data: [DONE]\n\n"]


def _usage(request: Request, words: list[str], served: Served) -> dict[str, int]:
    asked = request.words + served.behaviour.template_tokens
    return {"prompt_tokens": asked, "completion_tokens": len(words), "total_tokens": asked + len(words)}


def _anthropic(request: Request, words: list[str], served: Served) -> list[bytes]:
    told = _usage(request, words, served)
    start = {"type": "message", "id": "m", "role": "assistant", "content": [], "model": request.body.get("model"),
             "usage": {"input_tokens": told["prompt_tokens"], "output_tokens": 1}}  # fmt: skip
    return [
        _sse({"type": "message_start", "message": start}, "message_start"),
        _sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, "content_block_start"),
        *[_sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}, "content_block_delta")
          for word in words],
        _sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
        _sse({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": len(words)}},
             "message_delta"),
        _sse({"type": "message_stop"}, "message_stop"),
    ]  # fmt: skip


def _responses(request: Request, words: list[str], served: Served) -> list[bytes]:
    told = _usage(request, words, served)
    usage = {"input_tokens": told["prompt_tokens"], "output_tokens": len(words), "total_tokens": told["total_tokens"]}
    whole = {"id": "r", "object": "response", "model": request.body.get("model"), "output": []}
    return [
        _sse({"type": "response.created", "response": whole | {"status": "in_progress"}}, "response.created"),
        *[_sse({"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "delta": word},
               "response.output_text.delta") for word in words],
        _sse({"type": "response.completed", "response": whole | {"status": "completed", "usage": usage}}, "response.completed"),
    ]  # fmt: skip


def _ollama(request: Request, words: list[str], served: Served) -> list[bytes]:
    chat = request.path.endswith("/api/chat")

    def said(word: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": word}} if chat else {"response": word}

    told = _usage(request, words, served)
    end = {"done": True, "done_reason": "length", "prompt_eval_count": told["prompt_tokens"], "eval_count": len(words)}
    return [
        *[_line({"model": "m", "done": False} | said(word)) for word in words],
        _line({"model": "m"} | said("") | end),
    ]


def _llamacpp(request: Request, words: list[str], served: Served) -> list[bytes]:
    told = _usage(request, words, served)
    end = {"content": "", "stop": True, "tokens_predicted": len(words), "tokens_evaluated": told["prompt_tokens"]}
    return [*[_sse({"content": word, "stop": False}) for word in words], _sse(end | {"stop_type": "limit"})]


def _tgi(request: Request, words: list[str], served: Served) -> list[bytes]:
    def event(at: int, word: str) -> dict[str, Any]:
        last = at == len(words) - 1
        details = {"finish_reason": "length", "generated_tokens": len(words), "input_length": request.words}
        return {"index": at + 1, "token": {"id": at, "text": word, "logprob": -0.1, "special": False},
                "generated_text": "".join(words) if last else None, "details": details if last else None}  # fmt: skip

    return [_sse(event(at, word)) for at, word in enumerate(words)]


def _sglang(request: Request, words: list[str], served: Served) -> list[bytes]:
    told = _usage(request, words, served)

    def event(upto: int) -> dict[str, Any]:
        last = {"type": "length", "length": len(words)} if upto == len(words) else None
        meta = {"id": "s", "prompt_tokens": told["prompt_tokens"], "completion_tokens": upto, "finish_reason": last}
        return {"text": "".join(words[:upto]), "meta_info": meta}

    return [*[_sse(event(upto)) for upto in range(1, len(words) + 1)], b"data: [DONE]\n\n"]


Build = Callable[[Request, list[str], Served], list[bytes]]
SPOKEN: dict[str, tuple[Build, str]] = {
    "/v1/chat/completions": (_openai, EVENTS), "/v1/completions": (_openai, EVENTS), "/v1/messages": (_anthropic, EVENTS),
    "/v1/responses": (_responses, EVENTS), "/api/chat": (_ollama, LINES), "/api/generate": (_ollama, LINES),
    "/completion": (_llamacpp, EVENTS), "/generate_stream": (_tgi, EVENTS), "/generate": (_sglang, EVENTS),
}  # fmt: skip


# ---- the connection


class _Line:
    def __init__(self, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served, self.reader, self.writer = served, reader, writer

    async def serve(self) -> None:
        while True:
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            self.served.heads.append(head)
            first, *lines = head.decode("latin-1").split("\r\n")
            method, path, _ = first.split(" ", 2)
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
            raw = await self.reader.readexactly(int(headers.get("content-length", 0)))
            self.served.paths.append(path)
            path = path.partition("?")[0]
            if method == "GET":
                await self._page(path, headers)
            elif not await self._text(path, headers, raw):
                return
            if not self.served.behaviour.keep_alive:
                return

    async def _page(self, path: str, headers: Mapping[str, str]) -> None:
        behaviour = self.served.behaviour
        if behaviour.key is not None and not self._allowed(headers):
            await self._say(401, json.dumps({"error": {"message": "no such key"}}))
        elif path in behaviour.pages and behaviour.pages[path][0] == HANGS:
            await self.reader.read(1)  # until the other side gives up
        elif path in behaviour.pages:
            await self._say(*behaviour.pages[path])
        elif path.endswith("/models") and behaviour.models is not None:
            await self._say(200, json.dumps({"object": "list", "data": [{"id": name} for name in behaviour.models]}))
        elif path == "/api/tags" and behaviour.models is not None:
            await self._say(200, json.dumps({"models": [{"name": name} for name in behaviour.models]}))
        else:
            await self._say(404, json.dumps({"error": {"message": f"no page {path}"}}))

    def _allowed(self, headers: Mapping[str, str]) -> bool:
        key = self.served.behaviour.key
        return key in {headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key")}

    async def _text(self, path: str, headers: Mapping[str, str], raw: bytes) -> bool:
        served, behaviour = self.served, self.served.behaviour
        spoken = SPOKEN.get(path.removeprefix(self.served.behaviour.under))
        if spoken is None:
            await self._say(404, json.dumps({"detail": "Not Found"}))
            return True
        body = json.loads(raw)
        own = headers.get("traceparent")  # a re-send has the number of what it repeats
        number = None if own is None else served.numbers.setdefault(own, len(served.numbers))
        request = Request(path, headers, body, number, raw)
        served.requests.append(request)
        refused = next((name for name in behaviour.refuses if name in body), None)
        if behaviour.key is not None and not self._allowed(headers):
            await self._say(401, json.dumps({"error": {"message": "no such key"}}))
            return True
        if refused is not None:
            await self._say(behaviour.refuses[refused], json.dumps({"error": {"message": f"Unknown field: {refused}"}}))
            return True
        if behaviour.models is not None and body.get("model", behaviour.models[0]) not in behaviour.models:
            await self._say(404, json.dumps({"error": {"message": f"The model `{body['model']}` does not exist."}}))
            return True
        fault = behaviour.fault(request)
        if isinstance(fault, tuple):
            await self._say(*fault)
            return True
        build, kind = spoken
        words = behaviour.answer(request)
        if body.get("stream") is False:
            await asyncio.sleep(behaviour.ttft_s)
            await self._say(200, json.dumps(_whole(request, words, served)))
            return True
        return await self._stream(build(request, words, served), kind, fault)

    async def _stream(self, parts: list[bytes], kind: str, fault: str | None) -> bool:
        """Whether the connection goes on."""
        behaviour = self.served.behaviour
        if fault == "silence":
            await asyncio.sleep(60)
        if fault == "close":
            return False
        if fault == "reset":
            self._reset()
            return False
        if fault == "not-http":
            self.writer.write(b"SSH-2.0-nothing\r\n\r\n")
            return False
        await asyncio.sleep(behaviour.ttft_s)
        self.writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        half = len(parts) // 2
        for at, part in enumerate(parts):
            if at == half and fault in {"truncate", "stall", "reset-late"}:
                await self.writer.drain()
                await asyncio.sleep(60 if fault == "stall" else 0.01)
                if fault == "reset-late":
                    self._reset()
                return False
            self.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await self.writer.drain()
            if behaviour.gap_s:
                await asyncio.sleep(behaviour.gap_s)
        if fault == "left-open":
            await asyncio.sleep(60)
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        return True

    def _reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
        self.writer.transport.abort()

    async def _say(self, status: int, text: str) -> None:
        kind = "text/html" if text.startswith("<") else JSON
        more = "Location: /elsewhere\r\n" if status == 302 else ""
        close = "" if self.served.behaviour.keep_alive else "Connection: close\r\n"
        body = text.encode()
        head = f"HTTP/1.1 {status} {WORDS.get(status, 'Odd')}\r\nContent-Type: {kind}\r\n{more}{close}"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self.writer.drain()


def _whole(request: Request, words: list[str], served: Served) -> dict[str, Any]:
    text = "".join(words)
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": text}, "text": text}
    return {"id": "c", "object": "whole", "choices": [choice], "usage": _usage(request, words, served)}


@contextmanager
def served(
    behaviour: Behaviour | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Served]:
    """A server on a free port for the time of the block."""
    server = Served(behaviour or Behaviour())
    ready, loop = threading.Event(), asyncio.new_event_loop()

    lines: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Line(server, reader, writer).serve()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        lines[loop.create_task(serve(reader, writer))] = writer

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(accept, host, 0, backlog=1024, ssl=tls, limit=1 << 24)

    async def end(listener: asyncio.Server) -> None:
        """Closes every connection, also those that were being accepted as the test ended."""
        listener.close()
        quiet = 0
        while quiet < QUIET_TURNS:
            accepting = asyncio.all_tasks() - lines.keys() - {asyncio.current_task()}
            ended = dict(lines)
            for task in ended:
                task.cancel()
            await asyncio.gather(*accepting, *ended, return_exceptions=True)
            for task, writer in ended.items():
                writer.close()  # a task that is called off before its first step closes nothing
                del lines[task]
            await asyncio.sleep(0)  # a closed transport lets its socket go at the next turn
            quiet = 0 if accepting or ended else quiet + 1

    def live() -> None:
        asyncio.set_event_loop(loop)
        listener = loop.run_until_complete(listen())
        server.port = listener.sockets[0].getsockname()[1]
        ready.set()
        loop.run_forever()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(end(listener))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S), "the server did not come to life"
    server.scheme = "https" if tls else "http"
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
