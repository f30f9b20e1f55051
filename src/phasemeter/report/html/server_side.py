"""What is on record of the server's own time, request by request, for the page.

Lives here: where it comes from (a simulation's columns, a capture's timings and spans). Must not live here: its meaning
(server/), or any subtraction of the two clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import FileError, Undefined
from phasemeter.phases.budget import budget_of, budgets_document
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import RequestRow
from phasemeter.report.html.measures import Measures
from phasemeter.report.html.run_tables import SIMULATED, RunTables
from phasemeter.runs.evidence_files import document
from phasemeter.runs.server_view import server_view

JOINED_AT_MOST = 5_000  # requests of a capture that are joined with their evidence for a page
BUDGETED_AT_MOST = 5_000  # requests whose events are read for a budget that the result doesn't hold
ORDER = ("arrival", "queue_enter", "prefill_start", "prefill_end", "first_token", "decode_end", "complete")
KIND = {
    "arrival": "ingress_delivery", "queue_enter": "queue", "prefill_start": "prefill", "prefill_end": "first_token",
    "first_token": "decode", "decode_end": "tail",
}  # fmt: skip
NAMES = {
    "ingress_delivery": "ingress", "queue": "queue", "prefill": "prefill", "first_token": "first-token hand-off",
    "decode": "decode", "tail": "decode end → complete",
}  # fmt: skip
Instants = tuple[tuple[str, int, str], ...]


class ServerSide(msgspec.Struct, frozen=True, kw_only=True):
    """By request id: durations, and instants as (boundary, ns, clock). `engines`: the window's aggregates; `notes`: what is not there.

    `whole`: of every request, not only of those that were asked for.
    """

    values: Mapping[str, tuple[EvidenceValue, ...]] = {}
    instants: Mapping[str, Instants] = {}
    engines: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    whole: bool = False

    def of(self, measured: Iterable[str], evenly: Iterable[str]) -> ServerSide:
        """The part that a mean is of: `measured` requests, and where not all were read, those of them that are `evenly` spaced.

        The slowest are read too, to be drawn: in a mean they would weigh too much, and a warm-up request isn't of the run.
        """
        kept = set(measured) if self.whole else set(measured) & set(evenly)
        return msgspec.structs.replace(
            self,
            values={key: found for key, found in self.values.items() if key in kept},
            instants={key: found for key, found in self.instants.items() if key in kept},
        )


def server_side(run: Path, tables: RunTables, numbers: Iterable[int]) -> ServerSide:
    """Evidence of the requests `numbers`; a capture's is joined whole. A damaged file becomes a note that names it."""
    engines, notes = _aggregates(run / "evidence")
    columns = set(tables.requests.columns)
    if columns & set(SIMULATED):
        ids = tables.requests["request_id"]
        wanted = sorted(set(numbers))
        return ServerSide(
            values={ids[i]: tables.server_values(i) for i in wanted},
            instants={ids[i]: tuple(tables.server_instants(i)) for i in wanted},
            engines=engines,
            notes=("A simulation: the server's side is the model's own truth, in virtual time.", *notes),
        )
    captured = any((run / "capture").glob("*.schedule"))
    if captured and len(tables.requests) <= JOINED_AT_MOST:
        try:
            view = server_view(run)
        except FileError as wrong:
            return ServerSide(engines=engines, notes=(*notes, str(wrong)))
        instants = {
            key: tuple((one.boundary, one.at_ns, one.clock) for one in found) for key, found in view.instants.items()
        }
        return ServerSide(
            values=view.values, instants=instants, engines=engines, notes=(*notes, *view.warnings), whole=True
        )
    if captured:
        notes = (
            *notes,
            f"More than {JOINED_AT_MOST:,} requests: durations as the tables hold them, without each one's source.",
        )
    wanted = sorted(set(numbers))
    ids = tables.requests["request_id"]
    return ServerSide(
        values={ids[i]: tables.server_values(i) for i in wanted},
        instants={ids[i]: tuple(tables.server_instants(i)) for i in wanted},
        engines=engines,
        notes=notes,
    )


def _aggregates(folder: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The evidence document's engines, from the pages before and after and the spans."""
    paths = [*sorted(folder.glob("metrics-before*")), *sorted(folder.glob("metrics-after*"))]
    paths += sorted(folder.glob("spans-*"))
    if not paths:
        return {}, ()
    try:
        found = document(paths)
    except FileError as wrong:
        return {}, (str(wrong),)
    return found.get("engines") or {}, tuple(found.get("warnings") or ())


def strip(values: Iterable[EvidenceValue], instants: Instants) -> list[dict[str, Any]]:
    """The server's parts of one request, in order, in ms: its durations, else the differences of its own instants."""
    parts: dict[str, dict[str, Any]] = {}
    for value in values:
        kind = KIND.get(value.start or "")
        if kind is None or value.end is None or ORDER.index(value.start or "") >= _place(value.end) or kind in parts:
            continue
        if (value.start, value.end) == ("arrival", "first_token"):
            continue  # its TTFT: holds the others
        parts[kind] = _part(kind, value.value_s * 1e3, f"{value.start} → {value.end}: {value.definition}", value.source)
    if not parts:
        by_clock: dict[str, dict[str, int]] = {}
        for boundary, at_ns, clock in instants:
            by_clock.setdefault(clock, {})[boundary] = at_ns
        for clock, found in by_clock.items():
            seen = [name for name in ORDER if name in found]
            for start, end in pairwise(seen):
                ms = (found[end] - found[start]) / 1e6
                parts.setdefault(KIND[start], _part(KIND[start], ms, f"{start} → {end}", f"{clock} instants"))
    return [parts[kind] for kind in NAMES if kind in parts]


def _place(boundary: str) -> int:
    return ORDER.index(boundary) if boundary in ORDER else -1


def _part(kind: str, ms: float, what: str, source: str) -> dict[str, Any]:
    return {"kind": kind, "name": NAMES[kind], "ms": float(f"{ms:.6g}"), "what": what, "source": source}


def mean_strip(side: ServerSide) -> list[dict[str, Any]]:
    """The mean of each part over the requests that have it; means add."""
    total: dict[str, list[float]] = {}
    first: dict[str, dict[str, Any]] = {}
    for key in {*side.values, *side.instants}:
        for part in strip(side.values.get(key, ()), side.instants.get(key, ())):
            total.setdefault(part["kind"], []).append(part["ms"])
            first.setdefault(part["kind"], part)
    return [
        first[kind] | {"ms": sum(total[kind]) / len(total[kind]), "n": len(total[kind])}
        for kind in NAMES
        if kind in total
    ]


def budget_numbers(measures: Measures) -> list[int]:
    """Which requests a budget is made of: all, or evenly spaced ones."""
    numbers: list[int] = measures.numbers.tolist()
    every = -(-len(numbers) // BUDGETED_AT_MOST) if numbers else 1
    return numbers[::every]


def budget(rows: Iterable[RequestRow], side: ServerSide, of: int) -> dict[str, Any] | None:
    """A budget where the result holds none, from the rows' own boundaries and the server's durations."""
    budgets = []
    for row in rows:
        try:
            budgets.append(budget_of(row, side.values.get(row.request_id, ())))
        except Undefined:
            continue
    found = budgets_document(budgets)
    if found is not None and len(budgets) < of:
        found["sample"] = f"{len(budgets):,} of {of:,} requests, evenly spaced"
    return found
