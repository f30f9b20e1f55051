"""One request's boundaries and counts: a row of requests.parquet, and what every metric is computed from.

A measured run reads it from captured bytes (wire/), a simulator writes it directly, an importer fills what a foreign file
holds. Must not live here: differences, ratios, verdicts: those are definitions (metrics/).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from phasemeter.records.request import Phase

Outcome = Literal["ok", "failed", "cancelled", "unsent"]


class ChoiceTimes(msgspec.Struct, frozen=True, gc=False):
    """When one choice's output came. `times_ns[i]` is the read that completed output event i; `reads[i]` its number.

    `tokens[i]` is how many tokens event i held where that is known (logprobs, per-chunk usage), else `tokens` is None.
    Equal consecutive `reads` are events that one read delivered together (coalesced).
    """

    index: int = 0
    times_ns: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    tokens: tuple[int, ...] | None = None
    reasoning_events: int = 0  # the first this many events were reasoning
    finish_reason: str | None = None
    output_tokens: int | None = None  # this choice's own count where known (n > 1: logprobs or usage / n when even)


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All instants: client CLOCK_MONOTONIC ns (a simulator: virtual ns). None is absent. Counts in tokens."""

    request_id: str
    phase: Phase = "measured"
    worker: int = 0
    workload_class: str | None = None
    conversation: str | None = None
    turn: int = 0
    api: str = "openai.chat"
    stream: bool = True

    outcome: Outcome
    failure: str | None = None  # the kind, e.g. truncated_stream
    failure_text: str | None = None  # the server's or the system's own words, shortened
    http_status: int | None = None
    warnings: tuple[str, ...] = ()

    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    n: int = 1

    due_ns: int
    connect_start_ns: int | None = None
    dns_done_ns: int | None = None
    tcp_connected_ns: int | None = None
    connected_ns: int | None = None
    send_start_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_read_ns: int | None = None
    first_chunk_ns: int | None = None
    first_token_ns: int | None = None
    first_output_ns: int | None = None
    last_token_ns: int | None = None
    stream_end_ns: int | None = None

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_source: str | None = None  # usage | logprobs | tokenizer_full_text | simulated | ...
    server_output_tokens: int | None = None
    local_output_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_reasoning: bool = False
    visible_tokens: int | None = None
    first_token_by_usage_ns: int | None = None

    finish_reason: str | None = None
    response_id: str | None = None
    sent_id: str | None = None  # what we sent as x-request-id: a server's logs name it
    choices: tuple[ChoiceTimes, ...] = ()
    single_arrival: bool = False  # all output came in one read
    observer_lag_ns: int | None = None  # the largest user − kernel of its reads
    resent: bool = False
    reused_connection: bool = False
    usage_ns: int | None = None  # when the chunk with the final usage came
    silent_chunks: int = 0  # chunks whose content is an empty string, without a role: some tools stamp them as tokens
    first_silent_chunk_ns: int | None = None
    last_silent_chunk_ns: int | None = None
    silent_times_ns: tuple[int, ...] = ()  # when each of them came, where known
    bare_times_ns: tuple[int, ...] = ()  # chunks of a choice without any text: a role, a finish reason
    refusal: bool = False  # the answer holds a refusal of the API's own kind
    reasoning_field: str | None = None  # the name reasoning came under: reasoning | reasoning_content | thinking | ...
