"""Think time: a pause that is drawn as it was written."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import UserError
from phasemeter.workload.arrivals import Arrivals, arrivals_of_contract, think_ns
from phasemeter.workload.think_time import ThinkTime, parse_think_time, think_time_of_contract

N = 20_000


def drawn_s(text: str, seed: int = 1, n: int = N) -> list[float]:
    arrivals = Arrivals(kind="closed", think=parse_think_time(text))
    return [think_ns(arrivals, seed, index) / 1e9 for index in range(n)]


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("2 s", 2.0, 0.0),
        ("exponential:2s", 2.0, 2.0),
        ("uniform:1s:3s", 2.0, 2 / math.sqrt(12)),
        ("normal:2s:500ms", 2.0, 0.5),
        ("lognormal:1s:1s", 1.0, 0.0),
    ],
)
def test_the_pauses_have_the_stated_mean_and_spread(text: str, mean: float, deviation: float) -> None:
    for seed in (1, 2):
        drawn = drawn_s(text, seed)
        assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.03)
        assert statistics.pstdev(drawn) == pytest.approx(deviation, rel=0.05, abs=1e-6)


def test_a_lognormal_has_its_median_and_its_95th_percentile() -> None:
    drawn = sorted(drawn_s("lognormal:2s:10s"))
    assert drawn[N // 2] == pytest.approx(2.0, rel=0.03) and drawn[N * 95 // 100] == pytest.approx(10.0, rel=0.05)


@settings(max_examples=100, deadline=None)
@given(a=st.floats(0, 9), width=st.floats(0, 9), seed=st.integers(0, 10**9))
def test_a_uniform_stays_within_its_bounds_and_a_normal_never_runs_backwards(a: float, width: float, seed: int) -> None:
    for text, low, high in (
        (f"uniform:{a}s:{a + width}s", a, a + width),
        (f"normal:{a}s:{width}s", 0.0, math.inf),
    ):
        assert all(low - 1e-9 <= each <= high + 1e-9 for each in drawn_s(text, seed, 50))


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ("2 s", "2 s"), ({"fixed": "2 s"}, "2 s"), ({"exponential": "2 s"}, "exponential:2s"),
        ({"exponential": {"mean": "2 s"}}, "exponential:2s"), ({"uniform": {"min": "1 s", "max": "3 s"}}, "uniform:1s:3s"),
        ({"lognormal": {"median": "2 s", "p95": "10 s"}}, "lognormal:2s:10s"), ("exponential:2s", "exponential:2s"),
    ],
)  # fmt: skip
def test_a_contract_says_the_same_in_its_own_form(written: object, typed: str) -> None:
    if written != {"fixed": "2 s"}:
        assert think_time_of_contract(written) == parse_think_time(typed)
    loop = arrivals_of_contract({"concurrency": {"slots": 4, "think_time": written}})
    assert loop.kind == "closed" and loop.think.a_s == parse_think_time(typed).a_s


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2", "-1 s", "exponential", "exponential:0", "exponential:1s:2s", "uniform:3s:1s", "uniform:1s", "lognormal:0:1s",
     "lognormal:2s:1s", "gauss:1s:2s", "exponential:2", "exponential:inf"],
)  # fmt: skip
def test_what_is_no_think_time_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UserError, match="think time"):
        parse_think_time(text)


def test_no_think_time_is_not_spoken_of() -> None:
    assert ThinkTime().words() == "" and Arrivals(kind="closed").words() == "closed loop"
    assert "exponential 2 s" in Arrivals(kind="closed", think=parse_think_time("exponential:2s")).words()
