"""One request of a run as a recorded exchange, its text blanked unless asked for.

Lives here: from capture to document. Must not live here: the format (exchange_file), what counts as text (blank).
"""

from __future__ import annotations

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
    "content-type", "transfer-encoding", "content-length", "cache-control", "server", "date", "connection", "x-accel-buffering",
    "server-timing", "openai-processing-ms", "x-envoy-upstream-service-time",
})  # fmt: skip


def export(target: str, with_text: bool) -> dict[str, Any]:
    """The recorded-exchange document of `RUN#REQUEST`, or of a file. Raises FileError."""
    if "#" in target and not Path(target).is_file():
        planned, capture, clock = request_of_run(target)
        asked = Asked(api=planned.api, stream=planned.stream, max_tokens=planned.output_tokens, n=planned.n)
        received = _of_capture(capture, clock.times(capture.reads, capture.send_start_ns).times_ns)
    else:
        asked, received = read_file(Path(target))
    return _document(asked, received, with_text)


def _of_capture(capture: Capture, times_ns: list[int]) -> Received:
    origin = capture.send_start_ns if capture.send_start_ns is not None else capture.due_ns
    return Received(
        reads=[read.data for read in capture.reads],
        times_ns=[max(time - origin, 0) for time in times_ns],
        close=capture.close,
        closed_ns=None if capture.closed_ns is None else max(capture.closed_ns - origin, 0),
        error=capture.error,
    )


def _document(asked: Asked, received: Received, with_text: bool) -> dict[str, Any]:
    """Body bytes without framing and content coding, split as they were read."""
    http = HttpReader() if received.status is None else HttpReader.of_head(received.status, received.headers)
    bodies = [http.feed(data) for data in received.reads]
    whole = b"".join(bodies)
    if not with_text:
        whole = blanked(whole)
    position = 0
    reads: list[bytes] = []
    times: list[int] = []
    for body, time in zip(bodies, received.times_ns, strict=True):
        if body:
            reads.append(whole[position : position + len(body)])
            times.append(time)
            position += len(body)
    headers = [(name, value) for name, value in http.headers if name in KEPT_HEADERS]
    plain = Received(
        reads=reads, times_ns=times, close=received.close, closed_ns=received.closed_ns, error=received.error
    )
    found = document(asked, http.status or 0, headers, plain)
    if http.coding is not None:
        found["notes"] = f"content-encoding {http.coding} was undone"
    return found
