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
    """Give each request the reads that are its own, in order.

    Raises OverflowError for an instant of more than 64 bits, KeyError for a request that is not held.
    """
    together = [columns for columns in together if columns.numbers]
    if not together:
        return
    numbers = _ints([columns.numbers for columns in together])
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    user = _ints([columns.user_ns for columns in together])[order].tobytes()
    kernel = _ints([columns.kernel_realtime_ns for columns in together])[order].tobytes()
    data: list[bytes] = []
    for columns in together:
        data += columns.data
    data = list(map(data.__getitem__, order.tolist()))
    for number, (begin, end) in zip(numbers[edges[:-1]].tolist(), pairwise(edges), strict=True):
        held[number].add(user[8 * begin : 8 * end], kernel[8 * begin : 8 * end], data[begin:end])


def _ints(columns: Sequence[Sequence[int | None]]) -> NDArray[np.int64]:
    """One after the other, NO_STAMP for None."""
    try:
        return np.concatenate([np.array(column, dtype=np.int64) for column in columns])
    except TypeError:  # no number: None
        whole = [NO_STAMP if value is None else value for column in columns for value in column]
        return np.array(whole, dtype=np.int64)
