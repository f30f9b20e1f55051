"""What a server, a file or a name says moves no cursor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.cli.main import run
from phasemeter.report.plain import plain, plain_tree
from tests.runs.served import Behaviour, served

ESCAPE = "\x1b]0;owned\x07\x1b[31mRED\x1b[2J\x9b1A\r"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@given(st.text())
def test_no_control_character_is_left_and_other_words_stay(text: str) -> None:
    shown = plain(text)
    assert not CONTROL.search(shown)
    shown.encode()  # no lone surrogate either
    if not CONTROL.search(text) and not any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        assert shown == text


def test_a_tree_is_cleaned_to_its_leaves_and_its_keys() -> None:
    assert plain_tree({"a\x1b": ["b\x07", ("c", 1, None)], 2: 0.5}) == {"a\\x1b": ["b\\x07", ["c", 1, None]], 2: 0.5}


@pytest.fixture
def hostile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    """A run against a server whose model, words and errors are escape sequences, and what was printed meanwhile."""
    bad = (500, f"no {ESCAPE}")
    behaviour = Behaviour(
        models=(f"m{ESCAPE}",), answer=lambda r: [ESCAPE] * 3, fault=lambda r: bad if (r.number or 1) % 3 == 0 else None
    )
    path = tmp_path / "run"
    with served(behaviour) as server:
        run(["bench", server.url, "--requests", "6", "--warmup", "0", "--output-tokens", "3", "-o", str(path)])
    told = capsys.readouterr()
    return path, told.out + told.err


def test_a_bench_prints_no_escape_of_its_server(hostile: tuple[Path, str]) -> None:
    printed = hostile[1]
    assert "owned" in printed and not CONTROL.search(printed)


@pytest.mark.parametrize("words", [["report"], ["report", "--markdown"], ["inspect"], ["diagnose"]])
def test_no_verb_that_reads_the_run_prints_one(
    hostile: tuple[Path, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(hostile[0]) + ("#r2" if words == ["inspect"] else "")
    run([words[0], path, *words[1:]])
    told = capsys.readouterr()
    assert told.out and not CONTROL.search(told.out + told.err)


def test_an_error_that_quotes_the_server_is_clean_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Behaviour(models=(f"a{ESCAPE}", f"b{ESCAPE}"))) as server:
        assert run(["bench", server.url, "--model", "c", "--requests", "2", "-o", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "owned" in told and not CONTROL.search(told)
