"""Which causes the numbers carry: one rule a cause, each with its evidence, how firm it is, and what to measure next.

Lives here: rules over Features. Must not live here: computing features (features.py) or the six steps (diagnosis.py). A rule
names a cause only when the numbers that it needs are on record, and calls it certain only where they leave no other reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from phasemeter.phases.features import Features
from phasemeter.phases.timeline import FREE

Strength = Literal["certain", "likely", "weak", "cannot say"]
ORDER: tuple[Strength, ...] = ("certain", "likely", "weak", "cannot say")
FEW = 20  # requests under which nothing is more than weak
IMPACT = 0.25  # share of the time from due to the last token below which a segment is no cause
KV_FULL = 0.9
HELD = 0.75  # output that arrives in less of the time that it took to make was held back before
SLOW_WAIT_S = 0.45  # for the first token: the same benchmark's TTFT p99
SLOW_PACE_S = 0.04  # a token: MLPerf Inference v5.0, Llama 2 70B interactive, TPOT p99


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """`weight` orders causes of equal strength: the share of the time that it explains, 0 to 1."""

    cause: str
    strength: Strength
    evidence: str
    next: str
    weight: float = 0.0


def as_share(value: float | None) -> str:
    """A share as a person reads it."""
    return "not on record" if value is None else f"{value:.0%}"


def as_time(value: float | None) -> str:
    """Seconds as a person reads them."""
    if value is None:
        return "not on record"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _impact(f: Features, *segments: str) -> float:
    """Share of the time from due to the last token that these segments take, on average or among the slowest tenth."""
    return max(sum(found.get(name, 0.0) for name in segments) for found in (f.whole, f.whole_tail))


def _of_the_wait(f: Features, share: float | None) -> float:
    """IMPACT for what is most of the wait for the first token, and by itself longer than SLOW_WAIT_S; else 0.

    A long answer makes any wait a small share of the whole, and people wait for the first token nevertheless.
    """
    return IMPACT if share is not None and share >= 0.5 and (f.ttft_p50_s or 0.0) * share > SLOW_WAIT_S else 0.0


def _client(f: Features) -> Cause | None:
    share, lag = _impact(f, "client_queue"), f.observer_lag_s or 0.0
    late_reads = bool(f.tpot_p50_s and lag > max(f.tpot_p50_s, 0.005))
    if share < IMPACT and not late_reads:
        return None
    strength: Strength = "certain" if f.whole.get("client_queue", 0.0) > 0.4 else "likely"
    words = f"the client's own queue is {as_share(share)} of the time from due; observer lag p99 {as_time(f.observer_lag_s)}"
    return Cause(
        cause="client_saturation", strength=strength, evidence=words, next="more --processes, or less load",
        weight=max(share, 0.4 if late_reads else 0.0) + 0.1,
    )  # fmt: skip


def _queueing(f: Features) -> Cause | None:
    share = max(_impact(f, "queue"), _of_the_wait(f, f.queue_share))
    if share < IMPACT or f.queue_share is None:
        return None
    words = f"the server's queue is {as_share(share)} of the time from due to last token, {as_share(f.queue_share)} of the mean TTFT"
    if f.queue_trend is not None and f.queue_trend > 0.6:
        words += f"; it grows through the run (rank correlation {f.queue_trend:.2f}): load beyond capacity"
    busy = f.held_back is not None and f.held_back < 0.15 and f.server is not None and f.server.kv_usage_max is not None
    strength: Strength = "certain" if busy and f.queue_share > 0.5 else "likely"
    return Cause(
        cause="queueing", strength=strength, evidence=words, next="goodput: find the rate it can carry", weight=share
    )


def _preemption(f: Features) -> Cause | None:
    server = f.server
    if server is None or server.kv_usage_max is None or not f.requests:
        return None
    preempted = (server.preemptions or 0.0) / f.requests
    queue = _impact(f, "queue")
    full = server.kv_usage_max > KV_FULL
    if preempted < 0.02 and not (full and queue >= IMPACT):
        return None
    known = "not on record" if server.preemptions is None else f"{server.preemptions:g}"
    words = f"{known} preemptions over {f.requests} requests; KV cache use up to {as_share(server.kv_usage_max)}"
    strength: Strength = "certain" if full and preempted > 0.1 else "likely"
    return Cause(
        cause="kv_exhaustion", strength=strength, evidence=words, next="more KV memory, fewer or shorter sequences at once",
        weight=max(queue, min(0.9, 0.3 + preempted)) + 0.05,
    )  # fmt: skip


def _policy(f: Features) -> Cause | None:
    share = _impact(f, "queue")
    if f.held_back is None or f.held_back < 0.3 or share < 0.2:
        return None
    if f.server is not None and (f.server.kv_usage_max or 0.0) > KV_FULL:
        return None  # it was memory that there was no room for
    words = f"{f.held_back:.0%} of the time in the queue there was room (under {FREE:.0%} of the peak running) and no prompt in work"
    return Cause(
        cause="scheduler_policy", strength="likely", evidence=words, next="the same load under another policy: simulate",
        weight=share + 0.05,
    )  # fmt: skip


def _prefill(f: Features) -> Cause | None:
    share = max(_impact(f, "prefill"), _of_the_wait(f, f.prefill_share))
    if f.prefill_share is None or share < IMPACT:
        return None
    long = f.input_to_prefill is not None and f.input_to_prefill > 0.5
    big = (f.input_tokens_mean or 0.0) >= 1000
    words = f"prefill is {as_share(share)} of the time from due to the last token, {as_share(f.prefill_share)} of the mean TTFT"
    if f.input_to_prefill is not None:
        words += f"; rank correlation with the input's length {f.input_to_prefill:.2f}"
    strength: Strength = "likely" if long or big else "weak"
    if f.alone_ttft_s is not None and f.ttft_p50_s is not None and f.queue_share is not None:
        computed = f.alone_ttft_s > 0.6 * f.ttft_p50_s * (1 - f.queue_share)
        words += f"; a single request takes {as_time(f.alone_ttft_s)}, loaded {as_time(f.ttft_p50_s)}"
        strength = strength if not computed else "certain" if long and f.prefill_share > 0.5 else strength
    return Cause(
        cause="prefill_compute", strength=strength, evidence=words, next="single requests at three input lengths", weight=share
    )  # fmt: skip


def _interference(f: Features) -> Cause | None:
    share, contrast = f.interference_share, f.interference_contrast
    if share is None or contrast is None or share < 0.15 or contrast < 1.3:
        return None
    output = _impact(f, "decode", "stalls")
    if share * output < 0.1:
        return None
    words = f"gaps with another's prefill in them are {contrast:.1f} times the others: {share:.0%} of the time between tokens"
    if f.stalls and f.stalls_in_prefill is not None:
        words += f"; {f.stalls_in_prefill:g} of {f.stalls:g} stalls have one in them"
    strength: Strength = "certain" if share > 0.3 and contrast > 2.5 and f.requests >= FEW else "likely"
    weight = share * output + 0.05
    of_mean = share * sum(f.whole.get(name, 0.0) for name in ("decode", "stalls"))
    if f.whole.get("prefill", 0.0) >= max(
        IMPACT, of_mean
    ):  # first of all the prompts are long: others' stalls follow from that
        strength, weight = "likely", min(weight, 0.9 * f.whole["prefill"])
    return Cause(
        cause="prefill_decode_interference", strength=strength, evidence=words, next="the same load with smaller prefill chunks",
        weight=weight,
    )  # fmt: skip


def _batch_growth(f: Features) -> Cause | None:
    output = _impact(f, "decode", "stalls")
    growth, share = f.growth, f.growth_share or 0.0
    crowded = f.clean_gap_s is not None and f.alone_tpot_s is not None and f.clean_gap_s > 1.3 * f.alone_tpot_s
    if f.alone_tpot_s and f.tpot_p50_s:
        # against a single request, less what others' prefills took, which are counted apart
        from_alone = (
            f.tpot_p50_s / f.alone_tpot_s * (1.0 if growth is None or crowded else 1 - (f.interference_share or 0.0))
        )
        if growth is None or crowded or from_alone > growth:
            growth = from_alone
            share = max(share, max(0.0, 1 - 1 / growth) - (f.interference_share or 0.0))
    if growth is None or growth < 1.35 or share * output < 0.12:
        return None
    words = f"gaps without a prefill in them are {growth:.1f} times as long with many running as with few or one"
    if f.alone_tpot_s is not None:
        words += f"; a single request's pace {as_time(f.alone_tpot_s)}, loaded {as_time(f.tpot_p50_s)}"
    return Cause(
        cause="decode_batch_growth", strength="likely", evidence=words, next="TPOT at three concurrencies", weight=share * output
    )  # fmt: skip


def _decode_compute(f: Features) -> Cause | None:
    output, pace = _impact(f, "decode", "stalls"), f.alone_tpot_s or f.clean_gap_s
    if pace is None or f.tpot_p50_s is None or output < 0.5 or pace < SLOW_PACE_S:
        return None
    if f.tpot_p50_s > 1.35 * pace or (f.decode_stretch or 1.0) > 1.2:
        return None
    known = "alone" if f.alone_tpot_s is not None else "with the fewest running"
    words = f"output is {output:.0%} of the time, and its pace is slow {known} ({as_time(pace)} a token) as under load"
    unmixed = f.alone_tpot_s is not None or f.growth is not None or (f.most_in_flight or 3.0) <= 2
    strength: Strength = "likely" if unmixed else "weak"
    return Cause(
        cause="decode_compute",
        strength=strength,
        evidence=words,
        next="a profile of one decode step",
        weight=0.6 * output,
    )


def _prefix_cache(f: Features) -> Cause | None:
    ratio, share = f.cached_ttft_ratio, f.cached_share
    if share is None and f.server is not None:
        share = f.server.prefix_hit_share
    if share is None or share < 0.1:
        return None
    split = ratio is not None and ratio < 0.6
    if not split and share < 0.3:
        return None
    words = f"{share:.0%} of input tokens came from the prefix cache: TTFT is not that of computing the prompts"
    if ratio is not None:
        words += f"; requests with cached input have {ratio:.0%} of the others' TTFT"
    return Cause(
        cause="prefix_cache", strength="likely", evidence=words, next="the same run with unique prompts",
        weight=max(0.2 * share, _impact(f, "prefill") if split else 0.0),
    )  # fmt: skip


def _front_end(f: Features) -> Cause | None:
    share = max(f.front_end or 0.0, _of_the_wait(f, f.front_end_share))
    if f.front_end_share is None or share < IMPACT:
        return None
    words = (
        f"{as_share(f.front_end)} of the time from due to the last token, {as_share(f.front_end_share)} of the mean TTFT, is in the"
        " server's own TTFT and neither queue nor prefill: rendering, tokenizing, the way between its processes"
    )
    return Cause(
        cause="server_front_end", strength="likely", evidence=words, next="the processor time of the server's API process",
        weight=share,
    )  # fmt: skip


def _held_back(f: Features) -> float:
    """Of the time from due to the last token: how much less of it the output took to arrive than to be made."""
    if f.decode_stretch is None or not 0 < f.decode_stretch < HELD:
        return 0.0
    return sum(f.whole.get(name, 0.0) for name in ("reasoning", "decode", "stalls")) * (1 / f.decode_stretch - 1)


def _network(f: Features) -> Cause | None:
    front_end, textless = max(0.0, f.front_end or 0.0), f.before_text_share or 0.0
    outside = None if f.lump_share is None else f.lump_share - max(0.0, f.front_end_share or 0.0)
    share = max(0.0, _impact(f, "ingress_delivery") - front_end)
    share = max(share, _of_the_wait(f, outside) if textless < 0.1 else 0.0)
    held = _held_back(f)
    stretched = f.decode_stretch is not None and f.decode_stretch > 1.25
    one_piece = (f.single_arrivals or 0.0) > 0.5
    buffered = one_piece or (f.coalesced_share or 0.0) > 0.4
    speculative = (f.tokens_per_chunk or 1.0) > 1.3
    lump = share - textless >= IMPACT and textless < 0.5
    if not lump and not stretched and held < IMPACT and not (buffered and (not speculative or one_piece)):
        return None
    what = "ingress and delivery are" if f.front_end_share is None else "what the server's own TTFT does not hold is"
    words = f"{what} {as_share(share)} of the time from due to last token; {as_share(f.coalesced_share)} of gaps are 0"
    if stretched and f.decode_stretch is not None:
        words += f"; the output takes {f.decode_stretch:.1f} times as long to arrive as to be made"
    if held >= IMPACT and f.decode_stretch:
        words += f"; the output takes {1 / f.decode_stretch:.1f} times as long to be made as to arrive: its text was held back"
    arrives = 1 - 1 / f.decode_stretch if stretched and f.decode_stretch else 0.0
    weight = max(share if lump else 0.0, arrives, min(held, 1.0), 0.5 if buffered else 0.0)
    return Cause(
        cause="network_or_buffering", strength="likely", evidence=words,
        next="the same request past the gateway, at the server itself", weight=weight,
    )  # fmt: skip


def _kv_movement(f: Features) -> Cause | None:
    moved = f.server.kv_transfer_mean_s if f.server else None
    if moved is None or not f.e2e_p50_s:
        return None
    share = moved / f.e2e_p50_s
    seen = f.first_gap_share or 0.0
    if max(share, seen) < 0.15 or share < 0.05:
        return None
    words = f"moving KV takes {as_time(moved)} on average, {share:.0%} of the time to the last token"
    if f.first_gap_ratio is not None and f.first_gap_ratio > 2:
        words += f"; the gap after the first token is {f.first_gap_ratio:.1f} times the later ones"
    return Cause(
        cause="kv_movement",
        strength="likely",
        evidence=words,
        next="the link's own throughput",
        weight=max(share, seen) + 0.05,
    )


def _multi_token(f: Features) -> Cause | None:
    if f.tokens_per_chunk is None or f.tokens_per_chunk < 1.3 or (f.single_arrivals or 0.0) > 0.5:
        return None
    words = f"a chunk holds {f.tokens_per_chunk:.2f} tokens on average: gaps between chunks are not gaps between tokens"
    return Cause(
        cause="multi_token_streaming",
        strength="likely",
        evidence=words,
        next="jitter by engine step, TPOT by token",
        weight=0.15,
    )


def _reasoning(f: Features) -> Cause | None:
    share = _impact(f, "reasoning")
    if share < 0.3:
        return None
    words = f"{share:.0%} of the time passes between the first reasoning token and the first visible one"
    return Cause(
        cause="reasoning_time", strength="certain" if f.whole.get("reasoning", 0.0) > 0.4 else "likely", evidence=words,
        next="ttfo beside ttft; a lower reasoning effort", weight=share,
    )  # fmt: skip


def _warmup(f: Features) -> Cause | None:
    if f.warmup_ratio is None or f.warmup_ratio < 2:
        return None
    words = f"the first requests' wait outside the queue is {f.warmup_ratio:.1f} times the rest's"
    return Cause(cause="warm_up", strength="likely", evidence=words, next="a longer --warmup", weight=0.25)


RULES: Mapping[str, Callable[[Features], Cause | None]] = {
    "client_saturation": _client, "queueing": _queueing, "kv_exhaustion": _preemption, "scheduler_policy": _policy,
    "prefill_compute": _prefill, "prefill_decode_interference": _interference, "decode_batch_growth": _batch_growth,
    "decode_compute": _decode_compute, "prefix_cache": _prefix_cache, "network_or_buffering": _network,
    "server_front_end": _front_end,
    "kv_movement": _kv_movement, "multi_token_streaming": _multi_token, "reasoning_time": _reasoning, "warm_up": _warmup,
}  # fmt: skip
# where a reason is at hand, what follows from it stands behind it: consequence: its reasons
FOLLOWS: Mapping[str, frozenset[str]] = {
    "queueing": frozenset({"kv_exhaustion", "scheduler_policy"}),
    "prefill_compute": frozenset({"prefix_cache"}),
    "warm_up": frozenset({"prefix_cache", "client_saturation"}),
    "decode_compute": frozenset({"network_or_buffering"}),
}


def causes_of(f: Features) -> list[Cause]:
    """Every cause that the numbers carry: firm ones before weak ones, then by the time that each explains.

    Under 20 requests nothing is more than weak.
    """
    found = {cause.cause: cause for rule in RULES.values() if (cause := rule(f)) is not None}
    for name in FOLLOWS.keys() & found.keys():
        if FOLLOWS[name] & {other for other, cause in found.items() if cause.strength != "weak"}:
            own = found[name]
            strength: Strength = "likely" if own.strength == "certain" else own.strength
            found[name] = msgspec.structs.replace(own, strength=strength, weight=own.weight / 2)
    if f.requests < FEW:
        found = {name: msgspec.structs.replace(cause, strength="weak") for name, cause in found.items()}
    return sorted(found.values(), key=lambda cause: (cause.strength == "weak", -cause.weight))
