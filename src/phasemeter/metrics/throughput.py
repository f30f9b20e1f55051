"""How much came in which window: requests and tokens per second, the peak second, and the windows themselves.

Lives here: windows by a stated rule, and what was received in one from every request, cancelled and warm-up ones too. Must
not live here: latency. A window is (start, end] in ns: what came at its start belongs to what was before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEADY_SHARE = 0.9  # of peak concurrency: a closed loop's steady window
BRIDGE_NS = (
    100_000_000  # a dip below that share for less than this (a slot between two requests) doesn't end the window
)
BUCKET_NS = 1_000_000_000
AT_ONCE = 1_000_000  # events put into buckets: what is held for them at a time
SPREAD_AT_ONCE = 1_000_000  # pairs of request and bucket


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the run, and the rule that chose it."""

    kind: str  # whole_run | steady
    start_ns: int
    end_ns: int
    rule: str

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What came, as columns. `event_*` are output events; `spread_*` are requests known only by first, last and tokens.

    `completed_ns`: ends of ok requests. `prompts_ns`, `prompts`: when each request's prompt was done (its first output) and
    its tokens (unknown ones at the mean of the known), None where none is known. `estimated`: tokens in `event_tokens` that are estimates.
    """

    completed_ns: Ints
    event_ns: Ints
    event_tokens: Floats
    spread_start_ns: Ints
    spread_end_ns: Ints
    spread_tokens: Floats
    prompts_ns: Ints
    prompts: Floats | None
    tokens_known: bool = True
    estimated: float = 0.0


def whole_run(starts_ns: Ints, ends_ns: Ints) -> Window | None:
    """From the first send to the last end, ramp and drain in. None where nothing was sent or nothing ended."""
    if not len(starts_ns) or not len(ends_ns):
        return None
    return Window(
        kind="whole_run",
        start_ns=int(starts_ns.min()),
        end_ns=int(ends_ns.max()),
        rule="first send to last end, ramp-up and drain included",
    )


def steady_open(dues_ns: Ints) -> Window | None:
    """Open loop: from the first measured request's due to the last's, so that the drain is out. `dues_ns` are of requests that
    were offered: in a run that was cut off, what was due after its end is no part of it."""
    if not len(dues_ns):
        return None
    return Window(
        kind="steady",
        start_ns=int(dues_ns.min()),
        end_ns=int(dues_ns.max()),
        rule="first due after warm-up to last due",
    )


def steps_of(starts_ns: Ints, ends_ns: Ints) -> tuple[Ints, Ints]:
    """(instants, requests in flight from each instant on). At one instant ends count before starts:
    a slot that is handed on is one request in flight, and the dip has no length."""
    instants = np.concatenate([starts_ns, ends_ns])
    changes = np.concatenate([np.ones(len(starts_ns), dtype=np.int64), -np.ones(len(ends_ns), dtype=np.int64)])
    order = np.lexsort((changes, instants))
    return instants[order], np.cumsum(changes[order])


def steady_closed(
    starts_ns: Ints, ends_ns: Ints, share: float = STEADY_SHARE, bridge_ns: int = BRIDGE_NS
) -> Window | None:
    """Closed loop: the longest interval with at least `share` of peak concurrency in flight."""
    if not len(starts_ns) or not len(ends_ns):
        return None
    instants, flying = steps_of(starts_ns, ends_ns)
    high = flying >= share * flying.max() - 1e-9
    return _closed_window(instants, high, share, bridge_ns)


def _closed_window(instants: Ints, high: NDArray[np.bool_], share: float, bridge_ns: int) -> Window:
    ups = np.flatnonzero(high & ~np.concatenate([[False], high[:-1]]))
    downs = np.flatnonzero(~high & np.concatenate([[False], high[:-1]]))
    begins = instants[ups]
    closes = np.concatenate([instants[downs], instants[-1:]])[: len(ups)]
    joined = np.concatenate([[True], begins[1:] - closes[:-1] > bridge_ns])  # a new interval, not a bridged dip
    first = begins[joined]
    last = closes[np.concatenate([np.flatnonzero(joined)[1:] - 1, [len(closes) - 1]])]
    longest = int(np.argmax(last - first))
    return Window(
        kind="steady",
        start_ns=int(first[longest]),
        end_ns=int(last[longest]),
        rule=f"longest interval with at least {share:.0%} of peak concurrency in flight"
        f" (dips under {bridge_ns // 1_000_000} ms bridged)",
    )


def within(instants: Ints, window: Window) -> NDArray[np.bool_]:
    """Which instants lie in (start, end]."""
    return (instants > window.start_ns) & (instants <= window.end_ns)


def output_tokens_in(received: Received, window: Window) -> float:
    """Output tokens received in the window; where only first and last are known, tokens lie evenly between."""
    seen = float(received.event_tokens[within(received.event_ns, window)].sum())
    overlap = np.minimum(received.spread_end_ns, window.end_ns) - np.maximum(received.spread_start_ns, window.start_ns)
    length = received.spread_end_ns - received.spread_start_ns
    point = within(received.spread_end_ns, window).astype(np.float64)
    share = np.where(length > 0, np.clip(overlap, 0, None) / np.maximum(length, 1), point)
    return seen + float((share * received.spread_tokens).sum())


def rates(received: Received, window: Window | None) -> dict[str, Any]:
    """requests_per_s, output_tokens_per_s, total_tokens_per_s over one window; null with a reason where it has no length."""
    names = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
    if window is None or window.length_s <= 0:
        reason = "nothing_sent" if window is None else "zero_length_window"
        return {"window": None if window is None else described(window), **dict.fromkeys(names), "reason": reason}
    length = window.length_s
    answer: dict[str, Any] = {"window": described(window)}
    answer["requests_per_s"] = float(within(received.completed_ns, window).sum()) / length
    if not received.tokens_known:
        return answer | {"output_tokens_per_s": None, "total_tokens_per_s": None, "reason": "unknown_tokens"}
    tokens = output_tokens_in(received, window)
    answer["output_tokens_per_s"] = tokens / length
    answer["total_tokens_per_s"] = None
    if received.prompts is None:
        answer["reason"] = "unknown_input_tokens"
    else:
        prompts = float(received.prompts[within(received.prompts_ns, window)].sum())
        answer["total_tokens_per_s"] = (tokens + prompts) / length
    return answer


def described(window: Window) -> dict[str, Any]:
    """The window in a result: its rule, and its ends in seconds of the monotonic clock."""
    return {
        "kind": window.kind,
        "rule": window.rule,
        "start_s": window.start_ns / 1e9,
        "end_s": window.end_ns / 1e9,
        "length_s": window.length_s,
    }


def buckets(received: Received, window: Window, bucket_ns: int = BUCKET_NS) -> Floats:
    """Output tokens in each bucket [start + k, start + k + 1) that the window touches, tokens weighted, not chunks."""
    span = max(window.end_ns - window.start_ns, 0)
    count = span // bucket_ns + 1
    grid = np.zeros(count)
    for begin in range(0, len(received.event_ns), AT_ONCE):
        at = (received.event_ns[begin : begin + AT_ONCE] - window.start_ns) // bucket_ns
        inside = (at >= 0) & (at < count)
        grid += np.bincount(at[inside], received.event_tokens[begin : begin + AT_ONCE][inside], count)
    starts = (received.spread_start_ns - window.start_ns) / bucket_ns
    ends = (received.spread_end_ns - window.start_ns) / bucket_ns
    points = ends <= starts
    at_once = points & (ends >= 0) & (ends < count)
    grid += np.bincount(ends[at_once].astype(np.int64), received.spread_tokens[at_once], count)
    first = np.maximum(starts.astype(np.int64), 0)
    touched = np.where(points, 0, np.maximum(np.minimum(ends.astype(np.int64), count - 1) + 1 - first, 0))
    most = np.searchsorted(np.cumsum(touched), np.arange(0, int(touched.sum()), SPREAD_AT_ONCE), "right")
    for low, high in pairwise([*most.tolist(), len(touched)]):
        part = slice(low, high)
        which = np.repeat(np.arange(low, high), touched[part])
        bucket = (
            first[which] + np.arange(len(which)) - np.repeat(np.cumsum(touched[part]) - touched[part], touched[part])
        )
        start, end = starts[which], ends[which]
        overlap = np.maximum(np.minimum(end, bucket + 1) - np.maximum(start, bucket), 0.0)
        grid += np.bincount(bucket, received.spread_tokens[which] * overlap / (end - start), count)
    return grid


def peak(received: Received, window: Window | None) -> dict[str, Any]:
    """The busiest second, and the mean second on the same grid: a peak is never below that mean."""
    if window is None or not received.tokens_known or window.end_ns - window.start_ns < BUCKET_NS:
        reason = "run_shorter_than_1_s" if received.tokens_known else "unknown_tokens"
        return {"peak_output_tokens_per_s": None, "reason": reason}
    grid = buckets(received, window)
    return {"peak_output_tokens_per_s": float(grid.max()), "grid_mean": float(grid.mean()), "bucket_s": 1.0}
