"""Whether a run had settled and whether it was stable, from its requests alone: a service and a simulator look alike.

Lives here: the cut of the warm-up, growth of the number in the system. Must not live here: objectives; what follows (looks.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.errors import Undefined
from phasemeter.records.request_row import RequestRow
from phasemeter.stats.stationarity import SHORTEST, at_limit, mser5, trend

POINTS = 400  # at which the number in the system is read
MOST_CUT = 0.1  # of a run; without asking MSER-5 where it is too short for it
CONFIDENCE = 0.98
FELL_BEHIND = 0.97  # departures per arrival in the last half: below, the service did not keep up


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """`cut`: how many requests, in the order due, are warm-up. `settled` False: no steady state was seen.

    `stable`: None where the run is too short to say; `evidence` in words.
    """

    cut: int
    settled: bool
    stable: bool | None
    evidence: str


def in_system(
    rows: Sequence[RequestRow], points: int = POINTS
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """(instants in s from the first due, how many requests were due and not ended then) while requests arrived."""
    due = np.sort(np.array([row.due_ns for row in rows], dtype=np.int64))
    never = np.iinfo(np.int64).max
    ends = np.sort(
        np.array([row.last_token_ns or row.stream_end_ns or _ended(row, never) for row in rows], dtype=np.int64)
    )
    at = np.linspace(float(due[0]), float(due[-1]), points)
    counts = np.searchsorted(due, at, side="right") - np.searchsorted(ends, at, side="right")
    return (at - float(due[0])) / 1e9, counts.astype(np.int64)


def _ended(row: RequestRow, never: int) -> int:
    """When a request without output left: a failed one at its last sign of life, one cut off never."""
    if row.outcome == "cancelled":
        return never
    return max(
        one
        for one in (row.due_ns, row.send_start_ns, row.sent_ns, row.headers_ns, row.first_read_ns)
        if one is not None
    )


def steady(rows: Sequence[RequestRow]) -> Steady:
    """What `rows` (measured ones, in the order due) say. The warm-up is the larger of two MSER-5 cuts, on log TTFT and on the
    number in the system, and at most a tenth: where neighbours are alike MSER-5 cuts a bad stretch near the start as gladly as a
    warm-up, which flattered attainment by 0.6 % (docs/decisions/0030-the-goodput-search.md). Unstable: the number in the system
    grew over the last half of the arrivals, with errors that hold under correlation, and departures fell behind arrivals.
    """
    sent = [row for row in rows if row.outcome != "unsent"]
    if len(sent) < 20 or sent[-1].due_ns == sent[0].due_ns:
        return Steady(cut=0, settled=True, stable=None, evidence="too short to say")
    at_s, counts = in_system(sent)
    stable, evidence = stability(at_s, counts, np.array([row.due_ns for row in sent], dtype=np.int64))
    if len(sent) < SHORTEST:
        return Steady(cut=int(MOST_CUT * len(sent)), settled=True, stable=stable, evidence=evidence)
    firsts = [math.log(max(1, row.first_token_ns - row.due_ns)) for row in sent if row.first_token_ns is not None]
    by_ttft, by_count = mser5(firsts), mser5(counts.astype(np.float64))
    due_s = np.array([row.due_ns - sent[0].due_ns for row in sent]) / 1e9
    by_queue = int(np.searchsorted(due_s, at_s[by_count])) if by_count else 0
    limited = at_limit(by_ttft, len(firsts)) or at_limit(by_count, counts.size)
    return Steady(
        cut=min(max(by_ttft, by_queue), int(MOST_CUT * len(sent))),
        settled=not limited,
        stable=stable,
        evidence=evidence,
    )


def stability(
    at_s: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], due_ns: npt.NDArray[np.int64]
) -> tuple[bool | None, str]:
    """(whether the number in the system stayed level, the evidence), from its `counts` at instants since the first of `due_ns`."""
    half = counts[counts.size // 2 :].astype(np.float64)
    times = at_s[counts.size // 2 :]
    try:
        found = trend(half, times, CONFIDENCE)
    except Undefined as absent:
        return None, f"too short to say ({absent.reason})"
    arrived = int((due_ns > due_ns[0] + float(times[0]) * 1e9).sum())
    growth = float(half[-1] - half[0])
    kept_up = 1 - growth / arrived if arrived else 1.0
    level = float(half.mean())
    words = f"in the last half of the arrivals the number in the system went from {half[0]:.0f} to {half[-1]:.0f}"
    words += f", departures {100 * kept_up:.0f} % of arrivals"
    grown = found.slope * float(times[-1] - times[0])
    # a stable number in the system wanders by about the root of its level
    grows = found.low > 0 and grown > max(2.0, 0.25 * level, 2.5 * math.sqrt(2 * level))
    return not (grows and kept_up < FELL_BEHIND), words
