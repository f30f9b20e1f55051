"""Crossings and their differences, on services whose capacity is known by construction."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.studies.paired import Asked, Look, Targets, crossing, difference

Floats = npt.NDArray[np.float64]


def carries(limits_per_s: Floats, *, stable_below: float = math.inf) -> Callable[[float], Look]:
    """A service in which request i is good as long as the rate is at most its own limit: its capacity at a target is their quantile."""

    def look(rate: float) -> Look:
        return Look(ratios=(rate / limits_per_s)[:, None], names=("ttft",), stable=rate < stable_below)

    return look


def limits(seed: int, requests: int = 4000, capacity: float = 10.0) -> Floats:
    """Limits whose tenth quantile is `capacity`, so that 90 % of requests are good there."""
    drawn = np.random.default_rng(seed).lognormal(0, 0.3, requests)
    whole = np.random.default_rng(0).lognormal(0, 0.3, 10**6)
    found: Floats = capacity * drawn / float(np.quantile(whole, 0.1))
    return found


ASKED = Asked(targets=Targets(whole=0.9), start_per_s=6, requests=4000)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), start=st.floats(0.5, 60), capacity=st.floats(0.1, 1000))
def test_a_crossing_is_the_quantile_of_its_requests_wherever_the_search_begins(
    seed: int, start: float, capacity: float
) -> None:
    own = limits(seed, capacity=capacity)
    found = crossing(carries(own), Asked(targets=Targets(whole=0.9), start_per_s=start * capacity / 10, requests=4000))
    assert found.rate_per_s == pytest.approx(float(np.quantile(own, 0.1)), rel=0.012)
    assert found.low is not None and found.high is not None and found.low <= found.rate_per_s <= found.high
    assert found.binding == "ttft"


def test_intervals_hold_the_capacity_about_as_often_as_they_promise() -> None:
    found = [crossing(carries(limits(seed)), ASKED) for seed in range(1, 101)]
    hits = sum(one.low <= 10 <= one.high for one in found if one.low is not None and one.high is not None)
    assert 88 <= hits <= 100
    halves = [math.log(one.high / one.low) / 2 for one in found if one.low and one.high]
    assert np.median(halves) < 0.03  # they are not simply wide


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.5, 2))
def test_limits_so_many_times_as_wide_carry_as_many_times_as_much(seed: int, scale: float) -> None:
    own = limits(seed)
    plain = crossing(carries(own), ASKED)
    scaled = crossing(carries(own), Asked(targets=Targets(whole=0.9), start_per_s=6, scale=scale, requests=4000))
    assert plain.rate_per_s is not None
    assert scaled.rate_per_s == pytest.approx(scale * plain.rate_per_s, rel=0.02)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), better=st.floats(1.01, 1.5))
def test_a_difference_of_two_that_saw_the_same_requests_is_surer_than_both(seed: int, better: float) -> None:
    own = limits(seed)
    one, other = crossing(carries(own * better), ASKED), crossing(carries(own), ASKED)
    ratio, low, high = difference(one, other, 1.0, 0.95)
    assert low <= ratio <= high and ratio == pytest.approx(better, rel=0.02)
    assert one.low is not None and one.high is not None
    assert high / low < one.high / one.low


def test_without_shared_requests_a_difference_is_no_surer_than_its_parts() -> None:
    one = crossing(carries(limits(1)), ASKED)
    other = crossing(carries(limits(2, 2000)), Asked(targets=Targets(whole=0.9), start_per_s=6, requests=2000))
    _, low, high = difference(one, other, 1.0, 0.95)
    assert one.low is not None and one.high is not None
    assert high / low > one.high / one.low


def test_a_queue_that_grows_ends_it_whatever_is_attained() -> None:
    found = crossing(carries(limits(1), stable_below=5.0), ASKED)
    assert found.rate_per_s == pytest.approx(5.0, rel=0.02) and found.binding == "stability"
    assert found.low is not None and found.high is not None and found.low < 5.0 <= found.high


def test_no_rate_from_the_ceiling_on_is_ever_looked_at() -> None:
    seen: list[float] = []

    def look(rate: float) -> Look:
        seen.append(rate)
        return carries(limits(1))(rate)

    asked = Asked(targets=Targets(whole=0.9), start_per_s=3, ceiling_per_s=7.0, requests=4000)
    found = crossing(look, asked)
    assert max(seen) < 7.0 and found.high == pytest.approx(7.0, rel=0.02)


def test_what_no_rate_keeps_has_no_crossing_and_says_what_fails() -> None:
    def never(rate: float) -> Look:
        return Look(ratios=np.column_stack([np.full(400, 0.5), np.full(400, 2.0)]), names=("ttft", "tpot"))

    found = crossing(never, ASKED)
    assert (found.rate_per_s, found.reason, found.binding) == (None, "never", "tpot")


def test_a_class_with_a_share_of_its_own_can_be_the_one_that_crosses_first() -> None:
    own = limits(3)
    own[::2] *= 0.5  # every other request is of the class that carries half
    part = np.arange(own.size) % 2 == 0

    def look(rate: float) -> Look:
        return Look(ratios=(rate / own)[:, None], names=("ttft",), parts={"hard": part})

    whole = crossing(look, Asked(targets=Targets(whole=0.5), start_per_s=6, requests=4000))
    hard = crossing(look, Asked(targets=Targets(whole=0.5, parts={"hard": 0.9}), start_per_s=6, requests=4000))
    assert hard.rate_per_s == pytest.approx(float(np.quantile(own[part], 0.1)), rel=0.012)
    assert whole.rate_per_s is not None and hard.rate_per_s is not None and whole.rate_per_s > 1.5 * hard.rate_per_s


def test_a_request_without_a_cadence_counts_only_where_it_broke_another_limit() -> None:
    ratios = np.array([[0.5, np.nan], [2.0, np.nan], [0.5, 0.5], [0.5, 2.0]])
    good, said = Look(ratios=ratios, names=("ttft", "tpot")).judged(1.0)
    assert good.tolist() == [False, False, True, False]
    assert said.tolist() == [False, True, True, True]


def test_what_missed_at_no_rate_is_not_called_worse_than_anybody() -> None:
    def always(rate: float) -> Look:
        return Look(ratios=np.full((400, 1), 0.5), names=("ttft",))

    found, other = crossing(always, ASKED), crossing(carries(limits(1, capacity=1e6)), Asked(
        targets=Targets(whole=0.9), start_per_s=1e6, requests=4000
    ))  # fmt: skip
    assert found.reason == "no_rate_missed" and found.high is None
    assert difference(found, other, 1.0, 0.95)[2] == math.inf and difference(other, found, 1.0, 0.95)[1] == 0.0
