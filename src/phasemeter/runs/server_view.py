"""A run seen from its server: what inline timings, headers, spans and scrapes of RUN/evidence say, joined to its requests.

Lives here: a whole run's view, for a diagnosis, a verdict, a comparison. Must not live here: finding the evidence
(server_evidence.py), its meaning (server/) or budgets (phases/).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from phasemeter.contract.lines import Histogram
from phasemeter.errors import Undefined
from phasemeter.phases.budget import Budget, budget_of, durations_of
from phasemeter.phases.features import ServerWindow
from phasemeter.records.evidence import EvidenceInstant, EvidenceValue
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.analysis import Rows
from phasemeter.runs.server_evidence import EVIDENCE, cache_counters, pages_of, scrapes_in
from phasemeter.server.prometheus import EngineReading, read_pages

GAUGES_READ = 200  # scrapes of a run whose gauges are looked at


class ServerView(msgspec.Struct, kw_only=True):
    """All rows of a run with what the server told of each; the window's engines; what could not be joined."""

    rows: list[RequestRow]
    values: dict[str, tuple[EvidenceValue, ...]]
    instants: dict[str, tuple[EvidenceInstant, ...]]
    engines: dict[str, EngineReading]
    gauges: tuple[dict[str, EngineReading], ...] = ()  # each scrape on its own, for the highest gauge
    warnings: tuple[str, ...] = ()

    def budgets(self) -> dict[str, Budget]:
        """Each ended request's budget by request id; others have none."""
        found = {}
        for row in self.rows:
            try:
                found[row.request_id] = budget_of(row, self.values.get(row.request_id, ()))
            except Undefined:
                continue
        return found


def server_view(run: Path | str) -> ServerView:
    """Reads a run's capture and evidence, all of it into memory. Raises FileError as reading them does."""
    source = Rows(run)
    evidence = source.evidence()
    rows, values, instants = [], {}, {}
    for seen in source.seen():
        told = evidence.of(seen)
        rows.append(seen.row)
        values[seen.row.request_id], instants[seen.row.request_id] = told.values, told.instants
    engines = evidence.engines()
    warnings = evidence.closing_warnings(engines)
    pages = pages_of(scrapes_in(source.directory.path / EVIDENCE, GAUGES_READ), [])
    return ServerView(
        rows=rows, values=values, instants=instants, engines=engines, gauges=tuple(read_pages([page]) for page in pages),
        warnings=tuple(warnings),
    )  # fmt: skip


class OnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The server's phases of a run's measured, successful requests, for a verdict or a comparison.

    `phases`: seconds a request (one source a phase), or the window's histogram where no request tells. `boundaries`: what
    every such request has on record: an instant, or the end of a duration, its own or one that the window's histogram counts.
    """

    phases: dict[str, list[float] | Histogram]
    boundaries: frozenset[str]


def on_record(run: Path | str) -> OnRecord:
    """Reads the run once; holds a few numbers a request."""
    source = Rows(run)
    evidence = source.evidence()
    phases: dict[str, list[float] | Histogram] = {}
    boundaries: Counter[str] = Counter()
    requests = 0
    for seen in source.seen():
        told = evidence.of(seen)
        if seen.row.outcome != "ok" or seen.row.phase != "measured":
            continue
        requests += 1
        durations = durations_of(told.values)
        for name, (ns, _) in durations.items():
            values = phases.setdefault(name, [])
            if isinstance(values, list):
                values.append(ns / 1e9)
        ends = {value.end for value in told.values if value.end} | {at.boundary for at in told.instants}
        boundaries.update(ends | durations.keys())
    whole = {name for name, count in boundaries.items() if count == requests}
    for engine in evidence.engines().values():
        for name in ("queue", "prefill", "decode", "ttft", "e2e"):
            reading = engine.readings.get(name)
            if reading is None or reading.hist is None:
                continue
            if name not in phases:
                phases[name] = Histogram(edges_s=reading.hist.edges, cumulative=reading.hist.cumulative)
            if reading.row.end is not None and (reading.n or 0) >= requests > 0:
                whole.add(reading.row.end)
    return OnRecord(phases=phases, boundaries=frozenset(whole))


class Watched(Protocol):
    """What a window of counters and gauges is read from."""

    engines: dict[str, EngineReading]
    gauges: tuple[dict[str, EngineReading], ...]


def server_window(view: Watched) -> ServerWindow | None:
    """The window's counters and means, and the highest gauge of any scrape; None without a metrics page."""
    if not view.gauges:
        return None
    return ServerWindow(
        queue_mean_s=_mean(view.engines, "queue"), prefill_mean_s=_mean(view.engines, "prefill"),
        waiting_max=_highest(view.gauges, "waiting_requests"), running_max=_highest(view.gauges, "running_requests"),
        kv_usage_max=_as_share(_highest(view.gauges, "kv_cache_usage", parts=True)), preemptions=_grown(view.engines, "preemptions"),
        prefix_hit_share=_ratio(view.engines), kv_transfer_mean_s=_mean(view.engines, "kv_transfer"),
    )  # fmt: skip


def _as_share(value: float | None) -> float | None:
    """A usage gauge as a share: some builds tell percent under the same name. None for what is neither."""
    if value is None or value <= 1.05:
        return value
    return value / 100 if value <= 105 else None


def _mean(engines: Mapping[str, EngineReading], key: str) -> float | None:
    found = [
        e.readings[key].mean for e in engines.values() if key in e.readings and e.readings[key].status == "present"
    ]
    return found[0] if len(found) == 1 else None


def _grown(engines: Mapping[str, EngineReading], key: str) -> float | None:
    found = [
        e.readings[key].value for e in engines.values() if key in e.readings and e.readings[key].status == "present"
    ]
    return found[0] if len(found) == 1 else None


def _ratio(engines: Mapping[str, EngineReading]) -> float | None:
    counted = cache_counters(engines)
    return None if counted is None or not counted[1] else counted[0] / counted[1]


def _highest(scrapes: Iterable[Mapping[str, EngineReading]], key: str, *, parts: bool = False) -> float | None:
    seen = [e.readings[key] for scrape in scrapes for e in scrape.values() if key in e.readings]
    present = [one for one in seen if one.status == "present" and one.value is not None]
    if parts:
        return max((value for one in present for value in one.parts.values()), default=None)
    return max((one.value for one in present if one.value is not None), default=None)
