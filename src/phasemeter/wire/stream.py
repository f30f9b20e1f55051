"""Body bytes, read by read → what they say: sniffs the form, decodes, hands each document to its API's reader.

Lives here: the driver over one response, with its fast path, and leniency towards bent streams. Must not live here: the
grammar of a form (sse, ndjson, http_body), the words of an API, times, or whether the request succeeded (outcome).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from phasemeter.wire.apis import Api
from phasemeter.wire.events import Reading, Told, complaining, complaint, reported_error, usage_of
from phasemeter.wire.follow import Follower
from phasemeter.wire.http_body import HttpReader
from phasemeter.wire.lines import LineSplitter
from phasemeter.wire.ndjson import NdjsonDecoder
from phasemeter.wire.sse import BOM, SseDecoder, SseEvent

LINE_LIMIT = 64 * 1024 * 1024
FIRST_BYTES = 200
DONE_WORDS = (b"[DONE]", b'"[DONE]"')
HEARTBEATS = (b"ping", b"heartbeat", b"keepalive", b"keep-alive", b"keep_alive")  # event names

BROKEN_ERROR = re.compile(r"""\s*\{\s*['"]error['"]\s*:""")  # written as Python writes it, or cut: no JSON, but clear
PREFIXES = re.compile(rb"^(?:data:[ \t]*)+")

_decode = msgspec.json.Decoder().decode
_NOT_JSON = object()
NOTHING = Told()


def parse(data: bytes) -> Any:
    """A JSON value, or _NOT_JSON. Half surrogates are let through (`mended` joins them over chunks)."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        return _NOT_JSON
    if b"\\u" not in data and b"NaN" not in data and b"Infinity" not in data:
        return _NOT_JSON
    try:
        return json.loads(data.decode(), parse_constant=_nothing)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _nothing(name: str) -> None:
    """NaN and Infinity (Python servers write them) are no numbers: absent."""


class StreamReader:
    """One response. Feed it reads through `read_all`, then `end`; `reading` holds what was said."""

    def __init__(self, api: Api, http: HttpReader, reading: Reading, line_limit: int = LINE_LIMIT) -> None:
        self.api = api
        self.http = http
        self.reading = reading
        self.first_body = b""
        self.body_bytes = 0
        self.last_body_read: int | None = None
        self.headers_read: int | None = None
        self.form: str | None = None  # sse | ndjson | json, told by the first bytes
        self._line_limit = line_limit
        self._sse = SseDecoder()
        self._ndjson = NdjsonDecoder()
        self._lines = LineSplitter()
        self._kept: list[tuple[bytes, int]] = []  # lines of a JSON body, each with its read
        self._kept_bytes = 0
        self._follower = Follower(reading)
        self._last_body = b""
        self._document: bytes | None = None  # the JSON of the last event, if the read held just that one
        self.stopped = False

    @property
    def fast_events(self) -> int:
        """How many events were recognised instead of read."""
        return self._follower.events

    @property
    def strange(self) -> bytes:
        """What stood in an event stream in lines that are no field of the standard: its beginning."""
        return self._sse.strange

    def read_all(self, reads: Sequence[bytes], fast: bool = True) -> None:
        """Reads them in order; `fast` False reads every event in full (the reference that tests hold the fast path to)."""
        reading, follower = self.reading, self._follower
        clean = False
        count = len(reads)
        number = 0
        while number < count and not self.stopped:
            if clean and follower.ready:
                begun, number = number, follower.follow(reads, number)
                if number > begun:
                    self.last_body_read = number - 1
                if number == count:
                    break
            data = reads[number]
            was_clean = clean and fast
            self._slow(data, number)
            clean = fast and self._is_clean()
            if was_clean and clean and reading.plain is not None and self._document is not None:
                follower.learn(data, self._last_body, self._document)
            number += 1

    def _is_clean(self) -> bool:
        reading = self.reading
        if self.form != "sse" or not self._sse.clean or reading.terminal_read is not None:
            return False
        if reading.done_read is not None or reading.error is not None or self.http.error is not None:
            return False
        if reading.complaint is not None:
            return False
        return self.http.at_chunk or self.http.plain

    def _slow(self, data: bytes, number: int) -> None:
        http = self.http
        body = http.feed(data)
        if self.headers_read is None and http.status is not None and http.status >= 200:
            self.headers_read = number
        self._document = None
        self.reading.plain = None
        if not body:
            return
        self._last_body = body
        self.body_bytes += len(body)
        self.last_body_read = number
        if len(self.first_body) < FIRST_BYTES:
            self.first_body += body[: FIRST_BYTES - len(self.first_body)]
        if self.form is None:
            self.form = self._sniff()
        if self.form == "sse":
            self._feed_sse(body, number)
        elif self.form == "ndjson":
            self._feed_ndjson(body, number)
        elif self.form == "json":
            self._feed_json(body, number)
        else:
            self._kept.append((body, number))

    def _sniff(self) -> str | None:
        """The form of the body by its first byte that is no white space; None while there is none.

        Event streams cannot start with a brace, JSON cannot start with a field name: what the server says it sends is
        not needed, and a stream asked for may come as one document, or the other way round.
        """
        start = self.first_body
        if BOM.startswith(start[:3]) and len(start) < 3:
            return None
        start = start.removeprefix(BOM).lstrip(b" \t\r\n")
        if not start:
            return None
        if self.api.framing == "ndjson" and not start.startswith((b"data:", b"event:", b":")):
            form = "ndjson"
        else:
            form = "json" if start[:1] in (b"{", b"[") else "sse"
        held, self._kept = self._kept, []
        self.form = form
        for body, number in held:
            if form == "sse":
                self._feed_sse(body, number)
            elif form == "ndjson":
                self._feed_ndjson(body, number)
            else:
                self._feed_json(body, number)
        return form

    def _feed_sse(self, body: bytes, number: int) -> None:
        events = self._sse.feed(body, number)
        for event in events:
            self._sse_event(event)
        if len(events) != 1 or events[0].reads[-1] != number:
            self._document = None
        if self._sse.pending_bytes > self._line_limit:
            self._stop(f"a line of the stream is longer than {self._line_limit} bytes")

    def _feed_ndjson(self, body: bytes, number: int) -> None:
        for line, read in self._ndjson.feed(body, number):
            self._line(line, read)
        if self._ndjson.pending_bytes > self._line_limit:
            self._stop(f"a line of the stream is longer than {self._line_limit} bytes")

    def _feed_json(self, body: bytes, number: int) -> None:
        self._kept.extend((line, number) for line in self._lines.feed(body))
        self._kept_bytes += len(body)
        if self._kept_bytes > self._line_limit:
            self._stop(f"the answer is longer than {self._line_limit} bytes")

    def _stop(self, why: str) -> None:
        self.stopped = True
        self.reading.fail("too_large", why)

    def _line(self, line: bytes, read: int) -> None:
        document = parse(line)
        if document is _NOT_JSON:
            self._kept.append((line, read))
        self._give(document, b"", read)

    def _sse_event(self, event: SseEvent) -> None:
        data = event.data
        if self._done(data, event.reads[-1]) or not data.strip():
            return
        document = parse(data)
        if document is _NOT_JSON and data.startswith(b"data:"):  # a gateway framed what was framed already
            self.reading.warnings.add("repeated_data_prefix")
            self._sse_event(SseEvent(event.name, [PREFIXES.sub(b"", line) for line in event.lines], event.reads))
            return
        if document is not _NOT_JSON:
            self._document = data
            self._give(document, event.name, event.reads[-1])
            return
        if len(event.lines) > 1:
            parts = [parse(line) for line in event.lines if line.strip() not in (b"[DONE]", b"")]
            if _NOT_JSON not in parts:
                self.reading.warnings.add("missing_blank_line")
                for line, read in zip(event.lines, event.reads, strict=True):
                    if line.strip() and not self._done(line, read):
                        self._give(parse(line), event.name, read)
                return
        self._unreadable(data, event)

    def _unreadable(self, data: bytes, event: SseEvent) -> None:
        text = data.decode("utf-8", "replace")
        if event.name == b"error" or BROKEN_ERROR.match(text):
            self.reading.data_events += 1
            self.reading.fail("server_error_in_stream", text)
            return
        if event.name in HEARTBEATS or data.strip(b" \t[]:.").lower() in HEARTBEATS:
            return
        mended = parse(text.encode())
        if mended is not _NOT_JSON and "\ufffd" in text:
            self.reading.warnings.add("invalid_utf8")
        self._give(mended, event.name, event.reads[-1])
        if mended is _NOT_JSON and not text.lstrip().startswith("{"):
            self.reading.complaint = complaining(text)

    def _done(self, data: bytes, read: int) -> bool:
        if data.strip() not in DONE_WORDS:
            return False
        if self.reading.done_read is None:
            self.reading.done_read = read
        return True

    def _give(self, document: Any, name: bytes, read: int, reader: Callable[..., None] | None = None) -> None:
        """Hands one JSON value to the API's reader; what is no object carries nothing (llama.cpp sends `data: null`)."""
        reading = self.reading
        if document is _NOT_JSON:
            reading.unreadable += 1
            return
        if isinstance(document, list) and len(document) == 1:  # TGI answers a batch of one as a list
            document = document[0]
        if not isinstance(document, dict):
            reading.complaint = complaining(document) if isinstance(document, str) else None
            return
        if reading.done_read is not None:
            self._after_done(document, read)
            return
        reading.data_events += 1
        reading.plain = None
        reading.complaint = complaint(document)
        reading.told = NOTHING
        if reading.first_chunk_read is None:
            reading.first_chunk_read = read
        (reader or self.api.on_event)(reading, document, name, read)

    def _after_done(self, document: dict[str, Any], read: int) -> None:
        """Nothing after `[DONE]` is output; engines put times there (TensorRT-LLM), a late count is better than none."""
        self.reading.keep_timings(document)
        known = self.reading.usage
        if isinstance(document.get("usage"), dict) and not (known and known.completion_tokens):
            self.reading.count(usage_of(document["usage"]), read, None)
            self.reading.warnings.add("data_after_done")
        if document.get("choices"):
            self.reading.warnings.add("data_after_done")

    def end(self) -> None:
        """No more reads: what was left without its end is read if it is whole."""
        if self.form == "sse":
            self._end_sse()
        elif self.form == "ndjson":
            self._end_ndjson()
        elif self.form == "json":
            self._end_json()

    def _end_sse(self) -> None:
        left = self._sse.end()
        self._strange_error()
        if left is None or self.stopped:
            return
        whole = [line for line in left.lines if line.strip() == b"[DONE]" or parse(line) is not _NOT_JSON]
        if parse(left.data) is _NOT_JSON and not whole:
            if BROKEN_ERROR.match(left.data.decode("utf-8", "replace")):
                self._unreadable(left.data, left)
            return  # cut in the middle: what there was of it is no event
        if len(whole) < len(left.lines) and parse(left.data) is _NOT_JSON:
            kept = [(line, read) for line, read in zip(left.lines, left.reads, strict=True) if line in whole]
            left = SseEvent(left.name, [line for line, _ in kept], [read for _, read in kept])
        self.reading.warnings.add("unterminated_last_event")
        self._sse_event(left)

    def _strange_error(self) -> None:
        """A server or proxy that gives up may write its error body between the events, over several lines."""
        document = parse(self._sse.strange) if self._sse.strange.lstrip().startswith(b"{") else None
        problem = reported_error(document) if isinstance(document, dict) else None
        if problem is not None:
            self.reading.data_events += 1
            self.reading.fail("server_error_in_stream", problem)

    def _end_ndjson(self) -> None:
        left = self._ndjson.end()
        if left is not None and not self.stopped:
            document = parse(left[0])
            if document is not _NOT_JSON:
                self._give(document, b"", left[1])
            else:
                self._kept.append(left)
        if self._kept and not self.reading.data_events:  # one document over several lines
            whole = parse(b"\n".join(line for line, _ in self._kept))
            if whole is not _NOT_JSON:
                self.reading.unreadable = 0
                self._give(whole, b"", self._kept[-1][1])

    def _end_json(self) -> None:
        rest = self._lines.rest()
        if rest:
            self._kept.append((rest, self.last_body_read or 0))
        if not self._kept or self.stopped:
            return
        lines = [(line.removeprefix(BOM), read) for line, read in self._kept if line.strip()]
        document = parse(b"\n".join(line for line, _ in lines))
        if document is not _NOT_JSON:
            read = self.last_body_read or 0
            self._give(document, b"", read, self.api.on_document)
            return
        documents = [parse(line) for line, _ in lines]
        if len(documents) > 1 and _NOT_JSON not in documents[:-1]:  # an event stream whose lines lack `data:`
            self.reading.warnings.add("missing_data_field")
            for found, (line, read) in zip(documents, lines, strict=True):
                if not self._done(line, read):
                    self._give(found, b"", read)
            return
        self.reading.unreadable += 1
