"""Many requests that differ only in their numbers, taken into a summary as columns: a simulator's millions.

Lives here: the definitions read over columns instead of over rows. Must not live here: the definitions. `Summary.add` of each row
gives the same result (a test holds it to that); this is some fifty times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import InternalError, Undefined
from phasemeter.metrics.definitions import HOUSE, PER_REQUEST, Definition
from phasemeter.metrics.summary import FROM_GAPS, Summary
from phasemeter.records.request_row import RequestRow

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FIELDS = {"dispatch": "send_start_ns"}  # of a request that opened no connection


def add_alike(
    summary: Summary, example: RequestRow, numbers: Mapping[str, Ints], *, without_gaps: str | None = None
) -> None:
    """Rows that are `example` but for the fields in `numbers` (instants and token counts, equally many of each).

    Whoever calls sees to it that all of them have what the example has: more than one token, a first before the last.
    `without_gaps`: why they tell no gaps, where rows with events stand for them.
    Raises InternalError for an example with events or a connection of its own: those are rows of their own.
    """
    if example.choices or example.connect_start_ns is not None or example.n != 1:
        raise InternalError("rows with events, connections or choices can't be added as columns")
    many = len(numbers["due_ns"])
    first = len(summary.columns)
    summary.columns.add_alike(example, numbers, many)
    summary.counts.add(example, many)
    if example.phase == "measured" and example.outcome == "ok":
        for name, read in PER_REQUEST.items():
            if name in FROM_GAPS:
                continue
            try:
                value = read(example)
            except Undefined as absent:
                summary.leave_out(name, absent.reason, many)
            else:
                values = _values(HOUSE[name], example, numbers)
                if abs(values[0] - value) > 1e-12 * max(1.0, abs(value)):
                    raise InternalError(f"{name} over columns is {values[0]!r}, of the row {value!r}")
                summary.take(name, values, first)
        if without_gaps is None:
            summary.note_gaps(example, many)
        else:
            for name in FROM_GAPS:
                summary.leave_out(name, without_gaps, many)


def _values(definition: Definition, example: RequestRow, numbers: Mapping[str, Ints]) -> Floats:
    if definition.start is None or definition.end is None or definition.special not in {None, "tpot_per_choice"}:
        raise InternalError(f"{definition.name} can't be read over columns")

    def column(field: str) -> Ints | int:
        constant: int = getattr(example, field)
        return numbers.get(field, constant)

    start, end = (column(FIELDS.get(name, f"{name}_ns")) for name in (definition.start, definition.end))
    many = len(numbers["due_ns"])
    difference = np.broadcast_to(np.asarray((np.asarray(end) - np.asarray(start)) / 1e9), (many,))
    if definition.divisor is None:
        return np.array(difference)
    return np.array(difference / (column("output_tokens") - 1))
