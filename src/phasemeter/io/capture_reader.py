"""A capture read back, request by request: memory is bounded by the requests in flight.

Lives here: the streaming reader. Must not live here: the format (capture_file.py), what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from phasemeter.errors import FileError
from phasemeter.io import framing
from phasemeter.io.capture_file import (
    CLOCKS,
    COLUMNS,
    END,
    HEADER,
    MAGIC,
    Columns,
    End,
    Header,
    Started,
    capture_of,
    clocks_of,
    columns_of,
    end_of,
    header_of,
)
from phasemeter.lazy import load
from phasemeter.records.capture import Capture, ClockPair
from phasemeter.records.reads import Reads

T = TypeVar("T")

TOGETHER_READS, TOGETHER_BYTES = 4096, 4 << 20  # blocks are handed out together up to so much


class CaptureReader:
    """Streams one worker's file.

    `header` and `end` are None where the file was cut before them; `torn_bytes` is what a cut left of a last block.
    `end` and `torn_bytes` are known after `requests()` ran to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.end: End | None = None
        self.torn_bytes = 0
        with framing.open_checked(path, MAGIC) as file:
            for kind, payload in framing.blocks(file, framing.Torn()):
                if kind == HEADER:
                    self.header = self._decoded(header_of, payload)
                break

    def clock_pairs(self) -> Iterator[ClockPair]:
        """Both clocks, read back to back every 100 ms."""
        with framing.open_checked(self.path, MAGIC, buffer=0) as file:
            for _, payload in framing.blocks(file, framing.Torn(), only=CLOCKS):
                yield from self._decoded(clocks_of, payload)

    def requests(self) -> Iterator[tuple[Started, Capture]]:
        """Each request as it closes; at the end those that never did, with `closed_ns` None.

        Raises FileError where the file is damaged (other than cut short).
        """
        try:
            yield from self._requests()
        except OverflowError as error:
            raise self._damaged("it holds an instant of more than 64 bits") from error
        except KeyError as unknown:
            raise self._damaged(f"request number {unknown} goes on in it, but does not begin") from unknown

    def _damaged(self, why: object) -> FileError:
        return FileError(f"{self.path}: is damaged: {why}")

    def _decoded(self, decode: Callable[[bytes], T], payload: bytes) -> T:
        return framing.decoded(self.path, decode, payload)

    def _columns(self, payload: bytes) -> Columns:
        found = self._decoded(columns_of, payload)
        if len({len(found.numbers), len(found.user_ns), len(found.kernel_realtime_ns), len(found.data)}) > 1:
            raise self._damaged("a block's columns of reads differ in length")
        return found

    def _requests(self) -> Iterator[tuple[Started, Capture]]:
        starts: dict[int, Started] = {}
        reads: dict[int, Reads] = {}
        worker = self.header.worker if self.header else 0
        hand_out = load("phasemeter.io.hand_out").hand_out
        for together in self._together():
            for started in chain.from_iterable(columns.starts for columns in together):
                starts[started.number] = started
                reads.setdefault(started.number, Reads())  # what is sent again has a second start
            hand_out(together, reads)
            for closed in chain.from_iterable(columns.closes for columns in together):
                started = starts.pop(closed.number)
                yield started, capture_of(started, reads.pop(closed.number), closed, worker)
        for number, started in starts.items():
            yield started, capture_of(started, reads[number], None, worker)

    def _together(self) -> Iterator[list[Columns]]:
        """The blocks of columns, several at a time: the more reads of a request come together, the less each costs."""
        torn, gathered, many, size = framing.Torn(), list[Columns](), 0, 0
        with framing.open_checked(self.path, MAGIC) as file:
            for kind, payload in framing.blocks(file, torn):
                if kind == COLUMNS:
                    gathered.append(self._columns(payload))
                    many, size = many + len(gathered[-1].numbers), size + len(payload)
                elif kind == END:
                    self.end = self._decoded(end_of, payload)
                if many >= TOGETHER_READS or size >= TOGETHER_BYTES:
                    yield gathered
                    gathered, many, size = [], 0, 0
        self.torn_bytes = torn.torn_bytes
        yield gathered
