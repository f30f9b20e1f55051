"""Which of many deployments carries most for what it costs: all are looked at briefly, the best ones for longer.

Lives here: who is looked at how long, who is out and why, ranks and ties, what another limit or step time would choose. Must not live
here: what is measured (a simulator and a service look alike from here), the crossing itself (paired.py).

Stages: every candidate in a short look; those that are not clearly worse than the best in a longer one; those that can't be told from
the best in the longest. Each stage draws anew, so that who was lucky in one is not lucky in the next. A candidate whose ceiling (no
schedule carries more, capacity.py) lies below what the best is sure of is never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from phasemeter.studies.paired import Asked, Crossing, Look, Targets, best_first, crossing, difference

MOST_REQUESTS = 60_000  # of one look
QUEUES = 10  # and so many times as many as an M/D/1 queue's relaxation, in arrivals
SETTLES = (8, 20, 20)  # a look takes so many times the requests that are in the system together, by stage
CLEARLY = 1.08  # short looks flatter by a few percent, not all alike: who may be better within this is looked at again
ALIKE = 3  # looks of so many times a stage's size are still of one length for all
CAUTION = 0.85  # of what a short look is sure of: who can't carry as much is not looked at
SCREENED = 0.99
SURE = 0.95
GUESS = 0.6  # of a ceiling: where a search begins that knows nothing


class Entrant(msgspec.Struct, frozen=True, kw_only=True):
    """`units`: what it costs, in accelerators or in money. `ceiling_per_s`: inf where none is known."""

    name: str
    units: float
    ceiling_per_s: float = math.inf
    start_per_s: float = 1.0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an entrant after `stage` (−1: it was never looked at, for its ceiling)."""

    stage: int
    crossing: Crossing | None


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """`sizes`: requests of a look, by stage. `widths`: how many entrants a stage takes at most; `shown`: how many the second takes at
    least, though they are worse; `patience`: requests at most for a queue to build up."""

    targets: Targets
    sizes: tuple[int, ...] = (1000, 4000, 12000)
    widths: tuple[int, ...] = (1000, 12, 5)
    shown: int = 8
    patience: int = 20_000


# (entrant, rate, requests, stage, every step so many times as long) -> a look
Measure = Callable[[int, float, int, int, float], Look]
Tell = Callable[[str], None]


class Racer:
    """One race under way: `found` holds what is known so far, whenever it is interrupted."""

    def __init__(
        self, entrants: Sequence[Entrant], measure: Measure, race: Race, tell: Tell = lambda words: None
    ) -> None:
        self.entrants, self.measure, self.race, self.tell = entrants, measure, race, tell
        self.found: dict[int, Standing] = {}
        self.looks = 0
        self.requests = 0
        self._crossings: dict[int, dict[int, Crossing]] = {}  # by entrant and stage
        self._kept: dict[tuple[int, int, int, float], dict[float, Look]] = {}

    # ---- one entrant

    def value(self, index: int) -> float:
        """What it carries for its cost, by the last look; 0 where nothing is known."""
        standing = self.found.get(index)
        found = standing.crossing if standing is not None else None
        rate = found.rate_per_s if found is not None else None
        return 0.0 if rate is None else rate / self.entrants[index].units

    def crossed(self, index: int, stage: int, requests: int, *, scale: float = 1.0, step: float = 1.0) -> Crossing:
        """The entrant's crossing from looks of `requests`, with all limits times `scale` and all steps times `step`."""
        entrant, known = self.entrants[index], self.found.get(index)
        kept = self._kept.setdefault((index, stage, requests, step), {})

        def look(rate: float) -> Look:
            if rate not in kept:
                kept[rate] = self._look(index, rate, (requests, stage), step)
            return kept[rate]

        ceiling = entrant.ceiling_per_s / step
        guess = GUESS * ceiling if math.isfinite(ceiling) else entrant.start_per_s
        if known is not None and known.crossing is not None and known.crossing.rate_per_s is not None:
            guess = known.crossing.rate_per_s * 0.95 / step
        asked = Asked(
            targets=self.race.targets, start_per_s=guess, ceiling_per_s=ceiling, scale=scale, requests=requests,
            resolution=0.04 if stage == 0 else 0.015 if (scale, step) == (1.0, 1.0) else 0.03,
        )  # fmt: skip
        return crossing(look, asked)

    def _look(self, index: int, rate: float, asked: tuple[int, int], step: float) -> Look:
        """One look. One that kept everything but seems to grow is believed when another one's queue grows too."""
        requests, stage = asked
        self.looks += 1
        self.requests += requests
        seen = self.measure(index, rate, requests, stage, step)
        calm = msgspec.structs.replace(seen, stable=None)
        if seen.stable is False and self.race.targets.kept(calm, 1.0):
            self.looks += 1
            self.requests += requests
            again = self.measure(index, rate, requests, stage + len(self.race.sizes), step)
            return seen if again.stable is False else calm
        return seen

    def _settled(self, index: int, stage: int, requests: int) -> Crossing:
        """The crossing from looks that are long beside what is in the system together."""
        found = self.crossed(index, stage, requests)
        needed = self._needed(index, stage, found)
        if needed > 1.2 * requests:
            self._known(index, stage, found)
            found = self.crossed(index, stage, needed)
        return found

    def _needed(self, index: int, stage: int, found: Crossing | None) -> int:
        """Requests of a look that sees a queue settle: some times what is in the system, and 1/(1 − load)² near the ceiling, where a
        queue takes that long to build up."""
        if found is None or found.rate_per_s is None:
            return self.race.sizes[stage]
        load = min(0.999, found.rate_per_s / self.entrants[index].ceiling_per_s)
        queue = 0.0 if stage == 0 else QUEUES / (1 - load) ** 2
        return max(
            self.race.sizes[stage],
            min(MOST_REQUESTS, math.ceil(max(SETTLES[stage] * found.in_system, min(queue, self.race.patience)))),
        )

    # ---- the stages

    def run(self) -> None:
        """All stages."""
        self._screen()
        for stage in range(1, len(self.race.sizes)):
            chosen = self.contenders(stage)
            if not chosen or (stage > 1 and len(chosen) == 1):
                break
            self._longer(stage, chosen)
        best = self.best()
        while best is not None and (missed := self._passed_over(best)):
            self._longer(self.found[best].stage, missed)
            best = self.best()

    def _passed_over(self, best: int) -> list[int]:
        """Who was not looked at for a ceiling that the best, looked at longest, is not sure to be above."""
        found = self.found[best].crossing
        sure = (found.low or 0.0) / self.entrants[best].units if found is not None else 0.0
        left = [i for i, one in self.found.items() if one.stage < 0]
        return [i for i in left if self.entrants[i].ceiling_per_s / self.entrants[i].units >= sure]

    def _screen(self) -> None:
        order = best_first([(one.ceiling_per_s / one.units, one.name) for one in self.entrants])
        sure = 0.0
        for done, index in enumerate(order):
            entrant = self.entrants[index]
            if entrant.ceiling_per_s / entrant.units < CAUTION * sure:
                self.found[index] = Standing(stage=-1, crossing=None)
                continue
            found = self._settled(index, 0, self.race.sizes[0])
            self._known(index, 0, found)
            if found.low is not None:
                sure = max(sure, found.low / entrant.units)
            self.tell(f"{done + 1} of {len(order)} looked at: {entrant.name}{_words(found)}")

    def _longer(self, stage: int, chosen: Sequence[int]) -> None:
        """One look length for all, so that each stretch holds the same requests in each of them; who needs a far longer one takes it
        alone."""
        needs = {i: self._needed(i, stage, self.found[i].crossing) for i in chosen}
        before = [
            one.crossing.requests for one in self.found.values() if one.stage == stage and one.crossing is not None
        ]
        usual = [one for one in needs.values() if one <= ALIKE * self.race.sizes[stage]]
        shared = min(before, default=max(usual, default=self.race.sizes[stage]))
        for done, index in enumerate(chosen):
            own = needs[index] if needs[index] > ALIKE * self.race.sizes[stage] else shared
            found = self.crossed(index, stage, own)
            again = self._needed(index, stage, found)
            if again > ALIKE * own:  # it carries more than it seemed to
                found = self.crossed(index, stage, again)
            self._known(index, stage, found)
            self.tell(
                f"{done + 1} of the {len(chosen)} best looked at longer: {self.entrants[index].name}{_words(found)}"
            )

    def ordered(self) -> list[int]:
        """Those that carry something, the best first; who was looked at longest stands before an equal one."""
        known = [i for i, one in self.found.items() if one.crossing is not None and one.crossing.rate_per_s is not None]
        return [known[at] for at in best_first([(self.value(i), self.entrants[i].name) for i in known])]

    def contenders(self, stage: int) -> list[int]:
        """Who goes into a stage: of those in the one before, who is not clearly worse than its best; at first a few more, to be shown."""
        last = [i for i in self.ordered() if self.found[i].stage == stage - 1]
        if not last:
            return []
        if stage > 1:
            return self.tied(last)[: self.race.widths[stage]]
        near = [i for i in last if self.against(i, last[0], SCREENED)[2] * CLEARLY >= 1]
        return last[: max(self.race.shown, min(len(near), self.race.widths[1]))]

    # ---- ranks

    def _known(self, index: int, stage: int, found: Crossing) -> None:
        self.found[index] = Standing(stage=stage, crossing=found)
        self._crossings.setdefault(index, {})[stage] = found

    def against(self, index: int, other: int, confidence: float) -> tuple[float, float, float]:
        """(ratio, low, high) of what one carries for its cost over what another does, by the longest looks that both had."""
        one, two = self._crossings.get(index, {}), self._crossings.get(other, {})
        both = one.keys() & two.keys()
        if not both:
            return math.nan, 0.0, math.inf
        stage = max(both)
        units = self.entrants[other].units / self.entrants[index].units
        return difference(one[stage], two[stage], units, confidence)

    def best(self) -> int | None:
        """Who carries most, of those that were looked at longest."""
        ordered = self.ordered()
        longest = max((self.found[i].stage for i in ordered), default=0)
        return next((i for i in ordered if self.found[i].stage == longest), None)

    def tied(self, ordered: Sequence[int]) -> list[int]:
        """The first of `ordered` and those that can't be told from it, at 95 % for all comparisons together (Bonferroni)."""
        if not ordered:
            return []
        sure = together(len(ordered) - 1)
        return [ordered[0]] + [i for i in ordered[1:] if self.against(i, ordered[0], sure)[2] >= 1]

    def alike(self, ordered: Sequence[tuple[int, Crossing]]) -> list[int]:
        """The same of crossings that are not the race's own."""
        if not ordered:
            return []
        (first, crossed), units = ordered[0], self.entrants[ordered[0][0]].units
        sure = together(len(ordered) - 1)
        ratios = {i: difference(one, crossed, units / self.entrants[i].units, sure) for i, one in ordered[1:]}
        return [first, *(i for i, (_, _, high) in ratios.items() if high >= 1)]

    def ranks(self) -> list[tuple[int, int]]:
        """(rank, entrant), best first; those that can't be told from the first of their rank share it."""
        first, rest = self.best(), self.ordered()
        ranked: list[tuple[int, int]] = []
        if first is not None:
            rest = [first, *(i for i in rest if i != first)]
        while rest:
            group = self.tied(rest)
            rank = len(ranked) + 1
            ranked += [(rank, i) for i in group]
            rest = [i for i in rest if i not in group]
        return ranked

    # ---- what if

    def scenario(self, chosen: Sequence[int], scale: float, step: float) -> list[tuple[int, Crossing]]:
        """The crossings of some with other limits or other step times, the best for its cost first."""
        stage = min(1, len(self.race.sizes) - 1)
        most = ALIKE * self.race.sizes[stage]
        seen = [
            one.crossing.requests for i in chosen if (one := self.found[i]).crossing is not None and one.stage == stage
        ]
        requests = max([self.race.sizes[stage], *(one for one in seen if one <= most)])
        found = [(i, self.crossed(i, stage, requests, scale=scale, step=step)) for i in chosen]
        values = [((c.rate_per_s or 0.0) / self.entrants[i].units, self.entrants[i].name) for i, c in found]
        return [found[at] for at in best_first(values)]


def together(comparisons: int) -> float:
    """The confidence of each, so that all of them hold together."""
    return 1 - (1 - SURE) / max(1, comparisons)


def _words(found: Crossing) -> str:
    if found.rate_per_s is None:
        return ": keeps the target at no rate"
    return f": {found.rate_per_s:.3g} req/s"
