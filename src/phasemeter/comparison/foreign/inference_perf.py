"""inference-perf lifecycle metrics (summary, stage, per request): all times in seconds."""

from __future__ import annotations

from typing import Any

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported

_RULES = (
    (r"\.latency\.|schedule_delay|request_latency|send_duration|benchmark_time_seconds", "s", ""),
    (r"(requested|achieved)_rate|requests_per_sec", "requests/s", ""),
    (r"(input|output|total)_tokens_per_sec", "tokens/s", ""),
    (r"(images|videos|audios)_per_sec", "1/s", ""),
    (r"bytes", "bytes", ""),
    (r"prompt_tokens|output_len|output_tokens|token_count", "tokens", ""),
    (r"(image|video|audio)\.count", "1", "items a request"),
    (r"video\.frames", "frames", ""),
    (r"(input|total|completion|prompt|cached)_?tokens|prompt_tokens", "tokens", ""),
    (r"count$|concurrency|mismatches|fallback_requests", "requests", ""),
    (r"time|_times", "s", "perf_counter of the client"),
    (r"seconds", "s", ""),
    (r"pixels", "pixels", ""),
)


def detect(document: Any) -> bool:
    """Whether this is a lifecycle summary, or (a list) its requests."""
    if isinstance(document, list):
        return (
            bool(document) and isinstance(document[0], dict) and {"start_time", "end_time", "info"} <= set(document[0])
        )
    return isinstance(document, dict) and "load_summary" in document and "successes" in document


def read(document: Any) -> Imported:
    """A summary (or stage) file; of per-request files only what they hold: latency and counts."""
    return _requests(document) if isinstance(document, list) else _summary(document)


def _summary(document: dict[str, Any]) -> Imported:
    dialect = model.dialect_named("inference-perf")
    load, good, bad = document["load_summary"] or {}, document["successes"] or {}, document.get("failures") or {}
    ok = int(good.get("count") or 0)
    manifest = model.manifest_of(
        dialect, None, rate_per_s=model.rate_of(load.get("requested_rate")), requests=load.get("count"),
        concurrency=load.get("concurrency"), duration_s=document.get("benchmark_time_seconds"),
    )  # fmt: skip
    result = model.result_of(model.from_printed(dialect, good, ok), manifest,
        model.outcomes_of(ok, bad.get("count") or 0), model.throughput_of(dialect, good),
        model.Counting(tokens=model.USAGE if good.get("token_count_mismatches") == 0 else None),
    )  # fmt: skip
    return Imported(tool="inference-perf", result=result, numbers=model.numbers_of(document, _RULES, dialect.id))


def _requests(document: list[dict[str, Any]]) -> Imported:
    dialect = model.dialect_named("inference-perf")
    latencies = [r["end_time"] - r["start_time"] for r in document if not r.get("error")]
    metrics = {"request_latency": model.recomputed(dialect, "request_latency", "s", latencies)} if latencies else {}
    manifest = model.manifest_of(dialect, None, requests=len(document))
    result = model.result_of(metrics, manifest, model.outcomes_of(len(latencies), len(document) - len(latencies)),
        model.throughput_of(dialect, {}),
    )  # fmt: skip
    return Imported(tool="inference-perf", result=result, numbers=model.numbers_of(document, _RULES, dialect.id),
                    values={"request_latency": latencies} if latencies else {})  # fmt: skip
