"""Engines known by table: what each one's metric is called, and what it measures between which boundaries.

Lives here: rows. Must not live here: reading a page (prometheus.py) or arithmetic (histograms.py).
Names are written with `_` for `:` (a router rewrites one into the other); the first alias found on a page counts, once.
Definitions are from the engines' released code as of November 2026; the same name means different things in different rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from phasemeter.records.evidence import ClockDomain

Kind = Literal["histogram", "sum_and_count", "counter", "summed_gauge", "share_gauge", "refused_gauge"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of one engine. `aliases` newest first; `factor` turns the page's unit into `unit`.

    `split`: a label whose values are different quantities, each its own phase. `zeros`: zero is a plausible value.
    """

    key: str  # our name: a phase for durations, else a count or a state
    aliases: tuple[str, ...]
    kind: Kind = "histogram"
    definition: str
    clock: ClockDomain = "unknown"
    unit: str = "s"
    factor: float = 1.0
    start: str | None = None
    end: str | None = None
    name: str | None = None  # where the quantity's right name differs from its key
    split: str | None = None
    zeros: bool = False
    count: str | None = None  # kind sum_and_count: the counter of observations


_ENDS: Mapping[str, tuple[str, str]] = {
    "queue": ("queue_enter", "prefill_start"),
    "prefill": ("prefill_start", "first_token"),
    "decode": ("first_token", "decode_end"),
    "inference": ("prefill_start", "decode_end"),
    "ttft": ("arrival", "first_token"),
    "e2e": ("arrival", "complete"),
    "ingress": ("arrival", "queue_enter"),
}
_MAY_BE_ZERO = {"queue", "kv_transfer", "ingress"}


def _phase(key: str, aliases: str, clock: ClockDomain, definition: str, **more: object) -> Row:
    start, end = _ENDS.get(key, (None, None))
    fields = {"start": start, "end": end, "zeros": key in _MAY_BE_ZERO} | more
    return Row(key=key, aliases=tuple(aliases.split()), clock=clock, definition=definition, **fields)  # type: ignore[arg-type]


def _count(key: str, aliases: str, definition: str, unit: str = "requests") -> Row:
    return Row(key=key, aliases=tuple(aliases.split()), kind="counter", unit=unit, definition=definition)


def _state(key: str, aliases: str, definition: str, kind: Kind = "summed_gauge", unit: str = "requests") -> Row:
    return Row(key=key, aliases=tuple(aliases.split()), kind=kind, unit=unit, definition=definition)


def _sizes(prefix: str) -> tuple[Row, ...]:
    return tuple(
        Row(key=key, aliases=(f"{prefix}_{name}",), unit="token", definition=words, clock="unknown", zeros=True)
        for key, name, words in (
            ("request_input_tokens", "request_prompt_tokens", "prompt tokens of a finished request"),
            ("request_output_tokens", "request_generation_tokens", "generated tokens of a finished request"),
        )
    )


WALL: ClockDomain = "engine_wall"
MONO: ClockDomain = "engine_monotonic"
_INTER_OUTPUT = "between outputs of the engine, one observation an output whatever tokens it holds; not per token"


def _like_vllm(prefix: str, wall: ClockDomain, mono: ClockDomain) -> tuple[Row, ...]:
    p = prefix and prefix + "_"
    older = " vllm_time_in_queue_requests" if prefix == "vllm" else ""  # its name in 0.6
    return (
        _phase("ttft", f"{p}time_to_first_token_seconds", wall, "first output received by the frontend − arrival"),
        _phase("e2e", f"{p}e2e_request_latency_seconds", wall, "finished − arrival, at the frontend"),
        _phase(
            "queue", f"{p}request_queue_time_seconds{older}", mono, "first scheduled − entered the scheduler's queue"
        ),
        _phase(
            "prefill", f"{p}request_prefill_time_seconds", mono, "first token − first scheduled; wall time, not compute"
        ),
        _phase(
            "decode", f"{p}request_decode_time_seconds", mono, "last token − first token; 0 for one token", zeros=True
        ),
        _phase("inference", f"{p}request_inference_time_seconds", mono, "last token − first scheduled"),
    )


_LOGGED = "since the engine's last line in its log (V0): shown, never used; counters give the window's"
VLLM = (
    *_like_vllm("vllm", WALL, MONO),
    _phase(
        "itl", "vllm_inter_token_latency_seconds vllm_time_per_output_token_seconds", MONO, _INTER_OUTPUT,
        name="inter_output",
    ),
    _phase(
        "tpot", "vllm_request_time_per_output_token_seconds", MONO,
        "a request's decode time / (tokens − 1); 0 is recorded for a single token", zeros=True,
    ),
    _phase(
        "kv_transfer", "vllm_nixl_xfer_time_seconds", MONO, "KV cache moved from a prefill to a decode engine, one transfer",
    ),
    *_sizes("vllm"),
    _state("running_requests", "vllm_num_requests_running", "requests in execution"),
    _state("waiting_requests", "vllm_num_requests_waiting", "requests waiting to be scheduled"),
    _state("swapped_requests", "vllm_num_requests_swapped", "requests swapped out (gone in V1)"),
    _state(
        "kv_cache_usage", "vllm_kv_cache_usage_perc vllm_gpu_cache_usage_perc", "share of KV blocks in use, 0 to 1",
        "share_gauge", "share",
    ),
    _state("prompt_tokens_per_s", "vllm_avg_prompt_throughput_toks_per_s", _LOGGED, "refused_gauge", "token/s"),
    _state("generated_tokens_per_s", "vllm_avg_generation_throughput_toks_per_s", _LOGGED, "refused_gauge", "token/s"),
    _state(
        "prefix_cache_hit_rate", "vllm_gpu_prefix_cache_hit_rate", "share of looked-up blocks found, over a lifetime (gone in V1)",
        "share_gauge", "share",
    ),
    _count("requests_finished", "vllm_request_success_total", "finished requests, any reason"),
    _count("prompt_tokens", "vllm_prompt_tokens_total", "prompt tokens processed", "token"),
    _count("generated_tokens", "vllm_generation_tokens_total", "tokens generated", "token"),
    _count("preemptions", "vllm_num_preemptions_total", "preemptions", "events"),
    _count(
        "prefix_cache_queries", "vllm_prefix_cache_queries_total vllm_gpu_prefix_cache_queries_total",
        "tokens looked up in the prefix cache", "token",
    ),
    _count(
        "prefix_cache_hits", "vllm_prefix_cache_hits_total vllm_gpu_prefix_cache_hits_total",
        "tokens found in the prefix cache", "token",
    ),
)  # fmt: skip

SGLANG = (
    _phase(
        "ttft", "sglang_time_to_first_token_seconds", WALL,
        "streaming: received by the tokenizer manager − arrival; non-streaming: prefill finished − arrival",
        split="is_streaming",
    ),
    _phase("e2e", "sglang_e2e_request_latency_seconds", WALL, "finished − arrival"),
    _phase("queue", "sglang_queue_time_seconds", MONO, "the first wait in the queue only"),
    _phase(
        "itl", "sglang_inter_token_latency_seconds sglang_time_per_output_token_seconds", WALL,
        "per token: an interval that brought k tokens is counted k times as interval / k; smears bursts",
        name="itl_spread",
    ),
    _phase("tpot", "sglang_request_time_per_output_token_seconds", WALL, "a request's time per output token", zeros=True),
    _phase("stage", "sglang_per_stage_req_latency_seconds", MONO, "time in the stage that the label names", split="stage"),
    _phase(
        "kv_transfer", "sglang_kv_transfer_latency_ms", MONO, "KV cache moved from prefill to decode workers", factor=1e-3
    ),
    _state("running_requests", "sglang_num_running_reqs", "requests in execution"),
    _state("waiting_requests", "sglang_num_queue_reqs", "requests waiting"),
    _state("retracted_requests", "sglang_num_retracted_reqs", "requests retracted"),
    _state("kv_cache_usage", "sglang_token_usage", "share of KV token slots in use, 0 to 1", "share_gauge", "share"),
    _state("prefix_cache_hit_rate", "sglang_cache_hit_rate", "share of prompt tokens from cache", "share_gauge", "share"),
    _count("requests_finished", "sglang_num_requests_total", "finished requests"),
    _count("prompt_tokens", "sglang_prompt_tokens_total", "prompt tokens processed", "token"),
    _count("generated_tokens", "sglang_generation_tokens_total", "tokens generated", "token"),
    _count("prefix_cache_hits", "sglang_cached_tokens_total", "prompt tokens from cache", "token"),
)  # fmt: skip

_CHANGED = "was 'since the last scrape', later a lifetime average, under one name: shown, never used (llama.cpp #25128)"
LLAMACPP = (
    _phase(
        "prefill", "llamacpp_prompt_seconds_total", MONO, "prompt processing, summed; no count of requests",
        kind="sum_and_count",
    ),
    _phase(
        "decode", "llamacpp_tokens_predicted_seconds_total", MONO, "generation, summed; no count of requests",
        kind="sum_and_count",
    ),
    _state("running_requests", "llamacpp_requests_processing", "slots in use"),
    _state("waiting_requests", "llamacpp_requests_deferred", "requests waiting for a slot"),
    _state("kv_cache_usage", "llamacpp_kv_cache_usage_ratio", "share of KV cells in use", "share_gauge", "share"),
    _state("prompt_tokens_seconds", "llamacpp_prompt_tokens_seconds", _CHANGED, "refused_gauge", "token/s"),
    _state("predicted_tokens_seconds", "llamacpp_predicted_tokens_seconds", _CHANGED, "refused_gauge", "token/s"),
    _count("prompt_tokens", "llamacpp_prompt_tokens_total", "prompt tokens processed, cached ones not counted", "token"),
    _count("prefix_cache_hits", "llamacpp_prompt_tokens_cached_total", "prompt tokens from cache", "token"),
    _count("generated_tokens", "llamacpp_tokens_predicted_total", "tokens generated", "token"),
    _count("decode_calls", "llamacpp_n_decode_total", "calls of llama_decode()", "events"),
)  # fmt: skip

TGI = (
    _phase("e2e", "tgi_request_duration", MONO, "whole request at the router", start="arrival"),
    _phase("ingress", "tgi_request_validation_duration", MONO, "validation and tokenisation"),
    _phase("queue", "tgi_request_queue_duration", MONO, "in the router's queue"),
    _phase("inference", "tgi_request_inference_duration", MONO, "prefill and decode together"),
    _phase(
        "time_per_token", "tgi_request_mean_time_per_token_duration", MONO, "inference / generated tokens: prefill included"
    ),
    _phase("step", "tgi_batch_inference_duration", MONO, "one batch step of the kind that the label names", split="method"),
    _state("running_requests", "tgi_batch_current_size", "requests in the running batch"),
    _state("waiting_requests", "tgi_queue_size", "requests waiting"),
    _count("requests_finished", "tgi_request_success", "finished requests"),
)  # fmt: skip

TRTLLM = (
    *_like_vllm("trtllm", WALL, MONO),
    _phase("tpot", "trtllm_time_per_output_token_seconds", MONO, "a request's time per output token", zeros=True),
    _count("requests_finished", "trtllm_request_success_total", "finished requests, any reason"),
    _state("kv_cache_usage", "trtllm_kv_cache_utilization", "share of KV blocks in use", "share_gauge", "share"),
)

_TRITON = {"kind": "sum_and_count", "count": "nv_inference_request_success", "factor": 1e-6, "zeros": True}
TRITON = (
    _phase("e2e", "nv_inference_request_duration_us", MONO, "whole request, summed over successes", **_TRITON),
    _phase(
        "queue", "nv_inference_queue_duration_us", MONO, "in the scheduling queue, summed over successes", **_TRITON
    ),
    _phase(
        "inference", "nv_inference_compute_infer_duration_us", MONO, "in the model, summed over successes", **_TRITON
    ),
    _count("requests_finished", "nv_inference_request_success", "successful requests"),
)

DYNAMO = (
    _phase("ttft", "dynamo_frontend_time_to_first_token_seconds", MONO, "frontend: received − first token, transport included"),
    _phase("itl", "dynamo_frontend_inter_token_latency_seconds", MONO, _INTER_OUTPUT, name="inter_output", zeros=True),
    _phase("e2e", "dynamo_frontend_request_duration_seconds", MONO, "frontend: whole request"),
    _phase("tokenize", "dynamo_frontend_tokenize_seconds", MONO, "frontend tokenisation", zeros=True),
    _state("running_requests", "dynamo_frontend_inflight_requests", "requests open at the frontend"),
    _state("waiting_requests", "dynamo_frontend_queued_requests", "requests without a first response yet; not a queue"),
    _state(
        "network_transit_seconds", "dynamo_request_plane_network_transit_seconds dynamo_network_transit_seconds",
        "wall clocks of two processes: no duration", "refused_gauge", "s",
    ),
    _count("requests_finished", "dynamo_frontend_requests_total", "finished requests"),
    _count("generated_tokens", "dynamo_frontend_output_tokens_total", "tokens generated", "token"),
)  # fmt: skip

LMDEPLOY = (
    *_like_vllm("lmdeploy", WALL, WALL),
    _phase("itl", "lmdeploy_inter_token_latency_seconds", WALL, _INTER_OUTPUT, name="inter_output"),
    _phase(
        "tpot", "lmdeploy_request_time_per_output_token_seconds", WALL, "a request's time per output token", zeros=True
    ),
    *_sizes("lmdeploy"),
    _state("running_requests", "lmdeploy_num_requests_running", "requests in execution"),
    _state("waiting_requests", "lmdeploy_num_requests_waiting", "requests waiting"),
    _state("kv_cache_usage", "lmdeploy_gpu_cache_usage_perc", "share of KV blocks in use", "share_gauge", "share"),
    _count("requests_finished", "lmdeploy_request_success_total", "finished requests, any reason"),
    _count("prompt_tokens", "lmdeploy_prompt_tokens_total", "prompt tokens processed", "token"),
    _count("generated_tokens", "lmdeploy_generation_tokens_total", "tokens generated", "token"),
)

# names without a prefix: docs.nvidia.com/nim/large-language-models/latest/observability.html (and TensorRT-LLM before 1.0)
NIM = (
    *(row for row in _like_vllm("", "unknown", "unknown") if row.key in {"ttft", "e2e"}),
    _phase("tpot", "time_per_output_token_seconds", "unknown", "time per output token; its formula is not published", zeros=True),
    *(msgspec.structs.replace(row, aliases=(row.aliases[0].lstrip("_"),)) for row in _sizes("")),
    _state("running_requests", "num_requests_running", "requests in execution"),
    _state("waiting_requests", "num_requests_waiting", "requests waiting"),
    _state("kv_cache_usage", "gpu_cache_usage_perc", "share of KV cache in use, 0 to 1", "share_gauge", "share"),
    _count("requests_finished", "request_success_total request_finish_total", "finished requests"),
    _count("prompt_tokens", "prompt_tokens_total", "prompt tokens processed", "token"),
    _count("generated_tokens", "generation_tokens_total", "tokens generated", "token"),
)  # fmt: skip

OTEL_GENAI = (
    _phase("ttft", "gen_ai_server_time_to_first_token gen_ai_server_time_to_first_token_seconds", "unknown",
           "successes only; semantic conventions in development"),
    _phase("e2e", "gen_ai_server_request_duration gen_ai_server_request_duration_seconds", "unknown", "whole request"),
    _phase("tpot", "gen_ai_server_time_per_output_token gen_ai_server_time_per_output_token_seconds", "unknown",
           "successes only, after the first token"),
)  # fmt: skip

ENGINES: Mapping[str, tuple[Row, ...]] = {
    "vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMACPP, "tgi": TGI, "trtllm": TRTLLM, "triton": TRITON,
    "dynamo": DYNAMO, "lmdeploy": LMDEPLOY, "nim": NIM, "otel_genai": OTEL_GENAI,
}  # fmt: skip
UNPREFIXED = frozenset({"nim"})  # engines whose names are common words: their latency histograms have to be there
RAY_WRAPS = ("vllm_", "sglang_")  # engines whose metrics Ray serves under `ray_`: ray-project/ray#52719

# labels that tell one engine, worker or process from another: a new value of one is a process that was not up before
IDENTITY_LABELS = frozenset(
    {
        "engine", "engine_id", "dp_rank", "tp_rank", "pp_rank", "moe_ep_rank", "worker", "worker_id", "instance", "pod",
        "replica", "host", "model_name", "model", "model_id",
    }
)  # fmt: skip
# ranks that share one batch: each repeats what the first of them counts (data-parallel ranks don't)
SHARD_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
MODEL_LABELS = ("model_name", "model", "model_id")
