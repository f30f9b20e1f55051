"""`phasemeter report` and `phasemeter define` from the command line, over a run whose rows are known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from phasemeter.cli.main import run
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.evidence import Told
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result
from tests.metrics.rows import row

ROWS = {
    "good": [row([100 + k, 120 + k, 140 + k], request_id=str(k), due_ms=k * 50, send_ms=k * 50) for k in range(30)],
    "bad": [row([], outcome="failed", failure="refused", send_start_ns=None, sent_ns=None)],
}


@pytest.fixture(autouse=True)
def known_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = ModuleType("phasemeter.runs.analysis")

    def rows(path: str) -> Iterator[RequestRow]:
        return iter(ROWS[path])

    def analyse(path: str, definitions: str = "phasemeter/1", tool: str | None = None) -> Result:
        return analyse_rows(rows(path), Manifest(rate_per_s=20.0), tool=tool)

    def rows_with_server(path: str) -> Iterator[tuple[RequestRow, Told]]:
        return ((one, Told()) for one in rows(path))

    analysis.rows_with_server = rows_with_server  # type: ignore[attr-defined]
    analysis.rows = rows  # type: ignore[attr-defined]
    analysis.analyse = analyse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "phasemeter.runs.analysis", analysis)


def test_json_is_one_strict_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "good", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert plain["metrics"]["tpot"]["mean"] == pytest.approx(0.02)


def test_a_run_in_which_nothing_succeeded_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "bad", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "no_successful_requests"


def test_as_a_tool_prints_that_tools_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "good", "--as", "vllm"]) == 0
    text = capsys.readouterr().out
    assert "mean_ttft_ms" in text
    assert "can't be re-created" in text


def test_an_unknown_tool_is_one_line_and_exit_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "good", "--as", "wrk"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "vllm@0.33" in told.err


def test_two_ways_to_print_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "good", "--json", "--markdown"]) == 2
    assert "take one" in capsys.readouterr().err


@pytest.mark.parametrize(("which", "lines"), [("requests", 31), ("events", 91), ("metrics", 22)])
def test_csv_has_a_line_for_each(which: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "good", "--csv", which]) == 0
    assert capsys.readouterr().out.count("\n") == lines


def test_markdown_and_terminal_show_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "good", "--markdown"]) == 0
    assert run(["report", "good"]) == 0
    assert "30 scheduled = 30 ok" in capsys.readouterr().out


def test_define_shows_the_words_a_word_and_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["define"], ["define", "TTFT"], ["define", "goodput"], ["define", "tpot", "--for", "good"]):
        assert run(arguments) == 0
        assert capsys.readouterr().out
    for arguments in (["define"], ["define", "itl"], ["define", "tpot", "--for", "good"]):
        assert run([*arguments, "--json"]) == 0
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_define_for_a_run_needs_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["define", "--for", "good"]) == 2
    assert "needs a word" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    for verb in ("report", "define"):
        code = f"import sys; from phasemeter.cli.main import run; run([{verb!r}, '--help']); "
        code += "print([n for n in ('numpy', 'polars', 'plotly') if n in sys.modules], file=sys.stderr)"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert told.stderr.strip() == "[]"
        assert "Examples:" in told.stdout
