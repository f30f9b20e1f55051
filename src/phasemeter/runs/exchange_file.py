"""Files that hold one exchange: the recorded-exchange format (JSON), and recordings of a socket (`NAME.recv.jsonl`).

Lives here: reading and writing them. Must not live here: what the bytes say (wire/), blanking of text (blank).

Recorded exchange: `request` {api, stream, max_tokens, n}, `response` {status, headers, t_ms, cut}, `events` [[t_ms since the request was
sent, raw]], each character of raw one byte; `close` {t_ms, how}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec

from phasemeter.errors import NOT_JSON, FileError
from phasemeter.records.capture import Close
from phasemeter.wire.apis import api_at
from phasemeter.wire.exchange import Asked, Received
from phasemeter.wire.sse import BOM

CLOSES: dict[str, Close] = {how: how for how in get_args(Close)}
# parts of the words that other writers use for the ways a connection ends, the first that fits counts
CLOSE_WORDS: tuple[tuple[str, Close], ...] = (
    ("cancel", "cancelled"), ("open", "cancelled"), ("client_abort", "cancelled"), ("first_byte", "timeout_first_byte"),
    ("connect_timeout", "timeout_connect"), ("read_timeout", "timeout_idle"), ("idle", "timeout_idle"),
    ("timeout", "timeout_total"), ("refused", "refused"),
    ("unreach", "refused"), ("dns", "refused"), ("emfile", "client_resource"), ("incomplete", "eof"), ("trunc", "eof"),
    ("disconnect", "eof"), ("lost", "reset"), ("pipe", "reset"), ("drop", "reset"), ("kill", "reset"), ("goaway", "reset"),
    ("keep", "complete"), ("kept", "complete"), ("normal", "eof"), ("grace", "eof"), ("none", "eof"),
    ("reset", "reset"), ("rst", "reset"), ("abort", "reset"), ("error", "reset"), ("eof", "eof"), ("clos", "eof"),
    ("clean", "eof"), ("fin", "eof"), ("end", "eof"), ("done", "eof"),
)  # fmt: skip


# what APIs call the most output tokens asked for
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "max_new_tokens", "num_predict")


class RecordedClose(msgspec.Struct, frozen=True):
    how: str = "eof"
    t_ms: float | None = None
    error: str | None = None


class RecordedResponse(msgspec.Struct, frozen=True):
    status: int = 200
    headers: dict[str, Any] = {}
    t_ms: float | None = None  # when the head was there
    cut: bool = False  # whether the framing, undone since, named more than came


class RecordedRequest(msgspec.Struct, frozen=True):
    api: str = "openai.chat"
    stream: bool = True
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    max_new_tokens: int | None = None
    n_predict: int | None = None
    num_predict: int | None = None
    n: int | None = None
    echo: bool = False
    prompt: Any = None


class RecordedExchange(msgspec.Struct, frozen=True):
    """The recorded-exchange format; keys that it does not know are other people's notes."""

    events: list[tuple[float, str]]
    request: RecordedRequest = RecordedRequest()
    response: RecordedResponse = RecordedResponse()
    close: RecordedClose | None = None


def read_file(path: Path) -> tuple[Asked, Received]:
    """The exchange in a file of either format. Raises FileError: one line with the place and what is wrong there."""
    try:
        data = path.read_bytes().removeprefix(BOM)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    first = data.lstrip()[:1]
    if not first:
        raise FileError(f"{path}: empty: a recorded exchange is a JSON object with `events`")
    if path.name.endswith(".jsonl"):
        return _recording(path, data)
    try:
        recorded = msgspec.json.decode(data, type=RecordedExchange)
    except msgspec.ValidationError as error:
        text = str(error)
        if "required field `events`" in text:
            text = "no `events`: a recorded exchange holds [[ms since the send, bytes], …] under that key"
        raise FileError(f"{path}: {text}") from error
    except NOT_JSON as error:
        raise FileError(f"{path}: no JSON: {error}") from error
    return of_recorded(recorded, str(path))


def of_recorded(recorded: RecordedExchange, where: str) -> tuple[Asked, Received]:
    """Checks what the types can't say. Raises FileError."""
    reads: list[bytes] = []
    times: list[int] = []
    for number, (t_ms, raw) in enumerate(recorded.events):
        try:
            reads.append(raw.encode("latin-1"))
        except UnicodeEncodeError as error:
            raise FileError(
                f"{where}: events[{number}]: a character over U+00FF: each character is one byte"
            ) from error
        times.append(_ns(t_ms, f"{where}: events[{number}]"))
        if number and times[-1] < times[-2]:
            raise FileError(f"{where}: events[{number}]: {t_ms} ms is before the event ahead of it")
    request, close = recorded.request, recorded.close
    prompt = request.prompt if request.echo and isinstance(request.prompt, str) else None
    asked = Asked(
        api=request.api,
        stream=request.stream,
        max_tokens=next((found for name in LIMITS if (found := getattr(request, name) or 0) > 0), None),
        n=request.n or 1,
        echo_prompt=prompt,
    )
    closed_ns = None if close is None or close.t_ms is None else _ns(close.t_ms, f"{where}: close")
    return asked, Received(
        reads=reads,
        times_ns=times,
        close="eof" if close is None else close_of(close.how, where),
        closed_ns=closed_ns if closed_ns is not None else (times[-1] if times else None),
        error=close.error if close else None,
        status=recorded.response.status,
        headers=tuple((name, str(value)) for name, value in recorded.response.headers.items()),
        headers_ns=None if recorded.response.t_ms is None else _ns(recorded.response.t_ms, f"{where}: response"),
        cut=recorded.response.cut,
    )


def _ns(t_ms: float, where: str) -> int:
    if not 0 <= t_ms < 1e12:
        raise FileError(f"{where}: {t_ms} is no time in ms since the request was sent")
    return round(t_ms * 1e6)


def close_of(how: str, where: str) -> Close:
    """The close of that name. Raises FileError."""
    plain = how.lower().replace("-", "_").replace(" ", "_")
    word = CLOSES.get(plain) or next((close for part, close in CLOSE_WORDS if part in plain), None)
    if word is None:
        raise FileError(f"{where}: close.how `{how}` is none I know: {', '.join(sorted(CLOSES))}")
    return word


def _recording(path: Path, data: bytes) -> tuple[Asked, Received]:
    """A socket's recording: the request, then one line a read, then the end of file. The bytes are raw HTTP."""
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            lines.append(msgspec.json.decode(line, type=dict[str, Any]))
        except NOT_JSON as error:
            raise FileError(f"{path}: line {number}: {error}") from error
    if not lines or not isinstance(lines[0].get("request"), str):
        raise FileError(f"{path}: line 1: no `request`: a recording begins with the request that was sent")
    reads: list[bytes] = []
    times: list[int] = []
    for number, entry in enumerate(lines[1:], start=2):
        if "data" in entry:
            reads.append(_read_bytes(entry, f"{path}: line {number}"))
            times.append(_instant(entry, f"{path}: line {number}"))
    ended = [entry for entry in lines[1:] if entry.get("eof")]
    closed_ns = _instant(ended[0], f"{path}: the eof line") if ended else (times[-1] if times else None)
    asked = asked_of_http(lines[0]["request"], str(path))
    return asked, Received(reads=reads, times_ns=times, close="eof" if ended else None, closed_ns=closed_ns)


def _instant(entry: dict[str, Any], where: str) -> int:
    t_ns = entry.get("t_ns")
    if not isinstance(t_ns, int) or isinstance(t_ns, bool):
        raise FileError(f"{where}: no `t_ns`: the time of a read in ns since the send")
    return t_ns


def _read_bytes(entry: dict[str, Any], where: str) -> bytes:
    """The bytes of a read: its text in UTF-8, or a byte a character where its `n` says so."""
    text, count = entry["data"], entry.get("n")
    if not isinstance(text, str):
        raise FileError(f"{where}: `data` is no text")
    data = text.encode("utf-8", "surrogatepass")
    if count is not None and len(data) != count and len(text) == count and all(ord(char) < 256 for char in text):
        return text.encode("latin-1")
    return data


def asked_of_http(request: str, where: str) -> Asked:
    """What was asked for, from the bytes that were sent. Raises FileError where the path belongs to no API."""
    head, _, body = request.partition("\r\n\r\n")
    words = head.split("\r\n", 1)[0].split(" ")
    api = api_at(words[1]) if len(words) > 1 else None
    if api is None:
        raise FileError(f"{where}: {' '.join(words[:2])!r} is the path of no API I can read")
    try:
        sent = msgspec.json.decode(body.encode("utf-8", "surrogatepass")) if body else {}
    except NOT_JSON:
        sent = {}
    return asked_of_body(api, sent if isinstance(sent, dict) else {})


def asked_of_body(api: str, body: dict[str, Any]) -> Asked:
    """What a request's body asks for, as its answer has to be read."""
    inner = [
        body,
        *(body[key] for key in ("options", "parameters", "sampling_params") if isinstance(body.get(key), dict)),
    ]
    found = [source[name] for source in inner for name in LIMITS if isinstance(source.get(name), int)]
    prompt = body.get("prompt")
    n = body.get("n")
    return Asked(
        api=api,
        stream=bool(body.get("stream", api.startswith("ollama."))),
        max_tokens=found[0] if found and found[0] > 0 else None,
        n=n if isinstance(n, int) and n > 0 else 1,
        echo_prompt=prompt if body.get("echo") and isinstance(prompt, str) else None,
    )


def document(asked: Asked, received: Received) -> dict[str, Any]:
    """The recorded-exchange format of body reads (with `status`), times counted from the send (0)."""
    request: dict[str, Any] = {"api": asked.api, "stream": asked.stream}
    if asked.max_tokens is not None:
        request["max_tokens"] = asked.max_tokens
    if asked.n != 1:
        request["n"] = asked.n
    if asked.echo_prompt is not None:
        request |= {"echo": True, "prompt": asked.echo_prompt}
    events = [
        [t_ns / 1e6, data.decode("latin-1")] for t_ns, data in zip(received.times_ns, received.reads, strict=True)
    ]
    close: dict[str, Any] = {"how": received.close or "cancelled"}
    if received.closed_ns is not None:
        close["t_ms"] = received.closed_ns / 1e6
    if received.error:
        close["error"] = received.error
    response: dict[str, Any] = {"status": received.status or 0, "headers": dict(received.headers)}
    if received.headers_ns is not None:
        response["t_ms"] = received.headers_ns / 1e6
    if received.cut:
        response["cut"] = True
    return {
        "request": request,
        "response": response,
        "bytes_encoding": "latin-1: each character of an event string is one byte of the body",
        "events": events,
        "close": close,
    }
