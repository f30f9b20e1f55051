"""A histogram as counts below edges, and what it can say about a quantile: bounds, never a point.

Lives here: the arithmetic. Must not live here: names of metrics or engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from phasemeter.errors import Undefined

TOLERANCE = 1e-9


class Rejected(Undefined):
    """A window or histogram that can't be used; the reason says why."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """`cumulative[i]` observations were <= `edges[i]`; edges ascend and end in +Inf. `total` is their sum, if told."""

    edges: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def n(self) -> float:
        return self.cumulative[-1]


class QuantileBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The r-th smallest of n observations, r = ⌈q·n⌉, lies in [low, high]. None: no bound on that side.

    `open_bucket`: it lies above the last finite edge; `high_from_sum` is then the only thing known from above.
    """

    low: float | None
    high: float | None
    rank: int
    open_bucket: bool = False
    high_from_sum: float | None = None


def histogram(buckets: Mapping[float, float], count: float | None, total: float | None) -> Histogram:
    """A histogram from `le` edges to cumulative counts, in any order.

    Raises Rejected: no buckets, a count that is no number or falls as the edge rises, no +Inf bucket and no `_count`.
    """
    warnings = []
    edges = sorted(buckets)
    if not edges:
        raise Rejected("no buckets")
    counts = [buckets[edge] for edge in edges]
    if edges[-1] != math.inf:
        if count is None:
            raise Rejected("the +Inf bucket is missing: the page may be cut off")
        warnings.append("missing_inf_bucket: _count stands in for it")
        edges, counts = [*edges, math.inf], [*counts, count]
    if any(not math.isfinite(value) or value < 0 for value in counts):
        raise Rejected("a bucket's count is negative or no number")
    if any(b < a for a, b in pairwise(counts)):
        raise Rejected("a bucket holds less than the one below it")
    if count is not None and count != counts[-1]:
        warnings.append(f"count_mismatch: _count says {count:g}, the +Inf bucket {counts[-1]:g}")
    if total is not None and not math.isfinite(total):
        warnings.append("sum_not_finite: _sum is no number, so there is no mean")
        total = None
    return Histogram(edges=tuple(edges), cumulative=tuple(counts), total=total, warnings=tuple(warnings))


def difference(before: Histogram, after: Histogram) -> Histogram:
    """What was observed between two scrapes of one series.

    Raises Rejected: changed edges, or a bucket that fell (the server restarted, or the pages are swapped).
    """
    if before.edges != after.edges:
        raise Rejected("the bucket edges (le) changed between the scrapes")
    counts = tuple(b - a for a, b in zip(before.cumulative, after.cumulative, strict=True))
    if any(count < 0 for count in counts):
        raise Rejected("a bucket fell between the scrapes: a restart, or the pages are swapped")
    if any(b < a for a, b in pairwise(counts)):
        raise Rejected("the difference of the scrapes is no histogram: a bucket grew less than the one below it")
    total = None if before.total is None or after.total is None else after.total - before.total
    return Histogram(edges=after.edges, cumulative=counts, total=total, warnings=after.warnings)


def together(parts: Sequence[Histogram]) -> Histogram:
    """Several series as one: counts are added at the edges they share (exact: a cumulative count is known there)."""
    if not parts:
        raise Rejected("no series")
    shared = sorted(set.intersection(*(set(part.edges) for part in parts)))
    warnings = list(dict.fromkeys(text for part in parts for text in part.warnings))
    if any(len(part.edges) != len(shared) for part in parts):
        warnings.append("different_buckets: only edges that all series share are used")
    counts = tuple(sum(part.cumulative[part.edges.index(edge)] for part in parts) for edge in shared)
    totals = [part.total for part in parts]
    total = (
        None if any(value is None for value in totals) else math.fsum(value for value in totals if value is not None)
    )
    return Histogram(edges=tuple(shared), cumulative=counts, total=total, warnings=tuple(warnings))


def scaled(source: Histogram, factor: float) -> Histogram:
    """The same in another unit (a factor of 1e-3 makes seconds of milliseconds)."""
    if factor == 1:
        return source
    total = None if source.total is None else source.total * factor
    edges = tuple(edge * factor for edge in source.edges)
    return Histogram(edges=edges, cumulative=source.cumulative, total=total, warnings=source.warnings)


def mean(source: Histogram) -> float | None:
    """Exact: sum over count. None without a sum or without an observation."""
    return source.total / source.n if source.total is not None and source.n > 0 else None


def sum_range(source: Histogram, floor: float) -> tuple[float, float]:
    """Where the sum has to lie, given the buckets and that no value is below `floor`."""
    low = high = 0.0
    for count, lower, upper in _buckets(source, floor):
        low += count * lower if count else 0.0
        high += count * upper if count else 0.0
    return low, high


def _buckets(source: Histogram, floor: float) -> list[tuple[float, float, float]]:
    """(count, lower edge, upper edge) of each bucket; the lowest one starts at `floor` (or at its own edge below it)."""
    rows, below, lower = [], 0.0, floor
    for edge, cumulative in zip(source.edges, source.cumulative, strict=True):
        upper = max(edge, floor)
        rows.append((cumulative - below, lower, upper))
        below, lower = cumulative, upper
    return rows


def quantile_bounds(source: Histogram, q: float, *, clock_safe: bool = True) -> QuantileBounds:
    """Bounds on the ⌈q·n⌉-th smallest observation: its bucket, tightened by the exact sum. Nothing is interpolated.

    With m observations of the bucket at or above the rank, m·x <= sum - Σ(lower edges of all others); with l at or below
    it, l·x >= sum - Σ(upper edges of all others). Both need values >= 0. `clock_safe` False (a wall clock that may
    step): the lowest bucket gives no lower bound. Raises Undefined without observations. Source: order statistics.
    """
    if not source.n > 0:
        raise Undefined("no_observations")
    rank = max(1, math.ceil(q * source.n - TOLERANCE))
    index = next(i for i, count in enumerate(source.cumulative) if count >= rank - TOLERANCE)
    rows = _buckets(source, 0.0)
    count, lower, upper = rows[index]
    low: float | None = lower if lower > 0 or clock_safe else None
    high = upper
    below = source.cumulative[index] - count
    if source.total is not None and source.total >= 0:
        others_low = math.fsum(c * lo for i, (c, lo, _) in enumerate(rows) if i != index and c)
        others_high = math.fsum(c * hi for i, (c, _, hi) in enumerate(rows) if i != index and c)
        at_or_above, at_or_below = source.cumulative[index] - rank + 1, rank - below
        slack = (
            TOLERANCE * max(source.total, others_low) / at_or_above
        )  # rounding of sums never makes a bound too tight
        by_sum = (source.total - others_low - (count - at_or_above) * lower) / at_or_above + slack
        high = min(high, by_sum) if by_sum >= lower else high
        spare = count - at_or_below
        rest = others_high + (spare * upper if spare else 0.0)
        from_below = (source.total - rest) / at_or_below if math.isfinite(rest) else -math.inf
        from_below -= TOLERANCE * max(source.total, rest) / at_or_below if math.isfinite(rest) else 0.0
        low = max(low if low is not None else 0.0, from_below) if lower < from_below <= high else low
    opened = upper == math.inf
    return QuantileBounds(
        low=low, high=None if opened or high == math.inf else high, rank=rank, open_bucket=opened,
        high_from_sum=high if opened and high != math.inf else None,
    )  # fmt: skip
