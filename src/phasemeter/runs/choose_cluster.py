"""How many copies of a candidate a rate needs, and whether so many carry it when the whole cluster is simulated at that rate.

Lives here: the number, from the low end of a goodput's interval, and its check. Must not live here: the search for the goodput
(studies/race.py).
"""

from __future__ import annotations

import math

import msgspec

from phasemeter.runs.choose_looks import Simulated
from phasemeter.serving.plan_candidates import Choice
from phasemeter.serving.plan_changes import accelerators_of, copies
from phasemeter.stats.distributions import t_quantile
from phasemeter.studies.paired import STRETCHES, Floats, Targets, spread
from phasemeter.studies.race import MOST_REQUESTS, Racer, Tell

CHECKED = 3  # candidates whose whole cluster is simulated
FURTHER = 4  # copies added at most, one by one, where the cluster misses
LEAST_REQUESTS, SETTLES = 6000, 20
ONE_TO_TWO_MINUTES_S = 90.0  # of arrivals, at least, where so many are few


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster at the target rate: attainment with its 95 % interval, and whether it kept what it had to."""

    copies: int
    attainment: float
    low: float
    high: float
    stable: bool | None
    kept: bool


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """`copies`: from the low end of the goodput's interval, or more where the check asked for them. `within`: the plan's budget."""

    copies: int
    accelerators: int
    price_per_h: float | None
    within: bool
    checks: tuple[Check, ...] = ()

    @property
    def kept(self) -> bool | None:
        """Whether the last cluster that was simulated carries the rate; None: none was."""
        own = [one for one in self.checks if one.copies == self.copies]
        return own[-1].kept if own else None


def sized(simulated: Simulated, racer: Racer, choice: Choice, tell: Tell) -> dict[int, Sized]:
    """Copies of each candidate for the plan's target rate and headroom; the cheapest few are simulated whole."""
    found: dict[int, Sized] = {}
    if choice.target_per_s is None:
        return found
    wanted = choice.target_per_s * (1 + choice.headroom)
    for index in racer.ordered():
        crossing = racer.found[index].crossing
        if crossing is not None and crossing.low:
            found[index] = _of(simulated, racer, choice, index, math.ceil(wanted / crossing.low))
    for index in cheapest(found, racer)[:CHECKED]:
        tell(
            f"the whole cluster at {choice.target_per_s:g} req/s: {found[index].copies} × {racer.entrants[index].name}"
        )
        found[index] = _checked(simulated, racer, choice, index, found[index].copies)
    return found


def cheapest(found: dict[int, Sized], racer: Racer) -> list[int]:
    """Within the budget first, then by what all copies cost, then by what one carries."""
    return sorted(
        found,
        key=lambda i: (
            not found[i].within, found[i].price_per_h or found[i].accelerators, racer.found[i].stage == 0, -racer.value(i),
            racer.entrants[i].name,
        ),
    )  # fmt: skip


def _of(simulated: Simulated, racer: Racer, choice: Choice, index: int, many: int) -> Sized:
    count = many * accelerators_of(simulated.plans[index])
    price = many * racer.entrants[index].units if choice.prices else None
    return Sized(
        copies=many, accelerators=count, price_per_h=price, within=choice.budget is None or count <= choice.budget
    )


def _checked(simulated: Simulated, racer: Racer, choice: Choice, index: int, many: int) -> Sized:
    """The number with its check; one more copy at a time while the whole misses; then whether one fewer would do."""
    checks = [check(simulated, racer, choice, index, many)]
    while not checks[-1].kept and len(checks) <= FURTHER:
        many += 1
        checks.append(check(simulated, racer, choice, index, many))
    if len(checks) == 1 and many > 1:
        checks.append(check(simulated, racer, choice, index, many - 1))
    return msgspec.structs.replace(_of(simulated, racer, choice, index, many), checks=tuple(checks))


def check(simulated: Simulated, racer: Racer, choice: Choice, index: int, many: int) -> Check:
    """So many copies behind the plan's router at the target rate."""
    target, crossing = choice.target_per_s or 0.0, racer.found[index].crossing
    together = many * crossing.in_system if crossing is not None else 0.0
    requests = min(
        MOST_REQUESTS, max(LEAST_REQUESTS, math.ceil(SETTLES * together), math.ceil(target * ONE_TO_TWO_MINUTES_S))
    )
    plan = copies(simulated.plans[index], many)
    look = simulated.looked(
        plan, simulated.offered(index, target, requests), simulated.seed_of(len(racer.race.sizes) * 2)
    )
    targets: Targets = racer.race.targets
    shares: Floats = targets.margins(look, 1.0)[0][2]
    value = float(shares.mean())
    half = t_quantile(0.975, STRETCHES - 1) * spread(shares)
    return Check(
        copies=many, attainment=value, low=max(0.0, value - half), high=min(1.0, value + half), stable=look.stable,
        kept=targets.kept(look, 1.0),
    )  # fmt: skip
