"""Where one request's time went: segments that add up to `stream_end − due`, exactly, in integer ns.

Lives here: the segments of one request, the mean of many, the mean of those near a percentile. Must not live here: which
engine means what (server/) or a cause (diagnosis.py). The two clocks are never subtracted: a server's durations are laid
into the client's wait, and what they leave over is a lump of its own. It may be negative; then it is said, never clamped.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import Undefined
from phasemeter.metrics.gaps import STALL_FACTOR
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import RequestRow

SEGMENTS = (
    "client_queue", "connect", "upload", "ingress_delivery", "queue", "prefill", "first_token", "reasoning", "decode", "stalls",
    "tail", "unattributed",
)  # fmt: skip
COLUMNS = len(SEGMENTS) + 1  # and the decode that lies in the wait
_TO_FIRST = ("upload", "ingress_delivery", "queue", "prefill", "first_token", "unattributed")
# the segments between a metric's own boundaries
SPANNED: Mapping[str, tuple[str, ...]] = {
    "ttft": _TO_FIRST,
    "ttft_from_due": ("client_queue", "connect", *_TO_FIRST),
    "e2e": (*_TO_FIRST, "reasoning", "decode", "stalls"),
    "e2e_from_due": ("client_queue", "connect", *_TO_FIRST, "reasoning", "decode", "stalls"),
    "total": SEGMENTS,
}
PERCENTILES = (50, 90, 95, 99)
TAILS_OF = ("ttft", "ttft_from_due", "e2e", "e2e_from_due")
NEAREST = 20  # requests a band needs
BAND, WIDEST = 0.01, 0.05  # its half width as a share of all requests; a small run may widen it so far
LUMPS: Mapping[str, str] = {
    "ingress_delivery": "network, gateway, parsing before the queue, and delivery after the first token: two clocks that can't be"
    " subtracted, so they stay one lump",
    "unattributed": "the wait for the first token, without server evidence of both queue and prefill: it may hold either",
}

# (start, end) of a server's duration: the segment it is laid into
_BY_BOUNDARIES = {
    ("queue_enter", "prefill_start"): "queue",
    ("arrival", "prefill_start"): "queue",
    ("prefill_start", "first_token"): "prefill",
    ("prefill_start", "prefill_end"): "prefill",
    ("prefill_end", "first_token"): "first_token",
    ("first_token", "decode_end"): "decode",
    ("arrival", "first_token"): "ttft",
    ("arrival", "complete"): "e2e",
    ("arrival", "queue_enter"): "ingress",
}


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `segments[name]` in ns, every name of SEGMENTS, summing to `total_ns`. `evidence`: segment to source."""

    request_id: str
    total_ns: int
    segments: dict[str, int]
    complete: bool  # every client boundary was seen, so that unattributed time lies before the first token
    evidence: dict[str, str] = msgspec.field(default_factory=dict)
    inside_server_ns: int | None = None  # of `ingress_delivery`: what the server's own TTFT holds beyond its parts
    server_decode_ns: int | None = None  # what the server says its output took, beside the client's own segments
    decode_in_wait_ns: int = 0  # of `decode`: what lies before the first token, for all output came in one piece
    before_text_ns: int = 0  # of the wait: from the first chunk without any text to the first with some
    warnings: tuple[str, ...] = ()


def budget_of(row: RequestRow, values: Sequence[EvidenceValue] = ()) -> Budget:
    """The segments of one request, from its client boundaries and whatever its server told of it.

    Without server evidence for both queue and prefill, what is left of the wait is `unattributed`: it may hold a queue.
    Raises Undefined("not_ended") for a request without a stream end.
    """
    if row.stream_end_ns is None:
        raise Undefined("not_ended")
    segments = dict.fromkeys(SEGMENTS, 0)
    at = _client_start(row, segments)
    warnings: list[str] = []
    known_durations = durations_of(values, warnings)
    told = {name: ns for name, (ns, _) in known_durations.items()}
    evidence = {name: source for name, (_, source) in known_durations.items()}
    inside = None
    if at is None or row.first_token_ns is None or row.last_token_ns is None:
        return _partial(row, segments, at, warnings)
    wait = row.first_token_ns - at
    waiting = _laid_into(row, wait, told, warnings)
    for name in waiting:
        segments[name] += told.get(name, 0)
    rest = wait - sum(told.get(name, 0) for name in waiting)
    known = "queue" in told and "prefill" in told
    if -segments["upload"] <= rest < 0:
        # the server had the request before the client could stamp its last byte: the two overlap, so they are one lump
        rest += segments["upload"]
        segments["upload"] = 0
        warnings.append("upload_overlap: the server began before the client's stamp of its last byte")
    segments["ingress_delivery" if known else "unattributed"] += rest
    if rest < 0:
        warnings.append(f"negative_remainder: the server's parts exceed the client's wait by {-rest} ns")
    if known and "ttft" in told:
        inside = told["ttft"] - sum(told.get(name, 0) for name in ("queue", "prefill", "first_token"))
    _output(row, segments, warnings)
    segments["tail"] += row.stream_end_ns - row.last_token_ns
    return Budget(
        request_id=row.request_id, total_ns=row.stream_end_ns - row.due_ns, segments=segments, complete=True,
        evidence={name: source for name, source in evidence.items() if name in waiting}, inside_server_ns=inside,
        server_decode_ns=told.get("decode"), decode_in_wait_ns=told.get("decode", 0) if "decode" in waiting else 0,
        before_text_ns=max(0, row.first_token_ns - (row.first_silent_chunk_ns or row.first_token_ns)),
        warnings=tuple(warnings),
    )  # fmt: skip


def _laid_into(row: RequestRow, wait: int, told: Mapping[str, int], warnings: list[str]) -> tuple[str, ...]:
    """Which of the server's durations lie in the wait. Where all output came in one piece, the decode too.

    In a stream that is so only as far as it fits: a single visible piece may come before the decode ends (later tokens have no
    text of their own), and then nobody can say how much of it was before.
    """
    parts = ("queue", "prefill", "first_token")
    if row.stream and row.first_token_ns != row.last_token_ns:
        return parts
    if row.stream and sum(told.get(name, 0) for name in (*parts, "decode")) > wait:
        warnings.append("decode_not_placed: one visible piece, and the server went on generating after it")
        return parts
    return (*parts, "decode")


def _client_start(row: RequestRow, segments: dict[str, int]) -> int | None:
    """Fills the segments before the wait; the instant the wait starts, or None when the request wasn't sent."""
    if row.send_start_ns is None:
        return None
    connected_late = row.connect_start_ns is not None and row.due_ns <= row.connect_start_ns <= row.send_start_ns
    leaves = row.connect_start_ns if connected_late and row.connect_start_ns is not None else row.send_start_ns
    segments["client_queue"] = leaves - row.due_ns
    segments["connect"] = row.send_start_ns - leaves
    sent = row.sent_ns if row.sent_ns is not None else row.send_start_ns
    segments["upload"] = sent - row.send_start_ns
    return sent


def durations_of(values: Sequence[EvidenceValue], warnings: list[str] | None = None) -> dict[str, tuple[int, str]]:
    """The server's durations by what they span, as (ns, source): queue, prefill, first_token, decode, ttft, e2e, ingress.

    One source each: the engine's monotonic clock first, then as given. What is no duration is left out and said.
    """
    found: dict[str, tuple[int, str]] = {}
    said = [] if warnings is None else warnings
    for value in sorted(values, key=lambda value: value.clock != "engine_monotonic"):
        if value.start is None or value.end is None:
            continue
        name = _BY_BOUNDARIES.get((value.start, value.end))
        if name is None or name in found:
            continue
        if not math.isfinite(value.value_s) or any(text.startswith("implausible") for text in value.warnings):
            said.append(f"refused: {value.source} is no duration")
            continue
        if value.value_s < 0:
            said.append(f"negative: {value.source} is {value.value_s:g} s")
        found[name] = round(value.value_s * 1e9), value.source
    return found


def _partial(row: RequestRow, segments: dict[str, int], at: int | None, warnings: list[str]) -> Budget:
    """A request without output, or never sent: what the client did is known, all the rest is not."""
    end = row.stream_end_ns if row.stream_end_ns is not None else row.due_ns
    segments["unattributed"] = end - (at if at is not None else row.due_ns)
    return Budget(
        request_id=row.request_id,
        total_ns=end - row.due_ns,
        segments=segments,
        complete=False,
        warnings=tuple(warnings),
    )


def _output(row: RequestRow, segments: dict[str, int], warnings: list[str]) -> None:
    """From first to last token: reasoning, then decode with its stalls (gaps over 5 times the request's median) apart."""
    first, last = row.first_token_ns, row.last_token_ns
    if first is None or last is None:
        return
    start = row.first_output_ns if row.first_output_ns is not None else last
    start = min(max(start, first), last)
    segments["reasoning"] += start - first
    gaps = _output_gaps(row, start, last)
    stalled = sum(stalled_gaps(gaps[gaps > 0]))  # events of one instant are one
    segments["stalls"] += stalled
    segments["decode"] += last - start - stalled
    if any(gap < 0 for gap in (start - first, last - start)):
        warnings.append("order: the output's boundaries are not in order")


def _output_gaps(row: RequestRow, start: int, last: int) -> NDArray[np.int64]:
    """Between any two neighbours of the output's instants, all choices together, from `start` to `last`, in ns."""
    if len(row.choices) == 1:
        times = np.array(row.choices[0].times_ns, dtype=np.int64)
        gaps = times[1:] - times[:-1]
        if len(times) and times[0] == start and times[-1] == last and not (gaps < 0).any():
            return gaps
    seen = np.array([start, last, *chain.from_iterable(choice.times_ns for choice in row.choices)], dtype=np.int64)
    times = np.sort(seen[(seen >= start) & (seen <= last)])
    return times[1:] - times[:-1]


def stalled_gaps(gaps: Sequence[int] | NDArray[np.int64]) -> list[int]:
    """The gaps over 5 times the median gap. Fewer than 3 gaps have no cadence to stall from."""
    if len(gaps) < 3:
        return []
    ordered = np.sort(np.asarray(gaps, dtype=np.int64))
    middle = len(ordered) // 2
    limit = STALL_FACTOR * (ordered[middle] + ordered[-middle - 1]) / 2
    found: list[int] = ordered[ordered > limit].tolist() if limit > 0 else []
    return found


def metric_ns(budget: Budget, metric: str) -> int:
    """The metric as the sum of its own segments. Raises Undefined("no_output") where the request has none."""
    if not budget.complete:
        raise Undefined("no_output")
    in_wait = 0 if "decode" in SPANNED[metric] else budget.decode_in_wait_ns
    return in_wait + sum(budget.segments[name] for name in SPANNED[metric])


class BudgetTotals:
    """Takes budgets one by one, 13 integers a request; requests without output are counted only."""

    def __init__(self) -> None:
        self.requests = self.with_evidence = self.negative = self.other_warnings = 0
        self.sources: dict[str, Counter[str]] = {}
        self.inside_ns = self.inside = self.before_text_ns = 0
        self._columns = array("q")

    def add(self, budget: Budget) -> None:
        self.requests += 1
        self.with_evidence += bool(budget.evidence)
        negative = any(text.startswith("negative_remainder") for text in budget.warnings)
        self.negative += negative
        self.other_warnings += len(budget.warnings) > negative
        for segment, source in budget.evidence.items():
            self.sources.setdefault(segment, Counter())[source] += 1
        if budget.inside_server_ns is not None:
            self.inside_ns, self.inside = self.inside_ns + budget.inside_server_ns, self.inside + 1
        if budget.complete:
            self.before_text_ns += budget.before_text_ns
            self._columns.extend(budget.segments[name] for name in SEGMENTS)
            self._columns.append(budget.decode_in_wait_ns)

    @property
    def complete(self) -> int:
        return len(self._columns) // COLUMNS

    def _table(self) -> NDArray[np.int64]:
        return np.frombuffer(self._columns, dtype=np.int64).reshape(-1, COLUMNS)

    def mean(self, metric: str = "total") -> dict[str, float]:
        """Mean seconds by segment, of requests with output. Raises Undefined("no_requests")."""
        return self._mean(self._table(), metric)

    def _mean(self, table: NDArray[np.int64], metric: str) -> dict[str, float]:
        if not len(table):
            raise Undefined("no_requests")
        means = {name: float(table[:, SEGMENTS.index(name)].mean()) / 1e9 for name in SPANNED[metric]}
        if "decode" not in means and table[:, -1].any():  # of answers in one piece: it lies before their first token
            means["decode"] = float(table[:, -1].mean()) / 1e9
        return means

    def tail(self, metric: str, percentile: float) -> dict[str, Any]:
        """The mean budget of the requests near `percentile` of `metric`, by rank.

        Within one percentile point; a run with fewer than 20 requests there takes its 20 nearest, within 5 points and never
        beyond the middle of what lies above. Fewer: undecided, and how many would do is said. `percentile_minus_band_mean_s`
        says how well the band stands for the percentile (linear on n − 1).
        """
        table = self._table()
        values = table[:, [SEGMENTS.index(name) for name in SPANNED[metric]]].sum(axis=1)
        if "decode" not in SPANNED[metric]:
            values = values + table[:, -1]
        n, q = len(values), percentile / 100
        widest = max(BAND, min(WIDEST, (1 - q) / 2))
        half = min(widest, max(BAND, (NEAREST / 2 + 1) / n)) if n else widest
        low, high = max(0, math.ceil((q - half) * n - 1e-9)), min(n, math.floor((q + half) * n + 1e-9))
        answer: dict[str, Any] = {"metric": metric, "percentile": percentile, "n": max(0, high - low), "of": n}
        if high - low < NEAREST:
            needs = math.ceil((NEAREST + 2) / (min(1.0, q + widest) - max(0.0, q - widest)))
            return answer | {"verdict": "undecided", "reason": "too_few_requests", "needs_requests": needs}
        order = np.argsort(values, kind="stable")
        at = q * (n - 1)
        below, above = (int(values[order[index]]) for index in (math.floor(at), math.ceil(at)))
        value = (below + (above - below) * (at - math.floor(at))) / 1e9
        band = order[low:high]
        mean = float(values[band].mean()) / 1e9
        return answer | {
            "verdict": "decided", "band": [round(100 * (q - half), 3), round(100 * min(1.0, q + half), 3)], "value_s": value,
            "band_mean_s": mean, "percentile_minus_band_mean_s": value - mean,
            "segments_s": self._mean(table[band], metric),
        }  # fmt: skip

    def document(self) -> dict[str, Any] | None:
        """What a result holds under `budget`; None where no request had output.

        Means, tails, how many requests had evidence and from where, what is a lump and why, how many remainders were negative.
        """
        if not self.complete:
            return None
        mean = {metric: self.mean(metric) for metric in SPANNED}
        return {
            "unit": "s",
            "requests": self.requests,
            "complete": self.complete,
            "with_server_evidence": self.with_evidence,
            "evidence": {segment: dict(sources) for segment, sources in self.sources.items()},
            "negative_remainders": self.negative,
            "with_other_warnings": self.other_warnings,
            "lumps": {name: why for name, why in LUMPS.items() if mean["total"][name]},
            "inside_server_mean": self.inside_ns / self.inside / 1e9 if self.inside else None,
            "before_text_mean": self.before_text_ns / self.complete / 1e9,
            "mean": mean,
            "tails": {metric: {f"p{p}": self.tail(metric, p) for p in PERCENTILES} for metric in TAILS_OF},
        }


def totals_of(budgets: Iterable[Budget]) -> BudgetTotals:
    """All of them, added up."""
    totals = BudgetTotals()
    for budget in budgets:
        totals.add(budget)
    return totals


def budgets_document(budgets: Iterable[Budget]) -> dict[str, Any] | None:
    """What a result holds under `budget`, from budgets at hand."""
    return totals_of(budgets).document()


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What a window of aggregates says: exact means in seconds, each with how many observations; None: not told."""

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    n: float | None = None


def aggregate_budget(totals: BudgetTotals, means: Means) -> dict[str, Any]:
    """A mean budget from aggregates only: means add, so the mean wait splits; of tails nothing can be said.

    Requires that the window holds our requests and no others: where the counts differ it is refused.
    Raises Undefined("no_requests").
    """
    mean, n = totals.mean("ttft"), totals.complete
    answer: dict[str, Any] = {
        "unit": "s",
        "n": n,
        "tails": None,
        "tails_reason": "aggregates: quantiles of phases do not add",
    }
    if means.n is not None and means.n != n:
        return answer | {"mean": None, "reason": f"server_count_mismatch: the server counted {means.n:g}, we {n}"}
    wait = sum(mean.values()) - mean["upload"]
    told = {"queue": means.queue_s, "prefill": means.prefill_s}
    parts = {name: value for name, value in told.items() if value is not None}
    rest = wait - sum(parts.values())
    lump = "ingress_delivery" if len(parts) == 2 else "unattributed"
    found: dict[str, Any] = {"mean": {"upload": mean["upload"], **parts, lump: rest}}
    if rest < 0:
        found["warnings"] = ["negative_remainder: the server's means exceed the client's"]
    return answer | found
