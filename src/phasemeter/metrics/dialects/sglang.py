"""SGLang 0.5 bench_serving."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference, per_chunk

DIALECT = Dialect(
    name="sglang",
    version="0.5",
    title="SGLang bench_serving",
    rows=(
        Row(key="ttft", printed="{stat}_ttft_ms", unit="ms", word="ttft",
            definition=difference("ttft", "dispatch", "first_token")),
        Row(key="tpot", printed="{stat}_tpot_ms", unit="ms", word="tpot",
            definition=difference("tpot", "first_token", "stream_end", divisor="output_tokens − 1", excluded=CADENCE),
            note="ends at [DONE]: late usage is in"),
        Row(key="itl", printed="{stat}_itl_ms", unit="ms", word="itl",
            definition=per_chunk("itl", "gap per chunk (replicated over its tokens under speculative decoding), pooled")),
        Row(key="e2e_latency", printed="{stat}_e2e_latency_ms", unit="ms", word="e2e",
            definition=difference("e2e_latency", "dispatch", "stream_end")),
    ),
    first_token="the first chunk with content or reasoning",
    tokens="server usage, else the length asked for",
    counted="successes; an error inside a stream is one once a token came",
    counted_failures=frozenset({"server_error_in_stream", "truncated_stream"}),
    without_usage="asked",
    percentiles=(("p90", 0.9), ("p95", 0.95), ("p99", 0.99)),
    statistics=(("mean", "mean"), ("median", "median"), ("std", "std")),
    throughput=(("duration", "duration"), ("completed", "completed"), ("requests", "request_throughput"),
                ("input", "input_throughput"), ("output", "output_throughput"), ("total", "total_throughput")),
    window="first_dispatch_to_last_end",
    window_words="first dispatch to the end of the last task, drain and failures in",
    aggregation="mean over requests; itl per chunk",
    goodput="all requests in the denominator; a one-token reply is good under a TPOT objective",
    distortions=(
        "it opens a TCP connection for each request: that time is in its numbers, ours used an open one where we could",
        "without usage it credits the length asked for: told here as it would, and wrong after an early stop",
        "its Poisson arrivals are relative sleeps that drift",
    ),
    source="sglang 0.5.23, bench_serving.py",
)  # fmt: skip
