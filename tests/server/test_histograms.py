"""Bounds hold the true order statistic, always; sums tighten them; nothing is interpolated."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import Undefined
from phasemeter.server.histograms import Rejected, difference, histogram, quantile_bounds, together

EDGES = (0.1, 0.5, 1.0, 5.0, math.inf)


def of(values: list[float], edges: tuple[float, ...] = EDGES) -> dict[float, float]:
    return {edge: float(sum(value <= edge for value in values)) for edge in edges}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=40),
    st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0]),
    st.booleans(),
)
def test_the_true_order_statistic_lies_in_the_bounds(values: list[float], q: float, with_sum: bool) -> None:
    bounds = quantile_bounds(histogram(of(values), None, math.fsum(values) if with_sum else None), q)
    truth = sorted(values)[max(1, math.ceil(q * len(values) - 1e-9)) - 1]
    assert bounds.low is not None and bounds.low <= truth + 1e-9
    assert bounds.high is None or truth <= bounds.high + 1e-9
    assert bounds.high_from_sum is None or truth <= bounds.high_from_sum + 1e-6
    assert bounds.open_bucket == (truth > 5.0) and (bounds.high is None) == bounds.open_bucket


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 4), min_size=1, max_size=30), st.sampled_from([0.5, 0.9]))
def test_a_sum_never_loosens_the_bounds(values: list[float], q: float) -> None:
    plain = quantile_bounds(histogram(of(values), None, None), q)
    tight = quantile_bounds(histogram(of(values), None, math.fsum(values)), q)
    assert plain.low is not None and tight.low is not None and plain.low <= tight.low
    assert plain.high is not None and tight.high is not None and tight.high <= plain.high


def test_small_sums_tighten_a_coarse_bucket_as_arithmetic_allows() -> None:
    hist = histogram({0.3: 38.0, math.inf: 38.0}, 38, 0.0177655)
    assert quantile_bounds(hist, 0.5).high == pytest.approx(0.0177655 / 20)
    assert quantile_bounds(hist, 0.99).high == pytest.approx(0.0177655)
    assert quantile_bounds(hist, 0.99).low == pytest.approx(0.0177655 / 38)


def test_the_open_bucket_bounds_from_below_only() -> None:
    hist = histogram({1.0: 10.0, 10.0: 40.0, 60.0: 50.0, math.inf: 100.0}, 100, 9500)
    assert (quantile_bounds(hist, 0.5).low, quantile_bounds(hist, 0.5).high) == (10, 60)
    assert (quantile_bounds(hist, 0.25).low, quantile_bounds(hist, 0.25).high) == (1, 10)
    p99 = quantile_bounds(hist, 0.99)
    assert (p99.low, p99.high, p99.open_bucket) == (60, None, True) and (p99.high_from_sum or 0) > 60


def test_a_wall_clock_gives_the_lowest_bucket_no_lower_bound() -> None:
    assert quantile_bounds(histogram({1.0: 1.0, math.inf: 1.0}, 1, None), 0.5, clock_safe=False).low is None


def test_nothing_observed_has_no_quantile() -> None:
    with pytest.raises(Undefined, match="no_observations"):
        quantile_bounds(histogram({1.0: 0.0, math.inf: 0.0}, 0, 0), 0.5)


@pytest.mark.parametrize(
    ("buckets", "count"),
    [({}, 1.0), ({1.0: 2.0, 2.0: 1.0, math.inf: 3.0}, 3.0), ({1.0: 2.0}, None), ({math.inf: math.nan}, None)],
)
def test_what_is_no_histogram_is_rejected(buckets: dict[float, float], count: float | None) -> None:
    with pytest.raises(Rejected):
        histogram(buckets, count, 1.0)


def test_a_missing_inf_bucket_is_taken_from_the_count_and_said() -> None:
    hist = histogram({1.0: 2.0}, 5.0, 9.0)
    assert hist.n == 5 and "missing_inf" in hist.warnings[0]


def test_a_window_with_other_edges_or_a_fallen_bucket_is_rejected() -> None:
    old = histogram({1.0: 2.0, math.inf: 3.0}, 3, 4)
    with pytest.raises(Rejected, match="edges"):
        difference(old, histogram({2.0: 2.0, math.inf: 3.0}, 3, 4))
    with pytest.raises(Rejected, match="fell"):
        difference(old, histogram({1.0: 1.0, math.inf: 3.0}, 3, 4))
    with pytest.raises(Rejected, match="no histogram"):
        difference(old, histogram({1.0: 4.0, math.inf: 4.0}, 4, 4))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 9), max_size=20), st.lists(st.floats(0, 9), max_size=20))
def test_series_with_different_buckets_add_at_their_shared_edges(a: list[float], b: list[float]) -> None:
    both = together([histogram(of(a), None, sum(a)), histogram(of(b, (0.5, 2.0, math.inf)), None, sum(b))])
    assert both.edges == (0.5, math.inf)
    assert dict(zip(both.edges, both.cumulative, strict=True)) == of(a + b, (0.5, math.inf))
