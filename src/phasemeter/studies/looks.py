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
SHARED = 0  # the look whose draws all rates share; later looks draw for themselves
FEWEST_WORTH = 10  # independent requests that a rate's looks have to be worth


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one run at one rate showed, its warm-up cut. Arrays hold the requests that could be judged, in the order due.

    `strain`: how near each came to its limits. `scaled`: scale of all limits: which requests kept them. `single`: objective:
    which kept it (of those it could be said of).
    `stable`: None where it can't be said. `settled` False: no steady state was seen. `parts`: workload class: its requests' good.
    """

    good: Bools
    requests: int
    strain: Floats | None = None
    stable: bool | None = None
    stability: str = ""
    settled: bool = True
    scaled: Mapping[str, Bools] = {}
    single: Mapping[str, Bools] = {}
    parts: Mapping[str, Bools] = {}
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
        return _share([one.single[objective] for one in self.looks if objective in one.single])

    def part(self, name: str) -> float | None:
        """The attainment of one workload class."""
        return _share([one.parts[name] for one in self.looks if name in one.parts])

    def judged(self, name: str) -> int:
        """How many requests of one workload class could be judged."""
        return sum(one.parts[name].size for one in self.looks if name in one.parts)

    @property
    def stable(self) -> bool | None:
        """What its looks say together: `stability`."""
        return stability(self.looks)[0]

    def leans_good(self, target: float, parts: Mapping[str, float]) -> bool:
        """Whether it attained what it has to, decided or not, and its last look that could say was stable."""
        last = next((one.stable for one in reversed(self.looks) if one.stable is not None), None)
        shares = [(self.attainment, target)] + [(self.part(name), own) for name, own in parts.items()]
        return last is not False and all(share is None or share >= own for share, own in shares)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.looks)


def _share(kept: list[Bools]) -> float | None:
    joined = np.concatenate(kept) if kept else np.zeros(0)
    return float(joined.mean()) if joined.size else None


def stability(looks: Sequence[Seen]) -> tuple[bool | None, str]:
    """(stable, the evidence): the last look that could say decides, but one that says no has to be borne out by the one before.

    A queue that happens to build up in the last half of a short run looks like one that grows without end; two runs with draws
    of their own seldom do.
    """
    told = [one for one in looks if one.stable is not None]
    if not told or told[-1].stable:
        return (True if told else None), ""
    evidence = told[-1].stability or "the number in the system grew"
    return (False if len(told) > 1 and told[-2].stable is False else None), evidence


def time_of(looks: Sequence[Seen]) -> float:
    """How many neighbouring requests are worth one: by whether they are good, and by how near they came to their limits."""
    strains = [one.strain for one in looks if one.strain is not None]
    kinds: list[list[npt.NDArray[Any]]] = [[one.good for one in looks]] + (
        [strains] if len(strains) == len(looks) else []
    )
    return max(integrated_time(np.concatenate(parts).astype(np.float64)) for parts in kinds)


def interval_of(looks: Sequence[Seen], confidence: float, part: str | None = None) -> tuple[float | None, float | None]:
    """The exact interval of the attainment of all looks together (of one class), at the n that they are worth; none where they
    are too short to say what they are worth."""
    good = np.concatenate([one.good if part is None else one.parts[part] for one in looks])
    if not good.size:
        return None, None
    time = time_of(looks)
    if part is not None:  # neighbours of one class lie farther apart
        whole = sum(one.good.size for one in looks)
        time = max(1.0, integrated_time(good.astype(np.float64)), time * good.size / max(1, whole))
    worth = good.size / time
    if worth < FEWEST_WORTH:
        return None, None
    return clopper_pearson_interval(float(good.mean()) * worth, worth, confidence)


def standing_of(looks: Sequence[Seen], target: float, parts: Mapping[str, float] | None = None) -> tuple[Standing, str]:
    """Good, bad or undecided at the confidence of one look; and why. `parts`: the target of each workload class besides."""
    stable, evidence = stability(looks)
    if stable is False:
        return "bad", f"unstable: {evidence}"
    if not any(one.good.size for one in looks):
        return "undecided", "no request could be judged"
    wanted: dict[str | None, float] = {None: target}
    wanted.update(parts or {})
    bounds = {name: interval_of(looks, LOOK_CONFIDENCE, name) for name in wanted}
    for name, (_, high) in bounds.items():
        if high is not None and high < wanted[name]:
            return "bad", f"attainment{f' of {name}' if name else ''} below the target"
    if evidence:
        return "undecided", f"a look said unstable: {evidence}"
    if all(low is not None and low >= wanted[name] for name, (low, _) in bounds.items()):
        return ("good", "") if looks[-1].settled else ("undecided", "no steady state was seen")
    if any(low is None for low, _ in bounds.values()):
        return "undecided", "too short for an interval: neighbouring requests are alike"
    return "undecided", "its interval holds the target"


def tail_time(one: Seen, target: float) -> float:
    """For how many requests neighbours are alike in being among the (1 − target) that come nearest to their limits: unlike
    whether they are good, this doesn't depend on how many happened to be bad."""
    if one.strain is None or one.strain.size < FEWEST_WORTH:
        return integrated_time(one.good.astype(np.float64))
    worst = one.strain > np.quantile(one.strain, target, method="lower")
    return integrated_time(worst.astype(np.float64))


def stretches_of(
    probe: Probe, part: Callable[[Seen], Bools | None], most: int, time: Callable[[Seen], float]
) -> list[Stretch]:
    """A rate's looks without the short ones: those began with an empty service and flatter it. `most`: requests of the longest
    look at any rate; `time`: of a look, for how many requests neighbours are alike."""
    longest = max(one.requests for one in probe.looks)
    told = [
        (look, one, part(one)) for look, one in enumerate(probe.looks) if 4 * one.requests > max(longest, most // 2)
    ]
    kept = [(look, one, good) for look, one, good in told if good is not None and good.size]
    names = {look: "shared" if look == SHARED else f"{probe.rate_per_s!r}:{look}" for look, _, _ in kept}
    times = {look: max(1.0, time(one) * good.size / max(1, one.good.size)) for look, one, good in kept}
    return [Stretch(probe.rate_per_s, names[look], good, time=times[look]) for look, _, good in kept]


def weighed(one: Stretch, middle: float, reach: float) -> Stretch:
    """Tricube weights, as in local regression (Cleveland, JASA 74, 1979)."""
    distance = min(1.0, abs(math.log(one.rate_per_s / middle)) / reach)
    return msgspec.structs.replace(one, weight=float((1 - distance**3) ** 3))
