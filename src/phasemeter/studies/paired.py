"""Where a deployment's attainment crosses its target, in stretches of requests that other deployments saw too.

Lives here: one look at one rate, the crossing between looks, its interval, the difference of two crossings. Must not live here:
which candidates are compared (race.py), what is measured.

All looks of a stage draw the same requests (common random numbers), the gaps between them scaled by the rate. The requests of a look
are cut into equal stretches, and stretch j of one candidate holds the same requests as stretch j of another: what a lucky stretch
does to both cancels in their difference. Batch means and paired differences: Law, "Simulation Modeling and Analysis", 9.5.3, 10.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.stats.distributions import t_quantile

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
STRETCHES = 20
NEAR = 0.35  # in log rate: looks that tell how steep attainment falls at the crossing
STEEPEST, FLATTEST = 400.0, 1.0  # of logit(attainment) over log(rate)
GROWTH = (1.25, 1.5, 2.0, 4.0, 8.0)  # a bracket's steps, one after the other


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one rate, its warm-up and its end cut, requests in order.

    `ratios`: requests × objectives, value over limit: inf for a failure, nan where it has none, −inf where the limit is another's.
    `parts`: workload class: which requests are of it. `in_system`: how many were there on average.
    """

    ratios: Floats
    names: tuple[str, ...]
    parts: Mapping[str, Bools] = {}
    stable: bool | None = None
    in_system: float = 0.0

    def judged(self, scale: float) -> tuple[Bools, Bools]:
        """(good, can be said) with all limits times `scale`."""
        bad: Bools = np.asarray((self.ratios > scale).any(axis=1), dtype=bool)
        said: Bools = np.asarray(bad | ~np.isnan(self.ratios).any(axis=1), dtype=bool)
        return said & ~bad, said

    def attained(self, scale: float, part: str | None = None) -> Floats:
        """The share of good requests in each stretch; a stretch of which nothing can be said takes the whole's."""
        good, said = self.judged(scale)
        if part is not None:
            said = said & self.parts[part]
        edges = np.linspace(0, said.size, STRETCHES + 1).astype(int)[:-1]
        if said.size < STRETCHES or not said.any():
            return np.zeros(STRETCHES)
        counts = np.add.reduceat(said.astype(np.float64), edges)
        kept = np.add.reduceat((good & said).astype(np.float64), edges)
        whole = float(kept.sum() / counts.sum())
        return np.where(counts > 0, kept / np.maximum(counts, 1), whole)

    def single(self, scale: float) -> dict[str, float]:
        """The share that keeps each objective alone."""
        found = {}
        for at, name in enumerate(self.names):
            known = self.ratios[:, at]
            known = known[~np.isnan(known) & (known > -math.inf)]
            if known.size:
                found[name] = float((known <= scale).mean())
        return found


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """The share of all requests that has to be good, and of each class that has a share of its own."""

    whole: float
    parts: Mapping[str, float] = {}

    def margins(self, look: Look, scale: float) -> list[tuple[str | None, float, Floats]]:
        """(part, its target, its stretches), the one that is nearest to failing first."""
        wanted: list[tuple[str | None, float]] = [(None, self.whole), *self.parts.items()]
        found = [(part, share, look.attained(scale, part)) for part, share in wanted]
        return sorted(found, key=lambda one: _logit(float(one[2].mean())) - _logit(one[1]))

    def kept(self, look: Look, scale: float) -> bool:
        """Whether the look attained all that it has to, and its queue did not grow."""
        return look.stable is not False and all(
            float(stretches.mean()) >= share for _, share, stretches in self.margins(look, scale)
        )


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that keeps the target. `rate_per_s` None: none does (`reason`).

    `pull`: how far each stretch of requests would move the logarithm of the rate. `low`, `high`: 95 %, never closer than the two rates
    that it was found between. `binding`: the objective that fails most there, or "stability".
    """

    rate_per_s: float | None
    low: float | None
    high: float | None
    pull: Floats
    binding: str | None
    reason: str | None = None
    requests: int = 0  # in each of its looks
    in_system: float = 0.0  # at the highest rate that kept the target


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a crossing is searched with. `start_per_s`: a likely rate. `ceiling_per_s`: no rate from here on is looked at.

    `resolution`: how close the two rates around it come, relative. `wide`: the first step away from the start.
    """

    targets: Targets
    start_per_s: float
    ceiling_per_s: float = math.inf
    scale: float = 1.0
    resolution: float = 0.02
    requests: int = 0


def crossing(look: Callable[[float], Look], asked: Asked) -> Crossing:
    """Where attainment falls below its targets: a bracket from the start outwards, halved until it is narrow."""
    targets, scale = asked.targets, asked.scale
    looks: dict[float, Look] = {}

    def keeps(rate: float) -> bool:
        if rate >= asked.ceiling_per_s:
            return False
        if rate not in looks:
            looks[rate] = look(rate)
        return targets.kept(looks[rate], scale)

    low, high = _bracket(keeps, asked)
    while low is not None and high is not None and high / low > 1 + asked.resolution:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    binding = _binding(looks, high, scale, targets)
    empty = np.zeros(STRETCHES)
    if low is None:
        top = min(looks, default=None)
        return Crossing(
            rate_per_s=None, low=None, high=top, pull=empty, binding=binding, reason="never", requests=asked.requests
        )
    if high is None:
        return Crossing(
            rate_per_s=low, low=low, high=None, pull=empty, binding=None, reason="no_rate_missed",
            requests=asked.requests, in_system=looks[low].in_system,
        )  # fmt: skip
    rate, pull = _between(looks, (low, high), asked)
    half = t_quantile(0.975, STRETCHES - 1) * spread(pull)
    return Crossing(
        rate_per_s=rate,
        low=min(low, rate * math.exp(-half)),
        high=max(high, rate * math.exp(half)),
        pull=pull,
        binding=binding,
        requests=asked.requests,
        in_system=looks[low].in_system,
    )


def _bracket(keeps: Callable[[float], bool], asked: Asked) -> tuple[float | None, float | None]:
    """(a rate that keeps, one that does not), from the start outwards in growing steps."""
    rate = min(asked.start_per_s, asked.ceiling_per_s * 0.98)
    first = keeps(rate)
    for step in GROWTH:
        last, rate = rate, rate * step if first else rate / step
        if keeps(rate) != first:
            return (last, rate) if first else (rate, last)
    return (rate, None) if first else (None, rate)


def _binding(looks: Mapping[float, Look], high: float | None, scale: float, targets: Targets) -> str | None:
    """The objective that fails most where the target is missed; "stability" where only the queue's growth missed it."""
    missed = [rate for rate in looks if high is not None and rate >= high * (1 - 1e-9)]
    if not missed:
        return "stability" if high is not None else None
    at = looks[min(missed)]
    shares = at.single(scale)
    worst = min(shares, key=lambda name: shares[name], default=None)
    wanted = min((targets.whole, *targets.parts.values()))
    if at.stable is False and (worst is None or shares[worst] >= wanted):
        return "stability"
    return worst


def _between(looks: Mapping[float, Look], ends: tuple[float, float], asked: Asked) -> tuple[float, Floats]:
    """(the crossing inside its bracket, how each stretch pulls at it)."""
    low, high = ends
    below, above = looks[low], looks.get(high)
    if above is None or above.stable is False:  # it ends at a queue that grows, or at the ceiling: no curve leads there
        return math.sqrt(low * high), np.zeros(STRETCHES)
    part, target, upper = asked.targets.margins(above, asked.scale)[0]
    lower = below.attained(asked.scale, part)
    wanted, a, b = _logit(target), _logit(float(lower.mean())), _logit(float(upper.mean()))
    place = min(1.0, max(0.0, (a - wanted) / (a - b))) if a > b else 0.5
    rate = low * (high / low) ** place
    stretches = lower + place * (upper - lower)
    slope = _slope(looks, rate, asked, part)
    pull: Floats = (stretches - float(stretches.mean())) / (target * (1 - target) * slope)
    return rate, pull


def _slope(looks: Mapping[float, Look], rate: float, asked: Asked, part: str | None) -> float:
    """How steep logit(attainment) falls over log(rate) at the crossing: least squares over the looks near it, the nearer the more."""
    near = {one: abs(math.log(one / rate)) for one in looks if looks[one].stable is not False}
    near = {one: distance for one, distance in near.items() if distance < NEAR}
    if len(near) < 2:
        return FLATTEST
    x = np.array([math.log(one / rate) for one in near])
    y = np.array([_logit(float(looks[one].attained(asked.scale, part).mean())) for one in near])
    weight = np.array([(1 - (distance / NEAR) ** 3) ** 3 for distance in near.values()])
    x, y = x - np.average(x, weights=weight), y - np.average(y, weights=weight)
    power = float((weight * x * x).sum())
    fall = -float((weight * x * y).sum()) / power if power > 0 else FLATTEST
    return min(max(fall, FLATTEST), STEEPEST)


def spread(pull: Floats) -> float:
    """The standard error of the mean of stretches; more where neighbouring ones are alike (their lag-1 correlation)."""
    n = pull.size
    centred = pull - pull.mean()
    power = float(centred @ centred)
    if power == 0:
        return 0.0
    alike = max(0.0, float(centred[:-1] @ centred[1:]) / power)
    return math.sqrt(power / (n - 1) / n * (1 + 2 * alike))


def difference(one: Crossing, other: Crossing, scale: float, confidence: float) -> tuple[float, float, float]:
    """(ratio, low, high) of two crossings, `one` over `other`, times `scale` (the other's GPUs over one's).

    Paired by stretch where both saw the same requests, else as if they were independent. Both have to be known.
    """
    if one.rate_per_s is None or other.rate_per_s is None:
        return math.nan, 0.0, math.inf
    ratio = scale * one.rate_per_s / other.rate_per_s
    same = one.requests == other.requests
    error = spread(one.pull - other.pull) if same else math.hypot(spread(one.pull), spread(other.pull))
    half = t_quantile(1 - (1 - confidence) / 2, STRETCHES - 1) * error + _resolution(one) + _resolution(other)
    # where no rate was missed nobody knows how much more it carries
    low = 0.0 if other.high is None else ratio * math.exp(-half)
    return ratio, low, math.inf if one.high is None else ratio * math.exp(half)


def _resolution(one: Crossing) -> float:
    """What an end that no curve leads to leaves open: half of its bracket, in log rate."""
    if one.low is None or one.high is None or one.pull.any():
        return 0.0
    return math.log(one.high / one.low) / 2


def best_first(values: Sequence[tuple[float, str]]) -> list[int]:
    """Indices by value, the highest first; equal ones by name, so that the order they came in does not matter."""
    return sorted(range(len(values)), key=lambda i: (-values[i][0], values[i][1]))


def _logit(share: float) -> float:
    inside = min(max(share, 1e-4), 1 - 1e-4)
    return math.log(inside / (1 - inside))
