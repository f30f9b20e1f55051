"""The fitted model's word against the run: the same arrivals and lengths through a simulated engine, request by request.

Lives here: the loop, and errors of TTFT, TPOT and end-to-end. Must not live here: the fit, the building of a plan's engine (deploy).

In a closed loop a request is sent when another one has ended. So each is tied to the one whose end let it go, by the wait
that the run had between the two: an error then doesn't pile up as it would against fixed instants. What a request spends
outside the engine comes before its queue.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Protocol

import msgspec
import numpy as np

from phasemeter.errors import UserError
from phasemeter.serving.events import Event, Finished, Truth
from phasemeter.serving.sequence import Request
from phasemeter.studies.calibrate.observed import Observed, Run


class Serving(Protocol):
    """An engine, or a deployment of several."""

    def submit(self, now_ns: int, request: Request) -> None: ...
    def due_ns(self) -> int | None: ...
    def advance(self, now_ns: int) -> list[Event]: ...


METRICS = ("ttft", "tpot", "e2e")


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Of one metric over requests: predicted over measured − 1. `mean`: of the two means; the others of each request's, without sign."""

    n: int
    measured_mean_s: float | None = None
    mean: float | None = None
    median: float | None = None
    p95: float | None = None


def predecessors(run: Run) -> list[int | None]:
    """By request, the one whose end let it go; None in an open loop, and for those that began the run.

    Each end lets one go: the latest end before its sending that no other one took.
    """
    found: list[int | None] = [None] * len(run.requests)
    if run.concurrency is None:
        return found
    ends = sorted((one.last_s, number) for number, one in enumerate(run.requests))
    free: list[int] = []
    at = 0
    for number, one in enumerate(run.requests):
        while at < len(ends) and ends[at][0] <= one.sent_s:
            free.append(ends[at][1])
            at += 1
        if free:
            found[number] = free.pop()
    return found


def replayed(run: Run, serving: Serving, outside_s: float) -> dict[str, Truth]:
    """What became of each request of the run in `serving` (fresh), by its id; one that it refuses has no entry. Virtual time."""
    requests, waits = run.requests, defaultdict[str, list[int]](list)
    order, due = count(), list[tuple[int, int, int]]()
    before = predecessors(run)
    for number, one in enumerate(requests):
        if (ahead := before[number]) is None:
            heapq.heappush(due, (_ns(one.sent_s + outside_s), next(order), number))
        else:
            waits[requests[ahead].request_id].append(number)
    ends = {one.request_id: one.last_s for one in requests}
    found: dict[str, Truth] = {}

    def let_go(name: str, end_ns: int) -> None:
        for number in waits.pop(name, ()):
            at = end_ns + _ns(requests[number].sent_s - ends[name] + outside_s)
            heapq.heappush(due, (at, next(order), number))

    def told(until_ns: int) -> None:
        for truth in _advanced(serving, until_ns):
            found[truth.request_id] = truth
            let_go(truth.request_id, truth.finish_ns)

    while True:
        engine_due = serving.due_ns()
        if due and (engine_due is None or due[0][0] <= engine_due):
            at, _, number = heapq.heappop(due)
            told(at - 1)
            if not _submitted(serving, at, requests[number]):
                let_go(requests[number].request_id, at)
        elif engine_due is not None:
            told(engine_due)
        else:
            return found


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9) + 1)  # from 1 on: an instant before the first is asked for


def _advanced(serving: Serving, until_ns: int) -> Iterator[Truth]:
    return (event.truth for event in serving.advance(until_ns) if isinstance(event, Finished))


def _submitted(serving: Serving, at_ns: int, one: Observed) -> bool:
    new = one.prompt_tokens - one.cached_tokens
    request = Request(
        request_id=one.request_id, prompt_tokens=new, output_tokens=one.output_tokens, arrival_ns=at_ns
    )  # fmt: skip
    try:
        serving.submit(at_ns, request)
    except UserError:
        return False
    return True


def errors(run: Run, truths: dict[str, Truth], outside_s: float, since_s: float = -np.inf) -> dict[str, Error]:
    """By metric, over the scored requests sent at `since_s` or later."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in METRICS}
    for one in run.requests:
        truth = truths.get(one.request_id)
        if not one.scored or one.sent_s < since_s or truth is None:
            continue
        queued = (truth.first_token_ns - truth.arrival_ns) / 1e9 + outside_s
        decode = (truth.finish_ns - truth.first_token_ns) / 1e9
        pairs["ttft"].append((queued, one.ttft_s))
        pairs["e2e"].append((queued + decode, one.e2e_s))
        if one.tpot_s:
            pairs["tpot"].append((decode / (one.output_tokens - 1), one.tpot_s))
    return {name: error_of(found) for name, found in pairs.items()}


def error_of(pairs: Sequence[tuple[float, float]]) -> Error:
    """From (predicted, measured)."""
    table = np.array([pair for pair in pairs if pair[1] > 0], dtype=np.float64).reshape(-1, 2)
    if not len(table):
        return Error(n=0)
    predicted, measured = table[:, 0], table[:, 1]
    size = np.abs(predicted / measured - 1)
    return Error(
        n=len(table),
        measured_mean_s=float(measured.mean()),
        mean=float(predicted.mean() / measured.mean() - 1),
        median=float(np.median(size)),
        p95=float(np.quantile(size, 0.95)),
    )
