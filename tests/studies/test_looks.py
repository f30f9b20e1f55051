"""What looks at one rate say, and what many rates say of where the crossing lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.studies.bracket import bracket
from phasemeter.studies.looks import Probe, Seen, Standing, standing_of, tail_time
from phasemeter.studies.steady import steady
from tests.contract.rows import row


def seen(share: float = 1.0, n: int = 400, stable: bool | None = True, **more: object) -> Seen:
    return Seen(good=np.arange(n) < share * n, requests=n, stable=stable, **more)  # type: ignore[arg-type]


def mixed(share: float, n: int = 400) -> np.ndarray:
    good = np.arange(n) < share * n
    np.random.default_rng(1).shuffle(good)
    return good


def test_one_look_that_says_unstable_condemns_no_rate_and_two_in_a_row_do() -> None:
    shaky, sound = seen(stable=False), seen()
    assert standing_of([shaky], 0.9)[0] == "undecided"
    assert standing_of([sound, shaky], 0.9)[0] == "undecided"
    assert standing_of([shaky, sound], 0.9)[0] == "good"
    assert standing_of([sound, shaky, shaky], 0.9) == ("bad", "unstable: the number in the system grew")


def test_an_undecided_rate_says_whether_its_interval_is_wide_or_could_not_be_given() -> None:
    mixed = np.arange(200) % 10 != 0  # nine in ten keep the limits, and neighbours are not alike
    assert standing_of([Seen(good=mixed, requests=200, stable=True)], 0.9) == (
        "undecided",
        "its interval holds the target",
    )
    halves = np.arange(200) < 100  # first all do, then none
    standing, why = standing_of([Seen(good=halves, requests=200, stable=True)], 0.9)
    assert standing == "undecided" and why.startswith("too short for an interval")


def test_a_rate_is_good_only_when_each_class_attains_its_own_share() -> None:
    good = mixed(0.97)
    parts = {"a": np.ones(300, bool), "b": mixed(0.6, 100)}
    one = Seen(good=good, requests=400, stable=True, parts=parts)
    assert standing_of([one], 0.9)[0] == "good"
    assert standing_of([one], 0.9, {"a": 0.9}) == ("good", "")
    assert standing_of([one], 0.9, {"a": 0.9, "b": 0.9}) == ("bad", "attainment of b below the target")


def probe(
    rate: float, share: float, n: int = 250, standing: Standing = "undecided", stable: bool | None = True
) -> Probe:
    return Probe(rate_per_s=rate, looks=(seen(share, n, stable),), standing=standing, interval=(None, None))


def test_the_crossing_lies_between_what_leans_to_good_and_what_leans_to_bad() -> None:
    assert bracket([probe(1, 1.0), probe(2, 0.95), probe(4, 0.5)], 0.9, {}) == (2, 4)
    assert bracket([probe(1, 1.0)], 0.9, {}) == (1, None)
    assert bracket([probe(1, 0.1)], 0.9, {}) == (None, 1)
    assert bracket([probe(1, 1.0), probe(2, 1.0, stable=False)], 0.9, {}) == (1, 2)


def test_where_a_higher_rate_looks_better_than_a_lower_one_the_longer_look_wins() -> None:
    lucky = [probe(1, 1.0), probe(2, 0.8, n=4000), probe(3, 1.0, n=250), probe(4, 0.2)]
    assert bracket(lucky, 0.9, {}) == (1, 2)
    unlucky = [probe(1, 1.0), probe(2, 0.8, n=250), probe(3, 1.0, n=4000), probe(4, 0.2)]
    assert bracket(unlucky, 0.9, {}) == (3, 4)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 100), st.sampled_from([0.5, 1.0]), st.sampled_from(["good", "bad", "undecided"])),
        min_size=1,
        max_size=9,
    )
)
def test_a_bracket_is_in_order_and_respects_what_is_decided(told: list[tuple[float, float, Standing]]) -> None:
    probes = [probe(rate, share, standing=standing) for rate, share, standing in told]
    below, above = bracket(probes, 0.9, {})
    assert below is not None or above is not None
    assert below is None or above is None or below < above or len({one.rate_per_s for one in probes}) < len(probes)
    ceiling = min((one.rate_per_s for one in probes if one.standing == "bad"), default=None)
    assert ceiling is None or (above is not None and above <= ceiling)


def test_for_how_long_neighbours_are_alike_in_the_tail_does_not_depend_on_how_many_were_bad() -> None:
    strain = np.repeat(np.random.default_rng(2).random(100), 10)
    few, many = (Seen(good=strain <= limit, strain=strain, requests=1000) for limit in (0.999, 0.6))
    assert tail_time(few, 0.9) == tail_time(many, 0.9) == pytest.approx(10, rel=0.4)


def test_a_bad_stretch_at_the_start_is_no_warm_up() -> None:
    slow = [row(i, every=0.1, ttft=2.0 if i < 150 else 0.1) for i in range(500)]
    assert 0 < steady(slow).cut <= 50
