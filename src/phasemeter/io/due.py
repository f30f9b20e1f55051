"""Which request is due when: the schedule's rows, freed slots, next turns of conversations, all by absolute instants.

Lives here: the order of sends in an open loop (due offsets, perhaps under a cap) and a closed one (slots and think time).
Must not live here: sockets, or a clock: `now` is an argument.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from phasemeter.io.exchange import Exchange
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.schedule_file import Row, ScheduleFollower
from phasemeter.records.request import PlannedRequest

NEVER_NS = 1 << 62
AHEAD_ROWS = 256
MUST_ROWS = 16
AT_ONCE = 32  # sends between two looks at what has come
AHEAD_BYTES = 16 << 20
LOOK_AGAIN_NS = 2_000_000
FIRST_PAUSE_NS, LONGEST_PAUSE_NS = 10_000_000, 1_000_000_000


class Due:
    """`record(planned, body)` writes a next turn into the worker's own schedule file and returns its row."""

    def __init__(
        self,
        follower: ScheduleFollower,
        options: LoadOptions,
        slots: int | None,
        start_ns: int,
        record: Callable[[PlannedRequest, bytes], int],
    ) -> None:
        self._follower = follower
        self._start_ns = start_ns
        self._closed_loop = options.mode == "closed"
        self._cap = None if self._closed_loop else slots
        self._free: deque[int] = deque([start_ns] * (slots or 1)) if self._closed_loop else deque()
        self._duration_ns = None if options.duration_s is None else round(options.duration_s * 1e9)
        # known when the first measured request takes a slot: a warm-up takes none of its time
        self._until_ns = NEVER_NS
        self._slots = slots or 1
        self._unreached = 0  # requests in a row that found nobody there
        self._record = record
        self._queue: deque[tuple[Row, bytes]] = deque()
        self._queue_bytes = 0
        self._timers: list[tuple[int, int, Exchange]] = []
        self._serial = 0
        self._look_again_ns = 0
        self.ready: deque[Exchange] = deque()
        self.rows_taken = 0
        self.bodies_taken_bytes = 0
        self.reason: str | None = None

    @property
    def exhausted(self) -> bool:
        """Nothing is left to send, whatever is still in flight (an answer may yet bring a next turn)."""
        return self._follower.finished and not self._queue and not self._timers and not self.ready

    @property
    def fetch_ns(self) -> int:
        """From when on rows should be read ahead; far away when enough are here or no more will come."""
        enough = len(self._queue) >= AHEAD_ROWS or self._queue_bytes >= AHEAD_BYTES
        return NEVER_NS if enough or self._follower.finished else self._look_again_ns

    @property
    def must_have_rows(self) -> bool:
        """Whether so few are left that reading ahead can't wait for a quiet moment."""
        return len(self._queue) < MUST_ROWS

    def prefetch(self, now: int) -> None:
        """Read one block of rows and bodies ahead, at most 16 MB."""
        if self.fetch_ns <= now:
            block = self._follower.next_block()
            self._queue.extend(block)
            self._queue_bytes += sum(len(body) for _, body in block)
            self._look_again_ns = now if block else now + LOOK_AGAIN_NS

    def no_more_rows(self, reason: str) -> None:
        """The schedule will not grow any more, though its end was not written."""
        if self.reason is None and not self._follower.finished:
            while block := self._follower.next_block():
                self._queue.extend(block)
                self._queue_bytes += sum(len(body) for _, body in block)
            self._follower.finished = True
            self.reason = reason

    def take(self, now: int, in_flight: int) -> list[Exchange]:
        """What may be sent now, in order of due."""
        if not self._queue:
            self.prefetch(now)
        if self._closed_loop and now >= self._until_ns and self.reason is None:
            self._end_of_duration()
        if self._closed_loop:
            self._fill_slots(now)
        else:
            while self._queue and self._due_of(self._queue[0][0].planned) <= now and len(self.ready) < AT_ONCE:
                row, body = self._pop()
                self.ready.append(Exchange(row.planned, body, self._due_of(row.planned), row.row, False))
        while self._timers and self._timers[0][0] <= now:
            self.ready.append(heapq.heappop(self._timers)[2])
        taken: list[Exchange] = []
        while self.ready and (self._cap is None or in_flight + len(taken) < self._cap):
            taken.append(self.ready.popleft())
        return taken

    def _end_of_duration(self) -> None:
        """A closed loop's time is over: what no slot took was never due."""
        self._queue.clear()
        self._timers = []
        self._free.clear()
        self._follower.finished = True
        self.reason = "duration"

    def _fill_slots(self, now: int) -> None:
        while self._free and self._queue:
            row, body = self._pop()
            free_ns = self._free.popleft()
            if self._duration_ns is not None and self._until_ns == NEVER_NS and row.planned.phase != "warmup":
                self._until_ns = free_ns + self._duration_ns
            due = free_ns + row.planned.think_ns
            exchange = Exchange(row.planned, body, due, row.row, False)
            if due <= now:
                self.ready.append(exchange)
            else:
                self._later(exchange)

    def _later(self, exchange: Exchange) -> None:
        self._serial += 1
        heapq.heappush(self._timers, (exchange.due_ns, self._serial, exchange))

    def _pop(self) -> tuple[Row, bytes]:
        row, body = self._queue.popleft()
        self._queue_bytes -= len(body)
        self.rows_taken += 1
        self.bodies_taken_bytes += len(body)
        return row, body

    def _due_of(self, planned: PlannedRequest) -> int:
        return self._start_ns + (planned.due_offset_ns or 0)

    def closed(self, now: int, follow: tuple[PlannedRequest, bytes] | None, reached: bool = True) -> None:
        """An exchange is over: its conversation's next turn takes its place, or its slot is free.

        `reached`: whether there was a connection. Slots of a loop that ends by time wait a little where nobody is there, longer each
        round: thousands of refusals a second say no more than one, and fill a disk.
        """
        self._unreached = 0 if reached else self._unreached + 1
        if follow is not None and now < self._until_ns:
            planned, body = follow
            due = now + planned.think_ns
            if planned.due_offset_ns is not None:  # a trace's session: not before its own instant
                due = max(due, self._due_of(planned))
            self._later(Exchange(planned, body, due, self._record(planned, body), True))
        elif self._closed_loop:
            self._free.append(now + self._pause_ns())

    def _pause_ns(self) -> int:
        if not self._unreached or self._duration_ns is None:
            return 0
        rounds = min((self._unreached - 1) // self._slots, 10)
        return min(FIRST_PAUSE_NS << rounds, LONGEST_PAUSE_NS)

    def next_ns(self, in_flight: int) -> int:
        """When something may be due next; far away when only an answer can change that."""
        next_ns = self._timers[0][0] if self._timers else NEVER_NS
        capped = self._cap is not None and in_flight >= self._cap
        if self.ready and not capped:
            return 0
        if self._queue and not self._closed_loop and not capped:
            next_ns = min(next_ns, self._due_of(self._queue[0][0].planned))
        if not self._queue:
            next_ns = min(next_ns, self.fetch_ns)
        if self._closed_loop and self.reason is None:
            next_ns = min(next_ns, self._until_ns)
        return next_ns
