"""A bench that runs into a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.whole import Bench


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    return Bench(tmp_path, capsys)
