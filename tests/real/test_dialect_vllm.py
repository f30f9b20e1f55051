"""`report --as vllm` against vLLM's own bench: the same server, the same load, by turns, and what each says of it.

Against the paced server the two clients see the same writes: what is left is how late each of them is, measured in the same way.
Against the real engine every run differs from the last: there the noise is measured, as the range of each tool's own runs. One
request at a time: with two, a closed loop locks to the engine's steps, and a client that answers a millisecond sooner joins a
step earlier, which is another load and not another reading.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real import paced_server
from tests.real.conftest import RealServer
from tests.real.tools import QUANTITIES, RATES, STATISTICS, as_vllm, bench, vllm_bench

ROUNDS = 2
CLIENT_MS = 6.0  # what two clients on a busy machine may differ by in a median or a mean of many requests
CLIENT_P99_MS = 30.0
LEAST_NOISE = {
    "mean": 0.10,
    "median": 0.10,
    "p99": 0.25,
}  # of the value: two runs may happen to lie closer than they usually do


@pytest.fixture(scope="module")
def paced() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, paced_server.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


def by_turns(
    server: RealServer, url: str, folder: Path, *, concurrency: int, requests: int
) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """(vLLM's runs, ours read as vLLM's), one after the other, ROUNDS times."""
    theirs, ours = [], []
    for turn in range(ROUNDS):
        told = vllm_bench(server, url, folder, concurrency=concurrency, requests=requests, seed=turn)
        theirs.append(told)
        length = round(told["total_input_tokens"] / told["completed"])
        run = folder / f"ours-{turn}"
        bench(url, run, "--concurrency", str(concurrency), "--requests", str(requests), "--warmup", "4", "--seed", str(turn),
              "--input-tokens", str(length), "--output-tokens", "24")  # fmt: skip
        ours.append(as_vllm(run))
    return theirs, ours


def test_paced_writes_are_told_alike(vllm: RealServer, paced: str, tmp_path: Path) -> None:
    theirs, ours = by_turns(vllm, paced, tmp_path, concurrency=3, requests=45)
    far = {}
    for quantity in QUANTITIES:
        for statistic in STATISTICS:
            key = f"{statistic}_{quantity}_ms"
            a, b = [run[key] for run in theirs], [run[key] for run in ours]
            apart = max(0.0, min(b) - max(a), min(a) - max(b))
            least = CLIENT_P99_MS if statistic == "p99" else CLIENT_MS
            noise = max(max(a) - min(a), max(b) - min(b), least)
            shown = "  ".join(f"{value:9.3f}" for value in (*a, *b))
            sys.stdout.write(f"paced {key:18} vllm, vllm, ours, ours: {shown}  apart {apart:.3f} noise {noise:.3f}\n")
            if apart > noise:
                far[key] = (a, b)
    assert not far
    for key in ("completed", "failed"):
        assert [run[key] for run in theirs] == [run[key] for run in ours]
    newer = as_vllm(tmp_path / "ours-0", "0.33")
    role_ms = (paced_server.FIRST_S - paced_server.ROLE_S) * 1e3
    assert newer["median_ttft_ms"] - ours[0]["median_ttft_ms"] == pytest.approx(role_ms, abs=CLIENT_MS)


def test_the_same_load_on_the_real_engine_is_told_alike_within_the_noise(vllm: RealServer, tmp_path: Path) -> None:
    theirs, ours = by_turns(vllm, vllm.url, tmp_path, concurrency=1, requests=30)
    keys = [(statistic, f"{statistic}_{quantity}_ms") for quantity in QUANTITIES for statistic in STATISTICS]
    far = {}
    for statistic, key in [*keys, *(("mean", rate) for rate in RATES)]:
        a, b = [run[key] for run in theirs], [run[key] for run in ours]
        apart = max(0.0, min(b) - max(a), min(a) - max(b))
        noise = max(max(a) - min(a), max(b) - min(b), LEAST_NOISE[statistic] * statistics.mean(a))
        shown = "  ".join(f"{value:9.3f}" for value in (*a, *b))
        sys.stdout.write(f"{key:22} vllm, vllm, ours, ours: {shown}  apart {apart:.3f} noise {noise:.3f}" + "\n")
        if apart > noise:
            far[key] = (a, b)
    assert not far
    assert [run["completed"] for run in theirs] == [run["completed"] for run in ours] == [30] * ROUNDS
