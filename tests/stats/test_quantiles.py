"""Quantiles against independent oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import Undefined
from phasemeter.stats.quantiles import quantile, sorted_quantiles

settings.register_profile("ours", deadline=None, max_examples=100)
settings.load_profile("ours")
FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_linear_on_n_minus_1(values: list[float], q: float) -> None:
    expected = float(np.quantile(values, q, method="linear"))
    assert quantile(values, q) == pytest.approx(expected, abs=1e-6)
    assert float(sorted_quantiles(np.sort(values), q)) == pytest.approx(expected, abs=1e-6)


def test_no_values_have_no_quantile() -> None:
    with pytest.raises(Undefined) as absent:
        quantile([], 0.5)
    assert absent.value.reason == "no_values"


@given(st.lists(FINITE, min_size=2, max_size=30), st.integers(1, 29))
def test_a_failure_as_never_ranks_last(values: list[float], failures: int) -> None:
    everything = [*values, *[math.inf] * failures]
    for q in (0.0, 0.25, 0.5, 0.9, 1.0):
        position = q * (len(everything) - 1)
        touches = math.ceil(position) >= len(values)
        assert (quantile(everything, q) == math.inf) == touches
