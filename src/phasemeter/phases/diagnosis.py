"""Six steps from "it is slow" to a cause, each with its evidence, its strength, and the measurement to take next.

Lives here: rules over Features. Must not live here: computing features (features.py). A rule names a cause only when the
numbers it needs are on record: without them it says which are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from phasemeter.phases.features import Features

Strength = Literal["certain", "likely", "weak", "cannot say"]
ORDER: tuple[Strength, ...] = ("certain", "likely", "weak", "cannot say")
FEW = 20  # requests under which nothing is more than weak


class Step(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    question: str
    finding: str
    evidence: str
    strength: Strength
    next: str


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """`weight` orders causes of equal strength: the share of the time that it explains, 0 to 1."""

    cause: str
    strength: Strength
    evidence: str
    next: str
    weight: float = 0.0


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...]
    causes: tuple[Cause, ...]  # strongest first; empty: cannot say
    missing: tuple[str, ...]  # what is not on record and would decide


def _share(value: float | None) -> str:
    return "not on record" if value is None else f"{value:.0%}"


def _time(value: float | None) -> str:
    if value is None:
        return "not on record"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _client(f: Features) -> Cause | None:
    share, lag = f.client_queue_share or 0.0, f.observer_lag_s or 0.0
    late_reads = bool(f.tpot_p50_s and lag > f.tpot_p50_s)
    if share < 0.2 and not late_reads:
        return None
    strength: Strength = "certain" if share > 0.4 else "likely"
    words = f"the client's own queue is {_share(f.client_queue_share)} of the time from due; observer lag p99 {_time(f.observer_lag_s)}"
    return Cause(
        cause="client_saturation",
        strength=strength,
        evidence=words,
        next="more --processes, or less load",
        weight=share + 0.3,
    )


def _queueing(f: Features) -> Cause | None:
    share = f.queue_share
    if share is None or max(share, f.queue_tail_share or 0.0) < 0.35:
        return None
    weight = max(share, f.queue_tail_share or 0.0)
    words = f"queue is {_share(share)} of the mean TTFT, {_share(f.queue_tail_share)} among the slowest tenth"
    if f.queue_trend is not None and f.queue_trend > 0.6:
        words += f"; it grows through the run (rank correlation {f.queue_trend:.2f}): load beyond capacity"
    strength: Strength = "certain" if share > 0.5 else "likely"
    return Cause(
        cause="queueing", strength=strength, evidence=words, next="goodput: find the rate it can carry", weight=weight
    )


def _preemption(f: Features) -> Cause | None:
    server = f.server
    if server is None or server.preemptions is None or server.preemptions <= 0 or not f.requests:
        return None
    rate = server.preemptions / f.requests
    full = server.kv_usage_max is not None and server.kv_usage_max > 0.9
    strength: Strength = "certain" if full and rate > 0.05 else "likely" if rate > 0.05 or full else "weak"
    usage = _share(server.kv_usage_max)
    words = f"{server.preemptions:g} preemptions over {f.requests} requests; KV cache use up to {usage}"
    return Cause(
        cause="kv_exhaustion", strength=strength, evidence=words, next="more KV memory, fewer or shorter sequences at once",
        weight=min(1.0, 0.6 + rate),
    )  # fmt: skip


def _prefill(f: Features) -> Cause | None:
    share = f.prefill_share
    if share is None or share < 0.5:
        return None
    long = f.input_to_prefill is not None and f.input_to_prefill > 0.6
    words = f"prefill is {_share(share)} of the mean TTFT"
    if f.input_to_prefill is not None:
        words += f"; it follows the input's length (rank correlation {f.input_to_prefill:.2f})"
    slower_than_alone = f.alone_ttft_s is not None and f.ttft_p50_s is not None and f.ttft_p50_s > 2 * f.alone_ttft_s
    strength: Strength = "likely" if long and not slower_than_alone else "weak"
    if long and f.alone_ttft_s is not None and not slower_than_alone:
        strength, words = "certain", words + f"; a single request takes as long ({_time(f.alone_ttft_s)})"
    return Cause(
        cause="prefill_compute",
        strength=strength,
        evidence=words,
        next="single requests at three input lengths",
        weight=share,
    )


def _interference(f: Features) -> Cause | None:
    if f.stalls_in_prefill is None or f.stalls < 10 or (f.stall_share or 0.0) < 0.05:
        return None
    hit, chance = f.stalls_in_prefill / f.stalls, f.prefill_time_share or 0.0
    if hit < 0.6 or hit < chance + 0.2:
        return None
    words = f"{f.stalls_in_prefill} of {f.stalls} stalls fall into another request's prefill (by chance {chance:.0%})"
    strength: Strength = "certain" if hit > 0.85 and chance < 0.5 and f.requests >= FEW else "likely"
    return Cause(
        cause="prefill_decode_interference", strength=strength, evidence=words, next="the same load with smaller prefill chunks",
        weight=0.4 + (f.stall_share or 0.0),
    )  # fmt: skip


def _batch_growth(f: Features) -> Cause | None:
    if f.running_to_tpot is None or f.running_to_tpot < 0.6:
        return None
    slower = f.alone_tpot_s is not None and f.tpot_p50_s is not None and f.tpot_p50_s > 1.5 * f.alone_tpot_s
    if f.alone_tpot_s is not None and not slower:
        return None
    words = f"TPOT follows the number of requests in flight (rank correlation {f.running_to_tpot:.2f})"
    if slower:
        words += f"; alone {_time(f.alone_tpot_s)}, loaded {_time(f.tpot_p50_s)}"
    return Cause(
        cause="decode_batch_growth", strength="likely" if slower else "weak", evidence=words,
        next="TPOT at three concurrencies", weight=0.4 * f.running_to_tpot,
    )  # fmt: skip


def _decode_compute(f: Features) -> Cause | None:
    if f.alone_tpot_s is None or f.tpot_p50_s is None or f.e2e_p50_s is None or f.ttft_p50_s is None:
        return None
    share = 1 - f.ttft_p50_s / f.e2e_p50_s if f.e2e_p50_s > 0 else 0.0
    if share < 0.7 or f.tpot_p50_s > 1.2 * f.alone_tpot_s or (f.reasoning_share or 0.0) > 0.5:
        return None
    words = f"output is {share:.0%} of the time, and its pace is the same alone ({_time(f.alone_tpot_s)}) and loaded"
    return Cause(
        cause="decode_compute",
        strength="likely",
        evidence=words,
        next="a profile of one decode step",
        weight=0.5 * share,
    )


def _prefix_cache(f: Features) -> Cause | None:
    if f.cached_ttft_ratio is None or f.cached_share is None or f.cached_ttft_ratio > 0.6:
        return None
    words = f"{f.cached_share:.0%} of input tokens came from cache; such requests' TTFT is {f.cached_ttft_ratio:.0%} of the others'"
    return Cause(
        cause="prefix_cache",
        strength="likely",
        evidence=words,
        next="the same run with unique prompts",
        weight=0.6 * (1 - f.cached_ttft_ratio),
    )


def _network(f: Features) -> Cause | None:
    share, buffered = f.lump_share or 0.0, (f.single_arrivals or 0.0) > 0.5 or (f.coalesced_share or 0.0) > 0.7
    speculative = (f.tokens_per_chunk or 1.0) > 1.3
    if share < 0.4 and not (buffered and not speculative):
        return None
    words = f"ingress and delivery are {_share(f.lump_share)} of TTFT; {_share(f.coalesced_share)} of gaps are 0"
    strength: Strength = "likely" if share >= 0.4 or (f.single_arrivals or 0.0) > 0.9 else "weak"
    return Cause(
        cause="network_or_buffering", strength=strength, evidence=words, next="the same request past the gateway, at the server itself",
        weight=max(share, 0.4),
    )  # fmt: skip


def _kv_movement(f: Features) -> Cause | None:
    moved = f.server.kv_transfer_mean_s if f.server else None
    if moved is None or not f.ttft_p50_s or moved < 0.2 * f.ttft_p50_s:
        return None
    words = f"moving KV takes {_time(moved)} on average, TTFT p50 is {_time(f.ttft_p50_s)}"
    return Cause(
        cause="kv_movement",
        strength="likely",
        evidence=words,
        next="the link's own throughput",
        weight=min(1.0, moved / f.ttft_p50_s),
    )


def _multi_token(f: Features) -> Cause | None:
    if f.tokens_per_chunk is None or f.tokens_per_chunk < 1.3:
        return None
    words = f"a chunk holds {f.tokens_per_chunk:.2f} tokens on average: gaps between chunks are not gaps between tokens"
    return Cause(
        cause="multi_token_streaming",
        strength="likely",
        evidence=words,
        next="jitter by engine step, TPOT by token",
        weight=0.3,
    )


def _reasoning(f: Features) -> Cause | None:
    if f.reasoning_share is None or f.reasoning_share < 0.4:
        return None
    words = f"{f.reasoning_share:.0%} of the time passes between the first reasoning token and the first visible one"
    return Cause(
        cause="reasoning_time",
        strength="certain",
        evidence=words,
        next="ttfo beside ttft; a lower reasoning effort",
        weight=f.reasoning_share,
    )


def _warmup(f: Features) -> Cause | None:
    if f.warmup_ratio is None or f.warmup_ratio < 2:
        return None
    words = f"the first tenth's median TTFT is {f.warmup_ratio:.1f} times the rest's"
    falling = f.queue_trend is None or f.queue_trend < 0.3
    return Cause(
        cause="warm_up", strength="likely" if falling else "weak", evidence=words, next="a longer --warmup", weight=0.3
    )


def _policy(f: Features) -> Cause | None:
    server = f.server
    if (
        server is None
        or server.kv_usage_max is None
        or f.queue_share is None
        or f.queue_share < 0.35
        or server.kv_usage_max > 0.5
    ):
        return None
    words = f"requests queue ({_share(f.queue_share)} of TTFT) while KV use never passes {_share(server.kv_usage_max)}"
    return Cause(
        cause="scheduler_policy",
        strength="weak",
        evidence=words,
        next="the limits on sequences and tokens per step",
        weight=0.3,
    )


RULES: Mapping[str, Callable[[Features], Cause | None]] = {
    "client_saturation": _client, "queueing": _queueing, "kv_exhaustion": _preemption, "prefill_compute": _prefill,
    "prefill_decode_interference": _interference, "decode_batch_growth": _batch_growth, "decode_compute": _decode_compute,
    "prefix_cache": _prefix_cache, "network_or_buffering": _network, "kv_movement": _kv_movement,
    "multi_token_streaming": _multi_token, "reasoning_time": _reasoning, "warm_up": _warmup, "scheduler_policy": _policy,
}  # fmt: skip


def causes_of(f: Features) -> list[Cause]:
    """Every cause that the numbers carry, strongest first. Under 20 requests nothing is more than weak."""
    found = [cause for rule in RULES.values() if (cause := rule(f)) is not None]
    if f.requests < FEW:
        found = [msgspec.structs.replace(cause, strength="weak") for cause in found]
    return sorted(found, key=lambda cause: (ORDER.index(cause.strength), -cause.weight))


def missing_in(f: Features) -> list[str]:
    """What is not on record and would decide more."""
    needs = []
    if not f.with_evidence:
        needs.append("queue and prefill per request: spans (--otlp-listen), or timings in the response")
    if f.alone_ttft_s is None:
        needs.append("single requests without load, at three input lengths")
    if f.server is None:
        needs.append("the server's counters and gauges (--server-metrics)")
    elif f.server.preemptions is None or f.server.kv_usage_max is None:
        needs.append("preemptions and KV cache use on the server's metrics page")
    return needs


def diagnose(f: Features) -> Diagnosis:
    """The six steps. Each finding stands on what is on record; a step without its numbers cannot say."""
    causes = causes_of(f)
    steps = (_apart(f), _queue_or_prefill(f), _lengths(f), _tails(f), _slo(f), _cause(f, causes))
    return Diagnosis(steps=steps, causes=tuple(causes), missing=tuple(missing_in(f)))


def _apart(f: Features) -> Step:
    question = "Is it the wait for the first token, or the cadence after it?"
    if f.ttft_p50_s is None or f.e2e_p50_s is None or f.e2e_p50_s <= 0:
        return Step(step=1, question=question, finding="cannot say", evidence="no request with output", strength="cannot say",
                    next="a run in which requests succeed")  # fmt: skip
    share = min(1.0, f.ttft_p50_s / f.e2e_p50_s)
    finding = "the wait for the first token" if share > 0.6 else "the output's cadence" if share < 0.3 else "both"
    evidence = f"TTFT p50 {_time(f.ttft_p50_s)}, from due to last token p50 {_time(f.e2e_p50_s)}, TPOT p50 {_time(f.tpot_p50_s)}"
    return Step(step=1, question=question, finding=finding, evidence=evidence, strength="certain" if f.requests >= FEW else "weak",
                next="step 2" if share > 0.3 else "TPOT at three concurrencies")  # fmt: skip


def _queue_or_prefill(f: Features) -> Step:
    question = "Does it wait in a queue, or in prefill?"
    if f.queue_share is not None and f.prefill_share is not None:
        finding = "queue" if f.queue_share > f.prefill_share else "prefill"
        evidence = f"of the mean TTFT: queue {_share(f.queue_share)}, prefill {_share(f.prefill_share)}, the rest {_share(f.lump_share)}"
        return Step(step=2, question=question, finding=finding, evidence=evidence, strength="certain" if f.with_evidence >= FEW else "weak",
                    next="single requests against loaded ones")  # fmt: skip
    if f.alone_ttft_s is not None and f.ttft_p50_s is not None:
        ratio = f.ttft_p50_s / f.alone_ttft_s if f.alone_ttft_s > 0 else 1.0
        finding = "it appears under load" if ratio > 1.5 else "it is there without load too"
        evidence = f"alone {_time(f.alone_ttft_s)}, loaded p50 {_time(f.ttft_p50_s)}; queue and prefill can't be told apart by this"
        return Step(
            step=2, question=question, finding=finding, evidence=evidence, strength="weak", next="server evidence"
        )
    return Step(step=2, question=question, finding="cannot say", evidence="neither queue with prefill, nor single requests",
                strength="cannot say", next="spans, timings in the response, or single requests")  # fmt: skip


def _lengths(f: Features) -> Step:
    question = "Does it follow the input's length?"
    seen = f.input_to_prefill if f.input_to_prefill is not None else f.input_to_ttft
    if seen is None:
        return Step(step=3, question=question, finding="cannot say", evidence="input lengths don't vary, or are not on record",
                    strength="cannot say", next="single requests at three input lengths")  # fmt: skip
    what = "prefill" if f.input_to_prefill is not None else "TTFT"
    finding = "yes" if seen > 0.6 else "no" if seen < 0.3 else "partly"
    return Step(step=3, question=question, finding=finding, evidence=f"rank correlation of input tokens with {what}: {seen:.2f}",
                strength="likely" if f.requests >= FEW else "weak", next="single requests at three input lengths")  # fmt: skip


def _tails(f: Features) -> Step:
    question = "Is it everyone, or the tail?"
    if f.ttft_p50_s is None or f.ttft_p99_s is None or f.requests < FEW:
        return Step(step=4, question=question, finding="cannot say", evidence=f"{f.requests} requests", strength="cannot say",
                    next=f"at least {FEW} requests; 100 for a p99")  # fmt: skip
    ratio = f.ttft_p99_s / f.ttft_p50_s if f.ttft_p50_s > 0 else 1.0
    finding = "the tail" if ratio > 3 else "everyone"
    return Step(step=4, question=question, finding=finding, evidence=f"TTFT p50 {_time(f.ttft_p50_s)}, p99 {_time(f.ttft_p99_s)}",
                strength="likely" if f.requests >= 100 else "weak", next="the tail budget at p99")  # fmt: skip


def _slo(f: Features) -> Step:
    question = "Does it matter under the objectives?"
    return Step(step=5, question=question, finding="cannot say", evidence=f"{_share(f.failed_share)} of requests failed; no contract given",
                strength="cannot say", next="check RUN --contract c.yaml")  # fmt: skip


def _cause(f: Features, causes: list[Cause]) -> Step:
    question = "What is the cause?"
    if not causes:
        missing = missing_in(f)
        words = "nothing on record stands out" if not missing else "not on record: " + "; ".join(missing)
        return Step(step=6, question=question, finding="cannot say", evidence=words, strength="cannot say",
                    next=missing[0] if missing else "a run nearer to the load that is slow")  # fmt: skip
    first = causes[0]
    return Step(
        step=6,
        question=question,
        finding=first.cause,
        evidence=first.evidence,
        strength=first.strength,
        next=first.next,
    )
