"""How a run stands while it goes on: of the requests that ended, how many keep each promise. Provisional: no interval, no verdict.

Lives here: which requests are looked into and what of them is counted. Must not live here: a verdict (contract/). All of it happens in
the parent process, from the files that the workers write anyway, in at most `SHARE` of one core; where more requests end than
that can read, every second one is taken, then every fourth, chosen by number, so that no kind of request is preferred.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from phasemeter.contract import names
from phasemeter.contract.goodput import Promise, judge, promise_of, state
from phasemeter.contract.model import PERCENTILES, Contract, Objective
from phasemeter.errors import Undefined
from phasemeter.io.capture_tail import CaptureTail, Finished
from phasemeter.metrics.boundaries import row_of
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.records.request_row import RequestRow

SHARE = 0.015  # of one core
LOOK_S = 0.006  # at a time
EVERY_S = 0.4
LEAST = 4  # requests a look, however slow the machine: the first look after a while finds nothing in its caches
WAITING_MOST = 200
KEPT_MOST = 20_000
RECENT = 200
MIX = 2_654_435_761  # Knuth's multiplicative hash: rows with a period in them are not taken by that period

Count = tuple[int, int, float]  # kept, of, sum of values


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One promise so far. `needs`: the share that has to keep it; None for a mean, which stands in `mean_s` beside its limit."""

    name: str
    limit_s: float | None
    kept: int
    of: int
    needs: float | None
    mean_s: float | None = None

    @property
    def well(self) -> bool:
        """Whether it would hold if it went on like this."""
        if self.needs is None:
            return self.mean_s is None or self.limit_s is None or self.mean_s <= self.limit_s
        return self.of == 0 or self.kept >= self.needs * self.of


class Judge:
    """Counts each promise over rows. Server phases and rates are left to the end: a request alone doesn't tell them."""

    def __init__(self, contract: Contract) -> None:
        self._lines = tuple(line for line in contract.objectives if not line.phase)
        promised = any(one.attainment is not None or one.goodput_per_s is not None for one in contract.capacities)
        self._promise: Promise | None = promise_of(contract) if promised else None

    def counts(self, row: RequestRow) -> tuple[Count, ...]:
        """A count for each line, then one for all limits at once."""
        found = [_count(line, row) for line in self._lines]
        if self._promise is not None:
            told = judge(row, self._promise.of(row))
            found.append((int(told == "good"), int(told in ("good", "bad")), 0.0))
        return tuple(found)

    def standings(self, total: tuple[Count, ...]) -> list[Standing]:
        """The sums of `counts`, with what they are about."""
        told = []
        for line, (kept, of, value) in zip(self._lines, total, strict=False):
            needs = PERCENTILES.get(line.statistic)
            who = "" if line.workload_class is None else f"{line.workload_class} "
            mean = value / of if needs is None and of else None
            told.append(
                Standing(name=f"{who}{line.metric} {line.statistic}", limit_s=line.limit_s, kept=kept, of=of, needs=needs, mean_s=mean)
            )  # fmt: skip
        if self._promise is not None and total:
            kept, of, _ = total[-1]
            told.append(
                Standing(name="all limits at once", limit_s=None, kept=kept, of=of, needs=self._promise.attainment)
            )
        return told


def _count(line: Objective, row: RequestRow) -> Count:
    if line.workload_class is not None and row.workload_class != line.workload_class:
        return 0, 0, 0.0
    if line.metric in names.gaps():
        try:
            gaps = np.asarray(names.gaps()[line.metric](row), dtype=np.float64)
        except Undefined:
            return 0, 0, 0.0
        return int((gaps <= line.limit_s).sum()), len(gaps), float(gaps.sum())
    keeps = state(line.metric, line.limit_s, row)
    if keeps is None:
        return 0, 0, 0.0
    if line.statistic != "mean":
        return int(keeps), 1, 0.0
    try:
        return int(keeps), 1, names.per_request()[line.metric](row)
    except Undefined:
        return 0, 0, 0.0


class SoFar:
    """One capture folder, looked at while it grows. `every`: one request in how many is taken."""

    def __init__(self, folder: Path, contract: Contract | None) -> None:
        self._judge = None if contract is None else Judge(contract)
        self._tail = CaptureTail(folder, self._takes)
        self._waiting: deque[Finished] = deque()
        self._counts: dict[int, tuple[Count, ...]] = {}
        self._first_read: deque[float] = deque(maxlen=RECENT)
        self._clock = ReceiveClock()
        self._next_s = 0.0
        self.every = 1

    def _takes(self, row: int) -> bool:
        return (row * MIX >> 12) & (self.every - 1) == 0

    @property
    def given_up(self) -> bool:
        """Whether more comes than may be read along."""
        return self._tail.given_up

    def look(self) -> None:
        """Read on, if it is time to and for as long as is allowed."""
        began = time.thread_time()
        if time.monotonic() < self._next_s:
            return
        self._waiting.extend(self._tail.look(began + LOOK_S))
        taken = 0
        while self._waiting and (taken < LEAST or time.thread_time() < began + LOOK_S):
            self._take(self._waiting.popleft())
            taken += 1
        if len(self._waiting) > WAITING_MOST or len(self._counts) > KEPT_MOST:
            self._thin()
        self._next_s = time.monotonic() + max(EVERY_S, (time.thread_time() - began) / SHARE)

    def _take(self, finished: Finished) -> None:
        row, planned, capture = finished
        if capture.reads and capture.send_start_ns is not None:
            self._first_read.append((capture.reads[0].user_ns - capture.send_start_ns) / 1e9)
        if self._judge is not None and planned.phase == "measured":
            self._counts[row] = self._judge.counts(row_of(planned, capture, self._clock))

    def _thin(self) -> None:
        self.every *= 2
        self._counts = {row: found for row, found in self._counts.items() if self._takes(row)}
        self._waiting = deque(one for one in self._waiting if self._takes(one[0]))

    @property
    def first_read_s(self) -> float | None:
        """Median wait from the send to the first read, of the last requests that ended."""
        return statistics.median(self._first_read) if self._first_read else None

    def standings(self) -> list[Standing]:
        """Each promise so far; none without a contract."""
        if self._judge is None:
            return []
        return self._judge.standings(summed(self._counts))

    def close(self) -> None:
        self._tail.close()


def summed(counts: Mapping[int, tuple[Count, ...]]) -> tuple[Count, ...]:
    """Line by line."""
    return tuple(
        (sum(one[0] for one in line), sum(one[1] for one in line), sum(one[2] for one in line))
        for line in zip(*counts.values(), strict=True)
    )
