"""`report` of a run directory that `import` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.cli.main import run
from tests.comparison.test_foreign import VLLM

TABLE = [{"Percentiles": "50%", "TTFT (ms)": 230.5}, {"Percentiles": "99%", "TTFT (ms)": 245.5}]


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(VLLM), encoding="utf-8")
    assert run(["import", str(file), "-o", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def test_an_imported_result_is_reported_under_its_own_definitions(
    imported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["report", str(imported), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["definitions"], told["metrics"]["ttft"]["mean"], told["metrics"]["ttft"]["p99"]["value"]) == (
        "vllm@0.33", 0.375, 0.4975,
    )  # fmt: skip
    for form in ([], ["--markdown"], ["--csv", "metrics"], ["--as", "vllm"]):
        assert run(["report", str(imported), *form]) == 0
        assert "vllm@0.33" in capsys.readouterr().out


@pytest.mark.parametrize("form", [["--as", "sglang"], ["--csv", "requests"], ["--html", "x.html"], ["--openmetrics"]])
def test_what_needs_requests_is_refused_in_one_line(
    imported: Path, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["report", str(imported), *form]) == 2
    told = capsys.readouterr().err
    assert form[0] in told and "needs a run of `bench`" in told and told.count("\n") == 1


def test_values_of_unknown_number_are_shown_and_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "benchmark_percentile.json"
    file.write_text(json.dumps(TABLE), encoding="utf-8")
    assert run(["import", str(file), "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert run(["report", str(tmp_path / "run"), "--markdown"]) == 0
    assert "| TTFT (ms) | ms | – | – | 230.5 |" in capsys.readouterr().out


def test_a_damaged_imported_result_is_one_line(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for damage in ("{", "[]", '{"metrics": {"a": 1}}', '{"metrics": {}}'):
        (imported / "result.json").write_text(damage, encoding="utf-8")
        capsys.readouterr()
        assert run(["report", str(imported)]) == 2
        assert "import the tool's file again" in capsys.readouterr().err
    (imported / "result.json").unlink()
    assert run(["report", str(imported)]) == 2
