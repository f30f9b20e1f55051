"""The search finds a known capacity as often as it says, in few requests, and says when there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phasemeter.errors import UserError
from phasemeter.studies.looks import LOOKS, Seen, interval_of, standing_of
from phasemeter.studies.sequential import Clock, Found, Search, Searcher
from tests.studies.models import probit, slope

TARGET, FALL, CROSSING = 0.9, 2.5, 5.0


def found(seed: int, *, target: float = TARGET, **more: float) -> Found:
    return Searcher(probit(CROSSING, target, FALL)(seed), Search(target=target, **more)).run()  # type: ignore[arg-type]


def half(bounds: tuple[float | None, float | None]) -> float:
    low, high = bounds
    assert low is not None and high is not None
    return math.log(high / low) / 2


def test_of_searches_over_a_correlated_service_nine_in_ten_cover_and_cost_three_fixed_runs_at_most() -> None:
    searches = [one for one in (found(seed) for seed in range(40)) if None not in one.interval]
    assert len(searches) >= 39
    assert sum((one.interval[0] or 0) <= CROSSING <= (one.interval[1] or 0) for one in searches) >= 36
    n, widths = 4000, []
    for seed in range(20):  # one run of fixed length at the crossing, its interval by the same rules
        low, high = interval_of([probit(CROSSING, TARGET, FALL)(1000 + seed)(CROSSING, n, 0)], 0.95)
        assert low is not None and high is not None
        widths.append((high - low) / 2 / -slope(TARGET, FALL))
    ratios = [one.requests / (n * (float(np.mean(widths)) / half(one.interval)) ** 2) for one in searches]
    assert float(np.median(ratios)) <= 3


@pytest.mark.parametrize("target", [0.95, 0.99])
def test_independent_requests_are_covered_too(target: float) -> None:
    searches = [Searcher(probit(3.0, target, 4.0, window=1)(seed), Search(target=target)).run() for seed in range(8)]
    assert sum(one.interval[0] <= 3 <= one.interval[1] for one in searches if None not in one.interval) >= 6  # type: ignore[operator]


def test_where_the_search_starts_hardly_matters() -> None:
    bounds = [found(3, start_per_s=start).interval for start in (0.05, 5.0, 300.0)]
    assert max(low or 0 for low, _ in bounds) < min(high or 0 for _, high in bounds)


def test_what_binds_and_what_other_limits_would_give_is_told() -> None:
    one = found(1)
    assert one.binding == "ttft"
    looser, alone = one.sensitivity["1.5"], one.single["tpot"]
    assert one.value is not None and looser is not None and alone is not None
    assert looser > alone > one.value
    assert alone == pytest.approx(CROSSING * math.exp(0.25 / FALL), rel=0.15)


def step(rate: float, requests: int, look: int) -> Seen:
    return Seen(good=np.full(requests, rate <= 3.7), requests=requests, stable=rate <= 3.7)


def test_a_sudden_end_is_enclosed_to_the_precision() -> None:
    one = Searcher(step, Search(target=0.95)).run()
    low, high = one.interval
    assert low is not None and high is not None
    assert low <= 3.7 < high <= low * 1.05**2 * 1.001


def test_an_unstable_rate_is_bad_however_much_it_attained_and_is_said_to_bind() -> None:
    def measure(rate: float, requests: int, look: int) -> Seen:
        return Seen(
            good=np.ones(requests, bool), requests=requests, stable=rate < 5, single={"ttft": np.ones(requests, bool)}
        )

    one = Searcher(measure, Search(target=0.95)).run()
    assert one.value is not None and 4.5 < one.value <= 5.3
    assert one.binding == "stability"


def test_a_target_that_nothing_reaches_or_misses_is_said() -> None:
    def always(good: bool) -> Found:
        return Searcher(
            lambda rate, n, look: Seen(good=np.full(n, good), requests=n, stable=True), Search(target=0.9)
        ).run()

    assert (always(False).value, always(False).reason) == (None, "target_never_attained")
    assert always(True).reason == "no_rate_missed"
    assert always(True).value is not None


def test_a_service_that_is_good_again_past_the_crossing_is_a_warning() -> None:
    def measure(rate: float, requests: int, look: int) -> Seen:
        return Seen(good=np.full(requests, not 4 < rate < 5), requests=requests, stable=True)

    one = Searcher(measure, Search(target=0.95, start_per_s=4.5)).run()
    assert any("not_monotone" in words for words in one.warnings)


def test_no_run_is_begun_that_would_end_after_the_time() -> None:
    clock = [0.0]

    def measure(rate: float, requests: int, look: int) -> Seen:
        clock[0] += requests / rate
        return Seen(good=np.ones(requests, bool), requests=requests, stable=True)

    told = Clock(now_s=lambda: clock[0], lasts_s=lambda rate, requests: requests / rate)
    one = Searcher(measure, Search(target=0.9, start_per_s=10, most_s=45), told).run()
    assert clock[0] <= 45
    assert one.reason == "out_of_time" and one.probes


def test_each_look_is_as_long_as_all_before_it_and_there_are_five_at_most() -> None:
    asked: dict[float, list[int]] = {}
    inner = probit(CROSSING, TARGET, FALL)(2)

    def measure(rate: float, requests: int, look: int) -> Seen:
        assert look == len(asked.setdefault(rate, []))
        asked[rate].append(requests)
        return inner(rate, requests, look)

    Searcher(measure, Search(target=TARGET)).run()
    for sizes in asked.values():
        assert len(sizes) <= LOOKS
        assert all(size == sum(sizes[:k]) for k, size in enumerate(sizes) if k)


@pytest.mark.parametrize("target", [0.9, 0.95])
def test_at_the_boundary_a_rate_is_called_good_or_bad_by_mistake_in_five_percent_at_most(target: float) -> None:
    search, wrong = Search(target=target), 0
    for seed in range(150):
        measure, looks = probit(CROSSING, target, FALL)(seed), []
        for look in range(LOOKS):
            looks.append(measure(CROSSING * 0.9999, search.requests(look), look))
            if standing_of(looks, target)[0] != "undecided":
                break
        wrong += standing_of(looks, target)[0] == "good"
    assert wrong <= 0.05 * 150 + 2 * math.sqrt(150 * 0.05 * 0.95)


def test_a_look_where_neighbours_are_alike_says_nothing_before_it_is_long_enough() -> None:
    slow = np.repeat(np.linspace(0.1, 0.9, 5), 50)
    seen = Seen(good=np.ones(250, bool), strain=slow, requests=250, stable=True)
    assert standing_of([seen], 0.9)[0] == "undecided"
    mixed = Seen(good=np.ones(250, bool), strain=np.random.default_rng(0).random(250), requests=250, stable=True)
    assert standing_of([mixed], 0.9)[0] == "good"


def test_a_search_that_makes_no_sense_is_refused() -> None:
    for more in (
        {"target": 0.0},
        {"target": 1.0},
        {"target": 0.9, "start_per_s": math.inf},
        {"target": 0.9, "precision": 0.0},
    ):
        with pytest.raises(UserError):
            Search(**more)
