"""The live view fits its terminal, says what it knows, and keeps quiet where nobody looks."""

from __future__ import annotations

import io
import re
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.io.workers import Progress
from phasemeter.report import live
from phasemeter.report.screen import Live, Rates, Screen, Simulating, fitted, head, standing, state
from phasemeter.runs.measure import Going
from phasemeter.runs.so_far import Standing

NOW = Progress(
    elapsed_s=12.4, spooled=500, sent=130, in_flight=6, waiting=0, done=120, failed=4, cancelled=0, received_bytes=10**6,
    late_ns=52_000, late_max_ns=90_000, observer_lag_ns=20_000, open_connections=6,
)  # fmt: skip
GOING = Going(phase="measured", rate_per_s=10.0, requests=500)


def words(parts: list[tuple[str, str]]) -> str:
    return " · ".join(text for text, _ in parts)


def test_the_head_says_how_far_what_was_asked_and_what_was_achieved() -> None:
    told = words(head(GOING, NOW, Rates(sent=9.87, done=9.7, bytes=1e5)))
    assert "124 of 500 requests ended" in told and "asked 10 req/s" in told and "sent 9.87/s" in told
    assert "served 9.7/s" in told and told.count("█") == round(124 / 500 * 24)


def test_when_all_is_sent_no_rate_of_sending_is_shown_and_a_long_wait_is_in_seconds() -> None:
    told = words(head(GOING, msgspec.structs.replace(NOW, sent=500), Rates(sent=0.0, done=9.7, bytes=1e5)))
    assert "all sent, waiting for answers" in told and "sent 0" not in told and "served 9.7/s" in told
    assert "first read after 14.6 s" in words(state(NOW, Rates(), 14.608))


def test_a_run_by_time_shows_its_time_and_a_closed_loop_its_slots() -> None:
    told = words(head(Going(phase="measured", concurrency=8, duration_s=60.0), NOW, Rates()))
    assert "12.4 of 60 s" in told and "asked 8 at a time" in told and "█████" in told


def test_failures_and_our_own_lateness_are_always_there() -> None:
    told = words(state(NOW, Rates(), 0.0123))
    assert "failed 4" in told and "first read after 12.3 ms" in told and "our sends late 0.052 ms" in told
    assert "observer lag 0.02 ms" in told


def test_a_promise_so_far_is_provisional_and_names_its_n() -> None:
    found = [Standing(name="ttft p95", limit_s=0.45, kept=118, of=120, needs=0.95)]
    assert words(standing(found, 1, False)) == (
        "so far (provisional) · ttft p95 ≤ 450 ms: 98.33 % of 120 keep it, 95 % needed"
    )
    assert "1 request in 4 read" in words(standing(found, 4, False))
    assert "at the end" in words(standing(found, 1, True))
    assert "no request has ended yet" in words(
        standing([Standing(name="x", limit_s=1, kept=0, of=0, needs=0.9)], 1, False)
    )


def test_a_promise_that_would_break_is_marked_by_more_than_words() -> None:
    good, bad = (Standing(name="ttft p95", limit_s=1.0, kept=n, of=100, needs=0.95) for n in (95, 94))
    assert good.well and not bad.well
    styles = [standing([one], 1, False)[1][1] for one in (good, bad)]
    assert styles[0] != styles[1]
    assert not Standing(name="ttft mean", limit_s=0.1, kept=0, of=9, needs=None, mean_s=0.2).well


@settings(deadline=None, max_examples=80)
@given(st.lists(st.text("ab ≤%█", min_size=1, max_size=60), max_size=9), st.integers(10, 140))
def test_no_line_is_longer_than_the_terminal_and_no_word_is_lost(texts: list[str], columns: int) -> None:
    lines = fitted([(text, "") for text in texts], columns, colour=False)
    assert all(len(line) <= columns for line in lines)
    assert all(text in "\n".join(lines) for text in texts if len(text) <= columns)


class Terminal:
    """Enough of one to see what stands on it."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text: str) -> None:
        for escape, number, kind, letter in re.findall(r"(\x1b\[(\d*)([AJK]))|([^\x1b])", text):
            if escape and kind == "A":
                self.row -= int(number or 1)
            elif escape and kind == "K":
                self.lines[self.row] = ""
            elif escape:
                del self.lines[self.row + 1 :]
                self.lines[self.row] = self.lines[self.row][: self.column]
            elif letter == "\r":
                self.column = 0
            elif letter == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1


def test_a_block_is_written_over_itself_and_leaves_nothing() -> None:
    to, terminal = io.StringIO(), Terminal()
    screen = Screen(to)
    for lines in (["one", "two", "three"], ["a longer one"], ["x", "y"]):
        screen.show(lines)
        terminal.feed(to.getvalue())
        to.truncate(0)
        to.seek(0)
        assert [line.rstrip() for line in terminal.lines] == lines
    screen.clear()
    terminal.feed(to.getvalue())
    assert terminal.lines == [""]


def test_a_note_stands_above_the_block() -> None:
    to, terminal = io.StringIO(), Terminal()
    shown = Live(to, colour=False, columns=100)
    shown.begun(GOING)
    shown.progress("measured", NOW)
    shown.note("careful")
    shown._shown_s = 0.0
    shown.progress("measured", NOW)
    terminal.feed(to.getvalue())
    assert terminal.lines[0].startswith("note: careful") and "124 of 500" in terminal.lines[1]
    shown.close()


def test_on_a_narrow_terminal_it_is_one_line() -> None:
    to = io.StringIO()
    shown = Live(to, colour=False, columns=40)
    shown.progress("measured", NOW)
    assert "\n" not in to.getvalue() and "4 failed" in to.getvalue()


def test_a_simulation_says_how_far_it_is() -> None:
    to = io.StringIO()
    shown = Simulating(to, columns=160)
    shown._shown_s = 0.0
    shown.tell(640, 1000.0, 5_000_000_000, (7, 2, 0.5))
    assert (
        "640 of 1,000 requests ended" in to.getvalue() and "waiting 2" in to.getvalue() and "KV 50 %" in to.getvalue()
    )


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"TERM": "xterm", "CI": "true"}, {}])
def test_it_keeps_quiet_where_nobody_looks(
    setting: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TERM", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert live.calm()
    with live.view() as watchers, live.simulating() as tell:
        watchers.progress("measured", NOW)
        watchers.begun(GOING)
        watchers.note("words")
        assert tell is None
    assert capsys.readouterr().err == "note: words\n"


def test_a_pipe_gets_notes_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    assert live.calm()  # standard error is no terminal in a test
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert not live.calm()
