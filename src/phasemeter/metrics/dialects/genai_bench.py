"""genai-bench 0.0.5."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference

DIALECT = Dialect(
    name="genai-bench",
    version="0.0.5",
    title="genai-bench",
    rows=(
        Row(key="ttft", printed="stats.ttft.{stat}", unit="s", word="ttft",
            definition=difference("ttft", "dispatch", "first_token", excluded=("not_streamed",))),
        Row(key="tpot", printed="stats.tpot.{stat}", unit="s", word="tpot",
            definition=difference("tpot", "first_token", "usage_or_last_token", divisor="output_tokens − 1",
                                  excluded=CADENCE)),
        Row(key="e2e_latency", printed="stats.e2e_latency.{stat}", unit="s", word="e2e",
            definition=difference("e2e_latency", "dispatch", "usage_or_last_token")),
    ),
    first_token="the first chunk with content or reasoning",
    tokens="server usage, else a local tokenizer",
    counted="successes",
    percentiles=(("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)),
    statistics=(("mean", "mean"), ("std", "stddev"), ("min", "min"), ("max", "max")),
    throughput=(("duration", "run_duration"), ("completed", "num_completed_requests"), ("requests", "requests_per_second"),
                ("output", "mean_output_throughput_tokens_per_s"), ("input", "mean_input_throughput_tokens_per_s")),
    window="first_dispatch_to_last_end",
    window_words="the whole run; its warm-up ratio cuts tokens, not the duration",
    aggregation="mean over requests",
    goodput="none",
    distortions=(
        "it has no rate-driven load: only closed loops",
        "requests under gevent buffers reads, and it opens a TCP connection for each request",
        "its percentile rule is not confirmed: linear is taken",
    ),
    source="genai-bench 0.0.5",
)  # fmt: skip
