"""The fit alone: units, stalls, intervals, and what can't be told."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.studies.calibrate.constants import with_one_constant
from phasemeter.studies.calibrate.fit import Fit, fit, solve, told_by
from phasemeter.studies.calibrate.residuals import bends
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, Rows
from tests.studies.calibrate.known import VALUES, Floats, rows_with

TOKENS, CONTEXTS, SEQUENCES, SQUARES = (COLUMNS.index(name) for name in ("tokens", "contexts", "sequences", "squares"))


def made(seed: int = 1, noise: float = 0.0, stalls: float = 0.0, rows: int = 600) -> Rows:
    return rows_with(VALUES, np.random.default_rng(seed), noise=noise, stalls=stalls, rows=rows)


def width(found: Fit, column: int) -> float:
    low, high = found.interval(lambda values: float(values[column]))
    assert low is not None and high is not None
    return high - low


def test_without_noise_the_constants_are_exact() -> None:
    assert fit(made()).values == pytest.approx(VALUES, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_another_unit_of_time_scales_every_constant(factor: float, seed: int) -> None:
    rows = made(seed, noise=0.05, stalls=0.03, rows=300)
    before, after = fit(rows), fit(msgspec.structs.replace(rows, y=rows.y * factor))
    assert (before.told == after.told).all()
    assert after.values == pytest.approx(before.values * factor, rel=1e-6)
    assert width(after, 0) == pytest.approx(width(before, 0) * factor, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.floats(1e-2, 1e2), st.integers(0, 1000))
def test_counting_tokens_in_another_unit_scales_what_a_token_costs_and_nothing_else(factor: float, seed: int) -> None:
    rows = made(seed, noise=0.05, rows=300)
    x = rows.x.copy()
    x[:, [TOKENS, CONTEXTS]] *= factor
    x[:, SQUARES] *= factor**2
    before, after = fit(rows).values, fit(msgspec.structs.replace(rows, x=x)).values
    expected = before.copy()
    expected[[TOKENS, CONTEXTS]] /= factor
    expected[SQUARES] /= factor**2
    assert after == pytest.approx(expected, rel=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_the_order_of_rows_means_nothing(seed: int) -> None:
    rows = made(seed, noise=0.05, rows=300)
    shuffled = rows.part(np.random.default_rng(seed).permutation(len(rows.y)))
    assert fit(shuffled).values == pytest.approx(fit(rows).values, rel=1e-9)


@pytest.mark.parametrize("stalls", [0.05, 0.15])
def test_stalls_do_not_bend_the_lines_and_are_left_out(stalls: float) -> None:
    rows = made(3, noise=0.02, stalls=stalls)
    found = fit(rows)
    assert found.values[[0, TOKENS]] == pytest.approx(VALUES[[0, TOKENS]], rel=0.02)
    stalled = rows.y > 3 * (rows.x @ VALUES)
    assert stalled.sum() > 10 and (found.weights[stalled] == 0).all()
    assert (found.weights[~stalled] > 0).mean() > 0.98


def test_plain_least_squares_would_have_been_bent_by_the_same_stalls() -> None:
    rows = made(3, noise=0.02, stalls=0.05)
    plain = solve(rows.x, rows.y, np.ones(len(COLUMNS), dtype=bool))
    assert abs(plain[0] / VALUES[0] - 1) > 0.1


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held: list[list[bool]] = []
    for seed in range(60):
        found = fit(made(seed, noise=0.05, stalls=0.03))
        each = []
        for column, true in enumerate(VALUES):
            low, high = found.interval(lambda values, column=column: float(values[column]))  # type: ignore[misc]
            each.append(low is not None and high is not None and low <= true <= high)
        held.append(each)
    covered = np.array(held).mean(axis=0)
    assert covered.min() >= 0.85, dict(zip(COLUMNS, covered, strict=True))
    assert 0.92 <= covered.mean() <= 0.99


def test_noise_that_lasts_a_while_widens_intervals_as_independent_noise_does_not() -> None:
    rows = made(5, noise=0.01)
    slow = np.repeat(np.exp(0.05 * np.random.default_rng(2).standard_normal(40)), 15)
    plain, lasting = fit(rows), fit(msgspec.structs.replace(rows, y=rows.y * slow))
    assert width(lasting, 0) > 2 * width(plain, 0)


def test_a_constant_that_cannot_be_below_nothing_is_nothing() -> None:
    values = VALUES.copy()
    values[SQUARES] = 0.0
    for seed in range(5):
        found = fit(rows_with(values, np.random.default_rng(seed), noise=0.05))
        assert (found.values >= 0).all()
        low, high = found.interval(lambda each: float(each[SQUARES]))
        assert low is None or high is None or low <= 2e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 40))
def test_of_columns_that_say_the_same_one_is_told(seed: int, rows: int) -> None:
    x = rows_with(VALUES, np.random.default_rng(seed), rows=rows).x
    x[:, SEQUENCES] = 3 * x[:, 0]  # the batch was always three
    told = told_by(x)
    assert told.sum() <= np.linalg.matrix_rank(x / np.maximum(np.linalg.norm(x, axis=0), 1e-30), tol=1e-6)
    if (x[:, 0] > 0).any():
        assert told[0] and not (told[SEQUENCES] and not (x[:, SEQUENCES] != 3 * x[:, 0]).any())


def test_a_constant_seen_in_one_stretch_alone_has_no_interval_and_leaves_others_theirs() -> None:
    rows = made(4, noise=0.02)
    early = (rows.kind != KINDS.index("alone")) | (rows.block == 0)
    found = fit(rows.part(early))
    assert found.interval(lambda values: float(values[KINDS.index("alone")])) == (None, None)
    assert width(found, 0) > 0


def bent(rows: Rows, of: Floats) -> Rows:
    return msgspec.structs.replace(rows, y=rows.y * of)


def test_steps_that_grow_faster_than_the_batch_are_said_and_a_line_is_not() -> None:
    rows = made(7, noise=0.01)
    assert bends(rows, fit(rows)) == []
    curved = bent(rows, 1 + 0.3 * (rows.x[:, SEQUENCES] / 32 - 0.5) ** 2 * 4)
    found = bends(curved, fit(curved))
    assert ("decode", "sequences") in {(one.kind, one.along) for one in found}
    one = next(one for one in found if one.along == "sequences" and one.kind == "decode")
    assert one.middle < min(one.low, one.high)


def test_a_drift_over_time_is_said() -> None:
    rows = made(8, noise=0.01)
    drifting = bent(rows, 1 + 0.2 * rows.at_s / rows.at_s.max())
    assert ("decode", "time") in {(one.kind, one.along) for one in bends(drifting, fit(drifting))}


@pytest.mark.parametrize(
    ("mixed", "alone", "shared"), [(0.03, 0.03, True), (0.05, 0.03, False), (0.02, 0.018, False)], ids=str
)
def test_prompts_have_one_constant_where_mixed_steps_are_dearer_than_decodes_and_no_different_alone(
    mixed: float, alone: float, shared: bool
) -> None:
    values = VALUES.copy()
    values[[KINDS.index("mixed"), KINDS.index("prefill")]] = mixed, alone
    rows = rows_with(values, np.random.default_rng(1), noise=0.02)
    found = with_one_constant(rows, fit(rows))
    assert (found is not None) == shared
    if found is not None:
        prefill = KINDS.index("prefill")
        assert width(fit(found), prefill) < width(fit(rows), prefill)
        assert fit(found).values[prefill] == pytest.approx(alone, rel=0.05)
