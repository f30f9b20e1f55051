"""The view while a run goes on: one line, rewritten a few times a second on a terminal; nothing in a pipe.

Lives here: what is shown and how often. It reads counters only: it costs the capture nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from phasemeter.io.workers import Progress
from phasemeter.runs.measure import Watchers

EVERY_S = 0.2


def line(phase: str, progress: Progress, bytes_per_s: float) -> str:
    """One progress line: sent, in flight, done, failed, bytes/s, lateness and observer lag."""
    parts = [
        f"{phase} {progress.elapsed_s:5.1f} s",
        f"sent {progress.sent}",
        f"in flight {progress.in_flight}",
        f"done {progress.done}",
        f"failed {progress.failed}",
        f"{bytes_per_s / 1e3:.0f} kB/s",
        f"late {progress.late_ns / 1e6:.2f} ms",
        f"observer lag {progress.observer_lag_ns / 1e6:.2f} ms",
    ]
    if progress.waiting:
        parts.insert(3, f"waiting {progress.waiting}")
    return " · ".join(parts)


class _Line:
    def __init__(self) -> None:
        self._shown_s = self._bytes_s = 0.0
        self._bytes = 0
        self._rate = 0.0
        self._width = 0

    def progress(self, phase: str, progress: Progress) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < EVERY_S:
            return
        self._rate = (
            max(0.0, (progress.received_bytes - self._bytes) / (now_s - self._bytes_s)) if self._bytes_s else 0.0
        )
        self._bytes, self._bytes_s, self._shown_s = progress.received_bytes, now_s, now_s
        words = line(phase, progress, self._rate)
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        words = words[: columns - 1]
        sys.stderr.write("\r" + words.ljust(self._width))
        sys.stderr.flush()
        self._width = len(words)

    def clear(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def note(self, words: str) -> None:
        self.clear()
        note(words)


def note(words: str) -> None:
    """A line for a person, on standard error."""
    sys.stderr.write(f"note: {words}\n")


@contextmanager
def view(quiet: bool = False) -> Iterator[Watchers]:
    """Watchers for a run: a live line where standard error is a terminal and `quiet` is not asked for, notes always."""
    if quiet or not sys.stderr.isatty():
        yield Watchers(note=note)
        return
    shown = _Line()
    try:
        yield Watchers(note=shown.note, progress=shown.progress)
    finally:
        shown.clear()
