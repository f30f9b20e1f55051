"""A metric's values as a verdict has to see them: failures rank as never, what the run's end cut off is at least its age.

Lives here: the two readings (kindest, harshest) of what was cut off, and why a request is left out. Must not live here: the
interval or the verdict made of them (verdict.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from phasemeter.contract import names
from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import BOUNDARIES, EXCLUSIONS
from phasemeter.records.request_row import RequestRow
from phasemeter.stats.quantiles import Floats

SETTLED = ("not_streamed", "connection_was_open")  # true of a request from its send on: waiting longer changes nothing


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Values in seconds, in the order the requests were due. `kindest` takes a cut-off request at its age, `harshest` as never.

    `ok_only`: of successful requests alone, what other tools print. `left_out`: reason: how many requests.
    """

    kindest: Floats
    harshest: Floats
    ok_only: Floats
    left_out: dict[str, int]
    failures: int = 0
    censored: int = 0


def age_s(row: RequestRow, start_ns: int) -> float:
    """How long a cut-off request had lasted since `start_ns` when it was last seen, in seconds."""
    fields = (
        "send_start_ns",
        "sent_ns",
        "headers_ns",
        "first_read_ns",
        "first_token_ns",
        "last_token_ns",
        "stream_end_ns",
    )
    seen = [instant for name in fields if (instant := getattr(row, name)) is not None]
    return max(0, max(seen, default=start_ns) - start_ns) / 1e9


def censored_at(metric: str, row: RequestRow) -> float | None:
    """The least that the metric of a cut-off request can be, in seconds; None where nothing is known (a cadence)."""
    start = names.definition_of(metric).start
    start_ns = BOUNDARIES[start](row) if start else None
    if start_ns is None or not names.spans_whole(metric):
        return None
    return age_s(row, start_ns)


def measured(rows: Iterable[RequestRow], workload_class: str | None = None) -> list[RequestRow]:
    """The rows that a verdict is about, in the order they were due: warm-up and probes are not."""
    chosen = [
        row
        for row in rows
        if row.phase == "measured" and (workload_class is None or row.workload_class == workload_class)
    ]
    return sorted(chosen, key=lambda row: row.due_ns)


def of_metric(metric: str, rows: Sequence[RequestRow]) -> Samples:
    """The values of a metric that has one a request."""
    kind, harsh, ok = [], [], []
    left_out: Counter[str] = Counter()
    failures = censored = 0
    for row in rows:
        low, high, reason = reading(metric, row)
        if reason is not None:
            left_out[reason] += 1
            continue
        kind.append(low)
        harsh.append(high)
        failures += row.outcome == "failed" and low == math.inf
        censored += low != high
        if row.outcome == "ok":
            ok.append(low)
    return Samples(
        kindest=np.array(kind, dtype=np.float64),
        harshest=np.array(harsh, dtype=np.float64),
        ok_only=np.array(ok, dtype=np.float64),
        left_out=dict(left_out),
        failures=failures,
        censored=censored,
    )


def reading(metric: str, row: RequestRow) -> tuple[float, float, str | None]:
    """(kindest, harshest, None) in seconds, or (nan, nan, why the request is left out)."""
    if row.outcome == "failed":
        return math.inf, math.inf, None
    if row.outcome == "unsent":
        return math.nan, math.nan, "unsent"
    if row.outcome == "ok" or names.seen_early(metric):
        try:
            value = names.value(metric, row)
        except Undefined as absent:
            if row.outcome == "ok":
                return math.nan, math.nan, absent.reason
        else:
            return value, value, None
    excluded = names.definition_of(metric).excluded
    settled = next((reason for reason in SETTLED if reason in excluded and EXCLUSIONS[reason](row)), None)
    if settled is not None:
        return math.nan, math.nan, settled
    least = censored_at(metric, row)
    if least is None:
        return math.nan, math.nan, "cancelled"
    return least, math.inf, None


def of_gaps(metric: str, rows: Sequence[RequestRow]) -> tuple[list[Floats], dict[str, int], int]:
    """(gaps of each request, why others are left out, failures): a failed request ends in one gap that never ended."""
    groups: list[Floats] = []
    left_out: Counter[str] = Counter()
    failures = 0
    for row in rows:
        if row.outcome == "unsent":
            left_out["unsent"] += 1
            continue
        try:
            values = np.asarray(names.gaps()[metric](row), dtype=np.float64)
        except Undefined as absent:
            if row.outcome != "failed":
                left_out[absent.reason] += 1
                continue
            values = np.zeros(0)
        if row.outcome == "failed":
            failures += 1
            values = np.append(values, math.inf)
        groups.append(values)
    return groups, dict(left_out), failures
