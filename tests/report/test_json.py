"""The documented shape of a result, strict."""

from __future__ import annotations

import json

import pytest

from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.manifest import Manifest
from phasemeter.report.json import document, dumps
from tests.metrics.rows import row


def test_a_result_has_the_documented_keys_and_percentiles_beside_the_mean() -> None:
    rows = [row([100 + 7 * k % 11, 120 + 7 * k % 11], request_id=str(k), due_ms=k, send_ms=k) for k in range(40)]
    plain = document(analyse_rows(rows, Manifest(rate_per_s=4.0, model="m")))
    for key in ("phasemeter", "run", "partial", "validity", "outcomes", "definitions", "metrics", "throughput", "goodput",
                "budget", "workload", "warnings"):  # fmt: skip
        assert key in plain, key
    assert plain["phasemeter"] == 1
    assert plain["run"]["model"] == "m"
    assert plain["definitions"] == "phasemeter/1"
    assert set(plain["outcomes"]) >= {"scheduled", "ok", "failed", "cancelled", "unsent", "error_rate"}
    ttft = plain["metrics"]["ttft"]
    assert set(ttft) >= {"definition", "unit", "n", "mean", "min", "max", "p50", "p90", "p95", "p99", "excluded"}
    assert ttft["unit"] == "s"
    assert set(ttft["p50"]) == {"value", "ci95"}
    assert len(ttft["p50"]["ci95"]) == 2
    assert ttft["p99"]["flag"] == "few_samples"
    assert {"requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "window"} <= set(plain["throughput"])


def test_what_is_undefined_is_null_beside_a_reason() -> None:
    plain = json.loads(dumps(analyse_rows([row([100])])), parse_constant=pytest.fail)
    assert plain["metrics"]["tpot"]["mean"] is None
    assert plain["metrics"]["tpot"]["p99"]["value"] is None
    assert plain["metrics"]["tpot"]["reason"] == "fewer_than_2_tokens"
    assert "reason" not in plain["metrics"]["ttft"]


def test_a_run_read_as_another_tool_prints_that_tools_names_and_units() -> None:
    plain = document(analyse_rows([row([100, 120, 140])], tool="vllm"))
    assert plain["definitions"] == "vllm@0.33"
    assert plain["metrics"]["ttft"]["unit"] == "ms"
    assert plain["metrics"]["ttft"]["mean"] == 100
    assert plain["workload"]["as_tool"]["printed"]["mean_tpot_ms"] == pytest.approx(20)
    assert "request_throughput" in plain["throughput"]
