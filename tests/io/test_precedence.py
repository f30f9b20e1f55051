"""A sender goes before other processes where it may, leaves them a core, and steps back when it is busy itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phasemeter.io.precedence import NORMAL, REAL_TIME, Precedence, available, cores

needs_the_right = pytest.mark.skipif(available(1) != REAL_TIME, reason="no right to real-time scheduling, or one core")


def in_a_process(code: str) -> str:
    prelude = "import os, time\nfrom phasemeter.io.precedence import *\nfrom phasemeter.io import precedence\n"
    told = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def test_it_is_never_taken_when_the_workers_would_fill_every_core() -> None:
    assert available(cores()) == NORMAL
    assert not Precedence(cores(), True).taken


def test_it_is_not_taken_when_it_is_not_wanted() -> None:
    assert not Precedence(1, False).taken


@needs_the_right
def test_asking_what_is_available_leaves_this_process_as_it_was() -> None:
    before = os.sched_getscheduler(0)
    assert available(1) == REAL_TIME
    assert os.sched_getscheduler(0) == before


@needs_the_right
def test_a_sender_takes_it_and_keeps_it_while_it_mostly_sleeps() -> None:
    code = """
p = Precedence(1, True)
time.sleep(0.05)
p.look(time.monotonic_ns() + precedence.LOOK_NS)
print(p.taken, os.sched_getscheduler(0) == os.SCHED_RR)
"""
    assert in_a_process(code) == "True True"


@needs_the_right
def test_a_busy_sender_gives_it_back_for_good() -> None:
    code = """
precedence.BUSY_SHARE = 0.05  # others may want the core too
p = Precedence(1, True)
until = time.process_time() + 0.6
while time.process_time() < until:
    pass
p.look(time.monotonic_ns())
print(p.taken, os.sched_getscheduler(0) == os.SCHED_OTHER)
"""
    assert in_a_process(code) == "False True"
