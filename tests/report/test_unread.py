"""Who reads our output may leave early: the exit code says what the verb found all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.html_runs import rows, write_run

MISSED = """phasemeter: 1
workload: {api: openai.chat, input_tokens: 256, output_tokens: 20, arrivals: {poisson: 20 req/s}, kind: chat}
latency_slo: {ttft: {p50: 1 ms}}
"""


def unread(*words: str) -> subprocess.CompletedProcess[str]:
    """The command with a standard output whose reader has gone before the first word."""
    here, there = os.pipe()
    os.close(here)
    try:
        return subprocess.run(
            [sys.executable, "-m", "phasemeter", *words], stdout=there, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(there)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("unread") / "run", rows(300))


def test_a_missed_contract_is_missed_whoever_reads_the_words(run: Path) -> None:
    contract = run.parent / "contract.yaml"
    contract.write_text(MISSED)
    done = unread("check", str(run), "--contract", str(contract))
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("words", [["report"], ["report", "--json"], ["diagnose"], ["define", "ttft", "--for"]])
def test_a_report_that_nobody_reads_is_no_failure(run: Path, words: list[str]) -> None:
    done = unread(*words, str(run))
    assert done.returncode == 0 and "Error" not in done.stderr
