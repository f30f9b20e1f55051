"""The race on services whose capacities are known: who wins, who is out, and that neither order nor luck decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.studies.paired import Look, Targets
from phasemeter.studies.race import Entrant, Race, Racer

RACE = Race(targets=Targets(whole=0.9), sizes=(300, 1200, 2400), shown=2)


def raced(
    capacities: Sequence[float], units: Sequence[float] | None = None, names: Sequence[str] | None = None,
    ceilings: Sequence[float] | None = None, alone: bool = False,
) -> Racer:  # fmt: skip
    """A race among services that carry `capacities`; `alone`: each draws requests of its own."""
    called = names or [f"c{i}" for i in range(len(capacities))]
    entrants = [
        Entrant(
            name=called[i], units=1.0 if units is None else units[i], start_per_s=5.0,
            ceiling_per_s=math.inf if ceilings is None else ceilings[i],
        )
        for i in range(len(capacities))
    ]  # fmt: skip

    def measure(index: int, rate: float, requests: int, stage: int, step: float) -> Look:
        draws = np.random.default_rng([stage, sum(map(ord, called[index])) if alone else 0])
        limits = capacities[index] / step * draws.lognormal(0.385, 0.3, requests)  # the tenth quantile of these is 1
        return Look(ratios=(rate / limits)[:, None], names=("ttft",), stable=True, in_system=3.0)

    racer = Racer(entrants, measure, RACE)
    racer.run()
    return racer


def told(racer: Racer) -> list[tuple[int, str, float]]:
    return [(rank, racer.entrants[i].name, racer.value(i)) for rank, i in racer.ranks()]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1, 20), min_size=2, max_size=8, unique=True))
def test_the_best_is_first_or_in_a_tie_with_the_first(capacities: list[float]) -> None:
    racer = raced(capacities)
    best = int(np.argmax(capacities))
    assert best in [i for rank, i in racer.ranks() if rank == 1]
    assert racer.value(best) == pytest.approx(capacities[best], rel=0.08)


@settings(max_examples=20, deadline=None)
@given(st.floats(1, 20), st.floats(1.15, 3), st.integers(1, 4))
def test_who_is_beaten_in_everything_never_wins_nor_ties(capacity: float, better: float, cost: int) -> None:
    racer = raced([capacity, capacity * better], units=[float(cost), float(cost)])
    assert [rank for rank, _ in racer.ranks()] == [1, 2] and racer.best() == 1


def test_twice_the_price_is_half_the_worth() -> None:
    racer = raced([10.0, 10.0], units=[1.0, 2.0])
    assert racer.best() == 0 and racer.against(1, 0, 0.95)[0] == pytest.approx(0.5, rel=0.001)


def test_the_order_of_candidates_changes_nothing() -> None:
    capacities = {"a": 10.0, "b": 10.05, "c": 7.0, "d": 9.9}
    answers = {
        tuple(told(raced([capacities[name] for name in order], names=order, ceilings=[12.0, 12.0, 12.0, 12.0])))
        for order in permutations(capacities)
    }
    assert len(answers) == 1


def test_equal_ones_are_a_tie_whether_or_not_they_saw_the_same_requests() -> None:
    for alone in (False, True):
        racer = raced([10.0, 10.0, 4.0], alone=alone)
        assert [rank for rank, _ in racer.ranks()] == [1, 1, 3]


def test_common_requests_tell_apart_what_own_requests_would_not() -> None:
    capacities = [10.0, 9.85]
    assert [rank for rank, _ in raced(capacities).ranks()] == [1, 2]
    assert [rank for rank, _ in raced(capacities, alone=True).ranks()] == [1, 1]


def test_a_ceiling_below_the_best_saves_the_look_and_one_above_does_not() -> None:
    racer = raced([10.0, 3.0, 5.0], ceilings=[11.0, 4.0, 10.5])
    assert racer.found[1].stage == -1 and racer.found[1].crossing is None
    assert racer.found[2].stage >= 0
    assert sorted(i for _, i in racer.ranks()) == [0, 2]


def test_who_was_passed_over_for_a_lucky_short_look_is_looked_at_in_the_end() -> None:
    """No candidate may be left out whose ceiling is above what the best, looked at longest, is sure of."""
    racer = raced([10.0, 9.9, 9.0], ceilings=[30.0, 10.0, 9.95])
    low = racer.found[racer.best() or 0].crossing
    assert low is not None and low.low is not None
    for index, standing in racer.found.items():
        assert standing.stage >= 0 or racer.entrants[index].ceiling_per_s < low.low


def test_an_interrupted_race_keeps_what_was_found() -> None:
    said: list[str] = []

    def tell(words: str) -> None:
        said.append(words)
        if len(said) == 2:
            raise KeyboardInterrupt

    whole = raced([3.0, 4.0, 5.0])
    racer = Racer(whole.entrants, whole.measure, RACE, tell)
    with pytest.raises(KeyboardInterrupt):
        racer.run()
    assert len(racer.ranks()) == 2 and racer.best() is not None


def test_slower_steps_carry_less_in_a_scenario_and_scaled_limits_more() -> None:
    racer = raced([10.0, 8.0])
    plain, slower, looser = (dict(racer.scenario([0, 1], *how)) for how in ((1.0, 1.0), (1.0, 1.1), (1.25, 1.0)))
    for index in (0, 1):
        base = plain[index].rate_per_s
        assert base is not None
        assert slower[index].rate_per_s == pytest.approx(base / 1.1, rel=0.03)
        assert looser[index].rate_per_s == pytest.approx(base * 1.25, rel=0.03)
