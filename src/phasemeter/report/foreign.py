"""A run as the result file that another tool writes: for what its users already have (plots, dashboards, regressions).

Lives here: the forms of vLLM's and AIPerf's files around the numbers of `metrics/dialects`. Must not live here: their
definitions. Our own result stands in the same document under our own keys (both tools' readers take unknown keys).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from phasemeter import __version__
from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import BOUNDARIES, compute
from phasemeter.metrics.dialects import dialect
from phasemeter.metrics.dialects.model import Dialect
from phasemeter.metrics.dialects.reading import Reading
from phasemeter.metrics.document import document, strict
from phasemeter.metrics.gaps import inter_chunk
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result
from phasemeter.report import foreign_aiperf

VLLM_BACKENDS = {"openai.chat": "openai-chat", "openai.completions": "openai"}
AIPERF_TYPES = {"openai.chat": "chat", "openai.completions": "completions", "openai.responses": "responses"}
AIPERF_UNITS = {"tokens/s": "tokens/sec/user"}


def writes(tool: str) -> bool:
    """Whether that tool's own file can be written."""
    return dialect(tool).name in WRITERS


def dumps(result: Result, rows: Iterable[RequestRow]) -> str:
    """`result` (read as that tool) in the tool's form, with its own keys first, as strict JSON."""
    other = dialect(result.definitions)
    measured = sorted(
        (row for row in rows if row.phase == "measured" and row.outcome != "unsent"), key=lambda row: row.due_ns
    )
    own = WRITERS[other.name](result, measured, other)
    return json.dumps(
        strict(own | {k: v for k, v in document(result).items() if k not in own}), ensure_ascii=False, allow_nan=False
    )


def _vllm(result: Result, rows: list[RequestRow], other: Dialect) -> dict[str, Any]:
    """The JSON of `vllm bench serve --save-result --save-detailed`; its reader's keys, seconds in arrays, ms in summaries."""
    run, printed, reading = result.run, result.workload["as_tool"]["printed"], Reading(other)
    counted = [reading.as_it_counts(row) if reading.counts(row) else None for row in rows]
    backend = VLLM_BACKENDS.get(str(run.get("api")), str(run.get("api")))
    inputs = [0 if row.input_tokens is None else row.input_tokens for row in rows]
    outputs = [0 if one is None else one.output_tokens or 0 for one in counted]
    ok_input = sum(n for n, one in zip(inputs, counted, strict=True) if one is not None)
    starts = [_seconds(BOUNDARIES["dispatch"](row)) for row in rows]
    definitions = {row.key: row.definition for row in other.rows}

    def values(key: str) -> list[float]:
        return [0.0 if one is None else _or_zero(lambda one=one: compute(definitions[key], one)) for one in counted]  # type: ignore[misc]

    percentiles = {key: value for key, value in printed.items() if key.endswith("_ms")}
    queued = [None if (at := BOUNDARIES["dispatch"](row)) is None else (at - row.due_ns) / 1e9 for row in rows]
    busiest, most_open = _peaks([one for one in counted if one is not None])
    return {
        "date": _date(run.get("started_utc")), "endpoint_type": backend, "backend": backend, "label": run.get("run_id"),
        "model_id": run.get("model"), "tokenizer_id": run.get("tokenizer") or run.get("model"), "num_prompts": len(rows),
        "request_rate": run.get("rate_per_s") or "inf", "burstiness": 1.0, "max_concurrency": run.get("concurrency"),
        "duration": printed["duration"], "completed": printed["completed"], "failed": printed["failed"],
        "total_input_tokens": ok_input, "total_output_tokens": sum(outputs),
        "request_throughput": printed["request_throughput"],
        "request_goodput": None if result.goodput is None else result.goodput["per_s"],
        "output_throughput": printed["output_throughput"], "total_token_throughput": printed["total_token_throughput"],
        "input_lens": inputs, "output_lens": outputs, "ttfts": values("ttft"), "itls": [_gaps(one) for one in counted],
        "latencies": values("e2el"), "start_times": starts, "queue_times": queued, "rtfx": 0.0,  # of audio
        "max_output_tokens_per_s": busiest, "max_concurrent_requests": most_open, "generated_texts": [""] * len(rows),
        "errors": ["" if one is not None else row.failure_text or row.failure or row.outcome
                   for row, one in zip(rows, counted, strict=True)],
        **percentiles,
    }  # fmt: skip


def _aiperf(result: Result, rows: list[RequestRow], other: Dialect) -> dict[str, Any]:
    """AIPerf's profile_export_aiperf.json: a block a metric, each with its unit."""
    run, printed, reading = result.run, result.workload["as_tool"]["printed"], Reading(other)
    counted = [reading.as_it_counts(row) for row in rows if reading.counts(row)]
    blocks: dict[str, Any] = {}
    for own in other.rows:
        metric = result.metrics[own.key]
        if metric.n:
            statistics = {label: printed.get(own.printed.format(stat=label)) for _, label in other.statistics}
            statistics |= {label: printed.get(own.printed.format(stat=label)) for label, _ in other.percentiles}
            mean = statistics.get("avg")
            statistics["sum"] = None if mean is None else mean * metric.n
            blocks[own.key] = {"unit": AIPERF_UNITS.get(own.unit, own.unit), **statistics}
    outputs = [one.output_tokens for one in counted if one.output_tokens is not None]
    inputs = [one.input_tokens for one in counted if one.input_tokens is not None]
    for name, lengths in (("output_sequence_length", outputs), ("input_sequence_length", inputs)):
        if lengths:
            blocks[name] = foreign_aiperf.spread(lengths, "tokens", other.percentiles)
    blocks |= foreign_aiperf.per_request(counted, other.percentiles)
    blocks |= foreign_aiperf.sweeps(counted)
    blocks |= foreign_aiperf.totals(counted, len(rows), printed.get("benchmark_duration.avg"))
    failures: dict[str, int] = {}
    for row in rows:
        if not reading.counts(row) and row.outcome == "failed":
            failures[row.failure or "unknown"] = failures.get(row.failure or "unknown", 0) + 1
    for key, unit in (("request_throughput", "requests/sec"), ("output_token_throughput", "tokens/sec"),
                      ("request_count", "requests"), ("benchmark_duration", "sec")):  # fmt: skip
        blocks[key] = {"unit": unit, "avg": printed.get(f"{key}.avg")}
    if result.goodput is not None and result.goodput["per_s"] is not None:
        blocks["goodput"] = {"unit": "requests/sec", "avg": result.goodput["per_s"]}
    return {
        "schema_version": "1.4", "aiperf_version": f"{other.version} (written by phasemeter {__version__})",
        "benchmark_id": run.get("run_id"), **blocks, "input_config": _aiperf_config(run, len(rows)),
        "was_cancelled": result.partial, "is_complete": not result.partial, "start_time": run.get("started_utc"),
        "end_time": _later(run.get("started_utc"), printed),
        "run_info": {"benchmark_id": run.get("run_id"), "trial": 0},
        "error_summary": [{"error_details": {"type": kind, "message": kind}, "count": n} for kind, n in failures.items()],
    }  # fmt: skip


def _aiperf_config(run: Mapping[str, Any], requests: int) -> dict[str, Any]:
    phase: dict[str, Any] = {"name": "profiling", "kind": "profiling", "requests": requests}
    rate = run.get("rate_per_s")
    phase |= (
        {"type": "concurrency", "concurrency": run.get("concurrency")}
        if rate is None
        else {"type": "poisson", "rate": rate}
    )
    kind = AIPERF_TYPES.get(str(run.get("api")), str(run.get("api")))
    lengths = {
        name: {"mean": float(run[ours]), "stddev": 0.0}
        for name, ours in (("isl", "input_tokens"), ("osl", "output_tokens"))
        if str(run.get(ours) or "").isdigit()
    }
    return {
        "models": {"items": [{"name": run.get("model")}]},
        "datasets": [{"name": "default", "type": "synthetic", "entries": requests, "prompts": lengths}],
        "endpoint": {"urls": [run.get("url")], "type": kind, "streaming": run.get("streaming")},
        "phases": [phase],
    }


WRITERS: Mapping[str, Callable[[Result, list[RequestRow], Dialect], dict[str, Any]]] = {
    "vllm": _vllm,
    "aiperf": _aiperf,
}


def _peaks(rows: Sequence[RequestRow]) -> tuple[float, int]:
    """(most chunks in one second, most requests open in one second) of successful requests, seconds counted from the first send:
    vLLM calls chunks tokens here."""
    chunks: Counter[int] = Counter()
    opened: Counter[int] = Counter()
    start = min((row.send_start_ns for row in rows if row.send_start_ns is not None), default=0)
    for row in rows:
        if row.send_start_ns is None or row.last_token_ns is None:
            continue
        chunks.update((at - start) // 10**9 for choice in row.choices for at in choice.times_ns)
        opened.update(range((row.send_start_ns - start) // 10**9, (row.last_token_ns - start) // 10**9 + 1))
    return float(max(chunks.values(), default=0)), max(opened.values(), default=0)


def _later(started: str | None, printed: Mapping[str, Any]) -> str | None:
    """When the benchmark ended, by the clock that said when it began."""
    length_s = printed.get("benchmark_duration.avg")
    if started is None or length_s is None:
        return None
    return (datetime.fromisoformat(started) + timedelta(seconds=length_s)).isoformat()


def _gaps(row: RequestRow | None) -> list[float]:
    if row is None:
        return []
    try:
        return [float(gap) for gap in np.asarray(inter_chunk(row))]
    except Undefined:
        return []


def _or_zero(read: Callable[[], float]) -> float:
    """vLLM writes 0 for what a request has not."""
    try:
        return read()
    except Undefined:
        return 0.0


def _seconds(instant_ns: int | None) -> float | None:
    return None if instant_ns is None else instant_ns / 1e9


def _date(started: str | None) -> str | None:
    """vLLM's stamp: 20261129-144118."""
    return None if started is None else started.replace("-", "").replace(":", "").replace("T", "-").rstrip("Z")[:15]
