"""The schedule and the bodies on disk: written ahead of the clock by one process, followed by the workers.

Lives here: the two files and their reader. Must not live here: who sends what when (load.py), or a header: bodies are
spooled without one, so no key can reach the disk.

`NAME.schedule` holds blocks of rows (what was planned, and where its body is), `NAME.bodies` the bodies back to back, written
before their rows. Bodies stand apart so that they can be dropped (`--no-text`) while the plan stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from phasemeter.io import framing
from phasemeter.records.request import PlannedRequest

MAGIC = b"PHMSCH1\n"
ROWS, FINISHED = 1, 2
ROWS_PER_BLOCK = 64
BODY_BYTES_PER_BLOCK = 1 << 20
SPAN_BYTES = 1 << 18


class Row(msgspec.Struct, frozen=True, array_like=True):
    """`row` counts from 0 through the file; the body is `body_bytes` long and starts at `body_offset`."""

    row: int
    planned: PlannedRequest
    body_offset: int
    body_bytes: int


_encode = msgspec.msgpack.Encoder().encode
rows_of = msgspec.msgpack.Decoder(list[Row]).decode


class ScheduleWriter:
    """Appends planned requests with their bodies. Raises OSError when the disk is full."""

    def __init__(self, folder: Path, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._bodies = os.open(folder / f"{name}.bodies", flags, 0o644)
        self._schedule = os.open(folder / f"{name}.schedule", flags, 0o644)
        framing.append(self._schedule, MAGIC)
        self.rows = 0
        self.body_bytes = 0
        self._pending: list[Row] = []
        self._pending_bodies: list[bytes] = []
        self._pending_bytes = 0

    def add(self, planned: PlannedRequest, body: bytes) -> int:
        """Take one request; its row number. It is on disk after the next `flush` at the latest."""
        row = self.rows
        self._pending.append(Row(row, planned, self.body_bytes, len(body)))
        self._pending_bodies.append(body)
        self._pending_bytes += len(body)
        self.rows += 1
        self.body_bytes += len(body)
        if len(self._pending) >= ROWS_PER_BLOCK or self._pending_bytes >= BODY_BYTES_PER_BLOCK:
            self.flush()
        return row

    @property
    def rows_on_disk(self) -> int:
        return self.rows - len(self._pending)

    def flush(self) -> None:
        if self._pending:
            framing.append(self._bodies, b"".join(self._pending_bodies))
            framing.append(self._schedule, framing.block(ROWS, _encode(self._pending)))
            self._pending.clear()
            self._pending_bodies.clear()
            self._pending_bytes = 0

    def finish(self) -> None:
        """No more rows will come."""
        self.flush()
        framing.append(self._schedule, framing.block(FINISHED, b"."))

    def close(self) -> None:
        os.close(self._bodies)
        os.close(self._schedule)


def rows(folder: Path, name: str) -> Iterator[Row]:
    """Every row on disk, in order; a torn tail is left out."""
    path = folder / f"{name}.schedule"
    if path.exists():
        with framing.open_checked(path, MAGIC) as file:
            for kind, payload in framing.blocks(file, framing.Torn()):
                if kind == ROWS:
                    yield from framing.decoded(path, rows_of, payload)


def body(folder: Path, name: str, row: Row) -> bytes | None:
    """One request's body; None where bodies were dropped."""
    path = folder / f"{name}.bodies"
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(row.body_offset)
        return file.read(row.body_bytes)


class ScheduleFollower:
    """One worker's share of a schedule that may still grow: rows whose number is `worker` modulo `processes`."""

    def __init__(self, folder: Path, name: str, worker: int, processes: int) -> None:
        self._fd = os.open(folder / f"{name}.schedule", os.O_RDONLY | os.O_CLOEXEC)
        self._bodies = os.open(folder / f"{name}.bodies", os.O_RDONLY | os.O_CLOEXEC)
        self._at = len(MAGIC)
        self._worker, self._processes = worker, processes
        self.finished = False

    def next_block(self) -> list[tuple[Row, bytes]]:
        """The own rows of the next block with their bodies; empty when none is there (yet: see `finished`)."""
        while not self.finished:
            head = os.pread(self._fd, framing.BLOCK.size, self._at)
            if len(head) < framing.BLOCK.size:
                return []
            length, kind = framing.BLOCK.unpack(head)
            payload = os.pread(self._fd, length, self._at + framing.BLOCK.size)
            if len(payload) < length:
                return []
            self._at += framing.BLOCK.size + length
            if kind == FINISHED:
                self.finished = True
            elif kind == ROWS:
                own = [row for row in rows_of(payload) if row.row % self._processes == self._worker]
                if own:
                    return list(zip(own, self._bodies_of(own), strict=True))
        return []

    def _bodies_of(self, own: list[Row]) -> list[bytes]:
        """Small ones in one read: a system call each would be most of the cost."""
        begin, end = own[0].body_offset, own[-1].body_offset + own[-1].body_bytes
        if end - begin > SPAN_BYTES:
            return [os.pread(self._bodies, row.body_bytes, row.body_offset) for row in own]
        span = os.pread(self._bodies, end - begin, begin)
        return [span[row.body_offset - begin : row.body_offset - begin + row.body_bytes] for row in own]

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._bodies)
