"""What looks at one rate say: judged requests, the interval they are worth, and how the rate stands against the target.

Lives here: one rate. Must not live here: which rates are tried (sequential.py), how requests are judged (contract/).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.stats.intervals import clopper_pearson_interval
from phasemeter.stats.stationarity import integrated_time
from phasemeter.studies.crossing import Stretch

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Standing = Literal["good", "bad", "undecided"]
LOOKS, LOOK_CONFIDENCE = 5, 0.98
FEWEST_WORTH = 10  # independent requests that a rate's looks have to be worth


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one run at one rate showed, its warm-up cut. Arrays hold the requests that could be judged, in the order due.

    `strain`: how near each came to its limits. `scaled`: scale of all limits: which requests kept them. `single`: objective:
    which kept it (of those it could be said of).
    `stable`: None where it can't be said. `settled` False: no steady state was seen.
    """

    good: Bools
    requests: int
    strain: Floats | None = None
    stable: bool | None = None
    stability: str = ""
    settled: bool = True
    scaled: Mapping[str, Bools] = {}
    single: Mapping[str, Bools] = {}
    run: str | None = None


Measure = Callable[[float, int, int], Seen]  # (rate per second, requests, number of the look)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One rate, all its looks. `standing`: against the target, with the error of all looks controlled."""

    rate_per_s: float
    looks: tuple[Seen, ...]
    standing: Standing
    interval: tuple[float | None, float | None]  # 95 %
    why: str = ""

    @property
    def good(self) -> Bools:
        return np.concatenate([one.good for one in self.looks])

    @property
    def attainment(self) -> float | None:
        return float(self.good.mean()) if self.good.size else None

    def share(self, objective: str) -> float | None:
        """How many keep one objective alone."""
        kept = [one.single[objective] for one in self.looks if objective in one.single]
        joined = np.concatenate(kept) if kept else np.zeros(0)
        return float(joined.mean()) if joined.size else None

    @property
    def stable(self) -> bool | None:
        """Of the longest look that could say."""
        return next((one.stable for one in reversed(self.looks) if one.stable is not None), None)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.looks)


def time_of(looks: Sequence[Seen]) -> float:
    """How many neighbouring requests are worth one: by whether they are good, and by how near they came to their limits."""
    strains = [one.strain for one in looks if one.strain is not None]
    kinds: list[list[npt.NDArray[Any]]] = [[one.good for one in looks]] + (
        [strains] if len(strains) == len(looks) else []
    )
    return max(integrated_time(np.concatenate(parts).astype(np.float64)) for parts in kinds)


def interval_of(looks: Sequence[Seen], confidence: float) -> tuple[float | None, float | None]:
    """The exact interval of the attainment of all looks together, at the n that they are worth; none where they are too short
    to say what they are worth."""
    good = np.concatenate([one.good for one in looks])
    if not good.size:
        return None, None
    worth = good.size / time_of(looks)
    if worth < FEWEST_WORTH:
        return None, None
    return clopper_pearson_interval(float(good.mean()) * worth, worth, confidence)


def standing_of(looks: Sequence[Seen], target: float) -> tuple[Standing, str]:
    """Good, bad or undecided at the confidence of one look; and why."""
    unstable = next((one for one in reversed(looks) if one.stable is not None), None)
    if unstable is not None and unstable.stable is False:
        return "bad", f"unstable: {unstable.stability}"
    if not any(one.good.size for one in looks):
        return "undecided", "no request could be judged"
    low, high = interval_of(looks, LOOK_CONFIDENCE)
    if high is not None and high < target:
        return "bad", "attainment below the target"
    if low is not None and low >= target:
        return ("good", "") if looks[-1].settled else ("undecided", "no steady state was seen")
    return "undecided", "its interval holds the target"


def stretches_of(probe: Probe, part: Callable[[Seen], Bools | None]) -> list[Stretch]:
    """A rate's looks, without those a quarter as long as its longest: they began with an empty service and flatter it."""
    longest = max(one.requests for one in probe.looks)
    told = [(look, part(one)) for look, one in enumerate(probe.looks) if 4 * one.requests > longest]
    return [Stretch(probe.rate_per_s, look, good) for look, good in told if good is not None and good.size]


def weighed(one: Stretch, middle: float, reach: float) -> Stretch:
    """Tricube weights, as in local regression (Cleveland, JASA 74, 1979)."""
    distance = min(1.0, abs(math.log(one.rate_per_s / middle)) / reach)
    return msgspec.structs.replace(one, weight=float((1 - distance**3) ** 3))
