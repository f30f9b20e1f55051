"""The curve through attainments and the interval of its crossing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phasemeter.errors import Undefined
from phasemeter.studies.crossing import Stretch, fit
from tests.studies.models import drawn

RATES = (3.0, 4.0, 5.0, 6.0, 7.0)


def stretches(seed: int, n: int = 400, shared: bool = False) -> list[Stretch]:
    """Attainment is expit(2.2 − 8 ln(rate / 5)); `shared`: one draw for all rates."""
    found = []
    for i, rate in enumerate(RATES):
        draws = np.random.default_rng([seed, 0 if shared else i + 1]).random(n)
        share = 1 / (1 + math.exp(-(2.2 - 8 * math.log(rate / 5))))
        found.append(Stretch(rate, 0 if shared else i, draws < share))
    return found


def test_the_curve_goes_through_what_made_it() -> None:
    curve = fit(stretches(1, n=200_000))
    assert curve.b == pytest.approx(-8, rel=0.03)
    assert curve.crossing(0.9) == pytest.approx(5.0, rel=0.01)
    assert curve.attainment(4.0) == pytest.approx(1 / (1 + math.exp(-(2.2 - 8 * math.log(0.8)))), abs=0.01)


@pytest.mark.parametrize("shared", [False, True])
def test_the_interval_covers_as_often_as_it_says(shared: bool) -> None:
    covered, true = 0, 5 * math.exp((2.2 - math.log(9)) / 8)
    for seed in range(200):
        found = fit(stretches(seed, shared=shared)).interval(0.9)
        assert found is not None
        covered += found[0] <= true <= found[1]
    assert covered >= 180


def test_shared_draws_are_worth_less_than_draws_of_their_own() -> None:
    def width(shared: bool) -> float:
        found = [fit(stretches(seed, shared=shared)).interval(0.9) for seed in range(20)]
        return float(np.mean([math.log(one[1] / one[0]) for one in found if one is not None]))

    assert width(True) > 1.15 * width(False)


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    def width(window: int) -> float:
        found = [fit([Stretch(r, 0, drawn(seed, 0, 2000, window) < 1.3 - 3 * math.log(r / 5)) for r in RATES], 3 * window).interval(0.9)
                 for seed in range(10)]  # fmt: skip
        return float(np.mean([math.log(one[1] / one[0]) for one in found if one is not None]))

    assert width(40) > 2.5 * width(1)


def test_rates_that_separate_still_give_a_finite_curve() -> None:
    curve = fit([Stretch(2.0, 0, np.ones(100, bool)), Stretch(4.0, 0, np.zeros(100, bool))])
    crossing = curve.crossing(0.9)
    assert crossing is not None and 2 < crossing < 4


def test_a_flat_curve_has_no_crossing_and_no_bounded_interval() -> None:
    draws = np.random.default_rng(0).random(300) < 0.9
    curve = fit([Stretch(2.0, 0, draws), Stretch(4.0, 0, draws)])
    assert curve.interval(0.9) is None


def test_one_rate_or_no_variation_is_undefined() -> None:
    with pytest.raises(Undefined):
        fit([Stretch(2.0, 0, np.array([True, False]))])
    with pytest.raises(Undefined):
        fit([Stretch(2.0, 0, np.ones(9, bool)), Stretch(3.0, 0, np.ones(9, bool))])
