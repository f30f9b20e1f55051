"""What a diagnosis looks at, as one struct of numbers. None: not on record, and no rule may lean on it.

Lives here: computing the numbers from rows, budgets and a server's window. Must not live here: any verdict (diagnosis.py).
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from phasemeter.phases.budget import SPANNED, Budget, metric_ns
from phasemeter.phases.timeline import cadence, first_gap, held_back, stalls_beside_prefills, warmed_up
from phasemeter.records.request_row import RequestRow

MERGED = 0.3  # share of gaps that are 0, from which on gaps say nothing of an engine's cadence


class ServerWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's counters and gauges said over the run. Seconds, shares, counts."""

    queue_mean_s: float | None = None
    prefill_mean_s: float | None = None
    waiting_max: float | None = None
    running_max: float | None = None
    kv_usage_max: float | None = None
    preemptions: float | None = None
    prefix_hit_share: float | None = None
    kv_transfer_mean_s: float | None = None
    draft_tokens: float | None = None


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, shares of 1, rank correlations in −1..1, and how many requests each stands on."""

    requests: int = 0
    with_evidence: int = 0
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    e2e_p50_s: float | None = None
    input_tokens_mean: float | None = None
    alone_ttft_s: float | None = None  # single requests (phase probe) without load
    alone_tpot_s: float | None = None
    alone_input_to_ttft: float | None = None  # their rank correlation of input tokens with TTFT
    observer_lag_s: float | None = None
    whole: dict[str, float] = {}  # of the mean from due to the last token: the share of each segment
    whole_tail: dict[str, float] = {}  # the same among the slowest tenth
    queue_share: float | None = None  # of the mean TTFT, from per-request evidence
    prefill_share: float | None = None
    lump_share: float | None = None
    front_end_share: float | None = None  # of the mean TTFT: what of the lump the server's own TTFT holds, by its clock
    front_end: float | None = None  # the same, of the time from due to the last token
    input_to_prefill: float | None = None  # rank correlation of input tokens with prefill time
    input_to_ttft: float | None = None
    queue_trend: float | None = None  # rank correlation of the queue with time: a growing backlog
    held_back: float | None = None  # of the time in the queue: the share in which there was room and no prompt in work
    interference_share: float | None = None  # of the time between tokens: what others' prefills added
    interference_contrast: float | None = None  # a gap with a prefill in it over one without
    disturbed_share: float | None = None  # of gaps
    clean_gap_s: float | None = None  # between tokens, undisturbed, with the fewest running
    growth: float | None = None  # undisturbed gaps with many running over those with few
    growth_share: float | None = None  # of the time between tokens: what more running added
    most_in_flight: float | None = None  # requests at once, while one of them was answered
    running_to_tpot: float | None = None  # rank correlation of the requests in flight with TPOT
    first_gap_ratio: float | None = None  # the gap after the first token over the later ones
    first_gap_share: float | None = None  # of the time from due to the last token
    decode_stretch: float | None = None  # the client's first to last token over what the server says that took
    stalls: float = 0
    stalls_in_prefill: float | None = None  # of them, with another request's prefill in it
    prefills_beside_a_stall: float | None = None  # how many were, on average
    coalesced_share: float | None = None  # of gaps that are 0: several events a read
    tokens_per_chunk: float | None = None
    single_arrivals: float | None = None
    before_text_share: float | None = None  # of TTFT: chunks came, but without text
    cached_share: float | None = None
    cached_ttft_ratio: float | None = None  # median TTFT of requests with cached input over those without
    warmup_ratio: float | None = None  # the first requests' wait outside the queue over the rest's
    failed_share: float = 0.0
    attainment: float | None = None  # of a contract's objectives, joint
    attainment_wanted: float | None = None
    breaches: dict[str, float] = {}  # objective: share of requests that break it
    server: ServerWindow | None = None


def quantile(values: Sequence[float], q: float) -> float | None:
    """Linear on n − 1. None for none."""
    if not values:
        return None
    ranked = sorted(values)
    at = q * (len(ranked) - 1)
    low = ranked[math.floor(at)]
    return low + (ranked[math.ceil(at)] - low) * (at - math.floor(at))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's, with mean ranks for ties. None under 10 pairs, or where one side never changes."""
    if len(a) < 10 or len(set(a)) < 3 or len(set(b)) < 3:
        return None
    return statistics.correlation(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(bisect.bisect_left(ordered, v) + bisect.bisect_right(ordered, v) - 1) / 2 for v in values]


def features_of(
    rows: Sequence[RequestRow], budgets: Mapping[str, Budget], server: ServerWindow | None = None
) -> Features:
    """Everything a rule may look at. `budgets` by request id; rows of phase `probe` are the single requests without load."""
    ok = [r for r in rows if r.outcome == "ok" and r.first_token_ns is not None and r.send_start_ns is not None]
    loaded, alone = [r for r in ok if r.phase == "measured"], [r for r in ok if r.phase == "probe"]
    ended = sum(r.phase == "measured" and r.outcome in {"ok", "failed"} for r in rows)
    found: dict[str, object] = {"requests": len(loaded), "server": server}
    found["failed_share"] = sum(r.phase == "measured" and r.outcome == "failed" for r in rows) / ended if ended else 0.0
    if not loaded:
        return Features(**found)  # type: ignore[arg-type]
    ttft, tpot = [_ttft(r) for r in loaded], [t for r in loaded if (t := _tpot(r)) is not None]
    alone_tpot = quantile([t for r in alone if (t := _tpot(r)) is not None], 0.5)
    found |= {
        "ttft_p50_s": quantile(ttft, 0.5), "ttft_p99_s": quantile(ttft, 0.99), "tpot_p50_s": quantile(tpot, 0.5),
        "tpot_p99_s": quantile(tpot, 0.99), "alone_ttft_s": quantile([_ttft(r) for r in alone], 0.5),
        "alone_tpot_s": alone_tpot,
        "observer_lag_s": quantile([r.observer_lag_ns / 1e9 for r in loaded if r.observer_lag_ns is not None], 0.99),
        "e2e_p50_s": quantile([(r.last_token_ns - r.due_ns) / 1e9 for r in loaded if r.last_token_ns is not None], 0.5),
        "held_back": held_back(loaded, budgets), "warmup_ratio": warmed_up(loaded, budgets),
        "alone_input_to_ttft": rank_correlation([float(r.input_tokens or 0) for r in alone], [_ttft(r) for r in alone]),
    }  # fmt: skip
    found |= stalls_beside_prefills(loaded, budgets)
    found |= _from_budgets(loaded, budgets) | _from_stream(loaded) | _from_input(loaded)
    if (found["coalesced_share"] or 0.0) < MERGED:  # type: ignore[operator]
        found |= cadence(loaded, budgets, alone_tpot) | first_gap(loaded)
    return Features(**found)  # type: ignore[arg-type]


def _ttft(row: RequestRow) -> float:
    return ((row.first_token_ns or 0) - (row.send_start_ns or 0)) / 1e9


def _tpot(row: RequestRow) -> float | None:
    if row.last_token_ns is None or row.first_token_ns is None or (row.output_tokens or 0) < 2 or row.single_arrival:
        return None
    return (row.last_token_ns - row.first_token_ns) / 1e9 / ((row.output_tokens or 0) - 1)


def _from_budgets(rows: Sequence[RequestRow], budgets: Mapping[str, Budget]) -> dict[str, object]:
    mine = [(r, budgets[r.request_id]) for r in rows if r.request_id in budgets and budgets[r.request_id].complete]
    if not mine:
        return {}
    ranked = sorted((b for _, b in mine), key=lambda b: metric_ns(b, "e2e_from_due"))
    found: dict[str, object] = {"whole": _shares(ranked), "whole_tail": _shares(ranked[-max(1, len(ranked) // 10) :])}
    stretches = [
        ((r.last_token_ns or 0) - (r.first_token_ns or 0)) / (b.server_decode_ns or 1) for r, b in mine if paced(r, b)
    ]
    found["decode_stretch"] = quantile(stretches, 0.5)
    found |= _front_end([b for _, b in mine if b.inside_server_ns is not None])
    told = [(r, b) for r, b in mine if "queue" in b.evidence and "prefill" in b.evidence]
    found["with_evidence"] = len(told)
    prefilled = [(r, b) for r, b in mine if "prefill" in b.evidence and r.input_tokens is not None]
    found["input_to_prefill"] = rank_correlation(
        [float(r.input_tokens or 0) for r, _ in prefilled], [float(b.segments["prefill"]) for _, b in prefilled]
    )
    ttft = sum(metric_ns(b, "ttft") for _, b in mine)
    found["before_text_share"] = sum(b.before_text_ns for _, b in mine) / ttft if ttft > 0 else None
    if not told:
        return found
    ttft = sum(metric_ns(b, "ttft") for _, b in told)
    for name, segment in (("queue_share", "queue"), ("prefill_share", "prefill"), ("lump_share", "ingress_delivery")):
        found[name] = sum(b.segments[segment] for _, b in told) / ttft if ttft > 0 else None
    found["queue_trend"] = rank_correlation(
        [float(r.due_ns) for r, _ in told], [float(b.segments["queue"]) for _, b in told]
    )
    return found


def paced(row: RequestRow, budget: Budget) -> bool:
    """Whether the client saw the output come over time, and the server said how long it took: the two should agree."""
    seen = not row.single_arrival and not row.hidden_reasoning and (row.output_tokens or 0) > 3
    return seen and bool(budget.server_decode_ns)


def _front_end(budgets: Sequence[Budget]) -> dict[str, object]:
    """Of requests whose server told its own TTFT: its parts are subtracted on one clock, so this much is known of the lump."""
    inside = sum(b.inside_server_ns or 0 for b in budgets)
    of = {"front_end_share": "ttft", "front_end": "e2e_from_due"}
    wholes = {name: sum(metric_ns(b, metric) for b in budgets) for name, metric in of.items()}
    return {name: inside / whole for name, whole in wholes.items() if whole > 0}


def _shares(budgets: Sequence[Budget]) -> dict[str, float]:
    whole = sum(metric_ns(b, "e2e_from_due") for b in budgets)
    names = SPANNED["e2e_from_due"]
    return {name: sum(b.segments[name] for b in budgets) / whole for name in names} if whole > 0 else {}


def _from_input(rows: Sequence[RequestRow]) -> dict[str, object]:
    sized = [r for r in rows if r.input_tokens is not None]
    found: dict[str, object] = {
        "input_to_ttft": rank_correlation([float(r.input_tokens or 0) for r in sized], [_ttft(r) for r in sized]),
        "input_tokens_mean": statistics.mean(r.input_tokens or 0 for r in sized) if sized else None,
    }
    cached = [r for r in sized if r.cached_tokens is not None]
    total = sum(r.input_tokens or 0 for r in cached)
    if total:
        found["cached_share"] = sum(r.cached_tokens or 0 for r in cached) / total
        hot = [_ttft(r) for r in cached if (r.cached_tokens or 0) * 2 >= (r.input_tokens or 0)]
        cold = [_ttft(r) for r in cached if (r.cached_tokens or 0) * 2 < (r.input_tokens or 0)]
        if len(hot) >= 5 and len(cold) >= 5 and statistics.median(cold) > 0:
            found["cached_ttft_ratio"] = statistics.median(hot) / statistics.median(cold)
    return found


def _from_stream(rows: Sequence[RequestRow]) -> dict[str, object]:
    zero = gaps = events = tokens = 0
    for row in rows:
        for choice in row.choices:
            steps = [b - a for a, b in pairwise(choice.times_ns)]
            gaps, zero = gaps + len(steps), zero + sum(step == 0 for step in steps)
        if row.choices and row.output_tokens:
            events, tokens = events + sum(len(c.times_ns) for c in row.choices), tokens + row.output_tokens
    starts, ends = sorted(r.send_start_ns or 0 for r in rows), sorted(r.last_token_ns or 0 for r in rows)
    in_flight, paces = [], []
    for row in rows:
        pace = _tpot(row)
        if pace is not None and row.first_token_ns is not None and row.last_token_ns is not None:
            middle = (row.first_token_ns + row.last_token_ns) // 2
            in_flight.append(float(bisect.bisect_right(starts, middle) - bisect.bisect_left(ends, middle)))
            paces.append(pace)
    return {
        "coalesced_share": zero / gaps if gaps else None,
        "tokens_per_chunk": tokens / events if events else None,
        "single_arrivals": sum(r.single_arrival for r in rows) / len(rows),
        "most_in_flight": max(in_flight, default=None),
        "running_to_tpot": rank_correlation(in_flight, paces),
    }
