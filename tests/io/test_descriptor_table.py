"""Room in the kernel's table of descriptors is taken beforehand and costs no descriptor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


def told(code: str) -> list[int]:
    prelude = """
import os, resource
from pathlib import Path
from phasemeter.io.descriptor_limit import spread_table
def table():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("FDSize")).split()[1])
def used():
    return len(os.listdir("/proc/self/fd"))
"""
    ran = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=True)
    return [int(word) for word in ran.stdout.split()]


@linux
def test_the_table_has_grown_and_every_descriptor_is_free_again() -> None:
    before, after, used_before, used_after = told(
        "b, u = table(), used()\nspread_table(10)\nprint(b, table(), u, used())"
    )
    assert before < 4096 <= after
    assert used_after == used_before


@linux
def test_the_table_grows_with_the_connections_that_are_expected() -> None:
    (grown,) = told(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "spread_table(8000)\nprint(table())"
    )
    assert grown >= 16_000


@linux
def test_a_low_limit_is_no_failure() -> None:
    grown, limit = told(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\nspread_table(8000)\nprint(table(), 100)"
    )
    assert grown >= limit
