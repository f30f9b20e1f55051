"""What a settled run looks like, and what doesn't."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import Undefined
from phasemeter.stats.stationarity import at_limit, correlated, lag1, largest_cut, mser5, trend

settings.register_profile("ours", deadline=None, max_examples=40)
settings.load_profile("ours")


@given(st.integers(250, 700), st.integers(0, 2**32 - 1))
def test_mser5_is_the_cut_that_its_formula_names(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=n) + 5 * np.exp(-np.arange(n) / 40)
    batches = [float(np.mean(values[i : i + 5])) for i in range(0, n - 4, 5)]
    scores = []
    for cut in range(largest_cut(n) // 5 + 1):
        rest = np.array(batches[cut:])
        scores.append(float(((rest - rest.mean()) ** 2).sum()) / rest.size**2)
    assert scores[mser5(values) // 5] == pytest.approx(min(scores))


def test_a_warm_up_is_cut_and_a_settled_run_is_not() -> None:
    generator = np.random.default_rng(3)
    noise = generator.normal(size=1000)
    assert mser5(noise) <= 100
    warm = noise + np.where(np.arange(1000) < 200, 8.0, 0.0)
    assert 190 <= mser5(warm) <= 300


def test_short_runs_are_not_cut() -> None:
    assert mser5([9.0] * 20 + [1.0] * 229) == 0


def test_a_run_that_never_settles_is_cut_at_the_limit() -> None:
    climbing = np.arange(600.0)
    assert at_limit(mser5(climbing), 600)
    assert not at_limit(mser5(np.random.default_rng(1).normal(size=600)), 600)


def test_a_trend_is_found_with_its_slope() -> None:
    generator = np.random.default_rng(4)
    seen = trend(0.5 * np.arange(200) + generator.normal(size=200))
    assert seen.low <= 0.5 <= seen.high
    assert seen.p_value < 1e-6


@given(st.integers(20, 400), st.integers(0, 2**32 - 1))
def test_a_trend_s_error_is_that_of_newey_and_west(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    at = np.cumsum(generator.exponential(size=n))
    values = 3 + 0.2 * at + np.convolve(generator.normal(size=n + 9), np.ones(10), "valid")
    x = at - at.mean()
    slope = float(np.polyfit(x, values, 1)[0])
    scores = x * (values - values.mean() - slope * x)
    lags = math.ceil(1.3 * math.sqrt(n))
    weights = [1.0] + [2 * (1 - lag / (lags + 1)) for lag in range(1, lags + 1)]
    products = [float((scores[: n - lag] * scores[lag:]).sum()) for lag in range(lags + 1)]
    variance = sum(weight * product for weight, product in zip(weights, products, strict=True))
    seen = trend(values, at)
    assert seen.slope == pytest.approx(slope, rel=1e-6, abs=1e-9)
    assert seen.standard_error == pytest.approx(math.sqrt(variance) / float((x**2).sum()), rel=1e-6)


def test_a_straight_line_has_no_error() -> None:
    seen = trend(2.0 * np.arange(50) + 1)
    assert (seen.slope, seen.p_value) == (2.0, 0.0) and seen.standard_error < 1e-12
    assert trend([4.0] * 30).p_value == 1.0


def test_correlated_noise_without_a_trend_is_seldom_called_one() -> None:
    generator = np.random.default_rng(5)
    noise = generator.normal(size=(300, 1000))
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0]
    for step in range(1, 1000):
        values[:, step] = 0.8 * values[:, step - 1] + noise[:, step]
    flagged = float(np.mean([trend(row).p_value < 0.05 for row in values]))
    assert flagged <= 0.12  # a plain least-squares error flags over half


def test_neighbours_that_are_alike_are_noticed_and_others_are_not() -> None:
    generator = np.random.default_rng(6)
    walk = np.repeat(generator.lognormal(size=50), 4)
    assert correlated(walk)
    flagged = float(np.mean([correlated(generator.lognormal(size=100)) for _ in range(600)]))
    assert 0.02 <= flagged <= 0.08


def test_what_does_not_vary_has_no_autocorrelation() -> None:
    with pytest.raises(Undefined):
        lag1([1.0] * 10)
    assert not correlated([1.0] * 100)
