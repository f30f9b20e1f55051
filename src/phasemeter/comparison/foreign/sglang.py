"""SGLang `bench_serving` JSONL, a line a run: summaries in ms, `--output-details` arrays in seconds."""

from __future__ import annotations

from typing import Any

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported

_RULES = (
    (r"^(mean|median|std|p\d+)_\w+_ms$", "ms", "statistic over successful requests; itl over gaps"),
    (r"^(ttfts|itls)", "s", "one value (or list of gaps) a request, in request order"),
    (r"^(input_lens|output_lens)", "tokens", "one value a request"),
    (r"^duration$", "s", "first dispatch to the end of the last task"),
    (r"^(request_throughput|request_goodput|request_rate)$", "requests/s", ""),
    (r"_throughput$|^max_output_tokens_per_s$", "tokens/s", ""),
    (r"^total_\w*tokens|^random_(input|output)_len$|^sharegpt_output_len$", "tokens", ""),
    (r"^(completed|max_concurrency|max_concurrent_requests|concurrency)$", "requests", ""),
    (r"^(random_range_ratio|slo_attainment|accept_length)", "1", ""),
    (r"goodput_slos_ms|_ms$", "ms", ""),
)


def detect(document: Any) -> bool:
    """Whether this is one line of SGLang's bench_serving."""
    return isinstance(document, dict) and {"backend", "dataset_name", "mean_e2e_latency_ms", "mean_ttft_ms"} <= set(
        document
    )


def read(document: dict[str, Any]) -> Imported:
    """The result of one run."""
    dialect = model.dialect_named("sglang")
    completed = document.get("completed", 0)
    total = len(document["errors"]) if document.get("errors") else completed
    ratio = document.get("random_range_ratio")
    fixed = ratio == 1 and str(document.get("dataset_name", "")).startswith("random")
    lengths = {key: {"fixed": document[f"random_{key[:-7]}_len"]} for key in ("input_tokens", "output_tokens") if fixed}
    manifest = model.manifest_of(
        dialect, None, api=document.get("backend"), rate_per_s=model.rate_of(document.get("request_rate")),
        concurrency=document.get("max_concurrency"), duration_s=document.get("duration"), requests=total, **lengths,
    )  # fmt: skip
    metrics = model.counted(model.from_printed(dialect, document, completed), itl=model.gaps_of(document))
    result = model.result_of(metrics, manifest,
        model.outcomes_of(completed, total - completed), model.throughput_of(dialect, document),
    )  # fmt: skip
    ok = [i for i, error in enumerate(document.get("errors") or []) if not error]
    ttfts = document.get("ttfts") or []
    values = {"ttft": [ttfts[i] for i in ok]} if ok and len(ttfts) == total else {}
    return Imported(tool="sglang", result=result, numbers=model.numbers_of(document, _RULES, dialect.id), values=values)
