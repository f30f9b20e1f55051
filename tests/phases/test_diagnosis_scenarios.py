"""The diagnosis on simulated scenarios whose cause is known: a small seed of what the two sets under bench/ score."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from phasemeter.phases.diagnosis import diagnose

BENCH = Path(__file__).parents[2] / "bench"
SEED = 101  # none that thresholds were looked at with


def loaded(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return loaded("diagnosis_scenarios")


@pytest.fixture(scope="module")
def field(bench: ModuleType) -> ModuleType:
    return loaded("diagnosis_field")


def test_every_cause_has_three_scenarios_and_healthy_ones_are_among_them(bench: ModuleType) -> None:
    names = [scenario.cause for scenario in bench.scenarios(SEED)]
    assert all(names.count(cause) >= 3 for cause in set(names)) and None in names and len(set(names)) == 15


@pytest.mark.parametrize("which", ["bench", "field"])
def test_the_cause_is_named_first_and_no_wrong_one_is_called_certain(
    which: str, bench: ModuleType, request: pytest.FixtureRequest
) -> None:
    seen, right = set(), []
    for scenario in request.getfixturevalue(which).scenarios(SEED):
        if scenario.cause in seen:
            continue  # one of each: the others are the bench's
        seen.add(scenario.cause)
        found = diagnose(bench.features(scenario, SEED))
        assert bench.false_certain(scenario, found) == [], scenario.name
        right.append((bench.is_right(scenario, found), scenario.name, [c.cause for c in found.causes]))
    assert len(right) == 15
    assert sum(ok for ok, *_ in right) >= len(right) - 1, [one for one in right if not one[0]]
