"""From Python: the same measurement, the same numbers, tables for notebooks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import phasemeter
from phasemeter.errors import FileError, UserError
from tests.runs.served import served


def test_a_run_is_measured_and_read_from_python(tmp_path: Path) -> None:
    notes: list[str] = []
    seen: list[tuple[str, int]] = []
    with served() as server:
        run = phasemeter.bench(
            server.url,
            note=notes.append,
            progress=lambda part, now: seen.append((part, now.done)),
            requests=5,
            concurrency=2,
            warmup=1,
            output_tokens=4,
            output=tmp_path / "run",
        )
    assert run.result.outcomes.ok == 5 and run.manifest.model == "tiny"
    assert run.requests().height == 6 and run.requests().filter(phase="measured").height == 5
    assert run.events().height == 24
    assert run.metrics()["ttft"].n == 5 and "ttft" in run.metrics(as_="vllm")
    assert run.document()["outcomes"]["ok"] == 5
    assert "5 of 5 ok" in repr(run)
    page = run._repr_html_()
    assert re.search(r">ttft</td><td>ms</td><td>5</td>", page) and "requests/s" in page
    assert "<b>samples</b>" in page  # five requests are few, and the page says so
    assert seen and seen[-1][0] == "measured"
    told = run.metrics(as_="vllm")
    assert 'title="' in told._repr_html_() and f"<td>{told['ttft'].n}</td>" in told._repr_html_()
    assert f"<td>{1e3 * (run.metrics()['ttft'].mean or 0):.4g}</td>" in run.metrics()._repr_html_()
    assert run.report(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    again = phasemeter.Run.open(run.path)
    assert again.result.outcomes == run.result.outcomes
    (run.path / "events.parquet").unlink()
    assert again.events().height == 24


def test_mistakes_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no option speed"):
        phasemeter.bench("http://127.0.0.1:9", speed=3)
    with pytest.raises(UserError, match="repeat"):
        phasemeter.bench("http://127.0.0.1:9", repeat=3)
    with pytest.raises(FileError):
        phasemeter.Run.open(tmp_path)
    with pytest.raises(AttributeError):
        phasemeter.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'polars', 'msgspec', 'rich'}"
    code = f"import phasemeter, sys; print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
