"""The capture on disk: one append-only file a worker, readable after `kill -9` up to the last whole block.

Lives here: the format and its writer (called between polls). Must not live here: reading it back (capture_reader.py), what
the bytes mean, or which requests were planned (run_directory.py joins both).

A block holds what came since the last one, in columns: starts, reads (four lists of equal length: decoding them in C is
several times faster than a record at a time), closes. Within a block a request's start precedes its reads and these its
close, so columns lose no order that matters. Clock pairs have blocks of their own: they are wanted before anything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from phasemeter.io import framing
from phasemeter.io.behind import Behind
from phasemeter.records.capture import Capture, ClockPair, Close, Read

MAGIC = b"PHMCAP2\n"
HEADER, COLUMNS, END, CLOCKS = 1, 2, 3, 4
FLUSH_READS = 1000
FLUSH_BYTES = 1 << 18
FLUSH_NS = 250_000_000


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
    """Read i is of request `numbers[i]`, at `user_ns[i]` and `kernel_realtime_ns[i]` (None: no stamp), of bytes `data[i]`."""

    starts: list[Started]
    numbers: list[int]
    user_ns: list[int]
    kernel_realtime_ns: list[int | None]
    data: list[bytes]
    closes: list[Closed]


class End(msgspec.Struct, frozen=True):
    """The worker's last word. `reason` is "done" or what ended the run before all was sent."""

    ended_ns: int
    reason: str


encoded = msgspec.msgpack.Encoder().encode
columns_of = msgspec.msgpack.Decoder(Columns).decode
clocks_of = msgspec.msgpack.Decoder(list[ClockPair]).decode
header_of = msgspec.msgpack.Decoder(Header).decode
end_of = msgspec.msgpack.Decoder(End).decode


def columns_block(
    starts: Sequence[Started],
    numbers: Sequence[int],
    reads: Sequence[tuple[int, int | None, bytes]],
    closes: Sequence[Closed],
) -> bytes:
    """A block of what came: `reads[i]` is of request `numbers[i]`."""
    user_ns, kernel_ns, data = zip(*reads, strict=True) if reads else ((), (), ())
    return framing.block(COLUMNS, encoded((starts, numbers, user_ns, kernel_ns, data, closes)))


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
        if not (self.numbers or self.starts or self.closes or self._clocks):
            return
        whole = columns_block(self.starts, self.numbers, self.reads, self.closes)
        if self._clocks:
            whole = framing.block(CLOCKS, encoded(self._clocks)) + whole
        self._behind.put(whole)
        for gathered in (self._clocks, self.starts, self.numbers, self.reads, self.closes):
            gathered.clear()

    def close(self, reason: str) -> None:
        """Write all, and why the worker ended. Where that raises there is still `abandon` to do."""
        self.pair_clocks()
        self.flush()
        self._behind.put(framing.block(END, encoded(End(time.monotonic_ns(), reason))))
        self._behind.close()
        os.close(self._fd)

    def abandon(self) -> None:
        """Close without another word: the disk takes no more."""
        with suppress(OSError):  # the one that led here
            self._behind.close()
        os.close(self._fd)


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
