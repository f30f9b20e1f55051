"""What ran beside what: requests in flight, waiting and in prefill over time, and what that did to the gaps between tokens.

Lives here: sweeps over intervals. Must not live here: a verdict. A server's durations are laid backwards from the client's first
token, so everything is on the client's clock, late by the delivery, which is the same for all of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from phasemeter.phases.budget import Budget, stalled_gaps
from phasemeter.records.request_row import RequestRow

Floats = NDArray[np.float64]
IN_PREFILL = 0.2  # share of a gap that has to lie in a prefill to count as disturbed
FEW_GAPS = 50
FREE = 0.6  # of the peak: fewer running than that, and there was room
EARLY_SHARE = 10


def _intervals(rows: Sequence[RequestRow], budgets: Mapping[str, Budget]) -> tuple[Floats, Floats, Floats, Floats]:
    """(queue start, prefill start, first token, last token) in seconds, of requests whose server told both parts."""
    told = []
    for row in rows:
        budget = budgets.get(row.request_id)
        if budget is None or row.first_token_ns is None or row.last_token_ns is None:
            continue
        if "queue" in budget.evidence and "prefill" in budget.evidence:
            start = row.first_token_ns - budget.segments["prefill"] - budget.segments["first_token"]
            told.append((start - budget.segments["queue"], start, row.first_token_ns, row.last_token_ns))
    table = np.array(told, dtype=np.float64).reshape(-1, 4) / 1e9
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _open_at(starts: Floats, ends: Floats, at: Floats) -> Floats:
    """How many of the intervals are open at each instant (closed at the start, open at the end)."""
    begun = np.searchsorted(np.sort(starts), at, side="right")
    return (begun - np.searchsorted(np.sort(ends), at, side="right")).astype(np.float64)


def held_back(rows: Sequence[RequestRow], budgets: Mapping[str, Budget]) -> float | None:
    """Of the time that requests waited in the server's queue, the share in which it had room and processed no prompt.

    Room: fewer running than 60 % of the run's peak. None without evidence, or where nothing waited.
    """
    queued, started, first, last = _intervals(rows, budgets)
    if len(queued) < 10:
        return None
    edges = np.unique(np.concatenate([queued, started, first, last]))
    middle, length = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    running = _open_at(started, last, middle)
    waiting = _open_at(queued, started, middle)
    in_prefill = _open_at(started, first, middle)
    waited = waiting * length
    whole = float(waited.sum())
    if whole <= 0:
        return None
    order = np.argsort(running)
    at = np.searchsorted(np.cumsum(length[order]), 0.95 * length.sum())
    peak = running[order][min(int(at), len(order) - 1)]
    return float(waited[(running <= FREE * peak) & (in_prefill == 0)].sum()) / whole


def _gaps(rows: Sequence[RequestRow]) -> tuple[Floats, Floats, Floats]:
    """(start, end, length for one token) of every gap that took time, seconds.

    Where no event tells its tokens, a request's tokens are shared evenly among its events.
    """
    starts, ends, lengths = [], [], []
    for row in rows:
        events = sum(len(choice.times_ns) for choice in row.choices)
        each = max(1.0, (row.output_tokens or 0) / events) if events else 1.0
        for choice in row.choices:
            times = np.asarray(choice.times_ns, dtype=np.float64) / 1e9
            if len(times) < 2:
                continue
            tokens = choice.tokens
            held = np.asarray(tokens[1:], dtype=np.float64) if tokens is not None else np.full(len(times) - 1, each)
            gap = np.diff(times)
            seen = (gap > 0) & (held > 0)
            starts.append(times[:-1][seen])
            ends.append(times[1:][seen])
            lengths.append(gap[seen] / held[seen])
    if not starts:
        return np.empty(0), np.empty(0), np.empty(0)
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(lengths)


def _covered(starts: Floats, ends: Floats, at: Floats) -> Floats:
    """Length of the union of the intervals up to each instant."""
    if not len(starts):
        return np.zeros_like(at)
    order = np.argsort(starts)
    begin, reach = starts[order], np.maximum.accumulate(ends[order])
    fresh = np.concatenate([[True], begin[1:] > reach[:-1]])
    lefts, rights = begin[fresh], np.concatenate([reach[:-1][fresh[1:]], reach[-1:]])
    before = np.concatenate([[0.0], np.cumsum(rights - lefts)])
    index = np.searchsorted(lefts, at, side="right")
    within = np.where(
        index > 0, np.minimum(at, rights[np.maximum(index - 1, 0)]) - lefts[np.maximum(index - 1, 0)], 0.0
    )
    return np.asarray(np.where(index > 0, before[np.maximum(index - 1, 0)] + within, 0.0))


def cadence(
    rows: Sequence[RequestRow], budgets: Mapping[str, Budget], alone_s: float | None
) -> dict[str, float | None]:
    """What disturbs the gaps: others' prefills (`interference_*`), and how many run (`growth`, `growth_share`).

    Undisturbed gaps, by how many run, are what disturbed ones are held against; `clean_gap_s` is the gap with the fewest running.
    """
    starts, ends, gaps = _gaps(rows)
    _, began, first, _ = _intervals(rows, budgets)
    if len(gaps) < FEW_GAPS:
        return {}
    sent = np.array([r.send_start_ns or 0 for r in rows], dtype=np.float64) / 1e9
    done = np.array([r.last_token_ns or 0 for r in rows], dtype=np.float64) / 1e9
    decoding = np.array([r.first_token_ns or 0 for r in rows], dtype=np.float64) / 1e9
    running = _open_at(decoding if len(began) else sent, done, (starts + ends) / 2)
    disturbed = (_covered(began, first, ends) - _covered(began, first, starts)) >= IN_PREFILL * (ends - starts)
    clean = ~disturbed
    total = float(gaps.sum())
    found: dict[str, float | None] = {}
    if clean.sum() >= max(FEW_GAPS, 0.03 * len(gaps)):
        found |= _growth(gaps[clean], running[clean], total)
        base = _base(gaps[clean], running[clean], running[disturbed])
    elif alone_s is not None:
        base = np.full(int(disturbed.sum()), alone_s)
    else:
        return found
    if len(began) and disturbed.any():
        excess = np.maximum(0.0, gaps[disturbed] - base)
        found["interference_share"] = float(excess.sum()) / total
        found["interference_contrast"] = float(np.median(gaps[disturbed]) / np.median(base))
        found["disturbed_share"] = float(disturbed.mean())
    elif len(began):
        found |= {"interference_share": 0.0, "disturbed_share": 0.0}
    return found


def _base(clean: Floats, running: Floats, at: Floats) -> Floats:
    """The undisturbed gap that goes with each number running: medians of up to six groups, interpolated."""
    edges = np.unique(np.quantile(running, np.linspace(0, 1, 7)))
    centres, medians = [], []
    for low, high in pairwise(edges):
        inside = (running >= low) & (running <= high)
        if inside.sum() >= 10:
            centres.append(float(np.median(running[inside])))
            medians.append(float(np.median(clean[inside])))
    if not centres:
        return np.full(len(at), float(np.median(clean)))
    order = np.argsort(centres)
    return np.asarray(np.interp(at, np.array(centres)[order], np.array(medians)[order]))


def _growth(gaps: Floats, running: Floats, total: float) -> dict[str, float | None]:
    low, high = (float(x) for x in np.quantile(running, (0.15, 0.85)))
    few, many = gaps[running <= low], gaps[running >= high]
    found: dict[str, float | None] = {"clean_gap_s": float(np.median(few))}
    if high >= 1.5 * max(low, 1.0) and len(few) >= 20 and len(many) >= 20:
        floor = float(np.median(few))
        found["growth"] = float(np.median(many)) / floor if floor > 0 else None
        found["growth_share"] = float(np.maximum(0.0, gaps - floor).sum()) / total
    return found


def stalls_beside_prefills(rows: Sequence[RequestRow], budgets: Mapping[str, Budget]) -> dict[str, float | None]:
    """How many stalls there were, and of them how many had other requests' prefills in them, and how many prefills on average.

    Without evidence of prefills only the first is known.
    """
    found = []
    for row in rows:
        for choice in row.choices:
            times = choice.times_ns
            least = min(stalled_gaps([b - a for a, b in pairwise(times)]), default=None)
            found += [(a / 1e9, b / 1e9) for a, b in pairwise(times) if least is not None and b - a >= least]
    _, began, first, _ = _intervals(rows, budgets)
    told: dict[str, float | None] = {"stalls": float(len(found))}
    if not found or not len(began):
        return told
    stalls = np.array(found)
    beside = np.searchsorted(np.sort(began), stalls[:, 1]) - np.searchsorted(np.sort(first), stalls[:, 0], side="right")
    return told | {
        "stalls_in_prefill": float((beside > 0).sum()),
        "prefills_beside_a_stall": float(beside.mean()),
    }


def first_gap(rows: Sequence[RequestRow]) -> dict[str, float | None]:
    """How the gap after the first token stands to the later ones of its request: KV that moves shows there."""
    ratios, extra = [], 0.0
    whole = 0.0
    for row in rows:
        whole += ((row.last_token_ns or row.due_ns) - row.due_ns) / 1e9
        for choice in row.choices:
            times = choice.times_ns
            if len(times) < 5:
                continue
            later = statistics.median(b - a for a, b in pairwise(times[1:]))
            one = times[1] - times[0]
            if later > 0:
                ratios.append(one / later)
                extra += max(0, one - later) / 1e9
    if len(ratios) < 10:
        return {}
    return {"first_gap_ratio": statistics.median(ratios), "first_gap_share": extra / whole if whole > 0 else None}


def warmed_up(rows: Sequence[RequestRow], budgets: Mapping[str, Budget]) -> float | None:
    """Median wait outside the queue of the first requests over the rest's; the first tenth, or the first three if all are slow.

    None under 20 requests, and where the first ones came all at once: then it is their own crowd that slows them.
    """
    ordered = sorted(rows, key=lambda row: row.due_ns)
    waits = [_outside_queue(row, budgets) for row in ordered]
    few = max(3, len(ordered) // EARLY_SHARE)
    if len(ordered) < 20:
        return None
    rest = waits[few:]
    middle = statistics.median(rest)
    crowd = sum(row.due_ns / 1e9 <= ordered[0].due_ns / 1e9 + middle for row in ordered[:few])
    if middle <= 0 or crowd > max(2, few // 3):
        return None
    tenth = statistics.median(waits[:few]) / middle
    slow = float(np.quantile(rest, 0.9))
    three = statistics.median(waits[:3]) / middle if all(wait > slow for wait in waits[:3]) else 0.0
    return max(tenth, three if three > 3 else 0.0)


def _outside_queue(row: RequestRow, budgets: Mapping[str, Budget]) -> float:
    budget = budgets.get(row.request_id)
    queue = budget.segments["queue"] if budget is not None else 0
    return ((row.first_token_ns or 0) - (row.send_start_ns or 0) - queue) / 1e9
