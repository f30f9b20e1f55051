"""vLLM `bench serve`: 0.33, and 0.32 whose clock starts and ends at other chunks."""

from __future__ import annotations

import msgspec

from phasemeter.metrics.dialects.model import CADENCE, Dialect, Row, difference, per_chunk

DIALECT = Dialect(
    name="vllm",
    version="0.33",
    title="vLLM bench serve",
    rows=(
        Row(key="ttft", printed="{stat}_ttft_ms", unit="ms", word="ttft",
            definition=difference("ttft", "dispatch", "first_token_or_empty")),
        Row(key="tpot", printed="{stat}_tpot_ms", unit="ms", word="tpot",
            definition=difference("tpot", "first_token_or_empty", "last_token_or_empty", divisor="output_tokens − 1",
                                  excluded=CADENCE)),
        Row(key="itl", printed="{stat}_itl_ms", unit="ms", word="itl",
            definition=per_chunk("itl", "gap per server-sent event of output or empty content, whatever it holds; all"
                                 " requests' gaps pooled", "between_events")),
        Row(key="e2el", printed="{stat}_e2el_ms", unit="ms", word="e2e",
            definition=difference("e2el", "dispatch", "last_token_or_empty")),
    ),
    first_token="chat: content, reasoning, tool calls, or empty content without a role (`reasoning_content` alone is not"
    " recognised); completions: any chunk with choices",
    tokens="server usage, else a local tokenizer",
    counted="successes; an error inside a chat or completions stream is one once a token came, a missing [DONE] goes unnoticed",
    counted_failures=frozenset({"server_error_in_stream", "truncated_stream"}),
    percentiles=(("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)),
    statistics=(("mean", "mean"), ("median", "median"), ("std", "std")),
    throughput=(("duration", "duration"), ("completed", "completed"), ("failed", "failed"),
                ("requests", "request_throughput"), ("output", "output_throughput"), ("total", "total_token_throughput")),
    window="first_dispatch_to_last_end",
    window_words="first dispatch to the end of the last task, drain and failures in",
    aggregation="mean over requests; itl per chunk",
    goodput="a rate only; a one-token reply is good under a TPOT objective (TPOT 0)",
    distortions=(
        "its clock starts before the request is encoded to JSON",
        "its own event loop stamps late under load (hundreds of ms at 1000 streams)",
        "its duration ends when its last task is gathered, about 1 ms after the last reply",
    ),
    source="vllm 0.33.0, lib/endpoint_request_func.py and serve.py",
)  # fmt: skip

OLDER = msgspec.structs.replace(
    DIALECT,
    version="0.32",
    rows=(
        Row(key="ttft", printed="{stat}_ttft_ms", unit="ms", word="ttft",
            definition=difference("ttft", "dispatch", "first_choice_chunk")),
        Row(key="tpot", printed="{stat}_tpot_ms", unit="ms", word="tpot",
            definition=difference("tpot", "first_choice_chunk", "last_choice_chunk", divisor="output_tokens − 1",
                                  excluded=CADENCE)),
        Row(key="itl", printed="{stat}_itl_ms", unit="ms", word="itl",
            definition=per_chunk("itl", "gap per chunk with choices, whatever it holds, from the role chunk on; all requests'"
                                 " gaps pooled", "between_choice_chunks")),
        Row(key="e2el", printed="{stat}_e2el_ms", unit="ms", word="e2e",
            definition=difference("e2el", "dispatch", "last_choice_chunk")),
    ),
    first_token="any chunk with choices: a role-only chunk starts the clock, a finish reason alone ends it",
    source="vllm 0.32.0, lib/endpoint_request_func.py and serve.py",
)  # fmt: skip
