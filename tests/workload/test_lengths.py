"""Lengths: read, drawn as asked, compared with what came."""

from __future__ import annotations

import pytest

from phasemeter.errors import UserError
from phasemeter.workload.lengths import (
    Lengths,
    empirical,
    lengths_of_contract,
    mean_tokens,
    parse_lengths,
    realised,
    sample,
)
from phasemeter.workload.streams import Stream


def drawn(lengths: Lengths, n: int = 8000) -> list[int]:
    return sorted(sample(lengths, Stream(3, "t", index)) for index in range(n))


def test_a_fixed_length_is_always_that() -> None:
    assert set(drawn(parse_lengths("64"), 50)) == {64}


def test_a_uniform_length_reaches_both_ends_and_nothing_beyond() -> None:
    values = drawn(parse_lengths("uniform:3:7"))
    assert set(values) == {3, 4, 5, 6, 7}
    assert all(abs(values.count(one) / 8000 - 0.2) < 0.03 for one in range(3, 8))


def test_a_lognormal_length_has_the_asked_median_and_p95() -> None:
    values = drawn(parse_lengths("lognormal:512:2048"))
    assert values[4000] == pytest.approx(512, rel=0.05)
    assert values[7600] == pytest.approx(2048, rel=0.08)


def test_a_normal_length_has_the_asked_mean_and_never_falls_below_one() -> None:
    values = drawn(parse_lengths("normal:512:64"))
    assert sum(values) / 8000 == pytest.approx(512, rel=0.01)
    assert min(drawn(parse_lengths("normal:2:50"), 500)) == 1


def test_empirical_lengths_come_by_weight() -> None:
    values = drawn(empirical([10, 20], [3, 1]))
    assert values.count(10) / 8000 == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [1], [1, 2, 3]])
def test_weights_that_choose_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(UserError, match="weights"):
        empirical([10, 20], weights)


@pytest.mark.parametrize(
    "form",
    [
        64,
        {"fixed": 64},
        {"uniform": {"min": 3, "max": 7}},
        {"uniform": [3, 7]},
        {"normal": {"mean": 5, "sd": 1}},
        {"lognormal": {"median": 5, "p95": 9}},
        {"empirical": [3, 4]},
        "normal:5:1",
    ],
)
def test_a_contracts_forms_are_read(form: object) -> None:
    lengths = lengths_of_contract(form, "workload.input_tokens")
    assert sample(lengths, Stream(0, "t")) >= 1
    assert mean_tokens(lengths) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        "0",
        "-3",
        "1.5",
        "uniform:5",
        "uniform:9:3",
        "lognormal:9:3",
        "weird:1:2",
        "normal:x:2",
        "normal:5:-1",
        "normal:5:nan",
        "",
        "64:3",
    ],
)
def test_an_impossible_length_says_what_to_write(wrong: str) -> None:
    with pytest.raises(UserError):
        parse_lengths(wrong)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"fixed": 1, "uniform": [1, 2]}, {"lognormal": {"median": 5}}, {"zipf": 2}, {"empirical": []}, True, None],
)
def test_a_contract_mistake_names_its_path(wrong: object) -> None:
    with pytest.raises(UserError, match=r"workload\.output_tokens"):
        lengths_of_contract(wrong, "workload.output_tokens")


def test_asked_and_realised_stand_side_by_side_with_their_difference() -> None:
    answer = realised([(1500, 1541), (500, 500), (10, None)])
    assert (answer.n, answer.unknown, answer.exact) == (2, 1, 1)
    assert (answer.asked_mean, answer.realised_mean, answer.mean_difference, answer.largest_difference) == (
        1000,
        1020.5,
        20.5,
        41,
    )
    assert realised([]).mean_ratio is None
