"""The search finds the crossing of any falling attainment, and says when there is none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import UserError
from phasemeter.studies.goodput_search import Attainment, Search, max_goodput


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 500), st.floats(0.1, 50))
def test_it_finds_the_crossing_to_its_precision(crossing: float, start: float) -> None:
    found = max_goodput(
        lambda rate: Attainment(value=0.95 if rate <= crossing else 0.85), Search(start_per_s=start, most_probes=40)
    )
    assert found.value is not None and found.value <= crossing <= found.value * 1.021


def test_no_rate_is_measured_twice() -> None:
    asked: list[float] = []

    def measure(rate: float) -> Attainment:
        asked.append(rate)
        return Attainment(value=1.0 if rate < 7 else 0.0)

    max_goodput(measure, Search())
    assert len(asked) == len(set(asked))


def test_an_unstable_probe_misses_however_much_it_attained() -> None:
    found = max_goodput(lambda rate: Attainment(value=1.0, stable=rate < 5), Search())
    assert found.value is not None and 4.8 < found.value < 5


@pytest.mark.parametrize(("always", "reason"), [(0.0, "target_never_attained"), (1.0, "no_rate_missed")])
def test_a_target_that_nothing_crosses_is_said(always: float, reason: str) -> None:
    found = max_goodput(lambda rate: Attainment(value=always), Search(most_probes=8))
    assert found.reason == reason and len(found.probes) == 8
    assert (found.value is None) is (always == 0.0)


def test_the_interval_holds_rates_that_are_surely_good_and_surely_missed() -> None:
    def measure(rate: float) -> Attainment:
        value = 1 - rate / 100
        return Attainment(value=value, ci95=(value - 0.02, value + 0.02))

    found = max_goodput(measure, Search(start_per_s=2))
    low, high = found.ci95
    assert found.value is not None and low is not None and high is not None
    assert low <= 8 and found.value == pytest.approx(10, rel=0.03) and high > 12


def test_a_search_without_a_sensible_target_is_refused() -> None:
    with pytest.raises(UserError, match="share"):
        Search(target=0)
