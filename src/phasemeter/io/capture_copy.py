"""A worker's capture written anew with the same times and sizes and other bytes in its reads.

Lives here: the copy, which takes the old file's place only when it is whole. Must not live here: which bytes, or why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from phasemeter.io import framing
from phasemeter.io.capture_file import CLOCKS, END, HEADER, MAGIC, Closed, Started, columns_block, encoded
from phasemeter.io.capture_reader import CaptureReader
from phasemeter.records.capture import Capture
from phasemeter.records.reads import data_of

Change = Callable[[Sequence[bytes]], Sequence[bytes]]
BLOCK_BYTES = 1 << 20


def rewrite(path: Path, change: Change) -> None:
    """Replace the bytes of each request's reads by what `change` makes of them (as many, each as long).

    Memory is bounded by the requests in flight; requests stand in the order in which they closed. Raises OSError (full disk):
    then the old file stays as it was. A torn tail is left out.
    """
    reader, beside = CaptureReader(path), path.with_name(f"{path.name}.new")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        head = b"" if reader.header is None else framing.block(HEADER, encoded(reader.header))
        framing.append(fd, MAGIC + head)
        _clocks(fd, reader)
        _requests(fd, reader, change)
        if reader.end is not None:
            framing.append(fd, framing.block(END, encoded(reader.end)))
        os.fsync(fd)
    except OSError:
        beside.unlink()
        raise
    finally:
        os.close(fd)
    os.replace(beside, path)


def _clocks(fd: int, reader: CaptureReader) -> None:
    pairs = list(reader.clock_pairs())
    if pairs:
        framing.append(fd, framing.block(CLOCKS, encoded(pairs)))


class _Block(msgspec.Struct):
    """What is gathered of the next block."""

    starts: list[Started] = msgspec.field(default_factory=list)
    numbers: list[int] = msgspec.field(default_factory=list)
    reads: list[tuple[int, int | None, bytes]] = msgspec.field(default_factory=list)
    closes: list[Closed] = msgspec.field(default_factory=list)

    def write(self, fd: int) -> None:
        framing.append(fd, columns_block(self.starts, self.numbers, self.reads, self.closes))


def _requests(fd: int, reader: CaptureReader, change: Change) -> None:
    block, gathered = _Block(), 0
    for started, capture in reader.requests():
        changed = change(data_of(capture.reads))
        block.starts.append(started)
        for read, data in zip(capture.reads, changed, strict=True):
            block.numbers.append(started.number)
            block.reads.append((read.user_ns, read.kernel_realtime_ns, data))
            gathered += len(data)
        if (closed := _closed(started.number, capture)) is not None:
            block.closes.append(closed)
        if gathered >= BLOCK_BYTES or len(block.starts) >= 1000:
            block.write(fd)
            block, gathered = _Block(), 0
    if block.starts:
        block.write(fd)


def _closed(number: int, capture: Capture) -> Closed | None:
    if capture.closed_ns is None or capture.close is None:
        return None
    return Closed(number, capture.closed_ns, capture.close, capture.error, capture.sent_ns)
