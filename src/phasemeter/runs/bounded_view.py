"""A run as a diagnosis looks at it: every request's boundaries and budget, the times of single tokens for as many as fit.

Lives here: what is kept of a long run, and saying what was not. Must not live here: rules (phases/), the whole view (server_view).
A diagnosis asks what stood beside what, so requests are kept side by side, not drawn at random: how many ran at an instant is known
only where all are there. Token times serve for gaps, of which a sample is as good.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from phasemeter.errors import Undefined
from phasemeter.phases.budget import Budget, budget_of
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.analysis import Rows
from phasemeter.runs.server_evidence import EVIDENCE, pages_of, scrapes_in
from phasemeter.runs.server_view import GAUGES_READ
from phasemeter.server.prometheus import EngineReading, read_pages

MAX_REQUESTS = 100_000  # about 3 KB each
MAX_EVENTS = 2_000_000  # about 50 bytes each


class BoundedView(msgspec.Struct, kw_only=True):
    """`rows` in the run's order, some without `choices` (their token times were let go after their budget was made)."""

    rows: list[RequestRow]
    budgets: dict[str, Budget]
    engines: dict[str, EngineReading]
    gauges: tuple[dict[str, EngineReading], ...] = ()
    warnings: tuple[str, ...] = ()


class _Thinning:
    """Keeps token times within bounds: every request's, then every second one's, every fourth one's …"""

    def __init__(self, most_events: int) -> None:
        self.most_events = most_events
        self.stride = 1
        self.events = 0
        self.rows: list[RequestRow] = []

    def add(self, row: RequestRow) -> None:
        if len(self.rows) % self.stride:
            self.rows.append(_without_times(row))
            return
        self.rows.append(row)
        self.events += _events(row)
        while self.events > self.most_events and self.stride < len(self.rows):
            self.stride *= 2
            for at in range(self.stride // 2, len(self.rows), self.stride):
                self.events -= _events(self.rows[at])
                self.rows[at] = _without_times(self.rows[at])


def _events(row: RequestRow) -> int:
    return sum(len(choice.times_ns) for choice in row.choices)


def _without_times(row: RequestRow) -> RequestRow:
    return msgspec.structs.replace(row, choices=()) if row.choices else row


def bounded_view(run: Path | str, *, most_requests: int = MAX_REQUESTS, most_events: int = MAX_EVENTS) -> BoundedView:
    """Reads a run's capture and evidence within bounds. Raises FileError as reading them does."""
    source = Rows(run)
    evidence = source.evidence()
    thinned = _Thinning(most_events)
    budgets: dict[str, Budget] = {}
    warnings: list[str] = []
    for seen in source.seen():
        if len(thinned.rows) >= most_requests:
            warnings.append(f"long_run: the diagnosis looks at the run's first {most_requests} requests")
            break  # and the evidence is not asked what it could not join: it has not seen the rest
        told = evidence.of(seen)
        with contextlib.suppress(Undefined):  # not ended: its row alone counts
            budgets[seen.row.request_id] = budget_of(seen.row, told.values)
        thinned.add(seen.row)
    else:
        warnings += evidence.closing_warnings(evidence.engines())
    if thinned.stride > 1:
        warnings.append(f"many_tokens: gaps between tokens are those of every {thinned.stride}th request")
    pages = pages_of(scrapes_in(source.directory.path / EVIDENCE, GAUGES_READ), [])
    return BoundedView(
        rows=thinned.rows, budgets=budgets, engines=evidence.engines(), gauges=tuple(read_pages([page]) for page in pages),
        warnings=tuple(warnings),
    )  # fmt: skip
