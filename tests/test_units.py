"""Quantities read as people write them, and refused with a hint when they can't be."""

import math

import pytest

from phasemeter import units
from phasemeter.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("450 ms", 0.45), ("25ms", 0.025), ("4 s", 4.0), ("2 min", 120.0), ("1e3 us", 1e-3), ("0", 0.0), ("1h", 3600.0)],
)
def test_durations_carry_their_unit(text: str, seconds: float) -> None:
    assert units.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["450", "4 parsecs", "-1 s", "", "ms", "nan s", "1e999 s", "True"])
def test_a_duration_that_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"write|negative|finite"):
        units.duration_s(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("4/s", 4.0),
        ("3.5 req/s", 3.5),
        ("120/min", 2.0),
        ("4", 4.0),
        (4, 4.0),
        ("inf", math.inf),
        ("6 requests/h", 1 / 600),
    ],
)
def test_rates(text: str | float, rate: float) -> None:
    assert units.rate_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["0", "0/s", "-2/s", "4 apples/s", "4 ms", "fast", "nan", True])
def test_a_rate_of_nothing_or_of_apples_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        units.rate_per_s(text)


@pytest.mark.parametrize("text", ["9" * 40, "1e30", "1e16", str(units.MOST + 2)])
def test_a_count_that_no_float_holds_exactly_is_no_count(text: str) -> None:
    with pytest.raises(UserError, match="more than can be counted"):
        units.count(text)
    assert units.count(str(units.MOST)) == units.MOST


def test_shares_and_counts_and_sizes() -> None:
    assert units.share("99 %") == pytest.approx(0.99)
    assert units.share(0.5) == 0.5
    assert units.count("8k") == 8000
    assert units.size_bytes("16 MB") == 16_000_000
    for bad in ("101 %", "-1", "half"):
        with pytest.raises(UserError):
            units.share(bad)
    for bad in ("0", "1.5", "-3", "many", "inf"):
        with pytest.raises(UserError):
            units.count(bad)
