"""The reads of one request as columns: their stamps in arrays, their bytes beside them.

Lives here: the sequence of `Read` that they are. Must not live here: what the bytes mean.
What looks at all reads of many requests takes the columns: a record for each read would take longer than reading it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from phasemeter.records.capture import Read

NO_STAMP = -(2**63)  # among kernel stamps, inside these columns only


class Reads(Sequence[Read]):
    """Reads of one request in order; `add` while it lasts."""

    __slots__ = ("data", "kernel_realtime_ns", "user_ns")

    def __init__(self) -> None:
        self.user_ns, self.kernel_realtime_ns = array("q"), array("q")  # NO_STAMP where a read has none
        self.data: list[bytes] = []

    def add(self, user_ns: bytes, kernel_realtime_ns: bytes, data: Sequence[bytes]) -> None:
        """Take some more: stamps as the machine's 64-bit integers, back to back, one of each kind for each of `data`."""
        self.user_ns.frombytes(user_ns)
        self.kernel_realtime_ns.frombytes(kernel_realtime_ns)
        self.data += data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Read]:
        return map(_read, self.user_ns, self.kernel_realtime_ns, self.data)

    @overload
    def __getitem__(self, index: int) -> Read: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Read, ...]: ...
    def __getitem__(self, index: int | slice) -> Read | tuple[Read, ...]:
        if isinstance(index, slice):
            return tuple(map(_read, self.user_ns[index], self.kernel_realtime_ns[index], self.data[index]))
        return _read(self.user_ns[index], self.kernel_realtime_ns[index], self.data[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def _read(user_ns: int, kernel_realtime_ns: int, data: bytes) -> Read:
    return Read(user_ns, None if kernel_realtime_ns == NO_STAMP else kernel_realtime_ns, data)


def data_of(reads: Sequence[Read]) -> Sequence[bytes]:
    """The bytes of each read."""
    return reads.data if isinstance(reads, Reads) else [read.data for read in reads]


def stamps_of(reads: Sequence[Read]) -> tuple[array[int], array[int]]:
    """(user, kernel) stamps of each read, NO_STAMP where the kernel gave none. Raises OverflowError beyond 64 bits."""
    if isinstance(reads, Reads):
        return reads.user_ns, reads.kernel_realtime_ns
    stamps = [read.kernel_realtime_ns for read in reads]
    kernel = array("q", [NO_STAMP if stamp is None else stamp for stamp in stamps])
    return array("q", [read.user_ns for read in reads]), kernel
