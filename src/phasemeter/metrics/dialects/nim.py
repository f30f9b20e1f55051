"""NVIDIA NIM's benchmarking pages: definitions in words, no tool."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference

DIALECT = Dialect(
    name="nim",
    version="2026-11",
    title="NVIDIA NIM's benchmarking pages",
    rows=(
        Row(key="TTFT", printed="TTFT {stat}", unit="ms", word="ttft",
            definition=difference("TTFT", "dispatch", "first_token", excluded=("not_streamed",)),
            note="includes queueing, prefill and the network"),
        Row(key="ITL", printed="ITL {stat}", unit="ms", word="tpot",
            definition=difference("ITL", "first_token", "last_token", divisor="output_tokens − 1", excluded=CADENCE),
            note="their name for TPOT; they warn that some tools include the first token"),
        Row(key="e2e_latency", printed="e2e_latency {stat}", unit="ms", word="e2e",
            definition=difference("e2e_latency", "dispatch", "last_token")),
    ),
    first_token="the first token that the user receives",
    tokens="not stated",
    counted="not stated",
    percentiles=(("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)),
    statistics=(("mean", "avg"),),
    throughput=(("requests", "RPS"), ("output", "TPS")),
    window="first_dispatch_to_last_end",
    window_words="first request to last response",
    aggregation="mean over requests",
    goodput="not stated",
    distortions=("definitions in words: percentiles and exclusions are not stated there",),
    source="NVIDIA NIM, LLM benchmarking: metrics",
)  # fmt: skip
