"""Server-sent events, sans I/O: bytes in any split → events, each with the read that completed its last data line.

Lives here: the grammar of the HTML standard (section 9.2.6, "Interpreting an event stream"). Must not live here: JSON, or
what `[DONE]` means. Lenient in two ways, both for the caller to judge: an event left without its blank line at the end can
be asked for (`end`), and each data line keeps its own read, for senders that put one line end between whole documents.
"""

from __future__ import annotations

from typing import NamedTuple

from phasemeter.wire.lines import LineSplitter

BOM = b"\xef\xbb\xbf"
COLON = 58
STRANGE_BYTES = 2048  # how much of what is no event stream is kept


class SseEvent(NamedTuple):
    """`lines`: its data lines, in order; `reads`: for each, the number of the read that completed it; `name`: b"" if none."""

    name: bytes
    lines: list[bytes]
    reads: list[int]

    @property
    def data(self) -> bytes:
        return self.lines[0] if len(self.lines) == 1 else b"\n".join(self.lines)


class SseDecoder:
    """Feed it reads in order. `retry_ms` and `last_event_id` are what the stream last said of them, None if nothing."""

    __slots__ = (
        "_data", "_lines", "_name", "_read", "_reads", "_started", "comments", "last_event_id", "retry_ms", "strange",
        "strange_lines",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._data: list[bytes] = []
        self._reads: list[int] = []
        self._name = b""
        self._started = False
        self._read = 0
        self.comments = 0
        self.strange_lines = 0  # lines that are no field of the standard
        self.strange = b""  # their first bytes
        self.last_event_id: bytes | None = None
        self.retry_ms: int | None = None

    @property
    def clean(self) -> bool:
        """Whether the next byte starts a new event, past any byte order mark."""
        return self._started and self._lines.clean and not self._data and not self._name

    @property
    def pending_bytes(self) -> int:
        return self._lines.pending_bytes

    def feed(self, data: bytes, read: int) -> list[SseEvent]:
        """The events that read number `read` completes."""
        if data:
            self._read = read
        events: list[SseEvent] = []
        for line in self._lines.feed(data):
            if not self._started:
                self._started = True
                line = line.removeprefix(BOM)
            if line:
                self._field(line, read)
                continue
            if self._data:
                events.append(SseEvent(self._name, self._data, self._reads))
                self._data, self._reads = [], []
            self._name = b""  # a blank line with no data dispatches nothing
        return events

    def end(self) -> SseEvent | None:
        """The event left without its blank line (its last line perhaps without its end), if there is one."""
        rest = self._lines.rest()
        if not self._started:
            rest = rest.removeprefix(BOM)
        if rest:
            self._field(rest, self._read)
        if not self._data:
            return None
        event = SseEvent(self._name, self._data, self._reads)
        self._data, self._reads, self._name = [], [], b""
        return event

    def _field(self, line: bytes, read: int) -> None:
        if line[0] == COLON:
            self.comments += 1
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data.append(value)
            self._reads.append(read)
        elif field == b"event":
            self._name = value
        elif field == b"id":
            if b"\0" not in value:
                self.last_event_id = value
        elif field == b"retry":
            if value.isdigit() and len(value) < 19:
                self.retry_ms = int(value)
        elif field == b"error":  # no field of the standard: older llama.cpp servers report errors in it
            self._name = b"error"
            self._data.append(value)
            self._reads.append(read)
        elif field == b'{"error"':  # a server or a proxy that gives up writes its error body into the stream, bare
            self._name = b"error"
            self._data.append(line)
            self._reads.append(read)
        else:
            self.strange_lines += 1
            if len(self.strange) < STRANGE_BYTES:
                self.strange += line[:STRANGE_BYTES] + b"\n"
