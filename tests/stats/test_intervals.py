"""Intervals cover as often as they say: seeded populations whose true quantile is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.stats import intervals
from phasemeter.stats.distributions import beta_cdf, binomial_window, t_cdf, t_quantile
from phasemeter.stats.quantiles import quantile

Floats = npt.NDArray[np.float64]
TRIALS = 2000
settings.register_profile("ours", deadline=None, max_examples=60)
settings.load_profile("ours")

# a skewed, a bounded and a two-humped population: each as inverse of its cumulative share
POPULATIONS = {
    "lognormal": lambda u: np.exp(_normal(u)),
    "uniform": lambda u: u,
    "two humps": lambda u: np.where(u < 0.7, u, 5 + 20 * (u - 0.7)),
}


def _normal(u: Floats) -> Floats:
    return np.array([NormalDist().inv_cdf(float(x)) for x in np.ravel(u)]).reshape(np.shape(u))


def _bounds(ordered: Floats, n: int, q: float) -> tuple[Floats, Floats]:
    upper, lower = intervals.order_rank(n, q, 0.975), intervals.order_rank(n, 1 - q, 0.975)
    assert upper is not None
    assert lower is not None
    high = ordered[:, upper[0] - 1] * (1 - upper[1]) + ordered[:, min(upper[0], n - 1)] * upper[1]
    turned = ordered[:, ::-1]
    low = turned[:, lower[0] - 1] * (1 - lower[1]) + turned[:, min(lower[0], n - 1)] * lower[1]
    return low, high


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize(("q", "n"), [(0.5, 100), (0.9, 100), (0.95, 200), (0.99, 500)])
def test_a_95_percent_interval_of_a_quantile_covers_it_in_93_to_97_percent(population: str, q: float, n: int) -> None:
    generator = np.random.default_rng(20 + n)
    shape = POPULATIONS[population]
    grid = shape(np.linspace(1e-6, 1 - 1e-6, 20_001))  # one table, so that the inverse is computed once
    shares = generator.random((TRIALS, n))
    values = np.sort(np.interp(shares, np.linspace(1e-6, 1 - 1e-6, 20_001), grid), axis=1)
    truth = float(np.interp(q, np.linspace(1e-6, 1 - 1e-6, 20_001), grid))
    low, high = _bounds(values, n, q)
    assert 0.93 <= float(np.mean((low <= truth) & (truth <= high))) <= 0.97


@given(st.integers(8, 400), st.sampled_from([0.5, 0.9, 0.95]), st.integers(0, 2**32 - 1))
def test_the_interval_reads_the_ranks_that_the_coverage_tests_hold(n: int, q: float, seed: int) -> None:
    values = np.random.default_rng(seed).random(n)
    low, high = intervals.quantile_interval(values, q)
    if intervals.order_rank(n, q, 0.975) is None:
        assert high is None
        return
    expected = _bounds(np.sort(values)[None, :], n, q)
    assert (low, high) == (pytest.approx(float(expected[0][0])), pytest.approx(float(expected[1][0])))
    assert low is not None
    assert high is not None
    assert low <= quantile(values, q) <= high


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_a_bound_that_n_cannot_give_is_none(q: float) -> None:
    needed = intervals.smallest_n(q)
    assert intervals.quantile_interval(np.arange(needed - 1.0), q)[1] is None
    assert intervals.quantile_interval(np.arange(float(needed)), q)[1] is not None


def test_a_two_sided_p99_needs_about_370() -> None:
    assert intervals.smallest_n(0.99) == 368


def test_never_stays_never_in_a_bound_and_finite_below() -> None:
    values = [*range(90), *[math.inf] * 10]
    low, high = intervals.quantile_interval(values, 0.9)
    assert high == math.inf
    assert low is not None
    assert low < 90
    assert intervals.quantile_interval([math.inf] * 50, 0.5) == (math.inf, math.inf)


def _autoregressive(phi: float, generator: np.random.Generator, runs: int, n: int) -> Floats:
    noise = generator.standard_normal((n, runs))
    values = np.empty_like(noise)
    values[0] = noise[0] / math.sqrt(1 - phi**2)
    for step in range(1, n):
        values[step] = phi * values[step - 1] + noise[step]
    return values.T


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_batch_means_cover_under_autocorrelation(phi: float) -> None:
    generator = np.random.default_rng(5)
    hits: dict[str, int] = {"mean": 0, "p50": 0, "p90": 0, "p95": 0}
    sd, runs = 1 / math.sqrt(1 - phi**2), 400
    for values in np.vstack([_autoregressive(phi, generator, runs, 5000)]):
        low, high = intervals.correlated_mean_interval(values)
        hits["mean"] += low is not None and high is not None and low <= 0 <= high
        for name in ("p50", "p90", "p95"):
            q = int(name[1:]) / 100
            low, high = intervals.correlated_quantile_interval(values, q)
            hits[name] += low is not None and high is not None and low <= sd * NormalDist().inv_cdf(q) <= high
    assert all(count / runs >= 0.9 for count in hits.values()), hits


def test_several_levels_at_once_are_each_level_alone() -> None:
    levels = (0.5, 0.9, 0.95, 0.99, 0.999)
    for values in (*_autoregressive(0.8, np.random.default_rng(8), 4, 700), np.arange(39.0), np.full(90, 2.0)):
        together = intervals.correlated_quantile_intervals(values, levels)
        assert together == [intervals.correlated_quantile_interval(values, q) for q in levels]
        for q in levels:
            ordered = intervals.ordered_quantile_interval(np.sort(values), q)
            assert ordered == intervals.quantile_interval(values, q)


def test_exchangeable_intervals_would_fail_there() -> None:
    """The reason for batch means: the plain interval of a correlated run is far too narrow."""
    values = np.sort(_autoregressive(0.9, np.random.default_rng(6), 300, 5000), axis=1)
    low, high = _bounds(values, 5000, 0.5)
    assert float(np.mean((low <= 0) & (high >= 0))) < 0.7


def test_pooled_gaps_are_as_uncertain_as_their_requests() -> None:
    """Gaps of one request are alike; the interval must cover the pooled median all the same."""
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(150):
        levels = generator.normal(20, 5, 60)
        groups = [level + generator.normal(0, 0.5, 30) for level in levels]
        low, high = intervals.clustered_quantile_interval(groups, 0.5)
        assert low is not None
        assert high is not None
        hits += low <= 20 <= high
    assert 0.89 <= hits / 150 <= 0.99


def test_too_few_requests_give_pooled_gaps_no_interval() -> None:
    assert intervals.clustered_quantile_interval([[1.0, 2.0]] * 9, 0.5) == (None, None)


@given(st.integers(1, 300), st.data())
def test_clopper_pearson_is_the_binomial_test_turned_round(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = intervals.clopper_pearson_interval(successes, n)
    pmf = [math.comb(n, k) for k in range(n + 1)]
    if successes > 0:
        assert sum(pmf[k] * low**k * (1 - low) ** (n - k) for k in range(successes, n + 1)) == pytest.approx(0.025)
    if successes < n:
        assert sum(pmf[k] * high**k * (1 - high) ** (n - k) for k in range(successes + 1)) == pytest.approx(0.025)


@given(st.integers(1, 500), st.data())
def test_wilson_ends_are_where_the_score_test_just_rejects(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    z = NormalDist().inv_cdf(0.975)
    for end in intervals.wilson_interval(successes, n):
        assert abs(successes / n - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), abs=1e-7)


@pytest.mark.parametrize(("share", "q"), [(0.97, 0.95), (0.93, 0.95), (0.95, 0.9), (0.6, 0.5), (1.0, 0.99)])
def test_the_number_that_would_decide_decides(share: float, q: float) -> None:
    """At the promised n, a sample with the promised share has its interval on one side; at half of it, it has not."""
    n = intervals.n_to_decide(share, q)
    assert n is not None
    limit = 0.0

    def decided(size: int) -> bool:
        good = round(share * size)
        values = [*np.linspace(-1, 0, good), *np.linspace(1e-9, 1, size - good)]
        low, high = intervals.quantile_interval(values, q)
        return (high is not None and high <= limit) if share > q else (low is not None and low > limit)

    assert decided(round(n * 1.05) + 1)
    assert not decided(n // 2)


def test_no_number_decides_what_lies_on_the_limit() -> None:
    assert intervals.n_to_decide(0.95, 0.95) is None


@given(st.integers(1, 60), st.floats(0.01, 0.99))
def test_the_binomial_window_is_the_binomial(n: int, p: float) -> None:
    first, cdf = binomial_window(n, p)
    total = 0.0
    for k in range(n + 1):
        total += math.comb(n, k) * p**k * (1 - p) ** (n - k)
        if first <= k < first + cdf.size:
            assert float(cdf[k - first]) == pytest.approx(total, abs=1e-9)


def test_student_and_beta_agree_with_tables() -> None:
    assert t_quantile(0.975, 19) == pytest.approx(2.093024, abs=1e-5)  # any t table
    assert t_quantile(0.95, 1) == pytest.approx(6.313752, abs=1e-5)
    assert t_cdf(-1.0, 1) == pytest.approx(0.25, abs=1e-9)  # Cauchy: 1/2 + atan(x)/pi
    assert beta_cdf(0.3, 2, 3) == pytest.approx(0.3483, abs=1e-9)  # a polynomial there


def test_a_block_bootstrap_keeps_neighbours_together() -> None:
    drawn = intervals.block_indices(100, 10, np.random.default_rng(1))
    assert drawn.size == 100
    steps = np.diff(drawn) % 100
    assert np.mean(steps == 1) >= 0.9
