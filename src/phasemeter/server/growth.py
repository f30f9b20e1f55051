"""What one series grew by between pages, every step of it checked.

Lives here: one label set's counters, histograms and summaries. Must not live here: which series belong together (prometheus.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from phasemeter.server.engines import Row
from phasemeter.server.histograms import Histogram, Rejected, difference, histogram, scaled

RESTART_TOLERANCE_S = 0.5  # two readings of one start instant differ by rounding only


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One label set of one family: a histogram or summary (`buckets`, `count`, `total`) or a plain `value`."""

    buckets: dict[float, float] = msgspec.field(default_factory=dict)
    count: float | None = None
    total: float | None = None
    value: float | None = None
    created_s: float | None = None


def growth(row: Row, line: Sequence[Series | None]) -> Histogram | Series:
    """One label set from first to last page; every step has to be a growth. One page: its lifetime."""
    seen = [series for series in line if series is not None]
    created = {series.created_s for series in seen if series.created_s is not None}
    if created and max(created) - min(created) > RESTART_TOLERANCE_S:
        raise Rejected("restart: the series was created anew between the pages (_created changed)")
    if row.kind != "histogram":
        return _counter_growth(line, seen)
    if not seen[-1].buckets:
        return _summary_growth(line, seen)
    steps = [histogram(series.buckets, series.count, series.total) for series in seen]
    for a, b in pairwise(steps):
        difference(a, b)
    grown = difference(steps[0], steps[-1]) if line[0] is not None and len(line) > 1 else steps[-1]
    return scaled(grown, row.factor)


def _counter_growth(line: Sequence[Series | None], seen: Sequence[Series]) -> Series:
    values = [series.value for series in seen if series.value is not None]
    if any(not math.isfinite(value) or value < 0 for value in values):
        raise Rejected("a counter is negative or no number")
    if any(b < a for a, b in pairwise(values)):
        raise Rejected("a counter fell between the scrapes: a restart, or the pages are swapped")
    first = values[0] if line[0] is not None and len(line) > 1 else 0.0
    return Series(value=values[-1] - first)


def _summary_growth(line: Sequence[Series | None], seen: Sequence[Series]) -> Series:
    first = seen[0] if line[0] is not None and len(line) > 1 else Series(count=0.0, total=0.0)
    last = seen[-1]
    if last.count is None or first.count is None or not math.isfinite(last.count) or last.count < first.count:
        raise Rejected("no buckets, and no count that grew: the page may be cut off")
    totals = (first.total, last.total)
    total = None if totals[0] is None or totals[1] is None else totals[1] - totals[0]
    return Series(count=last.count - first.count, total=total)
