"""A recorded run of vLLM, of which only first and last tokens are known: fitted by whole answers, predicted again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.runs.calibrate import build_of
from phasemeter.serving.plan import parse_plan
from phasemeter.studies.calibrate.observed import Observed, Run, in_order
from phasemeter.studies.calibrate.study import Calibration, calibrate

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "vllm_runs" / "RTXPRO6000_Llama-3.1-8B"
PLAN = """
workload: {input_tokens: 100, output_tokens: 100, arrivals: {poisson: 1/s}}
deployment: {model: llama-3.1-8b, hardware: RTXPRO6000, policy: vllm_v1, max_num_batched_tokens: 2048, max_num_seqs: 128}
"""


def test_a_recorded_run_of_vllm_is_met_by_five_constants() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"../shared is not here: {FOLDER}")
    told = [json.loads(line) for line in (FOLDER / "requests.jsonl").read_text().splitlines()]
    began = min(one["queued_ts"] for one in told)
    requests = [
        Observed(
            request_id=one["request_id"], sent_s=one["queued_ts"] - began, first_s=one["first_token_ts"] - began,
            last_s=one["last_token_ts"] - began, prompt_tokens=one["input_toks"], output_tokens=one["output_toks"],
        )
        for one in told
    ]  # fmt: skip
    run = Run(name="vllm", requests=in_order(requests), budget=2048)
    found = calibrate([run], [], build_of(parse_plan(PLAN)))
    assert isinstance(found, Calibration)
    error = found.predictions[0].errors
    assert error["ttft"].mean == pytest.approx(0, abs=0.03)
    assert error["tpot"].mean == pytest.approx(0, abs=0.02)
    assert error["e2e"].p95 is not None and error["e2e"].p95 < 0.05
    assert found.model.constant("prefill.constant").status == "assumed"
