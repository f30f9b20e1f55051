"""Chance alone rarely makes a difference, also in small and skewed samples."""

from __future__ import annotations

import numpy as np

from phasemeter.comparison.difference import between, holm, permutation_p
from phasemeter.stats.quantiles import quantile


def test_a_permutation_p_is_uniform_for_equal_sides_and_small_for_different_ones() -> None:
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        a, b = rng.exponential(1, 60), rng.exponential(1, 60)
        seen = abs(quantile(a, 0.9) - quantile(b, 0.9))
        found.append(permutation_p(0.9, ([a], [b]), seen, np.random.default_rng(seed)))
    assert sum(p < 0.1 for p in found) <= 12 and sum(p > 0.5 for p in found) >= 20
    rng = np.random.default_rng(7)
    a, b = rng.exponential(1, 60), rng.exponential(3, 60)
    assert permutation_p(None, ([a], [b]), abs(a.mean() - b.mean()), rng) < 0.002


def test_a_small_sample_needs_both_its_spread_and_its_permutations_to_differ() -> None:
    """Of skewed samples of a hundred, resampling alone calls twice as many different."""
    flagged = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tests = []
        for name in ("a", "b"):
            sides = [np.exp(rng.normal(0, 1, 100)) for _ in range(2)]
            tests += between(name, sides[:1], sides[1:], np.random.default_rng(seed), distribution=False)
        flagged += any(one.significant for one in holm(tests))
    assert flagged <= 4
