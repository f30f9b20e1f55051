"""Rows as columns: what a summary keeps of each request, 80 bytes of it.

Lives here: the columns and views on them. Must not live here: what they are summarised to.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from phasemeter.metrics.gaps import has_events
from phasemeter.records.request_row import RequestRow

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

ABSENT = -(2**63)  # of an instant or a count, inside these columns only
OUTCOMES = ("ok", "failed", "cancelled", "unsent")
PHASES = ("measured", "warmup", "probe")
INSTANTS = ("due", "send_start", "first_token", "last_token", "end")
COUNTS = ("output_tokens", "input_tokens", "asked_output", "asked_input", "cached_tokens", "lag")


class Columns:
    """One number a row and column, in the order the rows came."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in INSTANTS + COUNTS}
        self._outcome, self._phase, self._eventless = array("b"), array("b"), array("b")

    def __len__(self) -> int:
        return len(self._outcome)

    def add(self, row: RequestRow) -> None:
        """Append what the row says of its instants and counts."""
        asked_output = (
            None if row.asked_output_tokens is None else row.asked_output_tokens * row.n
        )  # every choice may be as long
        values = (
            row.due_ns, row.send_start_ns, row.first_token_ns, row.last_token_ns, end_of(row), row.output_tokens,
            row.input_tokens, asked_output, row.asked_input_tokens, row.cached_tokens, row.observer_lag_ns,
        )  # fmt: skip
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(ABSENT if value is None else value)
        self._outcome.append(OUTCOMES.index(row.outcome))
        self._phase.append(PHASES.index(row.phase))
        self._eventless.append(not has_events(row))

    def add_alike(self, row: RequestRow, numbers: Mapping[str, Ints], many: int) -> None:
        """Append `many` rows that are `row` but for `numbers`, by the row's field."""
        fields = (
            "due_ns", "send_start_ns", "first_token_ns", "last_token_ns", "stream_end_ns", "output_tokens",
            "input_tokens", "asked_output_tokens", "asked_input_tokens", "cached_tokens", "observer_lag_ns",
        )  # fmt: skip
        for column, field in zip(self._columns.values(), fields, strict=True):
            constant = getattr(row, field)
            values = numbers.get(field, np.full(many, ABSENT if constant is None else constant, np.int64))
            column.frombytes(values.astype(np.int64).tobytes())
        self._outcome.extend([OUTCOMES.index(row.outcome)] * many)
        self._phase.extend([PHASES.index(row.phase)] * many)
        self._eventless.extend([not has_events(row)] * many)

    def ints(self, name: str) -> Ints:
        """A column in store order; ABSENT where a row had none."""
        return np.array(self._columns[name], dtype=np.int64)

    def floats(self, name: str) -> Floats:
        """A column as floats, nan where absent."""
        whole = self.ints(name)
        return np.where(whole == ABSENT, np.nan, whole.astype(np.float64))

    def phase(self, name: str) -> Mask:
        """Which rows are of that phase."""
        mask: Mask = np.array(self._phase, dtype=np.int8) == PHASES.index(name)
        return mask

    def outcome(self, name: str) -> Mask:
        """Which rows ended so."""
        mask: Mask = np.array(self._outcome, dtype=np.int8) == OUTCOMES.index(name)
        return mask

    def eventless(self) -> Mask:
        """Which rows have no events of their own (a foreign file gave only first and last)."""
        return np.array(self._eventless, dtype=bool)

    def present(self, name: str, where: Mask) -> Ints:
        """The values of a column that are there, of the rows in `where`."""
        column = self.ints(name)
        there: Ints = column[where & (column != ABSENT)]
        return there


def end_of(row: RequestRow) -> int | None:
    """When a request was over: its stream's end, or the last thing that was seen of it."""
    for instant in (row.stream_end_ns, row.last_token_ns, row.first_read_ns, row.headers_ns, row.sent_ns):
        if instant is not None:
            return instant
    return row.send_start_ns
