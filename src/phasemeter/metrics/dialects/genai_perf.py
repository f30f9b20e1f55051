"""GenAI-Perf (perf_analyzer), the forerunner of AIPerf."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference

DIALECT = Dialect(
    name="genai-perf",
    version="docs-2026-11",
    title="NVIDIA GenAI-Perf",
    rows=(
        Row(key="time_to_first_token", printed="time_to_first_token.{stat}", unit="ms", word="ttft",
            definition=difference("time_to_first_token", "dispatch", "first_output", excluded=("not_streamed",)),
            note="its counterpart in AIPerf is time_to_first_output_token"),
        Row(key="inter_token_latency", printed="inter_token_latency.{stat}", unit="ms", word="tpot",
            definition=difference("inter_token_latency", "first_output", "last_token", divisor="output_tokens − 1",
                                  excluded=CADENCE)),
        Row(key="request_latency", printed="request_latency.{stat}", unit="ms", word="e2e",
            definition=difference("request_latency", "dispatch", "last_token")),
    ),
    first_token="the first of its recorded responses; where a model reasons, the first output",
    tokens="a local tokenizer",
    counted="not stated",
    percentiles=(("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)),
    statistics=(("mean", "avg"), ("min", "min"), ("max", "max"), ("std", "std")),
    throughput=(("requests", "request_throughput.avg"), ("output", "output_token_throughput.avg")),
    window="valid_first_start_to_last_content",
    window_words="first request to last response of a measurement window",
    aggregation="mean over requests",
    goodput="not stated",
    distortions=(
        "perf_analyzer picks its own stable measurement windows: requests outside them are not in its numbers",
        "its rules are taken from its documents, not its code",
    ),
    source="AIPerf's migration notes",
)  # fmt: skip
