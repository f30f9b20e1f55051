"""vLLM `bench serve` JSON: summaries in ms, detailed arrays in seconds."""

from __future__ import annotations

from typing import Any

import msgspec

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported

_RULES = (
    (r"^(mean|median|std|p[\d.]+)_\w+_ms$", "ms", "statistic over successful requests; itl over gaps"),
    (
        r"^(ttfts|itls|latencies|queue_times|server_queue_times|server_ttfts)",
        "s",
        "one value a request, in request order",
    ),
    (r"^start_times", "s", "perf_counter of the client"),
    (r"^(input_lens|output_lens)", "tokens", "one value a request"),
    (r"^duration$", "s", "first dispatch to the end of the last task"),
    (r"^(request_throughput|request_goodput|request_rate)$", "requests/s", ""),
    (r"^(output_throughput|total_token_throughput|max_output_tokens_per_s)$", "tokens/s", ""),
    (r"^total_(input|output)_tokens$", "tokens", ""),
    (r"^(completed|failed|num_prompts|max_concurrency|max_concurrent_requests)$", "requests", ""),
    (r"^burstiness$", "1", "shape of the gamma arrivals"),
    (r"^rtfx$", "1", "real-time factor of audio"),
    (r"_ms$", "ms", ""),
)


OLDER = "vllm@0.32"  # before files named their `endpoint_type` (2025), chat clocks started at the role chunk
# 0.32 writes the same fields as 0.33 (vllm/benchmarks/serve.py of both), and its chat clock starts at the role chunk
UNSAID = "which vLLM wrote it is not in the file: read as 0.33's; up to 0.32 a chat TTFT ends at the role chunk"


def detect(document: Any) -> bool:
    """Whether this is one run's summary of `vllm bench serve`."""
    return isinstance(document, dict) and {"model_id", "backend", "request_throughput", "mean_ttft_ms"} <= set(document)


def read(document: dict[str, Any]) -> Imported:
    """The result of one run (a JSON file, or one line of an appended one)."""
    dialect = model.dialect_named("vllm" if "endpoint_type" in document else OLDER)
    completed, failed = document.get("completed", 0), document.get("failed")
    if failed is None:  # older files count the successes alone
        failed = max(0, (document.get("num_prompts") or completed) - completed)
    manifest = model.manifest_of(
        dialect, None, model=document.get("model_id"), api=document.get("endpoint_type"),
        tokenizer=document.get("tokenizer_id"), started_utc=document.get("date"), requests=document.get("num_prompts"),
        rate_per_s=model.rate_of(document.get("request_rate")), concurrency=document.get("max_concurrency"),
        duration_s=document.get("duration"),
    )  # fmt: skip
    values = _values(document)
    if document.get("endpoint_type") == "openai-chat":
        manifest = msgspec.structs.replace(manifest, notes=(*manifest.notes, UNSAID))
    gaps = model.gaps_of(document)
    metrics = model.counted(
        model.from_printed(dialect, document, completed), itl=gaps, tpot=len(values.get("tpot", ()))
    )
    result = model.result_of(metrics, manifest,
        model.outcomes_of(completed, failed), model.throughput_of(dialect, document),
    )  # fmt: skip
    return Imported(tool="vllm", result=result, numbers=model.numbers_of(document, _RULES, dialect.id),
                    values=values)  # fmt: skip


def _values(document: dict[str, Any]) -> dict[str, list[float]]:
    """Values of the successful requests. e2el is `latencies`; tpot is (latency − ttft) / (n − 1)."""
    ttfts, itls = document.get("ttfts"), document.get("itls")
    lengths, errors = document.get("output_lens"), document.get("errors")
    if not ttfts or not lengths:
        return {}
    listed = {name: len(document[name]) for name in ("ttfts", "itls", "output_lens", "errors") if document.get(name)}
    if len(set(listed.values())) > 1:
        raise ValueError(f"one value a request, yet {', '.join(f'{n} {name}' for name, n in listed.items())}")
    latencies = document.get("latencies") or []
    ok = [i for i in range(len(ttfts)) if not (errors and errors[i]) and lengths[i] > 0]
    found = {"ttft": [ttfts[i] for i in ok]}
    if len(latencies) == len(ttfts):
        found["e2el"] = [latencies[i] for i in ok]
        found["tpot"] = [(latencies[i] - ttfts[i]) / (lengths[i] - 1) for i in ok if lengths[i] > 1]
    elif itls:
        found["tpot"] = [sum(itls[i]) / (lengths[i] - 1) for i in ok if lengths[i] > 1]
    return found
