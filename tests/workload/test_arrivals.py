"""Arrival patterns: exact, seeded, the same for any number of workers."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import UserError
from phasemeter.workload.arrivals import (
    Arrivals,
    arrivals_of_contract,
    cv_of_burstiness,
    offsets_ns,
    parse_arrivals,
    warnings_of,
)
from phasemeter.workload.streams import Stream


def gaps_s(pattern: str, rate: str, seed: int, n: int) -> list[float]:
    offsets = list(islice(offsets_ns(parse_arrivals(pattern, rate), seed), n + 1))
    return [(b - a) / 1e9 for a, b in pairwise(offsets)]


def kolmogorov_p(sample: list[float], cdf: object) -> float:
    """The asymptotic p of the one-sample Kolmogorov–Smirnov test (Kolmogorov 1933)."""
    ordered, n = sorted(sample), len(sample)
    distance = max(
        max((i + 1) / n - cdf(x), cdf(x) - i / n)  # type: ignore[operator]
        for i, x in enumerate(ordered)
    )
    lam = distance * math.sqrt(n)
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * lam * lam) for k in range(1, 101)))


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_poisson_gaps_are_exponential_of_the_asked_rate(seed: int) -> None:
    gaps = gaps_s("poisson", "5/s", seed, 20_000)
    assert kolmogorov_p(gaps, lambda x: 1 - math.exp(-5 * x)) > 0.001
    assert min(gaps) > 0  # continuous: no exact zeros


def test_the_kolmogorov_test_itself_rejects_a_wrong_rate() -> None:
    gaps = gaps_s("poisson", "5/s", 0, 20_000)
    assert kolmogorov_p(gaps, lambda x: 1 - math.exp(-5.2 * x)) < 0.001


@pytest.mark.parametrize(("burstiness", "cv"), [(1, 1.0), (4, 0.5), (0.25, 2.0)])
def test_burstiness_is_a_gamma_shape_that_never_moves_the_mean(burstiness: float, cv: float) -> None:
    gaps = gaps_s(f"burstiness:{burstiness}", "5/s", 7, 20_000)
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps))
    assert mean == pytest.approx(0.2, rel=0.03)
    assert deviation / mean == pytest.approx(cv, rel=0.05)
    assert cv_of_burstiness(burstiness) == cv


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "x"])
def test_an_impossible_burstiness_or_cv_is_refused(value: str) -> None:
    for name in ("burstiness", "gamma"):
        with pytest.raises(UserError):
            parse_arrivals(f"{name}:{value}", "5/s")


def test_rate_inf_ignores_burstiness_and_says_so_and_warns_without_a_cap() -> None:
    arrivals = parse_arrivals("burstiness:2", "inf")
    assert "ignored" in arrivals.notes[0]
    assert list(islice(offsets_ns(arrivals, 0), 3)) == [0, 0, 0]
    assert any("unlimited_burst" in text for text in warnings_of(arrivals, None))
    assert not any("unlimited_burst" in text for text in warnings_of(arrivals, 8))


@given(st.integers(1, 10_000), st.integers(1, 3000))
@settings(deadline=None, max_examples=50)
def test_constant_arrivals_never_drift(rate: int, n: int) -> None:
    offsets = list(islice(offsets_ns(parse_arrivals("constant", str(rate)), 0), n))
    assert all(abs(offset * rate - index * 10**9) <= rate for index, offset in enumerate(offsets))


def test_bursts_keep_the_mean_rate() -> None:
    offsets = list(islice(offsets_ns(parse_arrivals("burst:4", "2/s"), 0), 12))
    assert offsets == [0] * 4 + [2 * 10**9] * 4 + [4 * 10**9] * 4


def test_a_smooth_ramp_brings_as_many_requests_as_its_area() -> None:
    arrivals = parse_arrivals("ramp:1/s:9/s:10s:constant", None)
    offsets = list(islice(offsets_ns(arrivals, 0), 200))
    for second in range(1, 11):  # expected count by t: t + 8·t²/20
        assert sum(offset < second * 10**9 for offset in offsets) == pytest.approx(second + 0.4 * second**2, abs=1)
    assert offsets[60] - offsets[59] == pytest.approx(1e9 / 9, rel=1e-3)  # and holds its last rate


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=20)
def test_steps_count_what_their_rates_say(seed: int) -> None:
    offsets = list(islice(offsets_ns(parse_arrivals("steps:10/s:20s:40/s:20s", None), seed), 1200))
    first = sum(offset < 20e9 for offset in offsets)
    second = sum(20e9 <= offset < 40e9 for offset in offsets)
    assert abs(first - 200) < 6 * math.sqrt(200)
    assert abs(second - 800) < 6 * math.sqrt(800)
    assert offsets == sorted(offsets)


def test_a_ramp_down_to_nothing_ends() -> None:
    down = Arrivals(kind="ramp", ramp_from_per_s=4.0, ramp_to_per_s=0.0, ramp_s=10.0, smooth=True)
    assert len(list(offsets_ns(down, 0))) == 20


def test_a_ramp_without_a_length_asks_for_one() -> None:
    with pytest.raises(UserError, match="length"):
        next(offsets_ns(parse_arrivals("ramp:1/s:8/s", None), 0))


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_a_uniform_draw_reaches_neither_zero_nor_one(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "bits", lambda _self: bits)
    assert 0 < Stream(0, "t").random() < 1
    assert Stream(0, "t").exponential() > 0


@pytest.mark.parametrize(
    "given_form", [{"poisson": "4 req/s"}, {"gamma": {"rate": "4/s", "cv": 2}}, {"ramp": {"from": "1/s", "to": "8/s"}}]
)
def test_a_contract_writes_the_same_patterns(given_form: dict[str, object]) -> None:
    assert arrivals_of_contract(given_form).kind == next(iter(given_form))


@pytest.mark.parametrize(
    "wrong", [{}, {"poisson": "0/s"}, {"gamma": {"rate": "4/s"}}, {"weekly": 3}, {"poisson": "1/s", "constant": "1/s"}]
)
def test_a_contract_mistake_names_its_path(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"workload\.arrivals"):
        arrivals_of_contract(wrong)
