"""Blocks of a capture, whose reads lie as they came, to the requests that they are of.

Lives here: the sorting, in columns. Must not live here: blocks and files. Loaded late: it takes numpy, and a sender must not wait
for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from phasemeter.io.capture_file import Columns
from phasemeter.records.reads import NO_STAMP, Reads


def hand_out(together: Sequence[Columns], held: dict[int, Reads]) -> None:
    """Give each request the reads that are its own, in order. Raises OverflowError for an instant of more than 64 bits."""
    numbers = np.array([number for columns in together for number in columns.numbers], dtype=np.int64)
    if not len(numbers):
        return
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    user = np.array([ns for columns in together for ns in columns.user_ns], dtype=np.int64)[order].tobytes()
    kernel = _stamps(together)[order].tobytes()
    data = [data for columns in together for data in columns.data]
    data = list(map(data.__getitem__, order.tolist()))
    for number, (begin, end) in zip(numbers[edges[:-1]].tolist(), pairwise(edges), strict=True):
        held[number].add(user[8 * begin : 8 * end], kernel[8 * begin : 8 * end], data[begin:end])


def _stamps(together: Sequence[Columns]) -> NDArray[np.int64]:
    """The kernel's stamps, NO_STAMP where there is none."""
    stamps = [ns for columns in together for ns in columns.kernel_realtime_ns]
    if None in stamps:
        return np.array([NO_STAMP if ns is None else ns for ns in stamps], dtype=np.int64)
    return np.array(stamps, dtype=np.int64)
