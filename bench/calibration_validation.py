"""How well a calibration predicts: every number of docs/validation/calibration.md.

    python bench/calibration_validation.py intervals
    python bench/calibration_validation.py emulator FOLDER
    chrt -r 1 python bench/calibration_validation.py engine FOLDER
    python bench/calibration_validation.py vllm

`emulator` and `engine` measure (two and five minutes) what FOLDER doesn't hold yet, and read it. `chrt` keeps other processes from the
engine's core: without it a busy machine is what is measured. `vllm` needs the recorded runs in ../shared beside the repository.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phasemeter.io.embedded_engine import embedded_engine
from phasemeter.report.calibration import words
from phasemeter.runs.asked import Asked
from phasemeter.runs.calibrate import build_of, study
from phasemeter.runs.measure import bench
from phasemeter.serving.plan import parse_plan
from phasemeter.studies.calibrate.fit import fit
from phasemeter.studies.calibrate.observed import Observed, Run, in_order
from phasemeter.studies.calibrate.rows import COLUMNS, Rows, in_blocks
from phasemeter.studies.calibrate.study import Calibration, calibrate

VALUES = np.array([0.02, 0.021, 0.018, 0.0195, 1e-4, 6e-7, 4e-5, 7e-9])  # by COLUMNS
PLAN = """
workload: {input_tokens: 128, output_tokens: {fixed: 32}, arrivals: {poisson: 4 req/s}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  step_time: {linear: {prefill_s: [0.009, 0.00006, 2.0e-9], decode_s: [0.008, 2.0e-7, 0.0001]}}
"""
VLLM_PLAN = """
workload: {input_tokens: 100, output_tokens: 100, arrivals: {poisson: 1/s}}
deployment: {model: llama-3.1-8b, policy: vllm_v1, max_num_batched_tokens: 2048, """
VLLM = {
    "RTX4090": "hardware: RTX4090, max_num_seqs: 256, kv_tokens: 41408}",
    "RTXPRO6000": "hardware: RTXPRO6000, max_num_seqs: 128}",
}
MIXED = {"input_tokens": "uniform:32:512", "output_tokens": "uniform:16:64", "ignore_eos": True, "warmup": "2"}
FRESH = MIXED | {"input_tokens": "lognormal:128:400"}
ON_THE_EMULATOR: dict[str, dict[str, Any]] = {
    "alone": MIXED | {"concurrency": "1", "requests": "40"},
    "loaded": MIXED | {"concurrency": "8", "requests": "120", "seed": 1},
    "fresh": FRESH | {"rate": "12/s", "requests": "200", "seed": 2},
}
ON_THE_ENGINE: dict[str, dict[str, Any]] = {
    "alone": MIXED | {"concurrency": "1", "requests": "24", "output_tokens": "uniform:16:48"},
    "four": MIXED | {"concurrency": "4", "requests": "48", "seed": 1},
    "fresh": FRESH | {"rate": "1.2/s", "requests": "48", "seed": 2},
}


def measure(url: str, folder: Path, loads: Mapping[str, dict[str, Any]]) -> None:
    for name, load in loads.items():
        if not (folder / name).exists():
            bench(url, Asked(**load, output=str(folder / name)))


def show(folder: Path, held_out: str) -> None:
    fitted = [path for path in sorted(folder.iterdir()) if path.name != held_out and (path / "capture").is_dir()]
    print("\n".join(words(study(fitted, [folder / held_out], even_invalid=True))))


def on_the_emulator(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.yaml").write_text(PLAN)
    command = [sys.executable, "-m", "phasemeter", "emulate", str(folder / "plan.yaml"), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = re.search(r"http://[\d.:]+", server.stderr.readline())
        assert url is not None
        measure(url[0], folder, ON_THE_EMULATOR)
    finally:
        server.terminate()
        server.communicate(timeout=20)
    show(folder, "fresh")


def on_the_engine(folder: Path) -> None:
    if any(not (folder / name).exists() for name in ON_THE_ENGINE):
        with embedded_engine(slots=4, threads=1) as engine:
            measure(engine.url, folder, ON_THE_ENGINE)
    show(folder, "fresh")


def noisy(seed: int, noise: float, stalls: float, rows: int = 600) -> Rows:
    """Equations that VALUES keep, with relative noise and a share of stalls of five times."""
    generator = np.random.default_rng(seed)
    kind = generator.choice(4, rows, p=[0.6, 0.2, 0.1, 0.1])
    batch, prompt = generator.integers(1, 33, rows), generator.integers(16, 2048, rows).astype(float)
    x = np.zeros((rows, len(COLUMNS)))
    x[np.arange(rows), kind] = 1
    decodes, prompts = kind < 2, kind > 0
    x[decodes, COLUMNS.index("sequences")] = batch[decodes]
    x[decodes, COLUMNS.index("contexts")] = (batch * generator.integers(50, 1500, rows))[decodes]
    x[prompts, COLUMNS.index("tokens")] = prompt[prompts]
    x[prompts, COLUMNS.index("squares")] = prompt[prompts] ** 2
    y = x @ VALUES * np.exp(noise * generator.standard_normal(rows))
    y = np.where(generator.random(rows) < stalls, 5 * y, y)
    made = Rows(x=x, y=y, at_s=np.arange(rows) * 0.02, kind=kind, block=np.zeros(rows, dtype=np.int64))
    return in_blocks([made], 40)


def intervals(runs: int = 300) -> None:
    for noise, stalls in ((0.02, 0.0), (0.05, 0.03), (0.1, 0.1)):
        held = np.zeros(len(COLUMNS))
        for seed in range(runs):
            found = fit(noisy(seed, noise, stalls))
            for column, true in enumerate(VALUES):
                low, high = found.interval(lambda values, column=column: float(values[column]))  # type: ignore[misc]
                held[column] += low is not None and high is not None and low <= true <= high
        each = ", ".join(f"{name} {100 * share:.0f}" for name, share in zip(COLUMNS, held / runs, strict=True))
        print(
            f"noise {100 * noise:.0f} %, stalls {100 * stalls:.0f} %: {100 * held.mean() / runs:.1f} % hold the truth ({each})"
        )


def on_vllm() -> None:
    """Fitted on the first half of a recorded run and held against the second: only first and last tokens are on record."""
    for name, deployment in VLLM.items():
        folder = Path(__file__).parents[2] / "shared" / "data" / "vllm_runs" / f"{name}_Llama-3.1-8B"
        told = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        plan = parse_plan(VLLM_PLAN + deployment)
        found = calibrate([vllm_run(told, name)], [], build_of(plan))
        assert isinstance(found, Calibration)
        print(name, found.rows)
        for one in found.model.constants:
            print(f"  {one.name} {one.value} {one.ci95} {one.status}: {one.by}")
        for prediction in found.predictions:
            for metric, error in prediction.errors.items():
                off = f"mean {error.mean:+.1%}, median {error.median:.1%}, p95 {error.p95:.1%}"
                print(f"  {prediction.fitted_on} {metric}: n {error.n}, {off}")


def vllm_run(told: list[dict[str, Any]], name: str) -> Run:
    """From vLLM's own instants: queued, scheduled, first and last token."""
    began = min(float(one["queued_ts"]) for one in told)
    requests = [
        Observed(
            request_id=one["request_id"], sent_s=one["queued_ts"] - began, first_s=one["first_token_ts"] - began,
            last_s=one["last_token_ts"] - began, prompt_tokens=one["input_toks"], output_tokens=one["output_toks"],
            prefill_s=one["first_token_ts"] - one["scheduled_ts"], queue_s=one["scheduled_ts"] - one["queued_ts"],
        )
        for one in told
    ]  # fmt: skip
    return Run(name=name, requests=in_order(requests), budget=2048)


def main() -> None:
    section, *rest = sys.argv[1:] or ["intervals"]
    if section == "intervals":
        intervals()
    elif section == "vllm":
        on_vllm()
    else:
        {"emulator": on_the_emulator, "engine": on_the_engine}[section](Path(rest[0]))


if __name__ == "__main__":
    main()
