"""How far a budget is off: server-side segments against the emulator's written truth, the client-only remainder against zero.

    python bench/evidence_bench.py [--requests 300] [--rate 8/s]

Prints, for each segment, the error at p50 and p99 in ms beside what is wanted (1 ms at p99; 2 ms for the remainder); where the
remainder went (before the server's arrival, after its first write: one clock, so here they can be told apart); how late the emulator
itself was; and what a bare round trip took in the same seconds (`wake_floor.py`): on a busy machine that is what the figures measure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from phasemeter.cli.main import run
from phasemeter.io.emulator_truth import Truth, read_truth
from phasemeter.io.run_directory import RunDirectory
from phasemeter.phases.budget import durations_of
from phasemeter.runs.server_view import server_view

PLAN = """
workload: {input_tokens: 3, output_tokens: {fixed: 16}, arrivals: {poisson: 1/s}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  max_num_seqs: 4
  step_time: {linear: {prefill_s: [0.02, 0.0001, 0], decode_s: [0.008, 0, 0]}}
"""
WANTED_MS = {"queue": 1.0, "prefill": 1.0, "decode": 1.0, "remainder": 2.0}


def truth_ms(truth: Truth) -> dict[str, float]:
    first, last = truth.written_ns[0], truth.written_ns[-1]
    if truth.scheduled_ns is None or first is None or last is None:
        raise SystemExit(f"{truth.response_id}: never written")
    return {
        "queue": (truth.scheduled_ns - truth.arrival_ns) / 1e6,
        "prefill": (first - truth.scheduled_ns) / 1e6,
        "decode": (last - first) / 1e6,
    }


class Run(NamedTuple):
    path: Path
    truth: Path
    words: str  # the emulator's last
    bare_ms: list[float]  # round trips of the bare loop


def measure(folder: Path, requests: str, rate: str) -> Run:
    """A run against an emulator in a process of its own."""
    plan, truth, path = folder / "plan.yaml", folder / "truth.jsonl", folder / "run"
    plan.write_text(PLAN)
    command = [sys.executable, "-m", "phasemeter", "emulate", str(plan), "--port", "0", "--truth", str(truth)]
    seconds = float(requests) / float(rate.removesuffix("/s"))
    beside = [sys.executable, str(Path(__file__).parent / "wake_floor.py"), str(seconds), rate.removesuffix("/s")]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
        subprocess.Popen(beside, stdout=subprocess.PIPE, text=True) as floor,
    ):
        words = server.stderr
        if words is None:
            raise SystemExit("no pipe to the emulator")
        url = words.readline().split(" at ")[1].strip()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run(["bench", url, "--rate", rate, "--requests", requests, "--input-tokens", "uniform:16:256", "--output-tokens",
                 "16", "--ignore-eos", "-o", str(path), "--quiet"])  # fmt: skip
        time.sleep(0.5)
        server.terminate()
        bare, _ = floor.communicate(timeout=60)
        return Run(path, truth, words.read().strip(), [int(line) / 1e6 for line in bare.split()])


def errors(path: Path, truth_file: Path) -> dict[str, list[float]]:
    truths = {truth.traceparent: truth for truth in read_truth(truth_file) if truth.traceparent}
    parents = {planned.request_id: planned.traceparent for planned in RunDirectory.open(path).planned()}
    view = server_view(path)
    budgets = view.budgets()
    found: dict[str, list[float]] = {name: [] for name in (*WANTED_MS, "ingress", "delivery")}
    for row in view.rows:
        if row.phase != "measured" or row.outcome != "ok":
            continue
        truth = truths[parents[row.request_id] or ""]
        expected = truth_ms(truth)
        found["ingress"].append((truth.arrival_ns - (row.send_start_ns or 0)) / 1e6)
        found["delivery"].append(((row.first_token_ns or 0) - (truth.written_ns[0] or 0)) / 1e6)
        told = durations_of(view.values[row.request_id])
        for name, value in expected.items():
            found[name].append(abs(told[name][0] / 1e6 - value))
        segments = budgets[row.request_id].segments
        found["remainder"].append((segments["upload"] + segments["ingress_delivery"]) / 1e6)
        if sum(segments.values()) != (row.stream_end_ns or 0) - row.due_ns:
            raise SystemExit(f"{row.request_id}: its segments don't add up")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", default="300")
    parser.add_argument("--rate", default="8/s")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_ = measure(Path(folder), asked.requests, asked.rate)
        found = errors(run_.path, run_.truth)
    found["bare trip"] = run_.bare_ms
    for name, values in found.items():
        ranked, wanted = sorted(values), WANTED_MS.get(name)
        p50, p99 = ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
        words = "" if wanted is None else f"  wanted at p99 ≤ {wanted:g} ms" + ("" if p99 <= wanted else "  OVER")
        print(f"{name:10} n {len(ranked)}  least {ranked[0]:.3f}  p50 {p50:.3f}  p99 {p99:.3f} ms{words}")
    print(f"emulator: {run_.words}")


if __name__ == "__main__":
    main()
