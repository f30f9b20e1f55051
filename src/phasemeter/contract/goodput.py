"""Goodput: which requests keep every objective, which break one, and of which it can't be said.

Lives here: judging requests one by one, joint and marginal attainment, what a looser or stricter SLO would give. Must not live
here: the search for the rate that reaches a target (studies/).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.contract.samples import reading
from phasemeter.errors import Undefined
from phasemeter.records.request_row import RequestRow
from phasemeter.stats.intervals import clopper_pearson_interval, effective_n
from phasemeter.stats.stationarity import correlated

Judgement = Literal["good", "bad", "not_evaluable", "unsent"]
SCALES = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
Bools = npt.NDArray[np.bool_]


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


def goodput(
    rows: Sequence[RequestRow],
    objectives: Mapping[str, float],
    window_s: float | None = None,
    confidence: float = 0.95,
) -> Goodput:
    """Goodput of the rows that were due in the window (measured ones, in the order due), of `window_s` seconds.

    `window_s` None: from the first due to the last; rate-free where that has no length (all due at once).
    """
    sent = [row for row in rows if row.outcome != "unsent"]
    least, most, reasons = _readings(sent, objectives)
    limits = np.array(list(objectives.values()), dtype=np.float64)
    good, bad = _judged(least, most, limits)
    said = good | bad
    n = int(said.sum())
    if window_s is None and rows:
        window_s = (max(row.due_ns for row in rows) - min(row.due_ns for row in rows)) / 1e9
    attainment = float(good.sum()) / n if n else None
    bounds: tuple[float | None, float | None] = attainment_interval(good[said], confidence) if n else (None, None)
    per_s, per_s_ci, reason = _rate(int(good.sum()), n, bounds, window_s)
    return Goodput(
        good=int(good.sum()),
        bad=int(bad.sum()),
        not_evaluable=len(sent) - n,
        unsent=len(rows) - len(sent),
        attainment=attainment,
        ci=bounds,
        per_s=per_s,
        per_s_ci=per_s_ci,
        window_s=window_s,
        objectives=dict(objectives),
        marginal=_marginal(least, most, objectives),
        sensitivity={f"{scale:g}": _attainment(least, most, limits * scale) for scale in SCALES},
        binding=_binding(least, objectives),
        not_evaluable_reasons=_reasons(reasons, ~said),
        reason=reason,
    )


def _readings(
    rows: Sequence[RequestRow], objectives: Mapping[str, float]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], list[str | None]]:
    least = np.full((len(rows), len(objectives)), math.nan)
    most = np.full((len(rows), len(objectives)), math.nan)
    reasons: list[str | None] = []
    for i, row in enumerate(rows):
        why: str | None = None
        for j, metric in enumerate(objectives):
            least[i, j], most[i, j], reason = reading(metric, row)
            why = why or (f"{metric}: {reason}" if reason else None)
        reasons.append(why or ("cancelled" if row.outcome == "cancelled" else None))
    return least, most, reasons


def _judged(
    least: npt.NDArray[np.float64], most: npt.NDArray[np.float64], limits: npt.NDArray[np.float64]
) -> tuple[Bools, Bools]:
    # comparisons with nan are False: an undefined objective neither breaks nor keeps its limit
    bad = np.asarray((least > limits).any(axis=1), dtype=bool)
    good = np.asarray((most <= limits).all(axis=1) & ~bad, dtype=bool)
    return good, bad


def _attainment(
    least: npt.NDArray[np.float64], most: npt.NDArray[np.float64], limits: npt.NDArray[np.float64]
) -> float | None:
    good, bad = _judged(least, most, limits)
    n = int(good.sum() + bad.sum())
    return float(good.sum()) / n if n else None


def _marginal(
    least: npt.NDArray[np.float64], most: npt.NDArray[np.float64], objectives: Mapping[str, float]
) -> dict[str, tuple[float | None, int]]:
    found: dict[str, tuple[float | None, int]] = {}
    for j, (metric, limit) in enumerate(objectives.items()):
        kept, broken = int((most[:, j] <= limit).sum()), int((least[:, j] > limit).sum())
        found[metric] = (kept / (kept + broken) if kept + broken else None, kept + broken)
    return found


def _binding(least: npt.NDArray[np.float64], objectives: Mapping[str, float]) -> str | None:
    # a failure breaks them all and says nothing about which binds
    broken = {
        metric: int(((least[:, j] > limit) & np.isfinite(least[:, j])).sum())
        for j, (metric, limit) in enumerate(objectives.items())
    }
    worst = max(broken, key=lambda metric: broken[metric], default=None)
    return worst if worst is not None and broken[worst] else None


def _reasons(reasons: list[str | None], unsaid: Bools) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason, left in zip(reasons, unsaid, strict=True):
        if left:
            counts[reason or "cancelled"] = counts.get(reason or "cancelled", 0) + 1
    return counts


def attainment_interval(good: Bools, confidence: float = 0.95) -> tuple[float | None, float | None]:
    """The exact interval of a share of good requests in order; where neighbours are alike, at the n they are worth.

    (None, None) where they are alike and too few for batch means.
    """
    values = good.astype(np.float64)
    n = float(values.size)
    if correlated(values):
        if values.size < 200:
            return None, None
        try:
            n = effective_n(values)
        except Undefined:
            return None, None
    share = float(values.mean())
    return clopper_pearson_interval(share * n, n, confidence)


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
