"""The highest rate that keeps a contract, found by asking `measure(rate)` in runs long enough to decide.

Lives here: which rate is tried next, how long, when enough is known. Must not live here: what is measured (a simulator and a
service look alike from here), how requests are judged (contract/), the curve (crossing.py).

Each rate is looked at up to 5 times, each look as long as all before it together, each at 98 %: a rate is called good when it
is not in less than 5 % of cases. (Stopping whenever a 95 % interval clears the target would be wrong far more often.)
First looks share their draws over the rates, so that a bracket is found quickly; later looks draw for themselves, so that each of
them tells something new (docs/decisions/0030-the-goodput-search.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from phasemeter.errors import UserError
from phasemeter.studies.bracket import bracket
from phasemeter.studies.crossing import Curve
from phasemeter.studies.curves import Curves
from phasemeter.studies.looks import (
    LOOK_CONFIDENCE,
    LOOKS,
    Bools,
    Measure,
    Probe,
    Seen,
    interval_of,
    standing_of,
)

FEWEST = 250  # requests in a first look: MSER-5 needs as many
NEAR = 0.03  # two rates closer than this (relative) are one
APART = (0.05, 0.15)  # in log rate: how far beside the likely crossing rates are tried, at least and at most
FULL = 3  # rates near the crossing that took every look: more would cost more than they tell
CLOSE = 0.25  # in log rate: near the crossing
LEAST_LOOKS = LOOKS  # that some rate near the crossing took, before an interval is believed that is narrow enough
WIDE = 1.5  # a bracket wider than this (ratio) is halved first
SUDDEN = 0.5  # of attainment, lost between two rates
BINDS = 1.5  # a part that crosses so many times above the first doesn't bind


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """What a time budget needs: the time now in seconds, and how long (rate, requests) would take."""

    now_s: Callable[[], float] = lambda: 0.0
    lasts_s: Callable[[float, int], float] = lambda rate, requests: 0.0


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """`target`: share that has to be attained; `parts`: by each workload class besides.

    `precision`: relative half width of the answer's interval that is enough.
    `first_look`: requests; None: as many as a perfect look needs to clear the target. `most_s`: no run is begun that would
    end later.
    """

    target: float
    start_per_s: float = 1.0
    parts: Mapping[str, float] = {}
    precision: float = 0.05
    first_look: int | None = None
    most_probes: int = 30
    most_s: float | None = None

    def __post_init__(self) -> None:
        for share in (self.target, *self.parts.values()):
            if not 0 < share <= 1:
                raise UserError(f"attainment {share:g}: write a share above 0, like 95 %")
            if share > 0.9999:
                raise UserError("attainment 100 %: no number of requests can show it: write less, like 99.9 %")
        if not (self.start_per_s > 0 and math.isfinite(self.start_per_s)):
            raise UserError("a search needs a finite start rate above 0, like --rate 4/s")
        if not (0 < self.precision < 1 and self.most_probes >= 2):
            raise UserError("a search needs a precision between 0 and 1, and at least 2 rates")

    def requests(self, look: int) -> int:
        """How many requests a look takes: the first few, the second as many, then as many as all before."""
        return self._first() * (1 if look == 0 else 2 ** (look - 1))

    def _first(self) -> int:
        if self.first_look is not None:
            return self.first_look
        needed = math.log((1 - LOOK_CONFIDENCE) / 2) / math.log(self.target)
        return max(FEWEST, math.ceil(1.2 * needed))


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a curve reaches its target, and the 95 % interval of that rate, as far as it has one."""

    curve: Curve
    rate_per_s: float
    interval: tuple[float, float] | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `value` None: no rate tried keeps the target (`reason`). `beyond`: the rate tried past the crossing.

    `binding`: the objective that fails most there, or "stability". `sensitivity`: scale of the limits: the rate then.
    """

    value: float | None
    interval: tuple[float | None, float | None]
    binding: str | None
    probes: tuple[Probe, ...]
    curve: Curve | None
    reason: str | None = None
    beyond: Probe | None = None
    sensitivity: Mapping[str, float | None] = {}
    single: Mapping[str, float | None] = {}
    warnings: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return sum(probe.requests for probe in self.probes)


class Searcher:
    """One search under way. `tell` gets a line for each look."""

    def __init__(
        self,
        measure: Measure,
        search: Search,
        clock: Clock | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.measure, self.search, self.tell = measure, search, tell
        self.clock = clock or Clock()
        self.probes: dict[float, Probe] = {}
        self._curves = Curves(search.target)
        self.started_s = self.clock.now_s()
        self.out_of_time = False

    # ---- one rate

    def probe(self, rate: float, most_looks: int = LOOKS, least_looks: int = 1) -> Probe | None:
        """Look at a rate until it is decided (not before `least_looks`), looked at `most_looks` times, or the time is up.

        None: never looked at.
        """
        known = self.probes.get(rate)
        looks = list(known.looks) if known else []
        while len(looks) < most_looks:
            decided = known is not None and (known.standing != "undecided" or known.stable is False)
            if (decided and len(looks) >= least_looks) or not self._time_for(rate, len(looks)):
                break
            seen = self.measure(rate, self.search.requests(len(looks)), len(looks))
            looks.append(seen)
            standing, why = standing_of(looks, self.search.target, self.search.parts)
            known = Probe(
                rate_per_s=rate, looks=tuple(looks), standing=standing, interval=interval_of(looks, 0.95), why=why
            )
            self.probes[rate] = known
            share = "–" if known.attainment is None else f"{100 * known.attainment:.1f} %"
            self.tell(
                f"{rate:.4g} req/s, look {len(looks)}, {known.requests} requests: {share} good, {standing} {why}".rstrip()
            )
        return known

    def _time_for(self, rate: float, look: int) -> bool:
        if self.search.most_s is None:
            return True
        needed = self.clock.lasts_s(rate, self.search.requests(look))
        self.out_of_time = self.clock.now_s() - self.started_s + needed > self.search.most_s
        return not self.out_of_time

    # ---- the whole

    def run(self) -> Found:
        """Bracket, close in on the crossing, look once beyond it."""
        if self._bracket():
            self._close_in()
        crossing = self.crossing()
        value, interval, reason = self._answer(crossing)
        beyond = self._beyond(value)
        probes = tuple(self.probes[rate] for rate in sorted(self.probes))
        warnings = []
        if beyond is not None and beyond.standing == "good":
            warnings.append(
                f"attainment_not_monotone: {beyond.rate_per_s:.4g} req/s is good again, past a rate that is not"
            )
        return Found(
            value=value, interval=interval, binding=self._binding(value), probes=probes, reason=reason,
            curve=None if crossing is None else crossing.curve, beyond=beyond, warnings=tuple(warnings),
            sensitivity=self._rates_of(lambda seen: seen.scaled), single=self._rates_of(lambda seen: seen.single),
        )  # fmt: skip

    def low(self) -> float | None:
        """The highest rate below the lowest bad one that is good."""
        high = self.high()
        rates = [r for r, p in self.probes.items() if p.standing == "good" and (high is None or r < high)]
        return max(rates, default=None)

    def high(self) -> float | None:
        """The lowest rate that is bad."""
        return min((r for r, p in self.probes.items() if p.standing == "bad"), default=None)

    def between(self) -> tuple[float | None, float | None]:
        """The rates that the crossing seems to lie between, decided or not."""
        return bracket(tuple(self.probes.values()), self.search.target, self.search.parts)

    def _bracket(self) -> bool:
        """Double or halve until the crossing seems to lie between two rates."""
        rate = self.search.start_per_s
        while self.probe(rate, most_looks=1) is not None and len(self.probes) < self.search.most_probes // 2:
            below, above = self.between()
            if below is not None and above is not None:
                return True
            rate = max(self.probes) * 2 if above is None else min(self.probes) / 2
        return False

    def _close_in(self) -> None:
        while len(self.probes) < self.search.most_probes and not self.out_of_time:
            crossing = self.crossing()
            if self._enough(crossing):
                return
            rate = self._next(crossing)
            looks = len(self.probes[rate].looks) + 1 if rate in self.probes else self._looks_at(rate)
            if self.probe(rate, most_looks=looks, least_looks=looks) is None:
                return

    def _near(self, rate: float) -> list[Probe]:
        return [p for r, p in self.probes.items() if abs(math.log(r / rate)) < CLOSE]

    def _looks_at(self, rate: float) -> int:
        """How many looks a new rate takes at once: half as many requests as the longest near it has, for a short run near
        saturation may see no queue at all."""
        longest = max((p.requests for p in self._near(rate)), default=0)
        return next(k for k in range(1, LOOKS + 1) if k == LOOKS or 2 * self.search.requests(k) >= longest)

    def _enough(self, crossing: Crossing | None) -> bool:
        low, high = self.low(), self.high()
        width = (1 + self.search.precision) ** 2
        if low is not None and high is not None and high / low <= width:
            return True
        middle = self._middle(crossing)
        if middle is None:
            return False
        near = self._near(middle)
        if sum(len(p.looks) == LOOKS for p in near) >= FULL:
            return True
        found = crossing.interval if crossing is not None else None
        return found is not None and found[1] / found[0] <= width and max(len(p.looks) for p in near) >= LEAST_LOOKS

    def _middle(self, crossing: Crossing | None) -> float | None:
        if crossing is not None:
            return crossing.rate_per_s
        below, above = self.between()
        return math.sqrt(below * above) if below is not None and above is not None else None

    def _next(self, crossing: Crossing | None) -> float:
        """Beside the likely crossing, on the side that was looked at less; a rate close by that has looks left, before a new one."""
        below, above = self.between()
        if below is None or above is None:
            return max(self.probes) * 2 if above is None else min(self.probes) / 2
        wide, quarter = above / below, math.sqrt(math.sqrt(above / below))
        if crossing is None and wide <= WIDE:
            return self._surer(below, above)
        if crossing is None or wide > WIDE or not below / 1.2 < crossing.rate_per_s < above * 1.2:
            return self._or_close(math.sqrt(below * above))
        middle = crossing.rate_per_s
        if self.low() == below and self.high() == above:  # a sudden end: both sides are sure
            return min(max(middle, below * quarter), above / quarter)
        apart = APART[1]
        if crossing.interval is not None:
            apart = min(max(math.log(crossing.interval[1] / crossing.interval[0]) / 2, APART[0]), APART[1])
        told = {
            s: sum(p.requests for p in self._near(middle) if s * math.log(p.rate_per_s / middle) > 0) for s in (-1, 1)
        }
        side = min(told, key=lambda each: told[each])
        return self._or_close(middle * math.exp(apart * side))

    def _surer(self, below: float, above: float) -> float:
        """Where no curve tells: the end of the bracket that is less sure, or the middle when both are decided or fully looked at."""
        ends = [self.probes[rate] for rate in (below, above)]
        open_ones = [one for one in ends if one.standing == "undecided" and len(one.looks) < LOOKS]
        if not open_ones:
            return math.sqrt(below * above)
        return min(open_ones, key=lambda one: len(one.looks)).rate_per_s

    def _or_close(self, rate: float) -> float:
        """A rate close by that has looks left, else this one."""
        close = [r for r, p in self.probes.items() if abs(math.log(r / rate)) <= NEAR and len(p.looks) < LOOKS]
        return min(close, key=lambda one: abs(math.log(one / rate)), default=rate)

    # ---- the curve

    def crossing(self) -> Crossing | None:
        """Where the whole crosses its target, or the workload class that crosses its own first."""
        found = [self._crossing(lambda seen: seen.good, self.search.target)]
        found += [
            self._crossing(_named(lambda seen: seen.parts, name), target) for name, target in self.search.parts.items()
        ]
        crossed = [one for one in found if one is not None]
        if not crossed:
            return None
        first = min(crossed, key=lambda one: one.rate_per_s)
        # what crosses far above the first can't be the one that binds
        bounds = [one.interval for one in crossed if one.rate_per_s < BINDS * first.rate_per_s]
        told = [one for one in bounds if one is not None]
        whole = (min(low for low, _ in told), min(high for _, high in told)) if len(told) == len(bounds) else None
        return msgspec.structs.replace(first, interval=whole)

    def _crossing(self, part: Callable[[Seen], Bools | None], target: float) -> Crossing | None:
        curve = self._curves.fitted(self.probes.values(), part, target)
        rate = None if curve is None else curve.crossing(target)
        if curve is None or rate is None:
            return None
        return Crossing(curve=curve, rate_per_s=rate, interval=curve.interval(target))

    def _answer(self, crossing: Crossing | None) -> tuple[float | None, tuple[float | None, float | None], str | None]:
        reason = "out_of_time" if self.out_of_time else None
        if not self.probes:
            return None, (None, None), reason
        low, high = self.low(), self.high()
        below, above = self.between()
        if below is None:
            return None, (None, high), reason or "target_never_attained"
        if above is None:
            return below, (low, None), reason or "no_rate_missed"
        unstable = min((r for r, p in self.probes.items() if p.stable is False), default=None)
        if crossing is None or not self._within(crossing.rate_per_s) or self._sudden(low, high):
            return math.sqrt(below * above), (low, high), reason
        if unstable is not None and crossing.rate_per_s >= unstable:
            # what grows without end keeps no promise, whatever it attained
            return math.sqrt(below * unstable) if below < unstable else below, (low, unstable), reason
        return crossing.rate_per_s, crossing.interval or (low, high), reason

    def _sudden(self, low: float | None, high: float | None) -> bool:
        """Whether attainment falls off between two neighbouring rates, both decided: no curve tells more than they do."""
        if low is None or high is None or any(low < rate < high for rate in self.probes):
            return False
        kept, lost = self.probes[low].attainment, self.probes[high].attainment
        return kept is not None and lost is not None and kept - lost > SUDDEN

    def _within(self, rate: float) -> bool:
        return min(self.probes) / 1.5 <= rate <= max(self.probes) * 1.5

    def _beyond(self, value: float | None) -> Probe | None:
        """One rate past the crossing: batching can make a service better again where more load lets it batch more."""
        if value is None or self.high() is None or self.out_of_time:
            return None
        past = [p for r, p in sorted(self.probes.items()) if r >= 1.25 * value]
        return past[0] if past else self.probe(1.4 * value, most_looks=1)

    def _binding(self, value: float | None) -> str | None:
        past = [
            p for r, p in sorted(self.probes.items()) if p.standing != "good" and (value is None or r >= 0.97 * value)
        ]
        for probe in past:
            told = {name: probe.share(name) for name in probe.looks[0].single}
            shares = {name: share for name, share in told.items() if share is not None}
            worst = min(shares, key=lambda name: shares[name], default=None)
            if worst is not None and shares[worst] < self.search.target:
                return worst
            if next((one.stable for one in reversed(probe.looks) if one.stable is not None), None) is False:
                return "stability"
            if worst is not None and shares[worst] < 1 and probe.attainment is not None:
                return worst
        return None

    def _rates_of(self, part: Callable[[Seen], Mapping[str, Bools]]) -> dict[str, float | None]:
        """Where each curve of its own crosses the target; None where that lies outside the rates tried."""
        names = dict.fromkeys(name for p in self.probes.values() for one in p.looks for name in part(one))
        found: dict[str, float | None] = {}
        for name in names:
            curve = self._curves.fitted(self.probes.values(), _named(part, name), self.search.target, short=True)
            rate = curve.crossing(self.search.target) if curve is not None else None
            inside = rate is not None and min(self.probes) <= rate <= max(self.probes)
            found[name] = rate if inside else None
        return found


def _named(part: Callable[[Seen], Mapping[str, Bools]], name: str) -> Callable[[Seen], Bools | None]:
    return lambda seen: part(seen).get(name)
