"""The load and the workload as they came out: outcomes, lengths, in-flight requests, the first wave, and what validity looks at.

Lives here: counting and comparing asked with realised. Must not live here: thresholds (validity), latency statistics (summary).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import Undefined
from phasemeter.metrics.columns import Columns
from phasemeter.metrics.document import error_rate
from phasemeter.metrics.throughput import steps_of
from phasemeter.metrics.timeline import Timeline
from phasemeter.metrics.validity import Seen
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Failure, Metric, Outcomes
from phasemeter.stats.quantiles import quantile
from phasemeter.stats.stationarity import trend

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DISTINCT_FAILURES = 50
TOKEN_TOLERANCE = 0.02  # client and server counts that differ by more don't agree


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How requests were driven: open (a schedule), closed (so many at a time), inf (all at once)."""

    mode: str
    rate_per_s: float | None = None
    concurrency: int | None = None
    replay: bool = False  # a trace's own instants
    template_tokens: int = 0  # what a chat template puts before each prompt: every request shares them


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the whole run gave: the result's workload, and validity's numbers."""

    workload: dict[str, Any]
    seen: Seen


class Gathered(Protocol):
    """What a summary gathered, as far as a look at the whole run needs it."""

    columns: Columns
    timeline: Timeline
    counts: Counts

    def in_order(self, name: str) -> Floats: ...

    def numbers(self, name: str) -> Ints: ...


class Counts:
    """Counters over rows, by phase."""

    def __init__(self) -> None:
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._words: Counter[tuple[str, int | None, str | None]] = Counter()
        self.warnings: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.finishes: Counter[str] = Counter()
        self.token_pairs = self.token_mismatches = self.partial_tokens = self.silent_ok = 0
        self.gaps: dict[str, Any] = {}

    def add(self, row: RequestRow, many: int = 1) -> None:
        """Count one row, or `many` that are like it in all that is counted here."""
        self._outcomes[row.phase, row.outcome] += many
        if row.outcome == "failed":
            self._failures[row.phase, row.failure or "unknown"] += many
        if row.phase != "measured":
            return
        for warning in row.warnings:
            self.warnings[warning] += many
        if row.outcome == "failed":
            words = row.failure or "unknown", row.http_status, row.failure_text
            if words in self._words or len(self._words) < DISTINCT_FAILURES:
                self._words[words] += many
        if row.outcome != "ok":
            self.partial_tokens += (row.output_tokens or 0) * many
            return
        self.sources[row.output_tokens_source or "unknown"] += many
        self.finishes[row.finish_reason or "unknown"] += many
        self.silent_ok += many * (row.first_token_ns is not None and row.first_output_ns is None)
        server, local = row.server_output_tokens, row.local_output_tokens
        if server is not None and local is not None:
            self.token_pairs += many
            self.token_mismatches += many * (abs(server - local) > TOKEN_TOLERANCE * max(server, local))

    def errors(self) -> tuple[Failure, ...]:
        """The distinct failures of measured requests, most frequent first; at most 50 are told apart."""
        return tuple(
            Failure(kind=kind, status=status, message=_server_words(status, text), count=count)
            for (kind, status, text), count in self._words.most_common()
        )

    def outcomes(self, phase: str, planned: int | None = None) -> Outcomes:
        """`scheduled = ok + failed + cancelled + unsent`. Planned requests that no row tells of were never sent."""
        failed = {kind: n for (of, kind), n in sorted(self._failures.items()) if of == phase}
        ok, cancelled = self._outcomes[phase, "ok"], self._outcomes[phase, "cancelled"]
        unsent = self._outcomes[phase, "unsent"]
        scheduled = ok + sum(failed.values()) + cancelled + unsent
        missing = max((planned or 0) - scheduled, 0)
        return Outcomes(
            scheduled=scheduled + missing, ok=ok, failed=failed, cancelled=cancelled, unsent=unsent + missing
        )

    def see_gaps(self, values: Floats, stalls: Floats, whose: Ints) -> None:
        """Note what the gaps say of the run: how many were merged, how many were stalls."""
        self.gaps = {
            "gaps": len(values),
            "coalesced_share": float((values == 0).mean()) if len(values) else None,
            "stalls": len(stalls),
            "requests_with_stalls": len(np.unique(whose)),
            "stalled_s": float(stalls.sum()),
        }


def load_of(manifest: Manifest, columns: Columns) -> Load:
    """How the run was driven, from its manifest; without one, from the schedule that the rows show."""
    rate = manifest.rate_per_s
    if rate == "inf" or rate == float("inf"):
        return Load(mode="inf", concurrency=manifest.concurrency)
    if isinstance(rate, int | float):
        return Load(mode="open", rate_per_s=float(rate), concurrency=manifest.concurrency)
    if manifest.concurrency is not None:
        return Load(mode="closed", concurrency=manifest.concurrency)
    dues = columns.ints("due")
    if len(dues) > 1 and dues.min() == dues.max():
        return Load(mode="inf")
    return Load(mode="open" if manifest.arrivals is not None else "unknown")


def template_tokens(manifest: Manifest) -> int:
    """The tokens that a chat template puts before every prompt, as the probe found them; 0 where that isn't known."""
    told = (manifest.prompt_lengths or {}).get("template_overhead")
    return told if isinstance(told, int) else 0


def _server_words(status: int | None, text: str | None) -> str | None:
    """A failure's text without the status line that stands before the server's own words."""
    if status is None or status < 300 or text is None or not text.startswith(str(status)):
        return text
    return text.partition(": ")[2] or text


def look(summary: Gathered, load: Load, metrics: dict[str, Metric]) -> Looked:
    """The realised workload and validity's numbers, from everything the summary holds."""
    columns, counts = summary.columns, summary.counts
    measured = columns.phase("measured")
    ok = measured & columns.outcome("ok")
    outcomes = counts.outcomes("measured")
    wave = _first_wave(summary, load)
    flight, late_share = _in_flight(columns)
    rates = _rates(columns)
    asked_in, real_in = columns.floats("asked_input")[ok], columns.floats("input_tokens")[ok]
    asked_out, real_out = columns.floats("asked_output")[ok], columns.floats("output_tokens")[ok]
    lag = columns.present("lag", measured) / 1e9
    seen = Seen(
        ok=outcomes.ok,
        failed=outcomes.failed,
        mode=load.mode,
        replay=load.replay,
        asked_rate_per_s=load.rate_per_s,
        sent_rate_per_s=rates["sent_per_s"],
        due_rate_per_s=rates["due_per_s"],
        asked_concurrency=load.concurrency,
        peak_concurrency=flight["peak"],
        lateness_p99_s=metrics["client_queue"].percentiles["p99"].value,
        ttft_p50_s=metrics["ttft"].percentiles["p50"].value,
        lag_p99_s=quantile(lag, 0.99) if len(lag) else None,
        gap_p50_s=metrics["inter_chunk"].percentiles["p50"].value,
        coalesced_share=counts.gaps.get("coalesced_share"),
        token_pairs=counts.token_pairs,
        token_mismatches=counts.token_mismatches,
        input_ratio=_ratio(real_in, asked_in),
        input_excess=_excess(real_in, asked_in),
        output_ratio=_ratio(real_out, asked_out),
        cached_share=_ratio(np.maximum(columns.floats("cached_tokens")[ok] - load.template_tokens, 0), real_in),
        template_share=_ratio(np.full_like(real_in, load.template_tokens), real_in) or 0.0,
        trend=_growth(summary),
        in_flight_late_share=late_share,
        p95_all_s=wave["p95_all"] if wave else None,
        p95_without_first_wave_s=wave["p95_without"] if wave else None,
    )
    workload = {
        "load": msgspec.to_builtins(load),
        "asked": {"input_tokens": lengths(asked_in), "output_tokens": lengths(asked_out)},
        "realised": {"input_tokens": lengths(real_in), "output_tokens": lengths(real_out), **rates},
        "in_flight": flight,
        "first_wave": wave,
        "output_tokens_sources": dict(counts.sources),
        "finish_reasons": dict(counts.finishes),
        "no_final_output": counts.silent_ok,
        "tokens_per_chunk": summary.timeline.tokens_per_event_known(),
        "gaps": counts.gaps,
        "partial_output_tokens": counts.partial_tokens,
        "error_rate": error_rate(outcomes),
        "warmup": msgspec.to_builtins(counts.outcomes("warmup")),
        "probe": msgspec.to_builtins(counts.outcomes("probe")),
    }
    return Looked(workload=workload, seen=seen)


def lengths(values: Floats) -> dict[str, Any]:
    """n, sum, mean, min, p50, max of the known values; null where none is known."""
    known = values[~np.isnan(values)]
    if not len(known):
        return {"n": 0, "mean": None, "min": None, "p50": None, "max": None, "sum": None, "reason": "unknown"}
    return {
        "n": len(known),
        "mean": float(known.mean()),
        "min": int(known.min()),
        "p50": quantile(known, 0.5),
        "max": int(known.max()),
        "sum": int(known.sum()),
    }


def _ratio(real: Floats, asked: Floats) -> float | None:
    both = ~np.isnan(real) & ~np.isnan(asked)
    total = float(asked[both].sum())
    return float(real[both].sum()) / total if total > 0 else None


def _excess(real: Floats, asked: Floats) -> float | None:
    both = ~np.isnan(real) & ~np.isnan(asked)
    return float((real[both] - asked[both]).mean()) if both.any() else None


def _rates(columns: Columns) -> dict[str, float | None]:
    """Requests per second as due and as sent, over the measured requests that were sent: (n − 1) / (last − first)."""
    sends = columns.ints("send_start")
    sent = columns.phase("measured") & ~np.isnan(columns.floats("send_start"))
    found: dict[str, float | None] = {}
    for name, values in (("due_per_s", columns.ints("due")[sent]), ("sent_per_s", sends[sent])):
        span = int(values.max() - values.min()) if len(values) > 1 else 0
        found[name] = (len(values) - 1) / (span / 1e9) if span > 0 else None
    return found


def _in_flight(columns: Columns) -> tuple[dict[str, Any], float | None]:
    """(peak and a 20-point series of requests in flight, late over early) of the measured requests until the last send."""
    sent = columns.phase("measured") & ~np.isnan(columns.floats("send_start"))
    starts, ends = columns.ints("send_start")[sent], columns.ints("end")[sent]
    if len(starts) < 2 or starts.min() == starts.max():
        return {"peak": len(starts) if len(starts) else None, "t_s": [], "requests": []}, None
    instants, flying = steps_of(starts, ends)
    first, last = int(starts.min()), int(starts.max())
    points = np.linspace(first, last, 200).astype(np.int64)
    series = flying[np.searchsorted(instants, points, side="right") - 1]
    shown = slice(0, 200, 10)
    early, late = float(series[20:70].mean()), float(series[150:].mean())
    flight = {
        "peak": int(flying.max()),
        "t_s": ((points[shown] - first) / 1e9).tolist(),
        "requests": series[shown].tolist(),
    }
    return flight, late / early if early > 0 else None


def _first_wave(summary: Gathered, load: Load) -> dict[str, Any] | None:
    """TTFT with and without the first `concurrency` requests to start: they met an idle, cold server together."""
    size = load.concurrency
    if load.mode == "open" or size is None:
        return None
    columns = summary.columns
    numbers, values = summary.numbers("ttft"), summary.in_order("ttft")
    if len(values) < 2 * size or size < 2:
        return None
    measured = np.flatnonzero(columns.phase("measured") & ~np.isnan(columns.floats("send_start")))
    opening = measured[np.argsort(columns.ints("send_start")[measured], kind="stable")[:size]]
    rest = values[~np.isin(numbers, opening)]
    if not len(rest):
        return None
    return {
        "requests": size,
        "p50_all": quantile(values, 0.5),
        "p95_all": quantile(values, 0.95),
        "p50_without": quantile(rest, 0.5),
        "p95_without": quantile(rest, 0.95),
    }


def _growth(summary: Gathered) -> float | None:
    """How much time to first token (from due) grew from the first to the last request, in its own medians; None: no trend."""
    values, numbers = summary.in_order("ttft_from_due"), summary.numbers("ttft_from_due")
    due = summary.columns.ints("due")[numbers] / 1e9
    try:
        line = trend(values, due)
    except Undefined:
        return None
    middle = quantile(values, 0.5)
    if line.low <= 0 or middle <= 0:
        return None
    return line.slope * float(due[-1] - due[0]) / middle
