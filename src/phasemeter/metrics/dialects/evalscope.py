"""evalscope 1.14 perf."""

from __future__ import annotations

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference, per_chunk

DIALECT = Dialect(
    name="evalscope",
    version="1.14",
    title="evalscope perf",
    rows=(
        Row(key="TTFT (ms)", printed="TTFT (ms) {stat}", unit="ms", word="ttft",
            definition=difference("TTFT", "dispatch", "first_token", excluded=("not_streamed",))),
        Row(key="TPOT (ms)", printed="TPOT (ms) {stat}", unit="ms", word="tpot",
            definition=difference("TPOT", "first_token", "usage_or_last_token", divisor="output_tokens − 1",
                                  excluded=CADENCE)),
        Row(key="ITL (ms)", printed="ITL (ms) {stat}", unit="ms", word="itl",
            definition=per_chunk("ITL", "gap per chunk, pooled")),
        Row(key="Latency (s)", printed="Latency (s) {stat}", unit="s", word="e2e",
            definition=difference("Latency", "dispatch", "usage_or_last_token")),
    ),
    first_token="the first chunk with content or reasoning",
    tokens="server usage, else a local tokenizer",
    counted="successes",
    percentiles=(("1%", 0.01), ("5%", 0.05), ("10%", 0.1), ("25%", 0.25), ("50%", 0.5), ("75%", 0.75), ("90%", 0.9),
                 ("95%", 0.95), ("99%", 0.99)),
    statistics=(("mean", "Avg"), ("min", "min"), ("max", "max")),
    throughput=(("duration", "Test Duration (s)"), ("completed", "Success Requests"), ("failed", "Failed Requests"),
                ("requests", "Req Throughput (req/s)"), ("output", "Output Throughput (tok/s)"),
                ("total", "Total Throughput (tok/s)")),
    window="first_start_to_last_end",
    window_words="first start to last end",
    aggregation="mean over requests; ITL per chunk",
    goodput="its SLA criteria",
    distortions=("its own event loop stamps late under load", "its percentile rule is not confirmed: linear is taken"),
    source="evalscope 1.14.1",
)  # fmt: skip
