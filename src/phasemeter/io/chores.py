"""What a worker does now and then, and when: everything that can wait steps aside for a send that is due.

Lives here: writing the capture out, reading the schedule ahead, expiring, draining, keeping connections warm, showing counters,
and the choice of the moment for each. Must not live here: a request's life (load.py).

Each chore has an instant from which it is wanted and one from which it can't wait any longer. Between the two it is done only
where it fits before the next due instant, by what it took the last time: a flush of a thousand reads takes about a
millisecond, and a send that is late by that is our own fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sized

import msgspec

from phasemeter.io import load_options as counters
from phasemeter.io.capture_file import FLUSH_BYTES, FLUSH_NS, FLUSH_READS, CaptureWriter
from phasemeter.io.due import Due
from phasemeter.io.exchange import Exchange
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.pool import Pool
from phasemeter.io.readiness import WRITE
from phasemeter.io.target import Limits
from phasemeter.records.capture import Close

TICK_NS = 50_000_000
PAIR_NS = 100_000_000
LATEST = 4  # how many times its usual amount a flush may gather while it waits for a quiet moment
SOON_NS = 2_000_000
EXPIRE_LEAST_NS, EXPIRE_MOST_NS = 50_000_000, 1_000_000_000
MARGIN_NS = 50_000
SCHEDULE_ENDS = "the schedule was not written to its end"
FAR_NS = 10_000_000

monotonic_ns = time.monotonic_ns

Cut = Callable[[Exchange, Close, str, int], None]


class Books(msgspec.Struct):
    """What chores look after: the sender's own collections, shared, not copied."""

    options: LoadOptions
    limits: Limits
    shown: memoryview
    pool: Pool
    due: Due
    writer: CaptureWriter
    active: dict[int, Exchange]
    waiting: Sized
    cut: Cut
    keep_precedence: Callable[[int], None]  # or give it back


class Chores:
    """`do` wants to be called from `next_ns` on, or when `flush_reads` reads or FLUSH_BYTES of `pending_bytes` have gathered."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.next_ns = 0
        self.pending_bytes = 0
        self.stopped: str | None = None
        self._tick_ns = self._flush_ns = self._paired_ns = self._expire_ns = 0
        self._tick_took_ns = self._fetch_took_ns = self._warm_took_ns = 4 * MARGIN_NS
        self._flush_each_ns = 1000
        self.flush_reads = FLUSH_READS
        self._warm_ns = 0
        self._expire_every_ns = self._patience()
        self._drain_since_ns: int | None = None

    def _patience(self) -> int:
        """How often to look for what has expired: a hundredth of the shortest limit, within bounds."""
        limits = self.books.limits
        known = [s for s in (limits.first_byte_s, limits.idle_s, limits.total_s) if s is not None]
        return min(EXPIRE_MOST_NS, max(EXPIRE_LEAST_NS, round(min(known, default=100.0) * 1e7)))

    def do(self, now: int, look_ns: int) -> None:
        """Do what is wanted and fits before `look_ns`, when a request is due, and what can't wait. Raises OSError (full disk)."""
        due = self.books.due
        now = self._flush(now, look_ns)
        if now >= due.fetch_ns and (due.must_have_rows or look_ns - now > self._fetch_took_ns):
            due.prefetch(now)
            now, self._fetch_took_ns = self._took(now, self._fetch_took_ns)
        if now >= self._warm_ns and look_ns - now > self._warm_took_ns:
            short = self.books.pool.warm_up(now, self._warm_share())
            self._warm_ns = now + (SOON_NS if short else TICK_NS)
            now, self._warm_took_ns = self._took(now, self._warm_took_ns)
        if now >= self._tick_ns and (now >= self._tick_ns + TICK_NS or look_ns - now > self._tick_took_ns):
            self._tick(now)
            now, self._tick_took_ns = self._took(now, self._tick_took_ns)
        self.next_ns = min(self._tick_ns, self._flush_ns, self._warm_ns, due.fetch_ns)
        if self.next_ns <= now:  # something did not fit: look again when what is due has been sent
            self.next_ns = min(max(look_ns, now + 1), self._tick_ns + TICK_NS)

    @staticmethod
    def _took(began_ns: int, before_ns: int) -> tuple[int, int]:
        """The time now, and what to expect of the same chore next time: what it took, or a little less than was expected."""
        now = monotonic_ns()
        return now, max(now - began_ns + MARGIN_NS, before_ns - before_ns // 8)

    def _flush(self, now: int, look_ns: int) -> int:
        """Write out what was gathered: in large blocks where nothing is due soon, in small ones between two sends."""
        reads, pending = len(self.books.writer.numbers), self.pending_bytes
        small = look_ns - now < FAR_NS
        self.flush_reads = FLUSH_READS // 8 if small else FLUSH_READS
        if reads < self.flush_reads and pending < FLUSH_BYTES and now < self._flush_ns:
            return now
        full = reads >= LATEST * FLUSH_READS or pending >= LATEST * FLUSH_BYTES or now >= self._flush_ns + FLUSH_NS
        if not full and look_ns - now < reads * self._flush_each_ns + MARGIN_NS:
            self.flush_reads = reads + FLUSH_READS // 16
            return now
        self.write(now)
        ended = monotonic_ns()
        if reads:
            self._flush_each_ns = max((ended - now) // reads, self._flush_each_ns - self._flush_each_ns // 8)
        return ended

    def write(self, now: int) -> None:
        """Bring what was gathered to the file. Raises OSError when the disk is full."""
        self.books.writer.flush()
        self.books.shown[counters.BYTES] += self.pending_bytes
        self.pending_bytes = 0
        self._flush_ns = now + FLUSH_NS

    # ── the tick ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _tick(self, now: int) -> None:
        books = self.books
        self._tick_ns = now + TICK_NS
        if now - self._paired_ns >= PAIR_NS:
            self._paired_ns = now
            books.writer.pair_clocks()
        books.pool.look_after(now, ns(books.limits.connect_s))
        if now >= self._expire_ns:
            self._expire_ns = now + self._expire_every_ns
            self._expire(now)
        books.keep_precedence(now)
        self.show()
        if books.shown[counters.STOP]:
            self.stopped = "stopped"
        if books.shown[counters.NO_MORE_ROWS]:
            books.due.no_more_rows(SCHEDULE_ENDS)
        self._drain(now)

    def show(self) -> None:
        """Bring the shared counters up to date. The observer lag is that of the read written down last."""
        books, shown = self.books, self.books.shown
        if books.writer.reads and (kernel_ns := books.writer.reads[-1][1]) is not None:
            lag = books.writer.reads[-1][0] - kernel_ns + time.time_ns() - monotonic_ns()
            shown[counters.LAG] = lag
            shown[counters.LAG_MAX] = max(lag, shown[counters.LAG_MAX])
        shown[counters.IN_FLIGHT] = len(books.active)
        shown[counters.WAITING] = len(books.waiting) + len(books.due.ready)
        shown[counters.CONNS] = len(books.pool.by_fd)
        shown[counters.ROWS] = books.due.rows_taken
        shown[counters.BODIES] = books.due.bodies_taken_bytes

    def _warm_share(self) -> int:
        """How many idle connections are to stand ready: none when there is nothing left to send."""
        options = self.books.options
        return 0 if self.books.due.exhausted else max(1, options.prewarm // options.processes)

    def _expire(self, now: int) -> None:
        """End what has been silent, or has lasted, beyond its limit."""
        limits = self.books.limits
        first, idle, total = ns(limits.first_byte_s), ns(limits.idle_s), ns(limits.total_s)
        after_end = round(limits.after_end_s * 1e9)
        expired: list[tuple[Exchange, Close, str]] = []
        for exchange in self.books.active.values():
            if total is not None and now - (exchange.send_start_ns or now) > total:
                expired.append((exchange, "timeout_total", f"not finished within {limits.total_s:g} s"))
            elif (
                first is not None and self._only_heartbeats(exchange) and now - (exchange.send_start_ns or now) > first
            ):
                expired.append(
                    (exchange, "timeout_first_byte", f"nothing but heartbeats within {limits.first_byte_s:g} s")
                )
            elif exchange.got_bytes:
                if idle is not None and now - exchange.last_ns > idle:
                    expired.append((exchange, "timeout_idle", f"no byte for {limits.idle_s:g} s"))
                elif now - exchange.last_ns > after_end and self._said_all(exchange):
                    expired.append(
                        (exchange, "timeout_idle", f"left open for {limits.after_end_s:g} s after its last word")
                    )
            elif first is not None and now - (exchange.send_start_ns or now) > first:
                expired.append((exchange, "timeout_first_byte", f"no byte within {limits.first_byte_s:g} s"))
        unread = self._unread() if expired else frozenset()
        for exchange, close, error in expired:
            heard = exchange.conn is not None and exchange.conn.fd in unread
            if not heard or close == "timeout_total" or self._only_heartbeats(exchange):
                self.books.cut(exchange, close, error, now)

    def _unread(self) -> frozenset[int]:
        """Descriptors with bytes that were not read yet: after a sleep of our own it is we who were silent, not the server."""
        pool = self.books.pool
        return frozenset(fd for fd, mask in pool.poll.poll(0, len(pool.by_fd) + 1) if mask & ~WRITE)

    def _said_all(self, exchange: Exchange) -> bool:
        """Whether its last read was its last word: each read is looked at once, however long the silence after it."""
        if exchange.judged is exchange.last:
            return False
        exchange.judged = exchange.last
        return self.books.limits.said_all(exchange.last)

    @staticmethod
    def _only_heartbeats(exchange: Exchange) -> bool:
        """Whether an answer is heartbeats alone so far: gateways send them for engines that hang too."""
        return exchange.got_bytes and not exchange.spoke

    def _drain(self, now: int) -> None:
        drain_s = self.books.options.drain_s
        if not self.books.due.exhausted or self.books.waiting or drain_s is None:
            self._drain_since_ns = None
        elif self._drain_since_ns is None:
            self._drain_since_ns = now
        elif now - self._drain_since_ns > drain_s * 1e9:
            self.cancel_all(f"still running {drain_s:g} s after the last send")

    def cancel_all(self, why: str) -> None:
        """Cut what is in flight. What waits for a connection was never sent: it leaves no record and counts as unsent."""
        now = monotonic_ns()
        for exchange in list(self.books.active.values()):
            self.books.cut(exchange, "cancelled", why, now)


def ns(limit_s: float | None) -> int | None:
    return None if limit_s is None else round(limit_s * 1e9)
