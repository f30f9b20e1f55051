"""Many requests that differ only in their numbers, taken into a summary as columns: a simulator's millions.

Lives here: the definitions read over columns instead of over rows. Must not live here: the definitions. `Summary.add` of each row
gives the same result (a test holds it to that); this is some fifty times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import InternalError, Undefined
from phasemeter.metrics.columns import Alike
from phasemeter.metrics.definitions import HOUSE, PER_REQUEST, Definition
from phasemeter.metrics.gaps import has_events
from phasemeter.metrics.summary import FROM_GAPS, Summary

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
INSTANTS = {"dispatch": "send_start_ns"}  # of a request that opened no connection
# what is no plain difference is one for these rows: (start, end, divisor)
SPECIAL = {
    "tpot_per_choice": ("first_token", "last_token", "output_tokens − 1"),
    "decode_per_token": ("first_token", "last_token", "output_tokens − 1"),
}
READ = tuple((HOUSE[name], read) for name, read in PER_REQUEST.items() if name not in FROM_GAPS)


class Events(msgspec.Struct, frozen=True):
    """Output events, each of one token: the rows at `places` (in order) have `counts` of them, their instants one after another."""

    places: Ints
    counts: Ints
    times_ns: Ints


def add_alike(
    summary: Summary, parts: Sequence[Alike], events: Events | None = None, *, without_gaps: str | None = None
) -> None:
    """Rows in parts that are alike, all of a part's defined or undefined as its example is: more than one token, a first before the
    last, events or none. Rows of one choice whose events, if any, are in `events`.

    `without_gaps`: why rows without events tell no gaps, where others with events stand for them. Raises InternalError for an
    example with a connection or choices of its own: those are rows of their own.
    """
    first = len(summary.columns)
    summary.columns.add_alike(parts)
    found: dict[str, list[tuple[Ints, Floats]]] = {definition.name: [] for definition, _ in READ}
    for part in parts:
        example, many = part.example, len(part.places)
        if example.connect_start_ns is not None or example.n != 1 or len(example.choices) > 1:
            raise InternalError("rows with connections or several choices can't be added as columns")
        summary.counts.add(example, many)
        if example.phase != "measured" or example.outcome != "ok":
            continue
        for definition, read in READ:
            try:
                value = read(example)
            except Undefined as absent:
                summary.leave_out(definition.name, absent.reason, many)
            else:
                found[definition.name].append((part.places, values_of(definition, part, value)))
        if without_gaps is None or has_events(example):
            summary.note_gaps(example, many)
        else:
            for name in FROM_GAPS:
                summary.leave_out(name, without_gaps, many)
    for name, told in found.items():
        if told:
            places = np.concatenate([where for where, _ in told])
            order = np.argsort(places)
            summary.take(name, np.concatenate([values for _, values in told])[order], first + places[order])
    if events is not None:
        usable = np.zeros(sum(len(part.places) for part in parts), bool)
        for part in parts:
            usable[part.places] = part.example.phase == "measured" and part.example.outcome == "ok"
        summary.timeline.add_alike(first + events.places, events.counts, events.times_ns, usable[events.places])


def values_of(definition: Definition, part: Alike, of_example: float) -> Floats:
    """A metric of each row of a part, whose example has it. Raises InternalError where the columns say another than the example."""
    start_name, end_name, divisor = SPECIAL.get(
        definition.special or "", (definition.start, definition.end, definition.divisor)
    )
    if start_name is None or end_name is None or divisor not in {None, "output_tokens − 1"}:
        raise InternalError(f"{definition.name} can't be read over columns")

    start, end = (part.column(INSTANTS.get(name, f"{name}_ns")) for name in (start_name, end_name))
    values: Floats = (end - start) / 1e9
    if divisor is not None:
        values = values / (part.column("output_tokens") - 1)
    if abs(values[0] - of_example) > 1e-12 * max(1.0, abs(of_example)):
        raise InternalError(f"{definition.name} over columns is {values[0]!r}, of the row {of_example!r}")
    return values
