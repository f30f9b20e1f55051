"""The capture on disk: one append-only file a worker, readable after `kill -9` up to the last whole block.

Lives here: the format, its writer (called between polls) and its streaming reader. Must not live here: what the bytes
mean, or which requests were planned (run_directory.py joins both).

A block holds what came since the last one, in columns: clock pairs, starts, reads (numbers and `Read`s in two lists of
equal length: decoding them in C is several times faster than a record at a time), closes. Within a block a request's
start precedes its reads and these its close, so columns lose no order that matters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from phasemeter.errors import FileError
from phasemeter.io import framing
from phasemeter.io.behind import Behind
from phasemeter.records.capture import Capture, ClockPair, Close, Read
from phasemeter.records.reads import Reads

MAGIC = b"PHMCAP1\n"
HEADER, COLUMNS, END = 1, 2, 3
FLUSH_READS = 1000
FLUSH_BYTES = 1 << 18
FLUSH_NS = 250_000_000
MOVED_READS = 64  # of a stream in flight are moved together (see Reads)


class Header(msgspec.Struct, frozen=True):
    """Which worker of how many wrote the file, when the run started (monotonic ns), and whose stamps reads carry."""

    worker: int
    processes: int
    start_ns: int
    stamps: str  # kernel | user
    pid: int
    scheduling: str = "normal"  # real-time | normal, as the run began


class Started(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request's first write, or the news that it never came to one. `row` is its place in the schedule file it is from;
    `own` says that this is the worker's own file (later turns of conversations)."""

    number: int
    request_id: str
    row: int
    own: bool
    due_ns: int
    dns_start_ns: int | None
    dns_done_ns: int | None
    connect_start_ns: int | None
    tcp_connected_ns: int | None
    connected_ns: int | None
    send_start_ns: int | None
    sent_ns: int | None
    reused: bool
    resent: bool
    local_port: int | None
    peer: str | None
    request_bytes: int | None


class Closed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    closed_ns: int
    close: Close
    error: str | None
    sent_ns: int | None


class Columns(msgspec.Struct, array_like=True):
    clocks: list[ClockPair]
    starts: list[Started]
    numbers: list[int]
    reads: list[Read]
    closes: list[Closed]


class Clocks(msgspec.Struct, array_like=True):
    """Only the clocks of a block of columns: the rest is skipped, not built."""

    clocks: list[ClockPair]


class End(msgspec.Struct, frozen=True):
    """The worker's last word. `reason` is "done" or what ended the run before all was sent."""

    ended_ns: int
    reason: str


encoded = msgspec.msgpack.Encoder().encode
columns_of = msgspec.msgpack.Decoder(Columns).decode
_clocks = msgspec.msgpack.Decoder(Clocks).decode
header_of = msgspec.msgpack.Decoder(Header).decode
_end = msgspec.msgpack.Decoder(End).decode


class CaptureWriter:
    """Collects in memory, writes on `flush` (the sender's loop: after FLUSH_READS, FLUSH_BYTES or FLUSH_NS).

    The sender appends to `numbers`, `reads`, `starts` and `closes` directly: a call per read would cost as much as the
    append. The disk is written behind its back (behind.py). `flush` and `close` raise OSError when it is full; what is on
    disk stays readable.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.numbers: list[int] = []
        self.reads: list[tuple[int, int | None, bytes]] = []
        self.starts: list[Started] = []
        self.closes: list[Closed] = []
        self._clocks: list[tuple[int, int]] = []
        framing.append(self._fd, MAGIC + framing.block(HEADER, encoded(header)))
        self._behind = Behind(partial(framing.append, self._fd))
        self.pair_clocks()

    def pair_clocks(self) -> None:
        """Read both clocks back to back; of three tries the tightest counts."""
        best = None
        for _ in range(3):
            before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, (before + after) // 2, real)
        if best is not None:
            self._clocks.append((best[1], best[2]))

    def flush(self) -> None:
        if self.numbers or self.starts or self.closes or self._clocks:
            payload = encoded((self._clocks, self.starts, self.numbers, self.reads, self.closes))
            self._behind.put(framing.block(COLUMNS, payload))
            for gathered in (self._clocks, self.starts, self.numbers, self.reads, self.closes):
                gathered.clear()

    def close(self, reason: str) -> None:
        try:
            self.pair_clocks()
            self.flush()
            self._behind.put(framing.block(END, encoded(End(time.monotonic_ns(), reason))))
            self._behind.close()
        finally:
            os.close(self._fd)

    def abandon(self) -> None:
        """Close without another word: the disk takes no more."""
        with suppress(OSError):  # the one that led here
            self._behind.close()
        os.close(self._fd)


class CaptureReader:
    """Streams one worker's file; memory is bounded by the requests in flight.

    `header` and `end` are None where the file was cut before them; `torn_bytes` is what a cut left of a last block.
    `end` and `torn_bytes` are known after `requests()` or `clock_pairs()` ran to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.end: End | None = None
        self.torn_bytes = 0
        with framing.open_checked(path, MAGIC) as file:
            for kind, payload in framing.blocks(file, framing.Torn()):
                if kind == HEADER:
                    self.header = header_of(payload)
                break

    def _blocks(self) -> Iterator[Columns]:
        torn = framing.Torn()
        with framing.open_checked(self.path, MAGIC) as file:
            for kind, payload in framing.blocks(file, torn):
                if kind == COLUMNS:
                    yield columns_of(payload)
                elif kind == END:
                    self.end = _end(payload)
        self.torn_bytes = torn.torn_bytes

    def clock_pairs(self) -> Iterator[ClockPair]:
        with framing.open_checked(self.path, MAGIC) as file:
            for kind, payload in framing.blocks(file, framing.Torn()):
                if kind == COLUMNS:
                    yield from _clocks(payload).clocks

    def requests(self) -> Iterator[tuple[Started, Capture]]:
        """Each request as it closes; at the end those that never did, with `closed_ns` None.

        Raises FileError for an instant that no clock shows.
        """
        try:
            yield from self._requests()
        except OverflowError as error:
            raise FileError(f"{self.path}: is damaged: it holds an instant of more than 64 bits") from error

    def _requests(self) -> Iterator[tuple[Started, Capture]]:
        starts: dict[int, Started] = {}
        held: dict[int, list[Read]] = {}
        moved: dict[int, Reads] = {}
        worker = self.header.worker if self.header else 0
        for columns in self._blocks():
            for started in columns.starts:
                starts[started.number] = started
                held[started.number] = []
            for number, read in zip(columns.numbers, columns.reads, strict=True):
                held[number].append(read)
            for number in set(columns.numbers):
                if len(held[number]) >= MOVED_READS:
                    if number not in moved:
                        moved[number] = Reads()
                    moved[number].add(held[number])
                    held[number].clear()
            for closed in columns.closes:
                number, started = closed.number, starts.pop(closed.number)
                yield started, capture_of(started, _joined(moved.pop(number, None), held.pop(number)), closed, worker)
        for number, started in starts.items():
            yield started, capture_of(started, _joined(moved.get(number), held[number]), None, worker)


def _joined(moved: Reads | None, held: list[Read]) -> Sequence[Read]:
    if moved is None:
        return tuple(held)
    moved.add(held)
    return moved


def capture_of(started: Started, reads: Sequence[Read], closed: Closed | None, worker: int) -> Capture:
    """The three records of one request put together; `closed` None: it was still open when the file ends."""
    sent_ns = started.sent_ns if started.sent_ns is not None or closed is None else closed.sent_ns
    return Capture(
        request_id=started.request_id,
        worker=worker,
        due_ns=started.due_ns,
        dns_start_ns=started.dns_start_ns,
        dns_done_ns=started.dns_done_ns,
        connect_start_ns=started.connect_start_ns,
        tcp_connected_ns=started.tcp_connected_ns,
        connected_ns=started.connected_ns,
        send_start_ns=started.send_start_ns,
        sent_ns=sent_ns,
        reads=reads,
        closed_ns=closed.closed_ns if closed else None,
        close=closed.close if closed else None,
        error=closed.error if closed else None,
        reused_connection=started.reused,
        resent=started.resent,
        local_port=started.local_port,
        peer=started.peer,
        request_bytes=started.request_bytes,
    )
