"""The simulator against real vLLM runs of 300 ShareGPT requests, with nothing fitted to them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from phasemeter.serving.deploy import build
from phasemeter.serving.events import Event, Finished
from phasemeter.serving.plan import parse_plan
from phasemeter.serving.sequence import Request

RUNS = Path(__file__).parents[3] / "shared" / "data" / "vllm_runs"
PLAN = """
workload: {input_tokens: 100, output_tokens: 100, arrivals: {poisson: 1/s}}
deployment: {model: llama-3.1-8b, policy: vllm_v1, max_num_batched_tokens: 2048, """

PROFILES = RUNS.parent / "layer_profiles"

# (accelerator, its limits as the run's meta.json resolved them): largest errors of mean TTFT and TPOT. Nearly all of TTFT is waiting for
# memory (RTX 4090) or for one of 128 seats (RTX PRO 6000): there an error of step time counts several times.
CASES = {
    "the formula, RTX 4090": ("RTX4090", "hardware: RTX4090, max_num_seqs: 256, kv_tokens: 41408}", 0.04, 0.02),
    "the formula, RTX PRO 6000": ("RTXPRO6000", "hardware: RTXPRO6000, max_num_seqs: 128}", 0.09, 0.03),
    "its kernels, RTX PRO 6000": (
        "RTXPRO6000", "hardware: RTXPRO6000, max_num_seqs: 128, step_time: {tables: here}}", 0.03, 0.03
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_mean_ttft_and_tpot_are_within_a_few_percent_of_a_real_run(case: str) -> None:
    hardware, rest, ttft_error, tpot_error = CASES[case]
    run = RUNS / f"{hardware}_Llama-3.1-8B"
    if not run.is_dir():
        pytest.skip(f"../shared is not here: {run}")

    def read(name: str) -> list[str]:
        folder = PROFILES / f"{hardware}_meta-llama_Llama-3.1-8B_bf16_tp1"
        return (folder / Path(name).name).read_text().splitlines(keepends=True)

    rows = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: float(row["queued_ts"]))
    serving = build(parse_plan(PLAN + rest, read=read), tokens=False)
    events: list[Event] = []
    for number, row in enumerate(rows):
        arrival = round((row["queued_ts"] - rows[0]["queued_ts"]) * 1e9)
        events += serving.advance(max(0, arrival - 1))
        serving.submit(
            arrival,
            Request(
                request_id=str(number),
                prompt_tokens=row["input_toks"],
                output_tokens=row["output_toks"],
                arrival_ns=arrival,
            ),
        )
    while (due := serving.due_ns()) is not None:
        events += serving.advance(due)
    truths = [one.truth for one in events if isinstance(one, Finished)]
    real_ttft = fmean(row["first_token_ts"] - row["queued_ts"] for row in rows)
    ttft = fmean((one.first_token_ns - one.arrival_ns) / 1e9 for one in truths)
    real_tpot = fmean(
        (r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1) for r in rows if r["output_toks"] > 1
    )
    tpot = fmean((t.finish_ns - t.first_token_ns) / 1e9 / (t.output_tokens - 1) for t in truths if t.output_tokens > 1)
    assert len(truths) == len(rows)
    assert ttft == pytest.approx(real_ttft, rel=ttft_error)
    assert tpot == pytest.approx(real_tpot, rel=tpot_error)
