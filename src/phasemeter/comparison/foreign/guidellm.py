"""GuideLLM `benchmarks.json`: `*_ms` in ms, request_latency and delays in seconds, instants in Unix seconds."""

from __future__ import annotations

from typing import Any

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported

_RULES = (
    (r"\.count$", "values", "how many values"),
    (r"\.pdf", "1", "density"),
    (r"^metrics\.\w+_ms(\.|$)", "ms", "GuideLLM distribution, token-weighted where it is per token"),
    (r"^metrics\.(request_latency|request_dispatch_delay|request_scheduled_latency|\w+_delay)(\.|$)", "s", "distribution"),
    (r"^metrics\.requests_per_second", "requests/s", "distribution"),
    (r"^metrics\.\w*tokens_per_second", "tokens/s", "distribution"),
    (r"^metrics\.request_(totals|concurrency)", "requests", ""),
    (r"^metrics\.\w*token_count", "tokens", "distribution"),
    (r"^metrics\.\w+\.tokens", "tokens", ""),
    (r"^metrics\.", "1", "count or ratio under that name"),
    (r"^requests\.\w+\[\]\.info\.timings\.\w+_iterations$", "1", "count"),
    (r"^requests\.\w+\[\]\.info\.timings\.", "s", "Unix time"),
    (r"_ms$", "ms", ""),
    (r"tokens_per_second", "tokens/s", ""),
    (r"^requests\..*tokens?(_count)?$", "tokens", ""),
    (r"^requests\..*(latency|_time|duration)$", "s", ""),
    (r"^scheduler_metrics\.requests_made|^scheduler_state\.\w*requests$", "requests", ""),
    (r"^scheduler_(metrics|state)\..*(time|delay|avg)", "s", "instants are Unix time"),
    (r"^(start_time|end_time)$", "s", "Unix time"),
    (r"duration$", "s", ""),
)  # fmt: skip


def detect(document: Any) -> bool:
    """Whether this is GuideLLM's report."""
    return isinstance(document, dict) and isinstance(document.get("benchmarks"), list) and (
        "guidellm_version" in (document.get("metadata") or {})
        or any(isinstance(b, dict) and "scheduler_metrics" in b for b in document["benchmarks"])
    )  # fmt: skip


def read_all(document: dict[str, Any]) -> list[Imported]:
    """One result a benchmark of the report."""
    version = (document.get("metadata") or {}).get("guidellm_version")
    head = {key: value for key, value in document.items() if key != "benchmarks"}
    return [_one(benchmark, head, version) for benchmark in document["benchmarks"]]


def _one(benchmark: dict[str, Any], head: dict[str, Any], version: str | None) -> Imported:
    dialect = model.dialect_named("guidellm")
    measured = benchmark["metrics"]
    table = {
        name: _flat(block["successful"])
        for name, block in measured.items()
        if isinstance(block, dict) and isinstance(block.get("successful"), dict)
    }
    totals = measured.get("request_totals") or {}
    config = benchmark.get("config") or {}
    strategy, backend = config.get("strategy") or {}, config.get("backend") or {}
    data = (model.look(head, "config.spec.data") or [{}])[0]
    manifest = model.manifest_of(
        dialect, f"GuideLLM {version}", model=backend.get("model"), api=backend.get("request_format"),
        url=backend.get("target"), streaming=backend.get("stream"), concurrency=strategy.get("streams"),
        rate_per_s=model.rate_of(strategy.get("rate")), requests=totals.get("total"),
        duration_s=benchmark.get("duration"), input_tokens=_length(data, "prompt"), output_tokens=_length(data, "output"),
        seed=model.look(config, "requests.seed") or model.look(head, "config.spec.seed.value"),
    )  # fmt: skip
    rates = model.throughput_of(dialect, table | {"duration": benchmark.get("duration")})
    outcomes = model.outcomes_of(totals.get("successful", 0), totals.get("errored", 0), totals.get("incomplete", 0))
    result = model.result_of(model.from_printed(dialect, table, outcomes.ok), manifest, outcomes, rates)
    numbers = model.numbers_of(benchmark, _RULES, dialect.id) | model.numbers_of(head, _RULES, dialect.id, "report:")
    return Imported(tool="guidellm", result=result, numbers=numbers)


def _flat(distribution: dict[str, Any]) -> dict[str, Any]:
    """A distribution with its percentiles beside its mean, as the dialect's labels name them."""
    return {**distribution, **(distribution.get("percentiles") or {})}


def _length(data: dict[str, Any], which: str) -> Any:
    tokens, spread = data.get(f"{which}_tokens"), data.get(f"{which}_tokens_stdev")
    if tokens is None:
        return None
    return {"normal": {"mean": tokens, "sd": spread}} if spread else {"fixed": tokens}
