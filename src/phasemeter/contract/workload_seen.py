"""The workload that a run realised, against the one that its contract declares; and the throughput it gave.

Lives here: central lengths and rates compared within a stated tolerance, rates over the steady window with their interval.
Must not live here: what follows for a verdict (verdict.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from phasemeter.contract.model import Workload
from phasemeter.records.request_row import RequestRow
from phasemeter.stats.intervals import BATCHES, Interval, mean_interval
from phasemeter.stats.quantiles import Floats, quantile

TOLERANCE = 0.10  # of the declared centre
TEMPLATE_TOKENS = 64  # what a chat template may add to a prompt; input lengths get it on top


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A realised centre beside the declared one; `as_declared` None where neither is known."""

    as_declared: bool
    value: float | None
    declared: float | None
    n: int
    unit: str
    reason: str | None = None
    notes: tuple[str, ...] = ()


def centre(distribution: Any) -> tuple[str, float] | None:
    """(statistic, value) that names a length distribution's middle: its median, or mean; None for a trace."""
    if not isinstance(distribution, dict):
        return None
    kind, inner = next(iter(distribution.items()))
    if kind == "fixed":
        return "median", float(inner)
    if kind == "uniform":
        return "mean", (inner["min"] + inner["max"]) / 2
    if kind == "normal":
        return "mean", float(inner["mean"])
    if kind == "lognormal":
        return "median", float(inner["median"])
    if kind == "empirical":
        return "mean", float(np.mean(inner))
    return None


def compared(workload: Workload, rows: Sequence[RequestRow]) -> Iterator[tuple[str, Seen]]:
    """(`input_tokens`, `output_tokens` or `arrivals`, what was seen) for all that the workload declares."""
    ok = [row for row in rows if row.outcome == "ok"]
    for name in ("input_tokens", "output_tokens"):
        declared = centre(getattr(workload, name))
        if declared is not None:
            values = np.array([v for row in ok if (v := getattr(row, name)) is not None], dtype=np.float64)
            yield name, _length(declared, values, TEMPLATE_TOKENS if name == "input_tokens" else 0)
    rate = _declared_rate(workload.arrivals)
    if rate is not None:
        yield "arrivals", _arrivals(rate * workload.share, rows)


def _length(declared: tuple[str, float], values: Floats, extra: int) -> Seen:
    statistic, wanted = declared
    if not values.size:
        return Seen(as_declared=False, value=None, declared=wanted, n=0, unit="tokens", reason="no_evidence")
    value = quantile(values, 0.5) if statistic == "median" else float(values.mean())
    # a sample's centre varies by itself: allow its own standard error (a median's is about 1.25 of a mean's)
    error = 2 * 1.25 * float(values.std()) / np.sqrt(values.size)
    fits = wanted * (1 - TOLERANCE) - error <= value <= wanted * (1 + TOLERANCE) + error + extra
    return Seen(
        as_declared=bool(fits), value=value, declared=wanted, n=int(values.size), unit="tokens",
        reason=None if fits else "other_workload", notes=(statistic,),
    )  # fmt: skip


def _declared_rate(arrivals: Any) -> float | None:
    if not isinstance(arrivals, dict):
        return None
    kind, inner = next(iter(arrivals.items()))
    rate = inner if kind in ("poisson", "constant") else inner["rate"] if kind in ("gamma", "burst") else None
    return float(rate) if rate is not None and rate != float("inf") else None


def _arrivals(rate: float, rows: Sequence[RequestRow]) -> Seen:
    rows = [row for row in rows if row.outcome != "unsent"]  # what a cut-off run never came to offer was not realised
    length = (rows[-1].due_ns - rows[0].due_ns) / 1e9 if len(rows) > 1 else 0.0
    if length <= 0:
        return Seen(as_declared=False, value=None, declared=rate, n=len(rows), unit="req/s", reason="no_evidence")
    value = (len(rows) - 1) / length
    fits = abs(value - rate) <= TOLERANCE * rate + 3 * rate / np.sqrt(len(rows))
    return Seen(
        as_declared=bool(fits), value=value, declared=rate, n=len(rows), unit="req/s",
        reason=None if fits else "other_workload",
    )  # fmt: skip


def throughput(name: str, rows: Sequence[RequestRow], confidence: float) -> tuple[float | None, Interval, int]:
    """(rate per second, its interval, how many requests) over first due to last due, 20 equal stretches as batches.

    `requests_per_s`: ok requests by when they ended; `output_tokens_per_s`: tokens of every request, evenly between its first
    and last. All due at once: from there to the last end. (None, …) where it can't be told.
    """
    sent = [row for row in rows if row.send_start_ns is not None]
    ends = [row.last_token_ns or row.stream_end_ns for row in sent]
    known = [end for end in ends if end is not None]
    if not known:
        return None, (None, None), len(sent)
    start, last_due = min(row.due_ns for row in sent), max(row.due_ns for row in sent)
    end = last_due if last_due > start else max(known)
    if end <= start:
        return None, (None, None), len(sent)
    edges = np.linspace(start, end, BATCHES + 1)
    counts = np.zeros(BATCHES)
    for row, finish in zip(sent, ends, strict=True):
        if finish is None:
            continue
        if name == "requests_per_s":
            if row.outcome == "ok" and start < finish <= end:
                counts[min(BATCHES - 1, int(np.searchsorted(edges, finish, side="left")) - 1)] += 1
            continue
        if row.output_tokens is None:
            if row.outcome == "ok":
                return None, (None, None), len(sent)
            continue
        counts += row.output_tokens * _shares(edges, row.first_token_ns or finish, finish)
    stretch_s = (end - start) / 1e9 / BATCHES
    return float(counts.sum()) * 1e9 / (end - start), mean_interval(counts / stretch_s, confidence), len(sent)


def _shares(edges: Floats, first: int, last: int) -> Floats:
    """How much of [first, last] lies in each stretch."""
    if last <= first:
        inside = (edges[:-1] < last) & (last <= edges[1:])
        return inside.astype(np.float64)
    overlap: Floats = np.clip(np.minimum(edges[1:], last) - np.maximum(edges[:-1], first), 0, None) / (last - first)
    return overlap
