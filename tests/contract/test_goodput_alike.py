"""Columns of alike rows are judged as the rows are."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.contract.goodput import Goodput, goodput, summed
from phasemeter.contract.goodput_alike import judged_alike
from phasemeter.records.request_row import RequestRow
from tests.metrics.test_alike import KINDS, answered, parts_of, refused

LIMITS = st.dictionaries(
    st.sampled_from(("ttft", "tpot", "e2e", "ttft_from_due")), st.sampled_from((0.001, 0.02, 0.5, 3.0)), min_size=1
)


def requests(kinds: list[tuple[int, bool, bool]], seed: int) -> list[RequestRow]:
    random = Random(seed)
    rows = [
        answered(random, number, tokens=tokens, events=False, warm=warm)
        if tokens
        else refused(random, number, warm=warm)
        for number, (tokens, _, warm) in enumerate(kinds)
    ]
    return sorted(rows, key=lambda row: row.due_ns)


def by_row(rows: list[RequestRow], objectives: dict[str, float]) -> Goodput:
    return goodput([row for row in rows if row.phase == "measured"], objectives)


@settings(deadline=None, max_examples=60)
@given(st.lists(KINDS, max_size=40), st.integers(0, 2**32 - 1), LIMITS)
def test_columns_and_rows_are_judged_alike(
    kinds: list[tuple[int, bool, bool]], seed: int, objectives: dict[str, float]
) -> None:
    rows = requests(kinds, seed)
    parts, _ = parts_of(rows)
    assert summed(judged_alike(parts, objectives)) == by_row(rows, objectives)


@pytest.mark.parametrize("seed", range(3))
def test_many_that_are_correlated_are_worth_as_much(seed: int) -> None:
    rows = requests([(number % 5, False, number < 50) for number in range(900)], seed)
    parts, _ = parts_of(rows)
    objectives = {"ttft": 0.5, "tpot": 0.02}
    judged = judged_alike(parts, objectives)
    found = summed(judged)
    assert found == by_row(rows, objectives) and 0 < found.good < 900 and found.not_evaluable > 30
    assert (np.diff(judged.due_ns) >= 0).all()
