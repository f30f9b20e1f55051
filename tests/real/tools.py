"""phasemeter and vLLM's own bench as people run them: commands, and the documents they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.real.conftest import RealServer

PHASEMETER = Path(sys.executable).parent / "phasemeter"
WITHIN_S = 240
STATISTICS = ("mean", "median", "p99")
QUANTITIES = ("ttft", "tpot", "itl", "e2el")
RATES = ("request_throughput", "output_throughput", "total_token_throughput")


def phasemeter(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PHASEMETER), *words], capture_output=True, text=True, timeout=WITHIN_S, check=False)


def bench(url: str, run: Path, *words: str) -> dict[str, Any]:
    """`phasemeter bench`'s result; the run is at `run`."""
    done = phasemeter("bench", url, *words, "-o", str(run), "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def as_vllm(run: Path, version: str = "0.32") -> dict[str, float]:
    """What vLLM's bench would have printed of a run of ours, under its own keys."""
    done = phasemeter("report", str(run), "--as", f"vllm@{version}", "--json")
    assert done.returncode == 0, done.stderr
    printed: dict[str, float] = json.loads(done.stdout)["workload"]["as_tool"]["printed"]
    return printed


def vllm_bench(
    server: RealServer, url: str, folder: Path, *, concurrency: int, requests: int, seed: int
) -> dict[str, Any]:
    """`vllm bench serve` of the installed version over chat; its result file. 4 warm-up requests go first."""
    words = [
        "--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model", server.model,
        "--tokenizer", str(server.model_folder), "--dataset-name", "random", "--random-input-len", "128",
        "--random-output-len", "24", "--num-prompts", str(requests), "--max-concurrency", str(concurrency), "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99", "--save-result", "--disable-tqdm",
        "--result-dir", str(folder), "--result-filename", f"{seed}.json", "--seed", str(seed), "--num-warmups", "4",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [str(server.python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", *words],
        capture_output=True, text=True, env=environment, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    document: dict[str, Any] = json.loads((folder / f"{seed}.json").read_text())
    return document
