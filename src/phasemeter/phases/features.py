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

from phasemeter.phases.budget import Budget, metric_ns, stalled_gaps
from phasemeter.records.request_row import RequestRow


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
    alone_ttft_s: float | None = None  # single requests (phase probe) without load
    alone_tpot_s: float | None = None
    client_queue_share: float | None = None  # of the mean from due to the last token
    observer_lag_s: float | None = None
    queue_share: float | None = None  # of the mean TTFT, from per-request evidence
    prefill_share: float | None = None
    lump_share: float | None = None
    lump_p50_s: float | None = None
    queue_tail_share: float | None = None  # of TTFT among the slowest tenth
    prefill_tail_share: float | None = None
    input_to_prefill: float | None = None  # rank correlation of input tokens with prefill time
    input_to_ttft: float | None = None
    queue_trend: float | None = None  # rank correlation of the queue with time: a growing backlog
    running_to_tpot: float | None = None  # rank correlation of the requests in flight with TPOT
    reasoning_share: float | None = None
    stall_share: float | None = None
    stalls: int = 0
    stalls_in_prefill: int | None = None  # of them, while another request's prefill ran
    prefill_time_share: float | None = None  # of the run during which any prefill ran: what chance alone would give
    coalesced_share: float | None = None  # of gaps that are 0: several events a read
    tokens_per_chunk: float | None = None
    single_arrivals: float | None = None
    cached_share: float | None = None
    cached_ttft_ratio: float | None = None  # median TTFT of requests with cached input over those without
    warmup_ratio: float | None = None  # median TTFT of the first tenth over the rest's
    failed_share: float = 0.0
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
    found |= {
        "ttft_p50_s": quantile(ttft, 0.5), "ttft_p99_s": quantile(ttft, 0.99), "tpot_p50_s": quantile(tpot, 0.5),
        "tpot_p99_s": quantile(tpot, 0.99), "alone_ttft_s": quantile([_ttft(r) for r in alone], 0.5),
        "alone_tpot_s": quantile([t for r in alone if (t := _tpot(r)) is not None], 0.5),
        "observer_lag_s": quantile([r.observer_lag_ns / 1e9 for r in loaded if r.observer_lag_ns is not None], 0.99),
        "e2e_p50_s": quantile([(r.last_token_ns - r.due_ns) / 1e9 for r in loaded if r.last_token_ns is not None], 0.5),
    }  # fmt: skip
    found |= _from_budgets(loaded, budgets)
    found |= _from_stream(loaded, budgets)
    found |= _from_input(loaded)
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
    whole = sum(metric_ns(b, "e2e_from_due") for _, b in mine)
    found: dict[str, object] = {}
    if whole > 0:
        found["client_queue_share"] = sum(b.segments["client_queue"] for _, b in mine) / whole
        found["reasoning_share"] = sum(b.segments["reasoning"] for _, b in mine) / whole
        found["stall_share"] = sum(b.segments["stalls"] for _, b in mine) / whole
    told = [(r, b) for r, b in mine if "queue" in b.evidence and "prefill" in b.evidence]
    found["with_evidence"] = len(told)
    prefilled = [(r, b) for r, b in mine if "prefill" in b.evidence and r.input_tokens is not None]
    found["input_to_prefill"] = rank_correlation(
        [float(r.input_tokens or 0) for r, _ in prefilled], [float(b.segments["prefill"]) for _, b in prefilled]
    )
    if not told:
        return found
    ranked = sorted(told, key=lambda pair: metric_ns(pair[1], "ttft"))
    slow = ranked[-max(1, len(ranked) // 10) :]
    for name, segment, chosen in (
        ("queue_share", "queue", told), ("prefill_share", "prefill", told), ("lump_share", "ingress_delivery", told),
        ("queue_tail_share", "queue", slow), ("prefill_tail_share", "prefill", slow),
    ):  # fmt: skip
        total = sum(metric_ns(b, "ttft") for _, b in chosen)
        found[name] = sum(b.segments[segment] for _, b in chosen) / total if total > 0 else None
    found["lump_p50_s"] = quantile([b.segments["ingress_delivery"] / 1e9 for _, b in told], 0.5)
    found["queue_trend"] = rank_correlation(
        [float(r.due_ns) for r, _ in told], [float(b.segments["queue"]) for _, b in told]
    )
    return found


def _from_input(rows: Sequence[RequestRow]) -> dict[str, object]:
    sized = [r for r in rows if r.input_tokens is not None]
    found: dict[str, object] = {
        "input_to_ttft": rank_correlation([float(r.input_tokens or 0) for r in sized], [_ttft(r) for r in sized])
    }
    cached = [r for r in sized if r.cached_tokens is not None]
    total = sum(r.input_tokens or 0 for r in cached)
    if total:
        found["cached_share"] = sum(r.cached_tokens or 0 for r in cached) / total
        hot = [_ttft(r) for r in cached if (r.cached_tokens or 0) * 2 >= (r.input_tokens or 0)]
        cold = [_ttft(r) for r in cached if (r.cached_tokens or 0) * 2 < (r.input_tokens or 0)]
        if len(hot) >= 5 and len(cold) >= 5 and statistics.median(cold) > 0:
            found["cached_ttft_ratio"] = statistics.median(hot) / statistics.median(cold)
    ordered = sorted(rows, key=lambda r: r.due_ns)
    first = max(1, len(ordered) // 10)
    rest = [_ttft(r) for r in ordered[first:]]
    if len(ordered) >= 20 and statistics.median(rest) > 0:
        found["warmup_ratio"] = statistics.median(_ttft(r) for r in ordered[:first]) / statistics.median(rest)
    return found


def _from_stream(rows: Sequence[RequestRow], budgets: Mapping[str, Budget]) -> dict[str, object]:
    zero = gaps = events = tokens = 0
    stalls: list[tuple[int, int, str]] = []
    for row in rows:
        for choice in row.choices:
            times = choice.times_ns
            steps = [b - a for a, b in pairwise(times)]
            gaps, zero = gaps + len(steps), zero + sum(step == 0 for step in steps)
            limit = min(stalled_gaps(steps), default=None)
            if limit is not None:
                stalls += [(a, b, row.request_id) for a, b in pairwise(times) if b - a >= limit]
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
        "running_to_tpot": rank_correlation(in_flight, paces),
        "stalls": len(stalls),
    } | _stalls_in_prefill(rows, budgets, stalls)


def _stalls_in_prefill(
    rows: Sequence[RequestRow], budgets: Mapping[str, Budget], stalls: Sequence[tuple[int, int, str]]
) -> dict[str, object]:
    """How many stalls had another request's prefill in them. Its end is laid at that client's first token, less the hand-off."""
    spans = sorted(
        (row.first_token_ns - budgets[row.request_id].segments["prefill"], row.first_token_ns, row.request_id)
        for row in rows
        if row.first_token_ns is not None
        and row.request_id in budgets
        and "prefill" in budgets[row.request_id].evidence
        and budgets[row.request_id].segments["prefill"] > 0
    )
    if not spans:
        return {}
    longest = max(end - start for start, end, _ in spans)
    hit = 0
    for start, end, owner in stalls:
        at = bisect.bisect_left(spans, (start - longest, 0, ""))
        until = bisect.bisect_left(spans, (end, 0, ""))
        hit += any(s < end and e > start and who != owner for s, e, who in spans[at : min(until, at + 10_000)])
    covered, edge = 0, spans[0][0]
    for start, end, _ in spans:
        covered += max(0, end - max(start, edge))
        edge = max(edge, end)
    length = max(r.last_token_ns or 0 for r in rows) - min(r.send_start_ns or 0 for r in rows)
    return {"stalls_in_prefill": hit, "prefill_time_share": covered / length if length > 0 else None}
