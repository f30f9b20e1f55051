"""What is printed on a terminal fits it; in a pipe a line stays whole."""

from __future__ import annotations

import io
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.cli import check
from phasemeter.report import define, fold

WORD = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12)


@given(st.lists(WORD, min_size=1, max_size=40), st.integers(0, 12), st.integers(fold.NARROWEST, 200), st.integers(1, 4))
def test_a_folded_line_fits_and_loses_no_word(words: list[str], start: int, wide: int, gap: int) -> None:
    line = " " * start + words[0] + " " * gap + " ".join(words[1:])
    parts = fold.folded(line.rstrip(), wide)
    assert " ".join(parts).split() == words
    assert all(len(part) <= max(wide, 12 + fold.DEEPEST) for part in parts)
    assert max(len(part) for part in parts) <= wide or wide < 12 + fold.DEEPEST


def test_the_rest_of_a_line_begins_under_its_last_column_of_words() -> None:
    line = "  ok      file_descriptors  " + "word " * 20
    first, second, *_ = fold.folded(line.rstrip(), 60)
    assert first.index("word") == second.index("word") == 28


def test_in_a_pipe_a_line_is_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100 + "\x1b[31m"
    fold.show([long])
    assert capsys.readouterr().out == "word " * 100 + "\\x1b[31m\n"


def test_on_a_terminal_lines_are_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((50, 24)))
    fold.show(["word " * 100])
    lines = terminal.getvalue().splitlines()
    assert len(lines) > 1 and all(len(line) <= 50 for line in lines)


LINE = {
    "path": "latency_slo.ttft.p90", "verdict": "undecided", "value": 0.0178, "ci95": [0.0162, 0.0187], "n": 220, "n_to_decide": 400,
    "limit": 0.45, "comparison": "<=", "unit": "s", "ok_only": 0.0178, "reason": "too_few_samples", "notes": [],
}  # fmt: skip


def test_a_verdict_that_passes_the_terminal_is_a_block_that_says_the_same() -> None:
    table, block = check.table([LINE]), check.table([LINE], 80)
    assert max(map(len, table)) > 80 and table[0].startswith("verdict")
    assert block == [
        "undecided  latency_slo.ttft.p90",
        "           promised <= 450 ms · seen 17.8 ms · 95 % 16.2 ms … 18.7 ms · n 220 · too_few_samples; about 400 requests would decide",
    ]
    assert check.table([LINE], 200) == table


@pytest.mark.parametrize("word", ["ttft", "tpot", "e2e", "ttfo"])
@pytest.mark.parametrize("wide", [72, 80, 100])
def test_a_time_line_fits_the_terminal_and_keeps_its_marks(word: str, wide: int) -> None:
    drawn = list(define.timeline(define.entries(word), wide))
    assert all(len(line) <= wide for line in drawn)
    names = " ".join(line for line in drawn if not any(mark in line for mark in "├│")).split()
    assert sorted(names) == sorted(define.AXIS)
    assert len(drawn) - (1 if len(drawn[0].split()) == len(define.AXIS) else 2) == sum(
        "├" in line or "│" in line for line in drawn
    )
