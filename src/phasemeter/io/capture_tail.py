"""A run's capture while it is still being written: what came since the last look, a few milliseconds at a time.

Lives here: following the files. Must not live here: what the bytes mean. The worker that writes them is not asked for anything: its
blocks are read from the page cache, and a reader that can't keep up gives up instead of asking for more time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from phasemeter.io import framing, schedule_file
from phasemeter.io.capture_file import COLUMNS, HEADER, MAGIC, Columns, Started, capture_of, columns_of, header_of
from phasemeter.records.capture import Capture, Read
from phasemeter.records.request import PlannedRequest

TOO_FAR_BYTES = 16 << 20  # behind by more than this: what is shown would be of long ago

Finished = tuple[int, PlannedRequest, Capture]  # its row in the shared schedule


class Follower:
    """The whole blocks of one growing file, each once. `behind_bytes`: what is on disk and not read yet."""

    def __init__(self, path: Path, magic: bytes) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._at = len(magic)

    @property
    def behind_bytes(self) -> int:
        return max(0, os.fstat(self._fd).st_size - self._at)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks that are there by now; a half-written one waits for the next call."""
        while True:
            head = os.pread(self._fd, framing.BLOCK.size, self._at)
            if len(head) < framing.BLOCK.size:
                return
            length, kind = framing.BLOCK.unpack(head)
            payload = os.pread(self._fd, length, self._at + framing.BLOCK.size)
            if len(payload) < length:
                return
            self._at += framing.BLOCK.size + length
            yield kind, payload

    def close(self) -> None:
        os.close(self._fd)


class CaptureTail:
    """Requests of the shared schedule as they close, of those that `keep` names; `keep(row)` may become stricter later.

    `given_up`: the files grow faster than the time allowed: nothing more is read.
    """

    def __init__(self, folder: Path, keep: Callable[[int], bool]) -> None:
        self._folder, self._keep = folder, keep
        self._files: dict[Path, Follower] = {}
        self._workers: dict[Path, int] = {}
        self._schedule: Follower | None = None
        self._planned: dict[int, PlannedRequest] = {}
        self._rows_read = 0
        self._open: dict[Path, dict[int, tuple[Started, list[Read]]]] = {}
        self.given_up = False

    def look(self, until_s: float) -> Iterator[Finished]:
        """What closed since the last look, read until `until_s` (`time.thread_time`)."""
        if self.given_up:
            return
        for path in sorted(self._folder.glob("worker-*.capture")):
            if path not in self._files:
                self._files[path], self._open[path] = Follower(path, MAGIC), {}
        for path, file in self._files.items():
            for kind, payload in file.blocks():
                if kind == HEADER:
                    self._workers[path] = header_of(payload).worker
                elif kind == COLUMNS:
                    yield from self._finished(path, columns_of(payload))
                if time.thread_time() >= until_s:
                    break
        if sum(file.behind_bytes for file in self._files.values()) > TOO_FAR_BYTES:
            self.given_up = True
            self._open.clear()
            self._planned.clear()

    def _finished(self, path: Path, columns: Columns) -> Iterator[Finished]:
        mine = self._open[path]
        for started in columns.starts:
            if not started.own and self._keep(started.row):
                mine[started.number] = (started, [])
        stamps = zip(columns.user_ns, columns.kernel_realtime_ns, columns.data, strict=True)
        for number, (user_ns, kernel_ns, data) in zip(columns.numbers, stamps, strict=True):
            if number in mine:
                mine[number][1].append(Read(user_ns, kernel_ns, data))
        for closed in columns.closes:
            found = mine.pop(closed.number, None)
            if found is not None and self._keep(found[0].row) and (planned := self._plan(found[0].row)) is not None:
                yield found[0].row, planned, capture_of(found[0], tuple(found[1]), closed, self._workers.get(path, 0))

    def _plan(self, row: int) -> PlannedRequest | None:
        if self._schedule is None:
            self._schedule = Follower(self._folder / "shared.schedule", schedule_file.MAGIC)
        if row >= self._rows_read:
            for kind, payload in self._schedule.blocks():
                if kind != schedule_file.ROWS:
                    continue
                for found in schedule_file.rows_of(payload):
                    self._rows_read = found.row + 1
                    if self._keep(found.row):
                        self._planned[found.row] = found.planned
                if row < self._rows_read:
                    break
        return self._planned.pop(row, None)

    def close(self) -> None:
        for file in (*self._files.values(), *(() if self._schedule is None else (self._schedule,))):
            file.close()
