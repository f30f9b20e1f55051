"""A result as an llm-d benchmark report, version 0.2.1, in YAML.

Lives here: their names and units for ours. Must not live here: any computing.
Source: llm-d-benchmark, benchmark-report/llmd_benchmark_report/br_v0_2_1_json_schema.json. What a run doesn't record is left
out; their required `input_seq_len` is the realised mean where the asked distribution is none of theirs.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import yaml

from phasemeter import __version__
from phasemeter.records.result import Metric, Result

VERSION = "0.2.1"
# their metric: (ours, their unit)
LATENCIES = {
    "time_to_first_token": ("ttft", "s"),
    "time_per_output_token": ("tpot", "s/token"),
    "inter_token_latency": ("itl", "s/token"),
    "request_latency": ("e2e", "s"),
}
RATES = {
    "request_rate": ("requests_per_s", "queries/s"),
    "output_token_rate": ("output_tokens_per_s", "tokens/s"),
    "total_token_rate": ("total_tokens_per_s", "tokens/s"),
}


def text(result: Result) -> str:
    """The report."""
    return str(yaml.safe_dump(document(result), sort_keys=False, allow_unicode=True))


def document(result: Result) -> dict[str, Any]:
    """The report as plain data."""
    run = result.run
    uid = hashlib.sha256(json.dumps(run, sort_keys=True, default=str).encode()).hexdigest()[:32]
    started = run.get("started_utc")
    times = {"time": _time(result, started)} if started else {}
    return {
        "version": VERSION,
        "run": {"uid": uid, "eid": uid, **times, "description": f"phasemeter {__version__} run {run.get('run_id') or ''}".strip()},
        "scenario": {"stack": [_stack(run)], "load": _load(result)},
        "results": {"request_performance": {"aggregate": {
            "requests": _requests(result), "latency": _latency(result), "throughput": _throughput(result)}}},
    }  # fmt: skip


def _time(result: Result, started: str) -> dict[str, Any]:
    whole = (result.throughput.get("whole_run") or {}).get("window") or {}
    length = whole.get("length_s")
    return {"start": started, **({} if length is None else {"duration": f"PT{length:.6f}S"})}


def _stack(run: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in run.items() if value is not None and name in (
        "model", "model_revision", "accelerator", "accelerator_count", "dtype", "quantisation", "tensor_parallel",
        "pipeline_parallel", "data_parallel", "expert_parallel", "scheduling", "kv_policy", "prefix_cache")}  # fmt: skip
    return {
        "metadata": {"label": "service", "cfg_id": _hash(known)},
        "standardized": {"kind": "generic", "tool": str(run.get("engine") or "unrecorded"),
                         "tool_version": str(run.get("engine_version") or "unrecorded"), **known},
        "native": {},
    }  # fmt: skip


def _load(result: Result) -> dict[str, Any]:
    run = result.run
    told: dict[str, Any] = {
        "tool": "phasemeter", "tool_version": __version__, "parallelism": run.get("processes") or 1,
        "source": _source(run), "input_seq_len": _length(result, "input_tokens"),
    }  # fmt: skip
    if run.get("output_tokens") is not None:
        told["output_seq_len"] = _length(result, "output_tokens")
    rate, slots = run.get("rate_per_s"), run.get("concurrency")
    if isinstance(rate, int | float) and rate > 0:
        told["rate_qps"] = rate
    if slots is not None:
        told["concurrency"] = slots
    asked = {
        name: run[name]
        for name in ("input_tokens", "output_tokens", "arrivals", "seed", "api")
        if run.get(name) is not None
    }
    return {"metadata": {"cfg_id": _hash(asked)}, "standardized": told, "native": {"config": asked}}


def _source(run: dict[str, Any]) -> str:
    prompts = str((run.get("body") or {}).get("prompts") or "")
    return "random" if "generated" in prompts else "sampled" if prompts else "unknown"


def _length(result: Result, name: str) -> dict[str, Any]:
    """As asked where it is a distribution of theirs (in the manifest's words or a contract's form), else what was realised."""
    asked = result.run.get(name)
    fixed = asked.get("fixed") if isinstance(asked, dict) else asked
    if re.fullmatch(r"\d+( tokens)?", str(fixed or "")):
        return {"distribution": "fixed", "value": int(str(fixed).split()[0])}
    realised = (result.workload.get("realised") or {}).get(name) or {}
    bounds = {side: int(realised[side]) for side in ("min", "max") if realised.get(side)}
    return {"distribution": "other", "value": realised.get("mean") or 0, **bounds}


def _requests(result: Result) -> dict[str, Any]:
    seen = result.outcomes
    told: dict[str, Any] = {
        "total": seen.scheduled - seen.unsent, "failures": sum(seen.failed.values()), "incomplete": seen.cancelled,
    }  # fmt: skip
    for theirs, ours in (("input_length", "input_tokens"), ("output_length", "output_tokens")):
        spread = (result.workload.get("realised") or {}).get(ours) or {}
        if spread.get("mean") is not None:
            named = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "min": "min", "max": "max"}
            told[theirs] = {"units": "count", "mean": spread["mean"]} | {
                key: spread[name] for key, name in named.items() if isinstance(spread.get(name), int | float)
            }
    return told


def _latency(result: Result) -> dict[str, Any]:
    found = {}
    for theirs, (ours, unit) in LATENCIES.items():
        metric = result.metrics.get(ours)
        if metric is not None and metric.mean is not None:
            found[theirs] = _statistics(metric, unit)
    return found


def _statistics(metric: Metric, unit: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "units": unit,
        "mean": metric.mean,
        "stddev": metric.std,
        "min": metric.min,
        "max": metric.max,
    }
    told |= {name.replace(".", "p"): percentile.value for name, percentile in metric.percentiles.items()}
    return {name: value for name, value in told.items() if value is not None}


def _throughput(result: Result) -> dict[str, Any]:
    rates = {theirs: (result.throughput.get(ours), unit) for theirs, (ours, unit) in RATES.items()}
    return {theirs: {"units": unit, "mean": rate} for theirs, (rate, unit) in rates.items() if rate is not None}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
