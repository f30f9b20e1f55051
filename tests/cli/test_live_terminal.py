"""The live view as a person has it: in a terminal of its own, gone when the report comes."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.runs.served import Behaviour, served

CONTRACT = "phasemeter: 1\nlatency_slo: {ttft: {p90: 60 s}}\n"


def typed(words: list[str], columns: int, **environment: str) -> str:
    """What `phasemeter WORDS` wrote to a terminal `columns` wide."""
    here, there = pty.openpty()
    ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    own = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "phasemeter", *words], stdin=there, stdout=there, stderr=there,
        env=own | {"TERM": "xterm"} | environment,
    )  # fmt: skip
    os.close(there)
    written = b""
    while True:
        try:
            more = os.read(here, 65536)
        except OSError:  # its other end is closed
            break
        if not more:
            break
        written += more
    process.wait()
    os.close(here)
    return written.decode(errors="replace")


def bench(url: str, folder: Path) -> list[str]:
    (folder / "c.yaml").write_text(CONTRACT)
    return [
        "bench", url, "--rate", "20/s", "--requests", "100", "--warmup", "1", "--output-tokens", "4", "--contract",
        str(folder / "c.yaml"), "-o", str(folder / "run"),
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [120, 44])
def test_a_terminal_shows_the_run_while_it_goes_on(tmp_path: Path, columns: int) -> None:
    with served(Behaviour(gap_s=0.002)) as server:
        written = typed(bench(server.url, tmp_path), columns)
    live, report = written.rsplit("reading what came …", 1)
    if columns == 120:
        assert "asked 20 req/s" in live and "first read after" in live
        assert re.search(r"so far \(provisional\).*ttft p90 ≤ 60000 ms: 100 % of \d+ keep it", live)
    for shown in re.split(r"\x1b\[2K|\r\n|\n", live):
        plain = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", shown).replace("\r", "")
        assert len(plain) < columns or plain.startswith("note: ")
    assert report.startswith(("\x1b[0m\x1b[J\r\x1b[J", "\x1b[J\r\x1b[J", "\x1b[0m\x1b[J"))  # the block is taken away
    assert "in flight" not in report and "scheduled = 100 ok" in report


def test_a_dumb_terminal_and_ci_get_no_line_that_rewrites_itself(tmp_path: Path) -> None:
    for name, value in (("TERM", "dumb"), ("CI", "1")):
        folder = tmp_path / name
        folder.mkdir()
        with served() as server:
            written = typed(bench(server.url, folder), 120, **{name: value})
        assert "asked 20 req/s" not in written and "\x1b[2K" not in written
