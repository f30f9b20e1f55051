"""One request of a run as a recorded exchange, its text blanked unless asked for.

Lives here: from capture to document. Must not live here: the format (exchange_file), what counts as text (blank).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from phasemeter.records.capture import Capture
from phasemeter.runs.blank import blanked
from phasemeter.runs.exchange_file import document, read_file
from phasemeter.runs.inspect import request_of_run
from phasemeter.wire.exchange import Asked, Received
from phasemeter.wire.http_body import HttpReader

# headers that say nothing about who asked
KEPT_HEADERS = frozenset({
    "content-type", "content-encoding",
    "transfer-encoding", "content-length", "cache-control", "server", "date", "connection", "x-accel-buffering",
    "server-timing", "openai-processing-ms", "x-envoy-upstream-service-time",
})  # fmt: skip


def export(target: str, with_text: bool) -> dict[str, Any]:
    """The recorded-exchange document of `RUN#REQUEST`, or of a file. Raises FileError."""
    if "#" in target and not Path(target).is_file():
        found = request_of_run(target)
        planned, capture = found.planned, found.capture
        asked = Asked(
            api=planned.api, stream=planned.stream, max_tokens=planned.output_tokens, n=planned.n,
            echo_prompt=found.echo_prompt if with_text else None,
        )  # fmt: skip
        received = _of_capture(capture, found.clock.times(capture.reads, capture.send_start_ns).times_ns)
    else:
        asked, received = read_file(Path(target))
    return recorded(asked, received, with_text)


def _of_capture(capture: Capture, times_ns: list[int]) -> Received:
    origin = capture.send_start_ns if capture.send_start_ns is not None else capture.due_ns
    return Received(
        reads=[read.data for read in capture.reads],
        times_ns=[max(time - origin, 0) for time in times_ns],
        close=capture.close,
        closed_ns=None if capture.closed_ns is None else max(capture.closed_ns - origin, 0),
        error=capture.error,
    )


def recorded(asked: Asked, received: Received, with_text: bool) -> dict[str, Any]:
    """Body bytes without framing, split as they were read; a coding that was undone to find the text is put on again."""
    http = (
        HttpReader() if received.status is None else HttpReader.of_head(received.status, received.headers, received.cut)
    )
    coder: _Coder | None = None
    headers_ns = received.headers_ns
    bodies: list[bytes] = []
    opened: int | None = None  # the read with the coding's first bytes
    broken: int | None = None  # the one that broke it
    for number, (data, time) in enumerate(zip(received.reads, received.times_ns, strict=True)):
        bodies.append(http.feed(data))
        if headers_ns is None and received.status is None and (http.status or 0) >= 200:
            headers_ns = time
        opened = number if opened is None and http.undecoded else opened
        broken = number if broken is None and http.coding_broken else broken
    whole = b"".join(bodies) if with_text else blanked(b"".join(bodies))
    if http.coding in CODINGS:
        coder = _Coder(http.coding)
    position, reads, times = 0, [], []
    for number, (body, time) in enumerate(zip(bodies, received.times_ns, strict=True)):
        piece = whole[position : position + len(body)]
        position += len(body)
        if coder is not None:
            last = position == len(whole) and not http.undecoded
            piece = coder.coded(piece, opens=number == opened, damaged=number == broken, last=last)
        if piece:
            reads.append(piece)
            times.append(time)
    plain = Received(
        reads=reads, times_ns=times, close=received.close, closed_ns=received.closed_ns, error=received.error,
        status=http.status, headers_ns=headers_ns, cut=http.framed and not http.complete,
        headers=tuple((name, value) for name, value in http.headers if name in KEPT_HEADERS),
    )  # fmt: skip
    found = document(asked, plain)
    if http.error is not None and not http.coding_broken:
        found["notes"] = f"the framing was damaged, which these events don't show: {http.error}"
    elif coder is not None:
        found["notes"] = f"content-encoding {http.coding} was undone and done again, read by read: sizes differ"
    return found


CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}
DAMAGE = b"\x07"  # after a flush: the head of a block of the type that does not exist (RFC 1951 section 3.2.3)


class _Coder:
    """Compresses so that each piece can be undone as soon as it came."""

    def __init__(self, coding: str) -> None:
        self._zlib = zlib.compressobj(wbits=CODINGS[coding])
        self._ended = False

    def coded(self, piece: bytes, *, opens: bool, damaged: bool, last: bool) -> bytes:
        """`opens`: the coding begins here, with text or without. `damaged`: what comes here can't be undone. `last`: it ends."""
        if self._ended or not (piece or opens or damaged):
            return b""
        out = self._zlib.compress(piece) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
        self._ended = damaged or last
        if damaged:
            return out + DAMAGE
        return out + self._zlib.flush() if last else out
