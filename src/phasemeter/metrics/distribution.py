"""From many values of one metric to a distribution with intervals: which interval fits which values.

Lives here: the choice (order statistics, batch means, bootstrap by request) and the flags. The statistics themselves are in stats/.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phasemeter.records.result import Metric, Percentile
from phasemeter.stats.intervals import correlated_quantile_intervals, ordered_quantile_interval
from phasemeter.stats.quantiles import ordered_quantile
from phasemeter.stats.stationarity import correlated

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Owners = NDArray[np.integer[Any]]  # the number of each value's request
Bounds = tuple[float | None, float | None]

PERCENTILES: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
RESAMPLES = 400
MAX_GROUPS = 1000  # of a bootstrap: more requests than this are taken in consecutive blocks
MIN_GROUPS = 10


def empty(definition: str, unit: str, reason: str, excluded: Mapping[str, int]) -> Metric:
    """A metric without a value, and why."""
    percentiles = {name: Percentile(value=None) for name in PERCENTILES}
    return Metric(
        definition=definition, unit=unit, n=0, reason=reason, excluded=dict(excluded), percentiles=percentiles
    )


def of_requests(values: Floats, definition: str, unit: str, excluded: Mapping[str, int]) -> Metric:
    """One value a request, in the order the requests were due."""
    ordered = np.sort(values)
    alike, levels = correlated(values), tuple(PERCENTILES.values())
    if alike:
        intervals = correlated_quantile_intervals(values, levels)
    else:
        intervals = [ordered_quantile_interval(ordered, q) for q in levels]
    percentiles = {}
    for (name, q), bounds in zip(PERCENTILES.items(), intervals, strict=True):
        flag = few(len(values), q) or ("correlated" if alike else None)
        percentiles[name] = Percentile(value=ordered_quantile(ordered, q), ci95=_floats(bounds), flag=flag)
    return _metric(values, definition, unit, excluded, percentiles)


def of_gaps(values: Floats, owners: Owners, definition: str, unit: str, excluded: Mapping[str, int]) -> Metric:
    """Many values a request: equal weight a gap, intervals by resampling whole requests."""
    ordered = np.sort(values)
    bounds = bootstrap_by_request(values, owners, ordered)
    percentiles = {
        name: Percentile(value=ordered_quantile(ordered, q), ci95=_floats(bounds[name]), flag=few(len(values), q))
        for name, q in PERCENTILES.items()
    }
    return _metric(values, definition, unit, excluded, percentiles)


def _metric(
    values: Floats, definition: str, unit: str, excluded: Mapping[str, int], percentiles: dict[str, Percentile]
) -> Metric:
    return Metric(
        definition=definition,
        unit=unit,
        n=len(values),
        mean=float(values.mean()),
        min=float(values.min()),
        max=float(values.max()),
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        percentiles=percentiles,
        excluded=dict(excluded),
    )


def few(n: int, q: float) -> str | None:
    """`few_samples` where not one value is expected beyond the quantile: p99 below 100, p95 below 20."""
    return "few_samples" if n * (1 - q) < 1 - 1e-9 else None


def bootstrap_by_request(values: Floats, owners: Owners, ordered: Floats) -> dict[str, Bounds]:
    """95 % intervals of all PERCENTILES from resampling whole requests (or blocks of them), by counts at cut points.

    A resample's quantile is where its weighted count passes q. Each group's gaps below a few hundred cut points are counted
    once, then a resample looks at a handful of them, so that the cost doesn't grow with gaps × resamples.
    """
    if (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners, kind="stable")
        values, owners = values[order], owners[order]
    starts = _starts(owners)
    if len(starts) < MIN_GROUPS:
        return dict.fromkeys(PERCENTILES, (None, None))
    if len(starts) > MAX_GROUPS:
        starts = starts[_starts(np.arange(len(starts)) * MAX_GROUPS // len(starts))]
    sizes = np.diff(starts, append=len(values)).astype(np.float64)
    picks = _picks(len(starts))
    totals = np.einsum("rg,g->r", picks, sizes)
    intervals: dict[str, Bounds] = {}
    for name, q in PERCENTILES.items():
        cuts = _cut_points(values, starts, sizes, ordered, q)
        first = _first_passed(picks, _below(values, starts, cuts), q * totals - 1e-9)
        if first.max() == len(cuts):  # the quantile of some resample lies beyond all cuts: the data can't bound it
            intervals[name] = None, None
            continue
        at = cuts[first]
        low, high = np.quantile(at, [0.025, 0.975])
        intervals[name] = float(low), float(high)
    return intervals


def _starts(numbers: Owners | Floats) -> Ints:
    """Where each run of equal numbers begins."""
    return np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])[: len(numbers)]


@lru_cache(maxsize=2)
def _picks(groups: int) -> Floats:
    """How often each resample takes each group. The same for every metric of so many groups: drawing costs as much as using."""
    even = np.full(groups, 1 / groups)
    return np.random.default_rng(1).multinomial(groups, even, size=RESAMPLES).astype(np.float64)


def _below(values: Floats, starts: Ints, cuts: Floats) -> Floats:
    """A row a cut: how many of each group's values lie at or below it. Only those between the first and the last need a search."""
    groups, under = len(starts), values <= cuts[0]
    inside = np.flatnonzero((values <= cuts[-1]) & ~under)
    group = np.searchsorted(starts, inside, side="right") - 1
    at = np.searchsorted(cuts, values[inside], side="left") * groups + group
    table = np.bincount(at, minlength=len(cuts) * groups).reshape(len(cuts), groups)
    table[0] += np.add.reduceat(under, starts, dtype=np.int64)
    found: Floats = np.cumsum(table, axis=0).astype(np.float64)
    return found


def _first_passed(picks: Floats, below: Floats, targets: Floats) -> Ints:
    """For each resample the first cut at which its count reaches its target, by halving; the number of cuts where none does.

    No product of the two matrices: BLAS would wake a thread on every core for it, and those spin on for longer than it takes.
    """
    low = np.zeros(len(picks), dtype=np.int64)
    high = np.full(len(picks), len(below))
    while (low < high).any():
        middle = np.minimum((low + high) // 2, len(below) - 1)
        passed = np.einsum("rg,rg->r", picks, below[middle]) >= targets
        low, high = np.where(passed, low, middle + 1), np.where(passed, middle, high)
    return low


def _cut_points(values: Floats, starts: Ints, sizes: Floats, ordered: Floats, q: float) -> Floats:
    """Sample values at 128 ranks within six standard errors of q, the error taken between groups."""
    inside = np.add.reduceat(values <= ordered_quantile(ordered, q), starts, dtype=np.int64)
    residual = inside - q * sizes
    error = float((residual**2).sum()) ** 0.5 / float(sizes.sum())
    reach = 6 * max(error, 1 / len(ordered))
    ranks = np.linspace(max(q - reach, 0.0), min(q + reach, 1.0), 128) * (len(ordered) - 1)
    cuts = ordered[np.ceil(ranks).astype(np.int64)]
    found: Floats = cuts[_starts(cuts)]
    return found


def _floats(bounds: Bounds) -> Bounds:
    low, high = bounds
    return (None if low is None else float(low)), (None if high is None else float(high))
