"""What is told about an answered request: its line of truth, its span, and what vLLM observes.

Lives here: the reading of a finished stream. Must not live here: files, sockets, the engine.
"""

from __future__ import annotations

import msgspec

from phasemeter.io.emulator_lag import Lag
from phasemeter.io.emulator_metrics import Finished
from phasemeter.io.emulator_spans import RequestSpan
from phasemeter.io.emulator_stream import Stream
from phasemeter.io.emulator_truth import Truth

BLOCK_TOKENS = 16


def block_hashes(prompt: tuple[object, ...]) -> tuple[int, ...]:
    """A hash for each full block of the prompt, chained: equal hashes mean equal tokens up to and with that block."""
    hashes: list[int] = []
    before = 0
    for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
        before = hash((before, prompt[end - BLOCK_TOKENS : end]))
        hashes.append(before)
    return tuple(hashes)


def truth_of(stream: Stream, end_ns: int, lag: Lag) -> Truth:
    """The record of one request, whatever became of it."""
    written: list[int | None] = list(stream.written_ns)
    written += [None] * (len(stream.planned_ns) - len(written))
    return Truth(
        request_id=stream.request.headers.get("x-request-id"),
        response_id=stream.response_id,
        traceparent=stream.request.headers.get("traceparent"),
        stream=stream.ask.stream,
        arrival_ns=stream.arrival_ns,
        scheduled_ns=stream.scheduled_ns,
        prompt_tokens=len(stream.ask.prompt),
        cached_tokens=stream.cached_tokens,
        output_tokens=stream.output_tokens,
        planned_ns=tuple(stream.planned_ns),
        written_ns=tuple(written),
        end_ns=end_ns,
        outcome=stream.outcome or "client_gone",
        preemptions=stream.preemptions,
        faults={
            name: value
            for name, value in msgspec.to_builtins(stream.ask.faults).items()
            if value != stream.ask.faults.__struct_defaults__[stream.ask.faults.__struct_fields__.index(name)]
        },
        choices=stream.ask.n,
        steps=lag.steps - stream.steps_before,
        late_steps=lag.late - stream.late_before,
    )


def finished_of(stream: Stream, end_ns: int) -> Finished | None:
    """What vLLM observes when a request ends; None for one that it aborts."""
    if stream.outcome not in {"stop", "length"} or stream.scheduled_ns is None:
        return None
    first, last = stream.first_made_ns, stream.last_made_ns
    return Finished(
        e2e_s=(end_ns - stream.arrival_ns) / 1e9,
        queue_s=(stream.scheduled_ns - stream.arrival_ns) / 1e9,
        prefill_s=(first - stream.scheduled_ns) / 1e9,
        decode_s=(last - first) / 1e9,
        prompt_tokens=len(stream.ask.prompt),
        output_tokens=stream.output_tokens,
        reason=stream.outcome,
        preemptions=stream.preemptions,
    )


def span_of(stream: Stream, finished: Finished, end_ns: int) -> RequestSpan:
    """vLLM's `llm_request` span: latencies in seconds, the start on the wall clock."""
    counts = {
        "gen_ai.usage.prompt_tokens": finished.prompt_tokens,
        "gen_ai.usage.completion_tokens": finished.output_tokens * stream.ask.n,
        "gen_ai.request.n": stream.ask.n,
    }
    if stream.ask.max_tokens is not None:
        counts["gen_ai.request.max_tokens"] = stream.ask.max_tokens
    return RequestSpan(
        request_id=stream.response_id if stream.ask.chat else f"{stream.response_id}-0",
        traceparent=stream.request.headers.get("traceparent"),
        start_unix_ns=stream.arrival_unix_ns,
        end_unix_ns=stream.arrival_unix_ns + end_ns - stream.arrival_ns,
        seconds={
            "gen_ai.latency.time_to_first_token": (stream.first_made_ns - stream.arrival_ns) / 1e9,
            "gen_ai.latency.e2e": finished.e2e_s,
            "gen_ai.latency.time_in_queue": finished.queue_s,
            "gen_ai.latency.time_in_model_prefill": finished.prefill_s,
            "gen_ai.latency.time_in_model_decode": finished.decode_s,
            "gen_ai.latency.time_in_model_inference": finished.prefill_s + finished.decode_s,
        },
        counts=counts,
    )
