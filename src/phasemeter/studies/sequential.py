"""The highest rate that keeps a contract, found by asking `measure(rate)` in runs long enough to decide.

Lives here: which rate is tried next, how long, when enough is known. Must not live here: what is measured (a simulator and a
service look alike from here), how requests are judged (contract/), the curve (crossing.py).

Each rate is looked at up to 5 times, each look as long as all before it together, each at 98 %: a rate is called good when it
is not in less than 5 % of cases. (Stopping whenever a 95 % interval clears the target would be wrong far more often.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from phasemeter.errors import Undefined, UserError
from phasemeter.studies.crossing import Curve, fit
from phasemeter.studies.looks import (
    LOOK_CONFIDENCE,
    LOOKS,
    Bools,
    Measure,
    Probe,
    Seen,
    interval_of,
    standing_of,
    stretches_of,
    time_of,
    weighed,
)

FEWEST = 250  # requests in a first look: MSER-5 needs as many
NEAR = 0.03  # two rates closer than this (relative) are one
# in log rate, one fit after another: what lies farther from the crossing doesn't shape the curve there
REACHES = (1.0, 0.5, 0.5)
NEAR_LOOKS, HASTY = 4, 0.25  # within this (in log rate) of the crossing a rate is looked at so often,
LONG = 40  # or for so many times as many requests as neighbours are alike for
SHARED_LOOKS = 2  # rates that took every look: with shared draws one more would tell little new


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """What a time budget needs: the time now in seconds, and how long (rate, requests) would take."""

    now_s: Callable[[], float] = lambda: 0.0
    lasts_s: Callable[[float, int], float] = lambda rate, requests: 0.0


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """`target`: share that has to be attained. `precision`: relative half width of the answer's interval that is enough.

    `first_look`: requests; None: as many as a perfect look needs to clear the target. `most_s`: no run is begun that would
    end later.
    """

    target: float
    start_per_s: float = 1.0
    precision: float = 0.05
    first_look: int | None = None
    most_probes: int = 30
    most_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise UserError(f"attainment {self.target:g}: write a share above 0, like 95 %")
        if self.target > 0.9999:
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
            standing, why = standing_of(looks, self.search.target)
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
        curve = self.curve()
        value, interval, reason = self._answer(curve)
        beyond = self._beyond(value)
        probes = tuple(self.probes[rate] for rate in sorted(self.probes))
        warnings = []
        if beyond is not None and beyond.standing == "good":
            warnings.append(
                f"attainment_not_monotone: {beyond.rate_per_s:.4g} req/s is good again, past a rate that is not"
            )
        return Found(
            value=value, interval=interval, binding=self._binding(value), probes=probes, curve=curve, reason=reason,
            beyond=beyond, sensitivity=self._rates_of(lambda seen: seen.scaled),
            single=self._rates_of(lambda seen: seen.single), warnings=tuple(warnings),
        )  # fmt: skip

    def low(self) -> float | None:
        """The highest rate below the lowest bad one that is good."""
        high = self.high()
        rates = [r for r, p in self.probes.items() if p.standing == "good" and (high is None or r < high)]
        return max(rates, default=None)

    def high(self) -> float | None:
        """The lowest rate that is bad."""
        return min((r for r, p in self.probes.items() if p.standing == "bad"), default=None)

    def likely(self) -> float | None:
        """The highest rate below the lowest bad one that attained the target, decided or not."""
        high = self.high()
        rates = [
            r for r, p in self.probes.items() if (p.attainment or 0.0) >= self.search.target and p.standing != "bad"
        ]
        return max((rate for rate in rates if high is None or rate < high), default=None)

    def _bracket(self) -> bool:
        """Double or halve until the crossing lies between two rates, or beside one that a first look can't decide."""
        rate = self.search.start_per_s
        first = self.probe(rate, most_looks=1)
        while first is not None and len(self.probes) < self.search.most_probes // 2:
            low, high = self.low(), self.high()
            undecided = [r for r, p in self.probes.items() if p.standing == "undecided"]
            if (low is not None and high is not None) or (undecided and len(self.probes) >= 3):
                return True
            share = self.probes[rate].attainment
            up = high is None and (low is not None or (share or 0.0) >= self.search.target)
            rate = max(self.probes) * 2 if up else min(self.probes) / 2
            first = self.probe(rate, most_looks=1)
        return False

    def _close_in(self) -> None:
        while len(self.probes) < self.search.most_probes and not self.out_of_time:
            if self._hasty() is None and self._enough():
                return
            hasty = self._hasty()
            rate = self._next() if hasty is None else hasty
            least = 1 if hasty is None else len(self.probes[hasty].looks) + 1
            if rate is None or self.probe(rate, least_looks=least) is None:
                return

    def _hasty(self) -> float | None:
        """A rate near the crossing that was decided by a short run: near saturation such a run may see no queue at all."""
        curve = self.curve()
        crossing = curve.crossing(self.search.target) if curve is not None else None
        if crossing is None:
            return None
        enough = LONG * self._longest()
        near = {r: p for r, p in self.probes.items() if abs(math.log(r / crossing)) < HASTY}
        short = [r for r, p in near.items() if len(p.looks) < NEAR_LOOKS and p.requests < enough]
        return min(short, key=lambda rate: abs(math.log(rate / crossing)), default=None)

    def _enough(self) -> bool:
        low, high = self.low(), self.high()
        width = 1 + self.search.precision
        if low is not None and high is not None and high / low <= width**2:
            return True
        full = [p.rate_per_s for p in self.probes.values() if len(p.looks) == LOOKS]
        curve = self.curve()
        found = curve.interval(self.search.target) if curve is not None else None
        if curve is None or found is None:
            return False
        crossing = curve.crossing(self.search.target) or 0.0
        if any(found[0] <= rate <= found[1] for rate in full) or len(full) > SHARED_LOOKS:
            return True  # a rate that can't be told from the crossing took every look: with shared draws others tell little
        near = [p for p in self.probes.values() if abs(math.log(p.rate_per_s / crossing)) < 2 * self.search.precision]
        return found[1] / found[0] <= width**2 and any(len(p.looks) > 1 for p in near)

    def _next(self) -> float | None:
        """The curve's crossing, kept inside the bracket; a rate close by that is still open is looked at again instead."""
        low, high = self.low() or self.likely(), self.high()
        curve = self.curve()
        crossing = curve.crossing(self.search.target) if curve is not None else None
        if low is not None and high is not None:
            margin = (high / low) ** 0.15
            middle = math.sqrt(low * high)
            steep = high / low > 4
            crossing = middle if crossing is None or steep else min(max(crossing, low * margin), high / margin)
        if crossing is None:
            crossing = min(self.probes) / 2 if high is not None else max(self.probes) * 2
        crossing = min(max(crossing, min(self.probes) / 2), max(self.probes) * 2)
        beside = sorted(self.probes, key=lambda rate: abs(math.log(rate / crossing)))
        for rate in beside:
            if abs(math.log(rate / crossing)) > NEAR:
                break
            if self.probes[rate].standing == "undecided" and len(self.probes[rate].looks) < LOOKS:
                return rate
            return crossing if abs(math.log(rate / crossing)) > NEAR / 6 else None
        return crossing

    def curve(self) -> Curve | None:
        """The logistic near the crossing. Unstable rates, whose attainment depends on how long one looks, are left out."""
        return self._fitted(lambda seen: seen.good)

    def _longest(self) -> float:
        """For how many requests neighbours are alike, at the rate where that is longest."""
        return max((time_of(p.looks) for p in self.probes.values() if p.stable is not False), default=1.0)

    def _fitted(self, part: Callable[[Seen], Bools | None]) -> Curve | None:
        longest = self._longest()
        stretches = [
            one for probe in self.probes.values() if probe.stable is not False for one in stretches_of(probe, part)
        ]
        try:
            curve = fit(stretches, 3 * longest)
            for reach in REACHES:
                middle = curve.crossing(self.search.target)
                if middle is None:
                    return curve
                near = [weighed(one, middle, reach) for one in stretches]
                near = [one for one in near if one.weight > 0.05]
                if len({one.rate_per_s for one in near}) < 3:
                    break
                curve = fit(near, 3 * longest)
        except Undefined:
            return None
        return curve

    def _answer(self, curve: Curve | None) -> tuple[float | None, tuple[float | None, float | None], str | None]:
        low, high = self.low(), self.high()
        reason = "out_of_time" if self.out_of_time else None
        if not self.probes:
            return None, (None, None), reason
        crossing = curve.crossing(self.search.target) if curve is not None else None
        if high is None and crossing is None:
            return low, (low, None), reason or "no_rate_missed"
        interval = curve.interval(self.search.target) if curve is not None and crossing is not None else None
        if crossing is None or not self._within(crossing):
            likely = low or self.likely()
            if likely is None:
                return None, (None, high), reason or "target_never_attained"
            if low is None:
                return (math.sqrt(likely * high) if high is not None else likely), (None, high), reason
            return (math.sqrt(low * high) if high is not None else low), (low, high), reason
        unstable = min((r for r, p in self.probes.items() if p.stable is False), default=None)
        if (
            unstable is not None and crossing >= unstable
        ):  # what grows without end keeps no promise, whatever it attained
            return (math.sqrt(low * unstable) if low else None), (low, unstable), reason
        return crossing, interval or (low, high), reason

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
            if probe.stable is False:
                return "stability"
            if worst is not None and shares[worst] < 1 and probe.attainment is not None:
                return worst
        return None

    def _rates_of(self, part: Callable[[Seen], Mapping[str, Bools]]) -> dict[str, float | None]:
        """Where each curve of its own crosses the target; None where that lies outside the rates tried."""
        names = dict.fromkeys(name for p in self.probes.values() for one in p.looks for name in part(one))
        found: dict[str, float | None] = {}
        for name in names:
            curve = self._fitted(lambda seen, name=name: part(seen).get(name))  # type: ignore[misc]
            rate = curve.crossing(self.search.target) if curve is not None else None
            inside = rate is not None and min(self.probes) <= rate <= max(self.probes)
            found[name] = rate if inside else None
        return found
