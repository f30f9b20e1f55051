"""A run's budget while its requests pass by, and the server's columns of a request's row.

Lives here: which requests a budget stands on, and what a window of aggregates adds to it. Must not live here: a request's
segments (phases/budget.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from phasemeter.errors import Undefined
from phasemeter.phases.budget import BudgetTotals, Means, aggregate_budget, budget_of, durations_of
from phasemeter.phases.causes import HELD
from phasemeter.phases.features import paced
from phasemeter.records.evidence import Told
from phasemeter.runs.server_evidence import Seen, ServerEvidence
from phasemeter.server.prometheus import EngineReading

SERVER_DURATIONS = ("queue", "prefill", "first_token", "decode", "ttft", "e2e", "ingress")
SERVER_COLUMNS = tuple(f"server_{name}_s" for name in SERVER_DURATIONS)
WHY_NONE = "no timings in the responses, no spans, no metrics window: --otlp-listen or --server-metrics would add them"


class RunBudget:
    """Measured, successful requests; and, for a window of aggregates, every successful one that was sent in it."""

    def __init__(self) -> None:
        self._measured, self._window = BudgetTotals(), BudgetTotals()
        self._choices = 0
        self._made_ns = self._arrived_ns = 0

    def add(self, seen: Seen, told: Told) -> None:
        """Take one request with what its server told."""
        if seen.row.outcome != "ok":
            return
        try:
            budget = budget_of(seen.row, told.values)
        except Undefined:
            return
        if seen.row.phase == "measured":
            self._measured.add(budget)
            if paced(seen.row, budget):
                self._made_ns += budget.server_decode_ns or 0
                self._arrived_ns += (seen.row.last_token_ns or 0) - (seen.row.first_token_ns or 0)
        if seen.in_window:
            self._window.add(budget)
            self._choices += seen.row.n

    def document(self, evidence: ServerEvidence) -> dict[str, Any] | None:
        """The budget of a result, with the evidence's own warnings; None where no request had output."""
        found = self._measured.document()
        if found is None:
            return None
        engines = evidence.engines()
        aggregate = {name: self._aggregate(reading) for name, reading in engines.items()}
        if not self._measured.with_evidence and not aggregate:
            found["reason"] = WHY_NONE
        found["aggregate"] = aggregate or None
        found["spans"] = (
            None if evidence.index is None else {"joined": evidence.joined, "ambiguous": evidence.ambiguous}
        )
        found["warnings"] = [*evidence.closing_warnings(engines), *self._held_back()]
        return found

    def _held_back(self) -> list[str]:
        """Tokens that were made before the first text stand in TPOT's divisor, and their time in TTFT."""
        if self._arrived_ns >= HELD * self._made_ns:
            return []
        times = self._made_ns / max(self._arrived_ns, 1)
        return [
            f"text_held_back: by the server's own word the output took {times:.1f} times as long to be made as to arrive:"
            " ttft is that of the first text, and tpot counts tokens made before it"
        ]

    def _aggregate(self, reading: EngineReading) -> dict[str, Any]:
        if not self._window.complete:
            return {"mean": None, "reason": "no_requests"}
        means = Means(
            queue_s=_mean(reading, "queue"), prefill_s=_mean(reading, "prefill"), decode_s=_mean(reading, "decode"),
            ttft_s=_mean(reading, "ttft"), n=_count(reading),
        )  # fmt: skip
        if means.queue_s is None and means.prefill_s is None:
            reasons = {key: _why(reading, key) for key in ("queue", "prefill")}
            return {"mean": None, "reason": "; ".join(f"{key}: {why}" for key, why in reasons.items())}
        told = {name: value for name, value in msgspec.structs.asdict(means).items() if value is not None}
        if means.n == self._choices > self._window.complete:
            why = f"choices_apart: the server's means are of {self._choices} choices, not of our {self._window.complete} requests"
            return {"mean": None, "reason": why, "told": told}
        return aggregate_budget(self._window, means) | {"told": told}


def _mean(reading: EngineReading, key: str) -> float | None:
    found = reading.readings.get(key)
    return found.mean if found is not None and found.status == "present" else None


def _why(reading: EngineReading, key: str) -> str:
    found = reading.readings.get(key)
    return "absent" if found is None else found.reason or found.status


def _count(reading: EngineReading) -> float | None:
    """How many requests the window's phases stand on: the queue's or prefill's own count."""
    for key in ("queue", "prefill", "ttft"):
        found = reading.readings.get(key)
        if found is not None and found.status == "present" and found.n is not None:
            return found.n
    return None


def instants_by_boundary(told: Told) -> dict[str, tuple[int, str]]:
    """The server's instants as (ns, clock domain); the first source of each boundary counts."""
    found: dict[str, tuple[int, str]] = {}
    for instant in told.instants:
        found.setdefault(instant.boundary, (instant.at_ns, instant.clock))
    return found


def duration_columns(told: Told) -> dict[str, float | None]:
    """The server's durations by column, seconds; None: not told."""
    found = durations_of(told.values)
    return {f"server_{name}_s": found[name][0] / 1e9 if name in found else None for name in SERVER_DURATIONS}
