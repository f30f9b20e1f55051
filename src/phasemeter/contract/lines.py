"""One line of a contract held against values: a percentile, a mean, pooled gaps, a server's histogram.

Lives here: met, missed, undecided from an interval, and the reason and number that go with undecided. Must not live here:
where values come from, or the whole verdict (verdict.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from phasemeter.contract import samples
from phasemeter.contract.model import PERCENTILES, Objective
from phasemeter.records.request_row import RequestRow
from phasemeter.stats import intervals
from phasemeter.stats.distributions import normal_quantile
from phasemeter.stats.quantiles import Floats, quantile
from phasemeter.stats.stationarity import correlated

Verdict = Literal["met", "missed", "undecided"]
SHORTEST_CORRELATED = 200  # values: below, batch means have too few a batch to say anything


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One promise held against the run. Times in seconds, shares 0–1. `n_to_decide`: None where no number would."""

    path: str
    verdict: Verdict
    value: float | None = None
    ci95: tuple[float | None, float | None] = (None, None)
    n: int = 0
    n_to_decide: int | None = None
    unit: str = "s"
    limit: float | None = None
    at_most: bool = True
    ok_only: float | None = None  # the same of successful requests alone, what other tools print
    reason: str | None = None
    notes: tuple[str, ...] = ()


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A server's histogram of one phase over the run: upper edges in seconds and cumulative counts."""

    edges_s: tuple[float, ...]
    cumulative: tuple[float, ...]


def decided(bounds: tuple[float | None, float | None], limit: float, *, at_most: bool = True) -> Verdict:
    """Met where the whole interval is on the good side of the limit, missed where it is on the bad side."""
    low, high = bounds
    if not at_most:
        low, high, limit = (None if high is None else -high), (None if low is None else -low), -limit
    if high is not None and high <= limit:
        return "met"
    return "missed" if low is not None and low > limit else "undecided"


def quantile_line(objective: Objective, taken: samples.Samples, confidence: float) -> Line:
    """One percentile's promise. The interval runs from the kindest reading of what was cut off to the harshest."""
    q = PERCENTILES[objective.statistic]
    n = int(taken.kindest.size)
    if n == 0:
        return _no_value(objective, taken.left_out)
    low, lower_alike = _quantile_bounds(taken.kindest, q, confidence)
    high, upper_alike = _quantile_bounds(taken.harshest, q, confidence)
    bounds = (low[0], high[1])
    verdict = decided(bounds, objective.limit_s)
    alike = lower_alike or upper_alike
    notes = [f"{taken.failures} failed: ranked as never"] if taken.failures else []
    if taken.censored:
        notes.append(f"{taken.censored} cut off by the run's end: at least their age")
    notes += [f"{count} left out: {reason}" for reason, count in taken.left_out.items()]
    reason = None
    if verdict == "undecided":
        too_short = alike and n < SHORTEST_CORRELATED
        reason = "too_short_for_batch_means" if too_short else "interval_spans_limit"
        if not too_short and None in bounds:
            reason = "too_few_samples"
    return Line(
        path=objective.path,
        verdict=verdict,
        value=_finite(quantile(taken.kindest, q)),
        ci95=(_finite(bounds[0]), _finite(bounds[1])),
        n=n,
        n_to_decide=None if verdict != "undecided" else _needed(taken.kindest, objective.limit_s, q, confidence, alike),
        limit=objective.limit_s,
        ok_only=quantile(taken.ok_only, q) if taken.ok_only.size else None,
        reason=reason,
        notes=tuple(notes),
    )


def _quantile_bounds(values: Floats, q: float, confidence: float) -> tuple[intervals.Interval, bool]:
    if not correlated(values):
        return intervals.quantile_interval(values, q, confidence), False
    if values.size < SHORTEST_CORRELATED:
        return (None, None), True
    return intervals.correlated_quantile_interval(values, q, confidence), True


def _needed(values: Floats, limit: float, q: float, confidence: float, alike: bool) -> int | None:
    """The number of requests that would decide, all else staying as seen; more where neighbours are alike."""
    good = values <= limit
    needed = intervals.n_to_decide(float(good.mean()), q, confidence)
    if needed is None or not alike:
        return needed
    if values.size < SHORTEST_CORRELATED:
        return max(needed, SHORTEST_CORRELATED)
    return math.ceil(needed * values.size / intervals.effective_n(good.astype(np.float64)))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _no_value(objective: Objective, left_out: Mapping[str, int]) -> Line:
    why = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "no measured requests"
    return Line(
        path=objective.path, verdict="undecided", limit=objective.limit_s, reason="no_evidence", notes=(why,)
    )  # fmt: skip


def mean_line(objective: Objective, taken: samples.Samples, confidence: float) -> Line:
    if not taken.kindest.size:
        return _no_value(objective, taken.left_out)
    if taken.failures or taken.censored:
        return Line(
            path=objective.path, verdict="undecided", n=int(taken.kindest.size), limit=objective.limit_s,
            ok_only=float(taken.ok_only.mean()) if taken.ok_only.size else None, reason="unfinished_requests_have_no_mean",
        )  # fmt: skip
    alike = correlated(taken.kindest)
    reader = intervals.correlated_mean_interval if alike else intervals.mean_interval
    bounds = reader(taken.kindest, confidence)
    verdict = decided(bounds, objective.limit_s)
    value = float(taken.kindest.mean())
    needed = None
    if verdict == "undecided" and bounds[1] is not None and value != objective.limit_s:
        needed = math.ceil(taken.kindest.size * ((bounds[1] - value) / (objective.limit_s - value)) ** 2)
    return Line(
        path=objective.path, verdict=verdict, value=value, ci95=bounds, n=int(taken.kindest.size), n_to_decide=needed,
        limit=objective.limit_s, ok_only=float(taken.ok_only.mean()) if taken.ok_only.size else None,
        reason="interval_spans_limit" if verdict == "undecided" else None,
    )  # fmt: skip


def gap_line(objective: Objective, rows: Sequence[RequestRow], confidence: float) -> Line:
    groups, left_out, failures = samples.of_gaps(objective.metric, rows)
    if not any(group.size for group in groups):
        return _no_value(objective, left_out)
    pooled = np.concatenate(groups)
    if objective.statistic == "mean":
        return Line(path=objective.path, verdict="undecided", n=pooled.size, limit=objective.limit_s,
                    value=_finite(float(pooled.mean())), reason="promise a percentile of gaps, or the mean of tpot")  # fmt: skip
    q = PERCENTILES[objective.statistic]
    bounds = intervals.clustered_quantile_interval(groups, q, confidence)
    verdict = decided(bounds, objective.limit_s)
    return Line(
        path=objective.path,
        verdict=verdict,
        value=_finite(quantile(pooled, q)),
        ci95=(_finite(bounds[0]), _finite(bounds[1])),
        n=int(pooled.size),
        n_to_decide=None if verdict != "undecided" else _requests_for_gaps(groups, objective.limit_s, q, confidence),
        limit=objective.limit_s,
        reason=("too_few_samples" if None in bounds else "interval_spans_limit") if verdict == "undecided" else None,
        notes=(f"{len(groups)} requests; {failures} failed: each ends in a gap without end",) if failures else (),
    )


def _requests_for_gaps(groups: Sequence[Floats], limit: float, q: float, confidence: float) -> int | None:
    """Requests, not gaps: what decides is how many requests there are to vary."""
    sizes = np.array([group.size for group in groups], dtype=np.float64)
    good = np.array([float((group <= limit).sum()) for group in groups])
    share = float(good.sum() / sizes.sum())
    if share == q:
        return None
    spread = float(np.std(good - share * sizes, ddof=1)) / float(sizes.mean()) if len(groups) > 1 else 1.0
    z = normal_quantile(1 - (1 - confidence) / 2)
    return max(10, math.ceil((z * spread / (share - q)) ** 2))


def phase_line(objective: Objective, seen: Sequence[float] | Histogram | None, confidence: float) -> Line:
    if seen is None or (not isinstance(seen, Histogram) and not len(seen)):
        note = f"no server evidence of {objective.metric}: scrape with --server-metrics or --otlp-listen"
        return Line(
            path=objective.path, verdict="undecided", limit=objective.limit_s, reason="no_evidence", notes=(note,)
        )
    if isinstance(seen, Histogram):
        return _histogram_line(objective, seen, confidence)
    values = np.asarray(seen, dtype=np.float64)
    taken = samples.Samples(kindest=values, harshest=values, ok_only=values, left_out={})
    reader = mean_line if objective.statistic == "mean" else quantile_line
    return msgspec.structs.replace(reader(objective, taken, confidence), ok_only=None)


def _histogram_line(objective: Objective, seen: Histogram, confidence: float) -> Line:
    """Buckets give the share within the limit only between the edges beside it: both ends have to agree."""
    total = seen.cumulative[-1] if seen.cumulative else 0.0
    if total <= 0 or objective.statistic == "mean":
        return Line(path=objective.path, verdict="undecided", limit=objective.limit_s, reason="no_evidence")
    q = PERCENTILES[objective.statistic]
    at_least = max(
        (c for e, c in zip(seen.edges_s, seen.cumulative, strict=True) if e <= objective.limit_s), default=0.0
    )
    at_most = min(
        (c for e, c in zip(seen.edges_s, seen.cumulative, strict=True) if e >= objective.limit_s), default=total
    )
    low = intervals.clopper_pearson_interval(at_least, total, confidence)[0]
    high = intervals.clopper_pearson_interval(at_most, total, confidence)[1]
    verdict: Verdict = "met" if low >= q else "missed" if high < q else "undecided"
    inside = [e for e, c in zip(seen.edges_s, seen.cumulative, strict=True) if c >= q * total]
    below = [e for e, c in zip(seen.edges_s, seen.cumulative, strict=True) if c < q * total]
    return Line(
        path=objective.path, verdict=verdict, n=int(total), limit=objective.limit_s,
        ci95=(max(below, default=0.0), _finite(min(inside, default=math.inf))),
        reason="histogram_too_coarse_or_too_few" if verdict == "undecided" else None,
        notes=("from the server's histogram: the percentile lies between two of its edges",),
    )  # fmt: skip
