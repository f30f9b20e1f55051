"""A run read under another tool's rules: its rows computed from ours, in its own names and units.

Lives here: the accumulator and its statistics. Must not live here: a tool's facts.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import BOUNDARIES, DIVISORS, GAP_FUNCTIONS, compute
from phasemeter.metrics.dialects.model import Dialect, Row
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Metric, Percentile
from phasemeter.stats.quantiles import sorted_quantiles

Floats = NDArray[np.float64]
NO_USAGE = frozenset({None, "logprobs", "tokenizer_full_text"})  # sources of a count that is not the server's usage
COMMON = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # in every record of a row, whatever the tool calls them
SCALE = {"ms": 1e3, "s": 1.0, "tokens/s": 1.0}

# which requests' first and last instants a tool's duration spans: (start boundary, end boundary, counted ones only)
WINDOWS: Mapping[str, tuple[str, str, bool]] = {
    "first_dispatch_to_last_end": ("dispatch", "stream_end", False),
    "valid_first_start_to_last_content": ("dispatch", "last_token", True),
    "first_start_to_last_end": ("send_start", "stream_end", False),
}


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool would have written: its file's own keys, and our record of each row."""

    values: dict[str, float | int | None]
    metrics: dict[str, Metric]


class Reading:
    """`add` every row, then `printed`."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._values = {row.key: array("d") for row in dialect.rows}
        self._weights = {row.key: array("d") for row in dialect.rows}
        self._excluded: dict[str, Counter[str]] = {row.key: Counter() for row in dialect.rows}
        self._counted = self._failed = self._output = self._input = 0
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    def add(self, row: RequestRow) -> None:
        """Take in one measured request as this tool would have."""
        if row.phase != "measured" or row.outcome == "unsent":
            return
        counted = self.counts(row)
        self._see_window(row, counted)
        if not counted:
            self._failed += row.outcome == "failed"
            return
        row = self.as_it_counts(row)
        self._counted += 1
        self._output += row.output_tokens or 0
        self._input += row.input_tokens or 0
        for own in self.dialect.rows:
            self._take(own, row)

    def counts(self, row: RequestRow) -> bool:
        """Whether the tool takes this request for a success."""
        if row.outcome == "ok":
            return True
        return (
            row.outcome == "failed" and row.failure in self.dialect.counted_failures and row.first_token_ns is not None
        )

    def as_it_counts(self, row: RequestRow) -> RequestRow:
        """The request with this tool's own token count, where the server told none and the tool makes one up."""
        rule = self.dialect.without_usage
        if rule == "ours" or row.output_tokens_source not in NO_USAGE:
            return row
        made_up = sum(len(one.times_ns) for one in row.choices) if rule == "chunks" else row.asked_output_tokens
        return msgspec.structs.replace(row, output_tokens=made_up, output_tokens_source=rule)

    def _take(self, own: Row, row: RequestRow) -> None:
        try:
            if own.definition.kind == "gap":
                found = np.asarray(GAP_FUNCTIONS[own.definition.special or ""](row))
                self._values[own.key].frombytes(found.tobytes())
                return
            value = compute(own.definition, row)
        except Undefined as absent:
            self._excluded[own.key][absent.reason] += 1
            return
        if own.inverse and value <= 0:
            self._excluded[own.key]["zero_time"] += 1
            return
        weight = 1.0 if own.weight is None else DIVISORS[own.weight](row)
        if weight is None:
            self._excluded[own.key]["unknown_tokens"] += 1
            return
        self._values[own.key].append(1 / value if own.inverse else value)
        self._weights[own.key].append(weight)

    def _see_window(self, row: RequestRow, counted: bool) -> None:
        start, end, only_counted = WINDOWS[self.dialect.window]
        first, last = BOUNDARIES[start](row), BOUNDARIES[end](row)
        if first is not None and last is not None and (counted or not only_counted):
            self._first_ns = first if self._first_ns is None else min(first, self._first_ns)
            self._last_ns = last if self._last_ns is None else max(last, self._last_ns)

    def printed(self) -> Printed:
        """The tool's summary: every statistic it prints, under its own key, in its own unit; null where it has none."""
        values: dict[str, float | int | None] = {}
        metrics = {}
        for own in self.dialect.rows:
            metric = self._metric(own)
            metrics[own.key] = metric
            for statistic, label in self.dialect.statistics:
                weighed = statistic == "count" and own.weight is not None  # it counts what it weighs by
                found = int(sum(self._weights[own.key])) if weighed else _statistic(metric, statistic)
                values[own.printed.format(stat=label)] = found
            for label, _ in self.dialect.percentiles:
                values[own.printed.format(stat=label)] = metric.percentiles[label].value
        return Printed(values=values | self._throughput(), metrics=metrics)

    def _metric(self, own: Row) -> Metric:
        excluded = dict(self._excluded[own.key])
        values = np.array(self._values[own.key], dtype=np.float64) * SCALE[own.unit]
        line = own.definition.line() if own.definition.kind == "request" else own.definition.words
        labels = dict(self.dialect.percentiles) | COMMON
        if not len(values):
            reason = self._excluded[own.key].most_common(1)[0][0] if excluded else "no_successful_requests"
            none = {label: Percentile(value=None) for label in labels}
            return Metric(definition=line, unit=own.unit, n=0, reason=reason, excluded=excluded, percentiles=none)
        weights = np.array(self._weights[own.key], dtype=np.float64) if own.weight else np.ones(len(values))
        mean = float((values * weights).sum() / weights.sum())
        spread = float(((values - mean) ** 2 * weights).sum() / weights.sum()) ** 0.5
        take = _step if self.dialect.rule == "step" else _linear
        found = {label: Percentile(value=take(values, weights, q)) for label, q in labels.items()}
        return Metric(
            definition=line, unit=own.unit, n=len(values), mean=mean, std=spread, min=float(values.min()),
            max=float(values.max()), percentiles=found, excluded=excluded,
        )  # fmt: skip

    def _throughput(self) -> dict[str, float | int | None]:
        length = 0.0
        if self._first_ns is not None and self._last_ns is not None:
            length = (self._last_ns - self._first_ns) / 1e9
        totals: dict[str, float] = {
            "requests": self._counted,
            "output": self._output,
            "input": self._input,
            "total": self._output + self._input,
        }
        found: dict[str, float | int | None] = {}
        for what, label in self.dialect.throughput:
            if what == "duration":
                found[label] = length
            elif what == "completed":
                found[label] = self._counted
            elif what == "failed":
                found[label] = self._failed
            else:
                found[label] = totals[what] / length if length > 0 else None
        return found


def _statistic(metric: Metric, name: str) -> float | int | None:
    simple: dict[str, float | int | None] = {
        "mean": metric.mean,
        "std": metric.std,
        "min": metric.min,
        "max": metric.max,
        "count": metric.n,
    }
    return metric.percentiles["p50"].value if name == "median" else simple[name]


def _linear(values: Floats, weights: Floats, q: float) -> float:
    return float(sorted_quantiles(np.sort(values), q))


def _step(values: Floats, weights: Floats, q: float) -> float:
    """The first value whose cumulative share of weight reaches q; equal values are one step, shares added in order."""
    steps, place = np.unique(values, return_inverse=True)
    shares = np.bincount(place, weights=weights) / weights.sum()
    at = int(np.searchsorted(np.cumsum(shares), q, side="left"))
    return float(steps[min(at, len(steps) - 1)])
