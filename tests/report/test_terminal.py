"""What a person sees."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.manifest import Manifest
from phasemeter.records.result import Percentile, Result
from phasemeter.report import markdown, terminal
from phasemeter.report.words import interval, number, percentile
from tests.metrics.rows import row


def result(tool: str | None = None) -> Result:
    rows = [
        row([100 + k, 120 + k, 141 + k], request_id=str(k), due_ms=50 * k, send_ms=50 * k, input_tokens=64)
        for k in range(60)
    ]
    rows.append(row([], request_id="x", outcome="failed", failure="timeout_idle", due_ms=3000, send_ms=3000, end_ms=9))
    return analyse_rows(rows, Manifest(rate_per_s=20.0, model="tiny", stamps="kernel"), tool=tool)


def printed(shown: Result, width: int, **options: bool) -> str:
    out = io.StringIO()
    terminal.show(shown, Console(file=out, width=width, highlight=False, **options))  # type: ignore[arg-type]
    return out.getvalue()


def test_the_view_says_what_how_many_how_sure_and_whether_to_believe_it() -> None:
    text = printed(result(), 140)
    assert "61 scheduled = 60 ok + 1 failed (timeout_idle 1) + 0 cancelled + 0 unsent" in text
    for word in ("ttft_from_due", "tpot", "itl", "e2e", "first_token − due", "[", "throughput", "first due after warm-up",
                 "SUSPECT", "failures", "→", "input 64 tokens"):  # fmt: skip
        assert word in text, word


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for tool in (None, "vllm", "guidellm"):
        assert max(len(line) for line in printed(result(tool), width).splitlines()) <= width


def test_a_window_too_narrow_for_the_intervals_says_where_they_are_and_a_pipe_is_never_too_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = " ".join(printed(result(), 80).split())
    assert "95 % intervals: in a window of 96 columns, in report --markdown and --json" in narrow
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.show(result())
    told = capsys.readouterr().out
    assert "[ ] 95 % interval" in told and "–]" in told
    monkeypatch.setenv("COLUMNS", "80")
    terminal.show(result())
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(result(), 120, force_terminal=True)
    assert "\x1b[3" not in text.replace("\x1b[3m", "")


def test_an_undefined_cadence_shows_its_reason_and_the_gaps_that_were_seen() -> None:
    shown = analyse_rows([row([100, 120, 140], tokens=[8, 4, 4])])
    text = printed(shown, 120)
    assert "multi_token_chunks" in text
    assert "inter_chunk" in text


def test_a_run_without_a_success_is_shown_without_numbers() -> None:
    text = printed(analyse_rows([row([], outcome="failed", failure="refused", send_start_ns=None)]), 120)
    assert "no_successful_requests" in text
    assert "INVALID" in text
    assert "nan" not in text.lower()


def test_markdown_has_the_same_table() -> None:
    text = markdown.text(result())
    assert "| ttft_from_due | ms | 60 |" in text
    assert "Validity: **suspect**" in text


def test_numbers_have_four_digits_and_no_exponent() -> None:
    assert [number(value) for value in (0, 0.00001234, 1.23456, 1234.5, 123456.0, None)] == [
        "0", "0.00001234", "1.235", "1234", "123456", "–",
    ]  # fmt: skip
    assert percentile(Percentile(value=0.5, flag="few_samples"), 1e3) == "500*"
    assert interval(Percentile(value=0.5, ci95=(0.4, None)), 1e3) == "[400, –]"
