"""Whether a run keeps its contract: a verdict a line, and the whole one.

Lives here: met, missed, undecided from intervals; what makes a line undecidable. Must not live here: files, or words for a
terminal (cli/). The contract says what is promised, the rows what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phasemeter.contract import names, samples, workload_seen
from phasemeter.contract.goodput import SHORTEST_CORRELATED, Goodput, goodput
from phasemeter.contract.lines import Histogram, Line, Verdict, decided, gap_line, mean_line, phase_line, quantile_line
from phasemeter.contract.model import Capacity, Contract
from phasemeter.metrics.definitions import BOUNDARIES
from phasemeter.records.request_row import RequestRow
from phasemeter.stats import intervals

EXIT = {"met": 0, "missed": 1, "undecided": 3}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run. `phases`: phase: one value a request (seconds), or the server's histogram."""

    rows: Sequence[RequestRow]
    validity: str = "valid"
    invalid_checks: tuple[str, ...] = ()
    phases: Mapping[str, Sequence[float] | Histogram] = {}
    server_boundaries: frozenset[str] = frozenset()
    offered_per_s: float | None = None
    manifest: Mapping[str, Any] = {}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `exit_code`: 0 met, 1 missed, 3 undecided."""

    verdict: Verdict
    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()
    confidence: float = 0.95

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]


def check(contract: Contract, facts: Facts) -> Check:
    """Hold a run to its contract. Missed beats undecided beats met; an invalid run decides nothing."""
    lines = [*_objectives(contract, facts), *_capacities(contract, facts), *_cost(contract, facts)]
    lines += [*_observability(contract, facts), *workload_lines(contract, facts)]
    warnings = list(_warnings(contract, facts))
    if facts.validity == "invalid":
        why = f"invalid_run ({', '.join(facts.invalid_checks)})" if facts.invalid_checks else "invalid_run"
        lines = [msgspec.structs.replace(line, verdict="undecided", reason=why) for line in lines]
        warnings.insert(0, "the run is invalid, so nothing it shows decides anything")
    return Check(
        verdict=overall([line.verdict for line in lines]),
        lines=tuple(lines),
        warnings=tuple(warnings),
        confidence=contract.confidence,
    )


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Missed beats undecided beats met; no lines at all decide nothing."""
    if "missed" in verdicts:
        return "missed"
    return "undecided" if "undecided" in verdicts or not verdicts else "met"


def _objectives(contract: Contract, facts: Facts) -> list[Line]:
    lines = []
    for objective in contract.objectives:
        rows = samples.measured(facts.rows, objective.workload_class)
        if objective.phase:
            lines.append(phase_line(objective, facts.phases.get(objective.metric), contract.confidence))
        elif objective.metric in names.gaps():
            lines.append(gap_line(objective, rows, contract.confidence))
        else:
            taken = samples.of_metric(objective.metric, rows)
            reader = mean_line if objective.statistic == "mean" else quantile_line
            lines.append(reader(objective, taken, contract.confidence))
    return lines


def _capacities(contract: Contract, facts: Facts) -> list[Line]:
    return [line for capacity in contract.capacities for line in _capacity(capacity, contract, facts)]


def _capacity(capacity: Capacity, contract: Contract, facts: Facts) -> list[Line]:
    rows = samples.measured(facts.rows, capacity.workload_class)
    lines: list[Line] = []
    if capacity.error_budget is not None:
        lines.append(_error_budget(capacity, rows, contract.confidence))
    if capacity.attainment is not None or capacity.goodput_per_s is not None:
        seen = goodput(rows, capacity.objectives, contract.confidence)
        n = seen.good + seen.bad
        notes = tuple(f"{count} not evaluable ({reason})" for reason, count in seen.not_evaluable_reasons.items())
        if capacity.attainment is not None:
            line = _at_least(f"{capacity.path}.attainment", seen.attainment, seen.ci, capacity.attainment, n)
            needed = None
            if line.verdict == "undecided" and seen.attainment is not None and 0 < capacity.attainment < 1:
                needed = _needed(seen, capacity.attainment, contract.confidence)
            lines.append(msgspec.structs.replace(line, unit="share", n_to_decide=needed, notes=notes))
        if capacity.goodput_per_s is not None:
            line = _at_least(f"{capacity.path}.goodput", seen.per_s, seen.per_s_ci, capacity.goodput_per_s, n)
            offered = facts.offered_per_s if capacity.workload_class is None else None
            offered = offered if offered is not None else (n / seen.window_s if seen.window_s else None)
            if offered is not None and offered < capacity.goodput_per_s and line.verdict != "met":
                reason = f"offered_less: {offered:.3g} requests a second, {capacity.goodput_per_s:g} promised"
                line = msgspec.structs.replace(line, verdict="undecided", reason=reason)
            lines.append(msgspec.structs.replace(line, unit="req/s", notes=notes))
    for name, limit in (
        ("requests_per_s", capacity.requests_per_s),
        ("output_tokens_per_s", capacity.output_tokens_per_s),
    ):
        if limit is not None:
            value, bounds, n = workload_seen.throughput(name, rows, contract.confidence)
            lines.append(_at_least(f"{capacity.path}.{name}", value, bounds, limit, n, unit="/s"))
    return lines


def _needed(seen: Goodput, target: float, confidence: float) -> int | None:
    """How many requests would decide, all else staying as seen: more where neighbours are alike."""
    independent = intervals.n_to_decide(seen.attainment or 0.0, target, confidence)
    if independent is None:
        return None
    n = seen.good + seen.bad
    return (
        max(n + 1, SHORTEST_CORRELATED) if seen.worth is None else max(n + 1, math.ceil(independent * n / seen.worth))
    )


def _at_least(
    path: str, value: float | None, bounds: tuple[float | None, float | None], limit: float, n: int, *, unit: str = ""
) -> Line:
    verdict = decided(bounds, limit, at_most=False) if value is not None else "undecided"
    reason = None
    if verdict == "undecided":
        reason = "no_evidence" if value is None else "interval_spans_limit"
    return Line(path=path, verdict=verdict, value=value, ci95=bounds, n=n, limit=limit, at_most=False, unit=unit,
                reason=reason)  # fmt: skip


def _error_budget(capacity: Capacity, rows: Sequence[RequestRow], confidence: float) -> Line:
    n = sum(row.outcome in ("ok", "failed") for row in rows)
    failed = sum(row.outcome == "failed" for row in rows)
    limit = capacity.error_budget or 0.0
    bounds = intervals.clopper_pearson_interval(failed, n, confidence)
    verdict = decided(bounds, limit) if n else "undecided"
    if limit == 0 and failed:
        verdict = "missed"  # none was promised and one was seen
    needed = (
        intervals.n_to_decide(1 - failed / n, 1 - limit, confidence)
        if n and verdict == "undecided" and 0 < limit < 1
        else None
    )
    return Line(
        path=f"{capacity.path}.error_budget", verdict=verdict, value=failed / n if n else None, ci95=bounds, n=n,
        n_to_decide=needed, unit="share", limit=limit, reason=None if verdict != "undecided" else "interval_spans_limit",
    )  # fmt: skip


def _cost(contract: Contract, facts: Facts) -> list[Line]:
    cost = contract.cost
    if cost is None or cost.per_million_output_tokens is None:
        return []
    rows = samples.measured(facts.rows)
    value, bounds, n = workload_seen.throughput("output_tokens_per_s", rows, contract.confidence)
    a_second = cost.price_per_hour / 3600 * 1e6

    def price(rate: float | None) -> float | None:
        return None if not rate or rate <= 0 else a_second / rate

    own = (price(bounds[1]), price(bounds[0]))
    verdict = decided(own, cost.per_million_output_tokens) if value else "undecided"
    return [
        Line(
            path="cost.per_million_output_tokens", verdict=verdict, value=price(value), ci95=own, n=n,
            unit=cost.currency, limit=cost.per_million_output_tokens,
            reason=None if verdict != "undecided" else "interval_spans_limit" if value else "no_evidence",
        )
    ]  # fmt: skip


def _observability(contract: Contract, facts: Facts) -> list[Line]:
    rows = [row for row in samples.measured(facts.rows) if row.outcome == "ok"]
    lines = []
    for name in contract.client_boundaries:
        having = sum(BOUNDARIES[name](row) is not None for row in rows)
        lines.append(_on_record(f"observability.client.{name}", having, len(rows)))
    for name in contract.server_boundaries:
        having = len(rows) if name in facts.server_boundaries else min(len(rows), _told(facts.phases.get(name, ())))
        lines.append(_on_record(f"observability.server.{name}", having, len(rows)))
    return lines


def _told(phase: Sequence[float] | Histogram) -> int:
    """Of how many requests the server told: one value each, or counted in its histogram."""
    if isinstance(phase, Histogram):
        return int(phase.cumulative[-1]) if phase.cumulative else 0
    return len(phase)


def _on_record(path: str, having: int, n: int) -> Line:
    verdict: Verdict = "undecided" if not n else "met" if having == n else "missed"
    return Line(
        path=path, verdict=verdict, unit="share", n=n, value=having / n if n else None,
        reason=None if verdict == "met" else "not_on_record" if n else "no_evidence",
    )  # fmt: skip


def _declared(path: str, seen: workload_seen.Seen) -> Line:
    return Line(
        path=path, verdict="met" if seen.as_declared else "undecided", value=seen.value, n=seen.n, unit=seen.unit,
        limit=seen.declared, reason=seen.reason, notes=seen.notes,
    )  # fmt: skip


def workload_lines(contract: Contract, facts: Facts) -> list[Line]:
    """The realised workload against the declared one. Another workload than the promised one decides nothing."""
    found = []
    for workload in contract.classes or (contract.workload,):
        rows = samples.measured(facts.rows, workload.name)
        prefix = f"workload.classes.{workload.name}" if workload.name else "workload"
        found += [_declared(f"{prefix}.{name}", seen) for name, seen in workload_seen.compared(workload, rows)]
    declared = contract.workload.arrivals
    if isinstance(declared, dict) and "concurrency" in declared:
        seen = facts.manifest.get("concurrency")
        fits = seen == declared["concurrency"]
        why = None if fits else "no_evidence" if seen is None else "other_workload"
        found.append(Line(path="workload.arrivals", verdict="met" if fits else "undecided", value=seen, unit="in flight",
                          limit=declared["concurrency"], n=len(facts.rows), reason=why))  # fmt: skip
    return found


def _warnings(contract: Contract, facts: Facts) -> list[str]:
    found = []
    rows = samples.measured(facts.rows)
    reasoning = any(row.reasoning_tokens or any(c.reasoning_events for c in row.choices) for row in rows)
    bare = sorted({line.path for line in contract.objectives if line.metric == "ttft"})
    if reasoning and bare:
        found.append(
            f"`{bare[0]}`: this model reasons first, and ttft ends at its first reasoning token: name the token class"
            " (ttfo for the first visible output)"
        )
    for name, value in contract.service.items():
        recorded = facts.manifest.get(name)
        if recorded is not None and recorded != value:
            found.append(f"`service.{name}`: the contract is about {value!r}, this run measured {recorded!r}")
    return found
