"""Gaps between a request's output events, as arrays.

Lives here: array arithmetic over a row's event times. Must not live here: what a metric is called (definitions), statistics.
All gaps are in seconds, float64, per choice and then joined: two choices of one answer never make a gap together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import Undefined
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.stats.quantiles import ordered_quantile

Gaps = NDArray[np.float64]
STALL_FACTOR = 5.0  # a gap over 5 times its request's median gap is a stall


def seconds(nanoseconds: NDArray[np.int64]) -> Gaps:
    """Nanoseconds as float seconds."""
    return np.true_divide(nanoseconds, 1e9, dtype=np.float64)


def choice_gaps(choice: ChoiceTimes) -> Gaps:
    """Seconds between consecutive output events: one fewer than events, zero where one read brought several."""
    times = np.array(choice.times_ns, dtype=np.int64)
    return seconds(times[1:] - times[:-1])


def has_events(row: RequestRow) -> bool:
    """Whether any choice's output events are known (a foreign file may give only first and last)."""
    return any(choice.times_ns for choice in row.choices)


def no_gaps_reason(row: RequestRow) -> str | None:
    """Why this request has no gaps to look at, None where it has events."""
    if not row.stream:
        return "not_streamed"
    if not has_events(row):
        return "no_output" if row.first_token_ns is None else "no_events"
    return None


def no_itl_reason(row: RequestRow) -> str | None:
    """Why this request's gaps are no inter-token latencies: `unknown_tokens`, `multi_token_chunks`; None where they are."""
    for choice in row.choices:
        held = tokens_per_event(row, choice)
        if held is None:
            return "unknown_tokens"
        if held.count(1) != len(held):
            return "multi_token_chunks"
    return no_gaps_reason(row)


def inter_chunk(row: RequestRow) -> Gaps:
    """Every observed gap between output events of one choice, in seconds.

    Raises Undefined where the events' times are not known (`no_events`), or where the reply was not streamed.
    """
    reason = no_gaps_reason(row)
    if reason is not None:
        raise Undefined(reason)
    if len(row.choices) == 1:
        return choice_gaps(row.choices[0])
    return np.concatenate([choice_gaps(choice) for choice in row.choices])


def tokens_per_event(row: RequestRow, choice: ChoiceTimes) -> Sequence[int] | None:
    """How many tokens each output event held, where that is known.

    Logprobs or per-chunk usage say it; else, when the choice has as many tokens as events, each held exactly one, for an
    event with text holds at least one. None: not known.
    """
    if choice.tokens is not None:
        return choice.tokens
    known = choice.output_tokens
    if known is None and len(row.choices) == 1:
        known = row.output_tokens
    if known is not None and known == len(choice.times_ns) and not row.hidden_reasoning:
        return (1,) * known
    return None


def between_events(row: RequestRow) -> Gaps:
    """vLLM's gaps since 0.33: between chunks of output or of empty text without a role, of all choices together.

    Reasoning under `reasoning_content` is not recognised there. Raises Undefined as `inter_chunk` does.
    """
    reason = no_gaps_reason(row)
    if reason is not None and not row.silent_times_ns:
        raise Undefined(reason)
    unseen = row.reasoning_field == "reasoning_content"
    times = [t for one in row.choices for t in one.times_ns[one.reasoning_events if unseen else 0 :]]
    return _gaps_of([*times, *row.silent_times_ns])


def between_choice_chunks(row: RequestRow) -> Gaps:
    """vLLM's gaps up to 0.32: between any chunks that have choices, a role or a finish reason alone included.

    Raises Undefined as `inter_chunk` does.
    """
    reason = no_gaps_reason(row)
    if reason is not None and not row.silent_times_ns and not row.bare_times_ns:
        raise Undefined(reason)
    times = [t for one in row.choices for t in one.times_ns]
    return _gaps_of([*times, *row.silent_times_ns, *row.bare_times_ns])


def _gaps_of(times_ns: list[int]) -> Gaps:
    times = np.sort(np.array(times_ns, dtype=np.int64))
    return seconds(times[1:] - times[:-1])


def itl(row: RequestRow) -> Gaps:
    """Inter-token latency: the inter-chunk gaps, where every chunk is known to hold one token.

    Raises Undefined("multi_token_chunks") or Undefined("unknown_tokens") where they are something else: then
    `inter_chunk` is what was seen.
    """
    gaps = inter_chunk(row)
    reason = no_itl_reason(row)
    if reason is not None:
        raise Undefined(reason)
    return gaps


def itl_spread(row: RequestRow) -> Gaps:
    """A gap for each token after the first: each chunk's gap shared evenly among its tokens, 0 inside the first chunk.

    It smooths by design; jitter and stalls never use it. Raises Undefined("unknown_tokens").
    """
    reason = no_gaps_reason(row)
    if reason is not None:
        raise Undefined(reason)
    parts = []
    for choice in row.choices:
        held = tokens_per_event(row, choice)
        if held is None:
            raise Undefined("unknown_tokens")
        parts.append(spread(choice.times_ns, held))
    return np.concatenate(parts)


def spread(times_ns: Sequence[int], tokens: Sequence[int]) -> Gaps:
    """Token gaps in seconds of events at `times_ns` that held `tokens` each: sum(tokens) − 1 of them.

    An event without a token passes its gap on to the next one that has some.
    """
    counts = np.array(tokens, dtype=np.int64)
    times = np.array(times_ns, dtype=np.int64)
    holds = counts > 0
    if not holds.all():
        counts, times = counts[holds], times[holds]
    if not len(counts):
        return np.empty(0)
    shares = seconds(times[1:] - times[:-1]) / counts[1:]
    return np.concatenate([np.zeros(counts[0] - 1), np.repeat(shares, counts[1:])])


def stalls(row: RequestRow) -> Gaps:
    """The gaps over 5 times the median gap of their own request. Raises Undefined as `inter_chunk` does.

    A request whose median gap is 0 (most events shared reads) has no measure of its own: `coalesced`.
    """
    gaps = inter_chunk(row)
    if not len(gaps):
        return gaps
    middle = ordered_quantile(np.sort(gaps), 0.5)
    if middle <= 0:
        raise Undefined("coalesced")
    return gaps[gaps > STALL_FACTOR * middle]


def jitter_s(row: RequestRow) -> float:
    """p99 − p50 of a request's own gaps, in seconds. Raises Undefined for fewer than two gaps."""
    gaps = inter_chunk(row)
    if len(gaps) < 2:
        raise Undefined("fewer_than_2_gaps")
    ordered = np.sort(gaps)
    return ordered_quantile(ordered, 0.99) - ordered_quantile(ordered, 0.5)


def decode_per_token_s(row: RequestRow) -> float:
    """Seconds a token after the first chunk: its gaps over the tokens that came in them, so free of a bundled first chunk.

    For several choices the mean of theirs. Raises Undefined for unknown tokens a chunk, for a single chunk, for a single
    arrival.
    """
    reason = no_gaps_reason(row)
    if reason is not None:
        raise Undefined(reason)
    values = []
    for choice in row.choices:
        held = tokens_per_event(row, choice)
        if held is None:
            raise Undefined("unknown_tokens")
        if len(held) < 2:
            raise Undefined("single_chunk")
        after = sum(held[1:])
        window_ns = choice.times_ns[-1] - choice.times_ns[0]
        if window_ns == 0:
            raise Undefined("single_arrival")
        if not after:
            raise Undefined("unknown_tokens")
        values.append(window_ns / 1e9 / after)
    return sum(values) / len(values)
