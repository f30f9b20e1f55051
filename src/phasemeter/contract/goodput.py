"""Goodput: which requests keep every objective, which break one, and of which it can't be said.

Lives here: judging requests one by one, joint and marginal attainment, what a looser or stricter SLO would give. Must not live
here: the search for the rate that reaches a target (studies/).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.contract import names
from phasemeter.contract.model import PERCENTILES, Contract
from phasemeter.contract.samples import reading
from phasemeter.errors import Undefined
from phasemeter.records.request_row import RequestRow
from phasemeter.stats.intervals import clopper_pearson_interval, effective_n
from phasemeter.stats.quantiles import ranks_of
from phasemeter.stats.stationarity import correlated

Judgement = Literal["good", "bad", "not_evaluable", "unsent"]
SHORTEST_CORRELATED = 200  # requests: below, batch means have too few a batch to say anything
SCALES = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """`attainment` = good / (good + bad), with its interval. `per_s`: good requests per second of window.

    `marginal`: objective: (share that keeps it, how many it could be said of). `sensitivity`: scale of all limits: attainment.
    `binding`: the objective that most bad requests break.
    """

    good: int
    bad: int
    not_evaluable: int
    unsent: int
    attainment: float | None
    ci: tuple[float | None, float | None] = (None, None)
    per_s: float | None = None
    per_s_ci: tuple[float | None, float | None] = (None, None)
    window_s: float | None = None
    objectives: dict[str, float]
    marginal: dict[str, tuple[float | None, int]]
    sensitivity: dict[str, float | None]
    binding: str | None = None
    not_evaluable_reasons: dict[str, int] = {}
    reason: str | None = None
    worth: float | None = None  # how many independent requests good + bad are worth

    def document(self) -> dict[str, Any]:
        """The form that a result carries under `goodput`."""
        return {
            "per_s": self.per_s, "ci95": list(self.per_s_ci), "window_s": self.window_s, "reason": self.reason,
            "attainment": {"value": self.attainment, "ci95": list(self.ci), "n": self.good + self.bad},
            "good": self.good, "bad": self.bad, "not_evaluable": self.not_evaluable, "unsent": self.unsent,
            "not_evaluable_reasons": self.not_evaluable_reasons, "objectives_s": self.objectives,
            "marginal": {name: {"value": share, "n": n} for name, (share, n) in self.marginal.items()},
            "sensitivity": self.sensitivity, "binding": self.binding,
        }  # fmt: skip


def judge(row: RequestRow, objectives: Mapping[str, float], scale: float = 1.0) -> Judgement:
    """What one request is under per-request limits in seconds, compared by ≤.

    Any measured breach is bad, a failure is bad; one cut off by the run's end is bad if it had already broken a limit;
    otherwise an undefined objective makes it not evaluable.
    """
    if row.outcome == "unsent":
        return "unsent"
    states = [state(metric, limit * scale, row) for metric, limit in objectives.items()]
    if False in states:
        return "bad"
    return "not_evaluable" if None in states else "good"


def state(metric: str, limit_s: float, row: RequestRow) -> bool | None:
    """Whether one request keeps one limit; None where it can't be said."""
    least, most, reason = reading(metric, row)
    if reason is not None:
        return None
    if least > limit_s:
        return False
    return True if most <= limit_s else None


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What each request has to keep, and how many have to: `objectives` by workload class (None: all requests), in seconds.

    `attainment`: the share of all requests; `shares`: of each class that has a promise of its own.
    """

    objectives: Mapping[str | None, Mapping[str, float]]
    attainment: float
    shares: Mapping[str, float] = {}

    def of(self, row: RequestRow) -> Mapping[str, float]:
        """The limits of one request: its class's own, else those of all."""
        return self.objectives.get(row.workload_class, self.objectives.get(None, {}))

    def columns(self) -> dict[tuple[str | None, str], float]:
        """(class, metric): limit, over all classes."""
        return {(who, metric): limit for who, limits in self.objectives.items() for metric, limit in limits.items()}


def promise_of(contract: Contract) -> Promise | None:
    """The per-request promise of a contract: `capacity.objectives`, else the tightest limit of each promised latency.

    The share is `capacity.attainment`; where none is stated, the percentile that a limit was promised for (the highest of
    them). A class with limits of its own has a share of its own, by the same rule over its limits and those of all; where no
    share is stated for all requests together, it is the lowest of the classes'. None where a contract promises no latency to a request.
    """
    objectives: dict[str | None, dict[str, float]] = {
        capacity.workload_class: capacity.objectives for capacity in contract.capacities if capacity.objectives
    }
    stated = {one.workload_class: one.attainment for one in contract.capacities if one.attainment is not None}
    tightest: dict[tuple[str | None, str], tuple[float, float]] = {}
    for line in contract.objectives:
        if line.phase or line.metric in names.gaps():
            continue
        key, found = (line.workload_class, line.metric), (line.limit_s, PERCENTILES.get(line.statistic, 0.5))
        tightest[key] = min(found, tightest.get(key, found))
    for (who, metric), (limit, _) in tightest.items():
        if who not in {capacity.workload_class for capacity in contract.capacities}:
            objectives.setdefault(who, {})[metric] = limit
    if not any(objectives.values()):
        return None
    whole = objectives.get(None, {})
    joined = {who: {**whole, **own} for who, own in objectives.items()}
    implied: dict[str | None, float] = {}
    for (who, _), (_, share) in tightest.items():
        implied[who] = max(share, implied.get(who, 0.0))
    of_all = implied.get(None)
    shares = {
        who: stated.get(who, stated.get(None, max(filter(None, (implied.get(who), of_all)), default=0.9)))
        for who in joined
        if who is not None
    }
    whole_share = stated.get(None, min(shares.values()) if shares else of_all)
    return Promise(objectives=joined, attainment=0.9 if whole_share is None else whole_share, shares=shares)


class Meter:
    """Takes in a run's measured rows one by one, in any order, and keeps of each only how near it came to its limits."""

    def __init__(self, promise: Promise) -> None:
        self.promise = promise
        self.columns = promise.columns()
        self._due: list[int] = []
        self._least: list[list[float]] = []
        self._most: list[list[float]] = []
        self._reasons: list[str | None] = []
        self._classes: list[str | None] = []
        self._unsent = 0

    def add(self, row: RequestRow) -> None:
        """One request; warm-up and probes are not counted."""
        if row.phase != "measured":
            return
        if row.outcome == "unsent":
            self._unsent += 1
            return
        self._due.append(row.due_ns)
        own = self.promise.of(row)
        who = row.workload_class if row.workload_class in self.promise.objectives else None
        least, most, why = [], [], None
        for name, metric in self.columns:
            if name != who or metric not in own:
                least.append(-math.inf)  # another class's limit: kept, whatever it is
                most.append(-math.inf)
                continue
            low, high, reason = reading(metric, row)
            why = why or (f"{metric}: {reason}" if reason else None)
            least.append(low)
            most.append(high)
        self._classes.append(who)
        self._least.append(least)
        self._most.append(most)
        self._reasons.append(why or ("cancelled" if row.outcome == "cancelled" else None))

    def judged(self) -> Judged:
        """What was taken in, in the order due."""
        order = np.argsort(np.array(self._due, dtype=np.int64), kind="stable")
        shape = (len(self._due), len(self.columns))
        return Judged(
            least=np.array(self._least, dtype=np.float64).reshape(shape)[order],
            most=np.array(self._most, dtype=np.float64).reshape(shape)[order],
            limits=np.array(list(self.columns.values()), dtype=np.float64),
            names=tuple(metric if who is None else f"{who}.{metric}" for who, metric in self.columns),
            due_ns=np.array(self._due, dtype=np.int64)[order],
            reasons=tuple(self._reasons[i] for i in order),
            unsent=self._unsent,
            classes=tuple(self._classes[i] for i in order),
        )


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Each sent request's kindest and harshest reading against each limit (requests × objectives), in the order due."""

    least: Floats
    most: Floats
    limits: Floats
    names: tuple[str, ...]
    due_ns: npt.NDArray[np.int64]
    reasons: tuple[str | None, ...]
    unsent: int
    classes: tuple[str | None, ...]  # of those that have a promise of their own

    def of_class(self, name: str) -> Bools:
        """Which requests are of a workload class."""
        return np.array([one == name for one in self.classes], dtype=bool)

    def good(self, scale: float = 1.0) -> tuple[Bools, Bools]:
        """(good ones, ones that it can be said of) with all limits times `scale`."""
        good, bad = _judged(self.least, self.most, self.limits * scale)
        return good, good | bad

    def single(self, column: int) -> tuple[Bools, Bools]:
        """(kept, said of) for one objective alone."""
        kept, broken = self.most[:, column] <= self.limits[column], self.least[:, column] > self.limits[column]
        applies = self.most[:, column] > -math.inf
        return kept & applies, (kept | broken) & applies

    def strain(self) -> Floats:
        """How near each request came to its limits: the worst of value over limit; a failure is infinitely over."""
        if not self.limits.size:
            return np.zeros(len(self.due_ns))
        ratios: Floats = np.nan_to_num(self.least / self.limits, nan=-math.inf, posinf=math.inf).max(axis=1)
        return ratios


def goodput_of(contract: Contract, rows: Iterable[RequestRow]) -> Goodput | None:
    """A run's goodput under a contract; None where it promises no latency to a request."""
    promise = promise_of(contract)
    if promise is None:
        return None
    meter = Meter(promise)
    for row in rows:
        meter.add(row)
    return summed(meter.judged(), contract.confidence)


def goodput(rows: Sequence[RequestRow], objectives: Mapping[str, float], confidence: float = 0.95) -> Goodput:
    """Goodput of the measured ones of `rows` under limits in seconds."""
    meter = Meter(Promise(objectives={None: objectives}, attainment=1.0))
    for row in rows:
        meter.add(row)
    return summed(meter.judged(), confidence)


def summed(judged: Judged, confidence: float = 0.95) -> Goodput:
    """The shares and rates of judged requests, over the window from the first due to the last of those that were sent.

    No rate where that has no length (all due at once).
    """
    good, said = judged.good()
    n = int(said.sum())
    window_s = float(judged.due_ns[-1] - judged.due_ns[0]) / 1e9 if judged.due_ns.size else None
    attainment = float(good.sum()) / n if n else None
    strain = judged.strain()[said]
    bounds = attainment_interval(good[said], confidence, strain) if n else (None, None)
    per_s, per_s_ci, reason = _rate(int(good.sum()), n, bounds, window_s)
    return Goodput(
        good=int(good.sum()),
        bad=n - int(good.sum()),
        not_evaluable=len(judged.due_ns) - n,
        unsent=judged.unsent,
        attainment=attainment,
        ci=bounds,
        per_s=per_s,
        per_s_ci=per_s_ci,
        window_s=window_s,
        objectives=dict(zip(judged.names, map(float, judged.limits), strict=True)),
        marginal={name: _share(*judged.single(j)) for j, name in enumerate(judged.names)},
        sensitivity={f"{scale:g}": _share(*judged.good(scale))[0] for scale in SCALES},
        binding=_binding(judged),
        not_evaluable_reasons=_reasons(list(judged.reasons), ~said),
        reason=reason,
        worth=worth(good[said], strain) if n else None,
    )


def _share(good: Bools, said: Bools) -> tuple[float | None, int]:
    n = int(said.sum())
    return (float(good[said].sum()) / n if n else None), n


def _judged(least: Floats, most: Floats, limits: Floats) -> tuple[Bools, Bools]:
    # comparisons with nan are False: an undefined objective neither breaks nor keeps its limit
    bad = np.asarray((least > limits).any(axis=1), dtype=bool)
    good = np.asarray((most <= limits).all(axis=1) & ~bad, dtype=bool)
    return good, bad


def _binding(judged: Judged) -> str | None:
    # a failure breaks them all and says nothing about which binds
    broken = {
        name: int(((judged.least[:, j] > judged.limits[j]) & np.isfinite(judged.least[:, j])).sum())
        for j, name in enumerate(judged.names)
    }
    worst = max(broken, key=lambda name: broken[name], default=None)
    return worst if worst is not None and broken[worst] else None


def _reasons(reasons: list[str | None], unsaid: Bools) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason, left in zip(reasons, unsaid, strict=True):
        if left:
            counts[reason or "cancelled"] = counts.get(reason or "cancelled", 0) + 1
    return counts


def attainment_interval(
    good: Bools, confidence: float = 0.95, strain: Floats | None = None
) -> tuple[float | None, float | None]:
    """The exact interval of a share of good requests in order; where neighbours are alike, at the n they are worth.

    `strain`: how near each request came to its limits (value over limit, the worst of them): neighbours that are alike in it are
    alike although all of them are good. (None, None) where they are alike and too few for batch means.
    """
    n = worth(good, strain)
    if n is None:
        return None, None
    share = float(good.mean())
    return clopper_pearson_interval(share * n, n, confidence)


def worth(good: Bools, strain: Floats | None = None) -> float | None:
    """How many independent requests these are worth; None where neighbours are alike and too few to say."""
    values = good.astype(np.float64)
    n = float(values.size)
    alike = [one for one in (values, strain) if one is not None and correlated(one)]
    if alike and values.size < SHORTEST_CORRELATED:
        return None
    for one in (values, strain) if alike else ():
        if one is None or not float(np.ptp(ranks_of(one))):
            continue  # what doesn't vary can't say how alike neighbours are
        try:
            n = min(n, effective_n(one if one is values else ranks_of(one)))
        except Undefined:
            return None
    return n


def _rate(
    good: int, n: int, bounds: tuple[float | None, float | None], window_s: float | None
) -> tuple[float | None, tuple[float | None, float | None], str | None]:
    if not window_s:
        return None, (None, None), "zero_length_window"
    offered = n / window_s
    low, high = bounds
    return (
        good / window_s,
        (None if low is None else low * offered, None if high is None else high * offered),
        None,
    )
