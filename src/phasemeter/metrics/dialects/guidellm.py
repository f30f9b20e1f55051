"""GuideLLM 0.8."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference

DIALECT = Dialect(
    name="guidellm",
    version="0.8",
    title="GuideLLM",
    rows=(
        Row(key="time_to_first_token_ms", printed="time_to_first_token_ms.{stat}", unit="ms", word="ttft",
            definition=difference("time_to_first_token_ms", "send_start", "first_token", excluded=("not_streamed",))),
        Row(key="time_to_first_output_token_ms", printed="time_to_first_output_token_ms.{stat}", unit="ms", word="ttfo",
            definition=difference("time_to_first_output_token_ms", "send_start", "first_output",
                                  excluded=("not_streamed",))),
        Row(key="time_per_output_token_ms", printed="time_per_output_token_ms.{stat}", unit="ms", word="tpot",
            definition=difference("time_per_output_token_ms", "send_start", "last_token", divisor="output_tokens",
                                  excluded=("no_output", "unknown_tokens")),
            weight="output_tokens", note="contains the time to first token"),
        Row(key="inter_token_latency_ms", printed="inter_token_latency_ms.{stat}", unit="ms", word="itl",
            definition=difference("inter_token_latency_ms", "first_token", "last_token", divisor="output_tokens − 1",
                                  excluded=CADENCE),
            weight="output_tokens − 1", note="a mean a request, weighted by tokens: it has no tail of gaps"),
        Row(key="request_latency", printed="request_latency.{stat}", unit="s", word="e2e",
            definition=difference("request_latency", "send_start", "stream_end")),
    ),
    first_token="content, reasoning or any tool delta; role, empty and usage lines don't count",
    tokens="server usage, else the number of chunks",
    counted="successful ones; truncation without [DONE] is accepted",
    counted_failures=frozenset({"truncated_stream", "finish_reason_error"}),
    without_usage="chunks",
    percentiles=(("p001", 0.001), ("p01", 0.01), ("p05", 0.05), ("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75),
                 ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)),
    statistics=(("mean", "mean"), ("median", "median"), ("std", "std_dev"), ("min", "min"), ("max", "max"),
                ("count", "count")),
    rule="step",
    throughput=(("duration", "duration"), ("requests", "requests_per_second.mean"),
                ("output", "output_tokens_per_second.mean")),
    window="first_start_to_last_end",
    window_words="the measured window with warm-up and cool-down trimmed, tokens spread evenly over a request",
    aggregation="token-weighted means of requests",
    goodput="errors counted, cancelled not; a one-token reply is excluded under an ITL objective",
    distortions=(
        "its stamps are wall-clock time.time(): a clock step is in them",
        "its errored requests stand as 0.0 in its errored and total distributions",
    ),
    source="guidellm 0.8.1, backends/openai/http.py",
)  # fmt: skip
