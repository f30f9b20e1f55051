"""A run seen from its server: what inline timings, headers, spans and scrapes of RUN/evidence say, joined to its requests.

Lives here: finding the evidence of a run and joining it. Must not live here: its meaning (server/) or budgets (phases/).
Scrapes are named `metrics-before`, `metrics-during-*`, `metrics-after`, spans `spans-*`: names sort in order of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from phasemeter.errors import Undefined
from phasemeter.phases.budget import Budget, budget_of
from phasemeter.phases.features import ServerWindow
from phasemeter.records.evidence import EvidenceInstant, EvidenceValue
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.analysis import Rows
from phasemeter.runs.evidence_files import page_of
from phasemeter.server.exposition import Page
from phasemeter.server.headers import timings_in_headers
from phasemeter.server.joins import Identity, Joined, join
from phasemeter.server.otlp import Span, decode, timings_of
from phasemeter.server.prometheus import EngineReading, read_pages
from phasemeter.server.timings import Timings, found_in
from phasemeter.server.windows import window_mismatches
from phasemeter.wire.exchange import Exchange


class ServerView(msgspec.Struct, kw_only=True):
    """All rows of a run with what the server told of each; the window's engines; what could not be joined."""

    rows: list[RequestRow]
    values: dict[str, tuple[EvidenceValue, ...]]
    instants: dict[str, tuple[EvidenceInstant, ...]]
    engines: dict[str, EngineReading]
    gauges: tuple[dict[str, EngineReading], ...] = ()  # each scrape on its own, for the highest gauge
    joined: Joined | None = None
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


def inline(exchange: Exchange | None) -> list[Timings]:
    """What one response itself told: body fields and headers."""
    if exchange is None:
        return []
    found = found_in(exchange.timings) if exchange.timings else []
    return found + timings_in_headers(exchange.headers)


def server_view(run: Path | str) -> ServerView:
    """Reads a run's capture and evidence. Raises FileError as reading them does."""
    source = Rows(run)
    rows, inside, identities = [], {}, []
    parents = {p.request_id: p.traceparent for p in source.directory.planned()} if source.captured else {}
    for row, exchange in source.with_exchanges():
        rows.append(row)
        inside[row.request_id] = inline(exchange)
        identities.append(
            Identity(request_id=row.request_id, traceparent=parents.get(row.request_id), response_id=row.response_id)
        )
    pages, spans, warnings = evidence_of(source.directory.path / "evidence")
    joined = join(identities, spans) if spans else None
    values: dict[str, tuple[EvidenceValue, ...]] = {}
    instants: dict[str, tuple[EvidenceInstant, ...]] = {}
    for row in rows:
        told = inside[row.request_id]
        if joined is not None:
            told = told + [timing for span in joined.spans.get(row.request_id, ()) if (timing := timings_of(span))]
        values[row.request_id] = tuple(value for timing in told for value in timing.values)
        instants[row.request_id] = tuple(at for timing in told for at in timing.instants)
    if joined is not None and joined.ambiguous:
        warnings.append(
            f"ambiguous_spans: {len(joined.ambiguous)} requests are claimed by several spans, and joined to none"
        )
    engines = read_pages(pages) if len(pages) > 1 else {}
    ok = [row for row in rows if row.outcome == "ok" and row.phase == "measured"]
    tokens = [row.server_output_tokens for row in ok if row.server_output_tokens is not None]
    for reading in engines.values():
        warnings += window_mismatches(reading, len(ok), sum(tokens) if len(tokens) == len(ok) else None)
    return ServerView(
        rows=rows, values=values, instants=instants, engines=engines, gauges=tuple(read_pages([page]) for page in pages),
        joined=joined, warnings=tuple(warnings),
    )  # fmt: skip


def evidence_of(directory: Path) -> tuple[list[Page], list[Span], list[str]]:
    """Pages in order of time, and spans. A damaged evidence file is an error: it names itself."""
    pages: list[Page] = []
    spans: list[Span] = []
    if not directory.is_dir():
        return pages, spans, []
    for path in sorted(directory.glob("spans-*")):
        spans += decode(path.read_bytes(), str(path))
    order = {"metrics-before": 0, "metrics-after": 2}
    for path in sorted(directory.glob("metrics-*"), key=lambda path: (order.get(path.stem, 1), path.name)):
        pages.append(page_of(path))
    return pages, spans, []


def phase_values(run: Path | str) -> dict[str, list[float]]:
    """phase: seconds of each measured, successful request, as budgets use them (one source a phase)."""
    view = server_view(run)
    budgets, found = view.budgets(), dict[str, list[float]]()
    for row in view.rows:
        if row.outcome == "ok" and row.phase == "measured" and row.request_id in budgets:
            budget = budgets[row.request_id]
            for segment in budget.evidence:
                found.setdefault(segment, []).append(budget.segments[segment] / 1e9)
    return found


def server_window(view: ServerView) -> ServerWindow | None:
    """The window's counters and means, and the highest gauge of any scrape; None without a metrics page."""
    if not view.gauges:
        return None
    return ServerWindow(
        queue_mean_s=_mean(view.engines, "queue"), prefill_mean_s=_mean(view.engines, "prefill"),
        waiting_max=_highest(view.gauges, "waiting_requests"), running_max=_highest(view.gauges, "running_requests"),
        kv_usage_max=_highest(view.gauges, "kv_cache_usage", parts=True), preemptions=_grown(view.engines, "preemptions"),
        prefix_hit_share=_ratio(view.engines), kv_transfer_mean_s=_mean(view.engines, "kv_transfer"),
    )  # fmt: skip


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
    hits, queries = _grown(engines, "prefix_cache_hits"), _grown(engines, "prefix_cache_queries")
    return None if hits is None or not queries else hits / queries


def _highest(scrapes: Iterable[Mapping[str, EngineReading]], key: str, *, parts: bool = False) -> float | None:
    seen = [e.readings[key] for scrape in scrapes for e in scrape.values() if key in e.readings]
    present = [one for one in seen if one.status == "present" and one.value is not None]
    if parts:
        return max((value for one in present for value in one.parts.values()), default=None)
    return max((one.value for one in present if one.value is not None), default=None)
