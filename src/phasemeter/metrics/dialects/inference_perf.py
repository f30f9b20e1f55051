"""inference-perf 0.7."""

from __future__ import annotations

from phasemeter.metrics.definitions import Definition
from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference

DIALECT = Dialect(
    name="inference-perf",
    version="0.7",
    title="inference-perf",
    rows=(
        Row(key="time_to_first_token", printed="latency.time_to_first_token.{stat}", unit="s", word="ttft",
            definition=difference("time_to_first_token", "dispatch", "first_output", excluded=("not_streamed",))),
        Row(key="time_per_output_token", printed="latency.time_per_output_token.{stat}", unit="s", word="tpot",
            definition=difference("time_per_output_token", "first_output", "last_token", divisor="output_tokens − 1",
                                  excluded=CADENCE)),
        Row(key="inter_token_latency", printed="latency.inter_token_latency.{stat}", unit="s", word="itl",
            definition=Definition(name="inter_token_latency", kind="gap", special="inter_chunk", source="",
                                  words="gap per token of its own re-tokenised chunks, 0 inside a chunk; here per chunk")),
        Row(key="request_latency", printed="latency.request_latency.{stat}", unit="s", word="e2e",
            definition=difference("request_latency", "dispatch", "stream_end")),
        Row(key="normalized_time_per_output_token", printed="latency.normalized_time_per_output_token.{stat}", unit="s",
            word="ntpot",
            definition=difference("normalized_time_per_output_token", "dispatch", "stream_end", divisor="output_tokens",
                                  excluded=("no_output", "unknown_tokens"))),
    ),
    first_token="content only: reasoning does not count",
    tokens="a local tokenizer unless use_server_output_tokens",
    counted="successes; an error inside a stream is one",
    counted_failures=frozenset({"server_error_in_stream", "truncated_stream", "finish_reason_error"}),
    percentiles=(("p0.1", 0.001), ("p1", 0.01), ("p5", 0.05), ("p10", 0.1), ("p25", 0.25), ("p75", 0.75), ("p90", 0.9),
                 ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)),
    statistics=(("mean", "mean"), ("min", "min"), ("max", "max"), ("median", "median")),
    throughput=(("requests", "throughput.requests_per_sec"), ("input", "throughput.input_tokens_per_sec"),
                ("output", "throughput.output_tokens_per_sec"), ("total", "throughput.total_tokens_per_sec")),
    window="first_start_to_last_end",
    window_words="first start to last end",
    aggregation="mean over requests; inter_token_latency per token",
    goodput="failures are not counted; a one-token reply is bad, even under a TTFT objective alone",
    distortions=(
        "its end is stamped after its own tokenizing of the reply",
        "its tokenizing of each chunk alone (a BOS token a chunk) can halve its token gaps",
        "its own event loop stamps late under load (a gap of 365 ms at p99.9 where the server's was 20)",
    ),
    source="inference-perf 0.7.0, apis/chat.py, openai_client.py and reportgen/base.py",
)  # fmt: skip
