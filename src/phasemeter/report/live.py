"""The view while a run goes on: a few lines on a terminal, rewritten a few times a second; nothing in a pipe or in CI.

Lives here: whether there is one. Must not live here: what it shows (screen.py, loaded only where it is shown).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phasemeter.lazy import load
from phasemeter.report.plain import plain
from phasemeter.runs.measure import Watchers


def note(words: str) -> None:
    """A line for a person, on standard error."""
    sys.stderr.write(f"note: {plain(words)}\n")


def calm() -> bool:
    """Whether a block that rewrites itself would be no help: a pipe, a terminal that can't, a machine that reads along."""
    return not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb" or bool(os.environ.get("CI"))


@contextmanager
def view(quiet: bool = False) -> Iterator[Watchers]:
    """Watchers for a run: live lines where standard error is a terminal and `quiet` is not asked for, notes always."""
    if quiet or calm():
        yield Watchers(note=note)
        return
    shown = load("phasemeter.report.screen").Live(sys.stderr, colour="NO_COLOR" not in os.environ)
    try:
        yield Watchers(note=shown.note, progress=shown.progress, begun=shown.begun)
    finally:
        shown.close()


@contextmanager
def simulating(quiet: bool = False) -> Iterator[Callable[[int, float, int, tuple[int, int, float]], None] | None]:
    """What a simulation tells its progress to; None where there is no one to see it."""
    if quiet or calm():
        yield None
        return
    columns = max(10, os.get_terminal_size(sys.stderr.fileno()).columns - 1)
    shown = load("phasemeter.report.screen").Simulating(sys.stderr, columns=columns)
    try:
        yield shown.tell
    finally:
        shown.close()


@contextmanager
def line(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Tells what is going on: one line that is rewritten on a terminal, a line each elsewhere, nothing where `quiet` is asked for."""
    rewritten = not calm()

    def tell(words: str) -> None:
        if quiet:
            return
        if rewritten:
            columns = max(10, (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1)
            sys.stderr.write(f"\r\x1b[K{plain(words)[:columns]}")
        else:
            sys.stderr.write(f"{plain(words)}\n")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        if rewritten and not quiet:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
