"""A sender's (or the emulator's) place before other processes: real-time scheduling where the system grants it.

Lives here: asking for it, and giving it back. Must not live here: what is sent when (due.py, load.py).

A sender sleeps nearly always, and what makes its sends late on a busy machine is waiting for a core after waking up
(docs/decisions/0022-senders-run-real-time.md). It takes the lowest real-time priority, never on every core (others, a server
under test among them, keep at least one), and gives it back for good once it no longer mostly sleeps.
"""

from __future__ import annotations

import os
import time

REAL_TIME, NORMAL = "real-time", "normal"
BUSY_SHARE = 0.7  # of a core, over the last look: from there on it would starve others
LOOK_NS = 500_000_000


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _granted() -> bool:
    if not hasattr(os, "SCHED_RR"):
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def _returned() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def available(processes: int) -> str:
    """What senders would get here if there were `processes` of them: "real-time" or "normal"."""
    if processes >= cores() or not hasattr(os, "SCHED_RR"):
        return NORMAL
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    if not _granted():
        return NORMAL
    os.sched_setscheduler(0, *before)  # a place that the person gave us (chrt) stays theirs
    return REAL_TIME


class Precedence:
    """One sender's place: `taken` at once where it can be, given back by `look` when it is busy."""

    def __init__(self, processes: int, wanted: bool) -> None:
        self.taken = wanted and processes < cores() and _granted()
        self._look_ns = time.monotonic_ns() + LOOK_NS
        self._looked_ns = time.monotonic_ns()
        self._used_ns = time.process_time_ns()

    def look(self, now: int) -> None:
        """Give it back when more than BUSY_SHARE of a core was used since the last look; `now`: CLOCK_MONOTONIC, ns."""
        if not self.taken or now < self._look_ns:
            return
        used_ns = time.process_time_ns()
        if used_ns - self._used_ns > BUSY_SHARE * (now - self._looked_ns):
            _returned()
            self.taken = False
        self._look_ns, self._looked_ns, self._used_ns = now + LOOK_NS, now, used_ns
