"""YAML as people write it."""

from __future__ import annotations

import pytest
import yaml

from phasemeter.workload.plain_yaml import PlainLoader


@pytest.mark.parametrize(("text", "value"), [("2e-05", 2e-05), ("1E-3", 0.001), ("-4e-2", -0.04), ("2.5e-3", 0.0025)])
def test_a_small_number_with_an_exponent_needs_no_point(text: str, value: float) -> None:
    assert yaml.load(f"[{text}]", Loader=PlainLoader) == [value]


@pytest.mark.parametrize("text", ["e5", "1e3", "1e-5x", "'1e5'", "1e", "0x1e5z"])
def test_what_only_looks_like_one_stays_text(text: str) -> None:
    assert yaml.load(f"[{text}]", Loader=PlainLoader) == [text.strip("'")]
