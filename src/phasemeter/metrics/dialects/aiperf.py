"""NVIDIA AIPerf 0.13."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference, per_chunk

DIALECT = Dialect(
    name="aiperf",
    version="0.13",
    title="NVIDIA AIPerf",
    rows=(
        Row(key="time_to_first_token", printed="time_to_first_token.{stat}", unit="ms", word="ttft",
            definition=difference("time_to_first_token", "dispatch", "first_token", excluded=("not_streamed",))),
        Row(key="time_to_first_output_token", printed="time_to_first_output_token.{stat}", unit="ms", word="ttfo",
            definition=difference("time_to_first_output_token", "dispatch", "first_output", excluded=("not_streamed",))),
        Row(key="inter_token_latency", printed="inter_token_latency.{stat}", unit="ms", word="tpot",
            definition=difference("inter_token_latency", "first_token", "last_token", divisor="output_tokens − 1",
                                  excluded=CADENCE), note="what others call TPOT"),
        Row(key="inter_chunk_latency", printed="inter_chunk_latency.{stat}", unit="ms", word="itl",
            definition=per_chunk("inter_chunk_latency", "gap per chunk with text, all requests' gaps pooled")),
        Row(key="request_latency", printed="request_latency.{stat}", unit="ms", word="e2e",
            definition=difference("request_latency", "dispatch", "last_token")),
        Row(key="decode_duration", printed="decode_duration.{stat}", unit="ms", word="generation",
            definition=difference("decode_duration", "first_token", "last_token", excluded=("not_streamed",))),
        Row(key="output_token_throughput_per_user", printed="output_token_throughput_per_user.{stat}", unit="tokens/s",
            word="tpot", inverse=True,
            definition=difference("output_token_throughput_per_user", "first_token", "last_token",
                                  divisor="output_tokens − 1", excluded=CADENCE), note="1 / inter_token_latency"),
    ),
    first_token="the first non-empty content, reasoning or tool text; role, empty and usage chunks don't count",
    tokens="a local tokenizer unless --use-server-token-count",
    counted="valid records; only `event: error` is noticed inside a stream, an error in a data line is dropped",
    counted_failures=frozenset({"server_error_in_stream", "truncated_stream", "finish_reason_error"}),
    percentiles=(("p1", 0.01), ("p5", 0.05), ("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9),
                 ("p95", 0.95), ("p99", 0.99)),
    statistics=(("mean", "avg"), ("min", "min"), ("max", "max"), ("std", "std"), ("count", "count")),
    throughput=(("duration", "benchmark_duration.avg"), ("completed", "request_count.avg"),
                ("requests", "request_throughput.avg"), ("output", "output_token_throughput.avg")),
    window="valid_first_start_to_last_content",
    window_words="first start to last content chunk, valid records only",
    aggregation="mean over requests; inter_chunk_latency per chunk",
    goodput="errors counted in the denominator; a one-token reply is bad under an ITL objective",
    distortions=(
        "its rates divide by the span of its phase (5 ms longer in a run of 16 s), ours by the duration that it prints",
        "its clock starts before the connection pool, so that its own pool wait is in",
        "its local token count drops prose beside tool calls",
        "its own event loop stamps late under load",
    ),
    source="aiperf 0.13.0, transports/sse_utils.py and endpoints/openai_chat.py",
)  # fmt: skip
