"""Rows as columns: what a summary keeps of each request, 80 bytes of it.

Lives here: the columns and views on them. Must not live here: what they are summarised to.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import msgspec
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
FIELDS = (  # where the columns' numbers stand in a row that has one choice and ended
    "due_ns", "send_start_ns", "first_token_ns", "last_token_ns", "stream_end_ns", "output_tokens",
    "input_tokens", "asked_output_tokens", "asked_input_tokens", "cached_tokens", "observer_lag_ns",
)  # fmt: skip


class Alike(msgspec.Struct, frozen=True):
    """Rows that are `example` but for `numbers` (by the row's field, equally many of each); `places`: theirs among all that are added
    together."""

    example: RequestRow
    numbers: Mapping[str, Ints]
    places: Ints

    def column(self, field: str) -> Ints:
        """A field's number in each row; the example has it."""
        return self.numbers[field] if field in self.numbers else np.full(len(self.places), getattr(self.example, field))


class Columns:
    """One number a row and column, in the order the rows came."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in INSTANTS + COUNTS}
        self._outcome, self._phase, self._eventless = array("b"), array("b"), array("b")

    def __len__(self) -> int:
        return len(self._outcome)

    def add(self, row: RequestRow) -> None:
        """Append what the row says of its instants and counts."""
        for column, value in zip(self._columns.values(), _numbers_of(row), strict=True):
            column.append(ABSENT if value is None else value)
        self._outcome.append(OUTCOMES.index(row.outcome))
        self._phase.append(PHASES.index(row.phase))
        self._eventless.append(not has_events(row))

    def add_alike(self, parts: Sequence[Alike]) -> None:
        """Append many rows at once, part by part alike but for their numbers."""
        whole = np.empty((len(self._columns), sum(len(part.places) for part in parts)), np.int64)
        outcome, phase, eventless = (np.empty(whole.shape[1], np.int8) for _ in range(3))
        for part in parts:
            row, places = part.example, part.places
            for values, field, value in zip(whole, FIELDS, _numbers_of(row), strict=True):
                values[places] = part.numbers.get(field, ABSENT if value is None else value)
            outcome[places], phase[places] = OUTCOMES.index(row.outcome), PHASES.index(row.phase)
            eventless[places] = not has_events(row)
        for column, values in zip(self._columns.values(), whole, strict=True):
            column.frombytes(values.tobytes())
        for column, marks in ((self._outcome, outcome), (self._phase, phase), (self._eventless, eventless)):
            column.frombytes(marks.tobytes())

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


def _numbers_of(row: RequestRow) -> tuple[int | None, ...]:
    """What the columns keep of a row, in their order."""
    asked_output = (
        None if row.asked_output_tokens is None else row.asked_output_tokens * row.n
    )  # every choice may be as long
    return (
        row.due_ns, row.send_start_ns, row.first_token_ns, row.last_token_ns, end_of(row), row.output_tokens,
        row.input_tokens, asked_output, row.asked_input_tokens, row.cached_tokens, row.observer_lag_ns,
    )  # fmt: skip


def end_of(row: RequestRow) -> int | None:
    """When a request was over: its stream's end, or the last thing that was seen of it."""
    for instant in (row.stream_end_ns, row.last_token_ns, row.first_read_ns, row.headers_ns, row.sent_ns):
        if instant is not None:
            return instant
    return row.send_start_ns
