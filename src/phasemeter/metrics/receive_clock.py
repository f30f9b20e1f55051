"""Kernel receive stamps (CLOCK_REALTIME) → the client's monotonic clock, by the pairs of both clocks a run keeps.

Lives here: the mapping, the search for a clock step, and what it had to give up on. Must not live here: reading clocks (io/).
A mapped stamp that cannot be (after the read returned, or before the request was sent) is not used: the user stamp is,
and it is counted.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phasemeter.records.capture import ClockPair, Read
from phasemeter.records.reads import stamps_of

UNCERTAINTY_NS = 50_000  # the two readings of a pair lie this close to each other, with a wide margin
STEP_NS = 1_000_000  # an offset that moves by more than this beyond any slewing is a step
FEW = 16  # reads; below that arrays cost more than a loop
SLEW_PPM = 1_000  # clocks are slewed by at most 500 ppm (adjtimex(2)); twice that


class ClockStep(NamedTuple):
    """Between two pairs the realtime clock jumped by `step_ns` against the monotonic one."""

    after_monotonic_ns: int
    before_monotonic_ns: int
    step_ns: int


class ReceiveTimes(NamedTuple):
    """The instant of each read on the monotonic clock; the largest `user − kernel`, None without kernel stamps."""

    times_ns: list[int]
    observer_lag_ns: int | None


class ReceiveClock:
    """Maps the reads of any number of requests. `mapped` and `user_stamped` count reads, `steps` are the clock's jumps.

    `refused` of the user-stamped reads had a kernel stamp that could not be.
    """

    def __init__(self, pairs: Sequence[ClockPair] = ()) -> None:
        ordered = sorted(pairs, key=lambda pair: pair.monotonic_ns)
        self.steps: list[ClockStep] = []
        self.mapped = 0
        self.user_stamped = 0
        self.refused = 0
        self._segments: list[tuple[int, int, int, float]] = []  # from realtime, to realtime, monotonic there, slope
        self._starts: list[int] = []
        self._longest_before: list[int] = []
        self._columns: tuple[NDArray[Any], ...] = ()  # of _segments
        self._last = (0, -1, 0, 0.0)
        self._build(ordered)

    def _build(self, pairs: list[ClockPair]) -> None:
        if not pairs:
            return
        for left, right in itertools.pairwise(pairs):
            span = right.monotonic_ns - left.monotonic_ns
            moved = (right.realtime_ns - left.realtime_ns) - span
            if abs(moved) > STEP_NS + span * SLEW_PPM // 1_000_000:
                self.steps.append(ClockStep(left.monotonic_ns, right.monotonic_ns, moved))
                continue
            width = right.realtime_ns - left.realtime_ns
            if width > 0:
                self._segments.append((left.realtime_ns, right.realtime_ns, left.monotonic_ns, span / width))
        first, last = pairs[0], pairs[-1]
        edge = 10**9  # a request may begin before the first pair and end after the last
        self._segments.append((first.realtime_ns - edge, first.realtime_ns, first.monotonic_ns - edge, 1.0))
        self._segments.append((last.realtime_ns, last.realtime_ns + edge, last.monotonic_ns, 1.0))
        self._segments.sort()
        self._starts = [segment[0] for segment in self._segments]
        furthest = 0
        for segment in self._segments:  # where the segments before this one end at the latest
            self._longest_before.append(furthest)
            furthest = max(furthest, segment[1])
        self._columns = tuple(np.array(column) for column in zip(*self._segments, strict=True))

    def monotonic_ns(
        self, realtime_ns: int, at_least_ns: int | None = None, at_most_ns: int | None = None
    ) -> int | None:
        """Where a realtime stamp lies on the monotonic clock, between the bounds if given.

        None where no pair tells (in a step, far outside) or nothing lies there. After a step backwards two instants share a
        stamp: the later one that fits is meant. One from within such a step looks like one from before it, so what would have
        waited from before the step until after it is not mapped.
        """
        position = bisect_right(self._starts, realtime_ns)
        while position > 0:
            position -= 1
            start, end, origin, slope = self._segments[position]
            if realtime_ns < end:
                found = origin + round((realtime_ns - start) * slope)
                if (at_least_ns is None or found >= at_least_ns) and (at_most_ns is None or found <= at_most_ns):
                    if at_most_ns is not None and self._crosses_back(found, at_most_ns - UNCERTAINTY_NS):
                        return None
                    self._last = self._segments[position]
                    return found
            if self._longest_before[position] <= realtime_ns:
                return None
        return None

    def _crosses_back(self, found_ns: int, user_ns: int) -> bool:
        """Whether the clock went back at some time between the stamp and the read."""
        return any(step.step_ns < 0 and found_ns <= step.after_monotonic_ns < user_ns for step in self.steps)

    def times(self, reads: Sequence[Read], send_start_ns: int | None) -> ReceiveTimes:
        """The instants of one request's reads, never decreasing. `send_start_ns`: no answer can come before it."""
        many = len(reads) >= FEW and self._segments and not self.steps
        found = self._at_once(reads, send_start_ns) if many else None
        return self._one_by_one(reads, send_start_ns) if found is None else found

    def _at_once(self, reads: Sequence[Read], send_start_ns: int | None) -> ReceiveTimes | None:
        """What `_one_by_one` finds, where every read has a stamp that can be and no clock stepped; else None."""
        try:
            user, kernel = (np.asarray(memoryview(stamps)) for stamps in stamps_of(reads))
        except OverflowError:  # an instant that is none
            return None
        start, end, origin, slope = self._columns
        at = np.searchsorted(start, kernel, side="right") - 1
        found = origin[at] + np.rint((kernel - start[at]) * slope[at]).astype(np.int64)
        times = np.minimum(found, user)
        latest = np.maximum.accumulate(times)
        earliest = max(send_start_ns or 0, 0)
        if at.min() < 0 or (kernel >= end[at]).any() or (found > user + UNCERTAINTY_NS).any():
            return None
        before = np.maximum(latest[:-1], earliest) - UNCERTAINTY_NS
        if found[0] < max(earliest - UNCERTAINTY_NS, 0) or (found[1:] < before).any():
            return None
        self.mapped += len(reads)
        return ReceiveTimes(latest.tolist(), int((user - times).max()))

    def _one_by_one(self, reads: Sequence[Read], send_start_ns: int | None) -> ReceiveTimes:
        times: list[int] = []
        lag = -1
        earliest = (send_start_ns or 0) - UNCERTAINTY_NS
        latest = 0
        mapped = 0
        start, end, origin, slope = self._last
        for read in reads:
            user = at = read.user_ns
            kernel = read.kernel_realtime_ns
            if kernel is not None:  # min() and max() would cost as much as the rest of this loop
                found: int | None = origin + round((kernel - start) * slope) if start <= kernel < end else None
                if found is None or found < earliest or found > user or self.steps:
                    found = self.monotonic_ns(kernel, earliest, user + UNCERTAINTY_NS)
                    start, end, origin, slope = self._last
                if found is None:
                    self.refused += 1
                else:
                    mapped += 1
                    if found < user:
                        at = found
                    if at - UNCERTAINTY_NS > earliest:
                        earliest = at - UNCERTAINTY_NS  # one connection's bytes come in order
                    if user - at > lag:
                        lag = user - at
            if at > latest:
                latest = at
            times.append(latest)
        self.mapped += mapped
        self.user_stamped += len(times) - mapped
        return ReceiveTimes(times, lag if lag >= 0 else None)
