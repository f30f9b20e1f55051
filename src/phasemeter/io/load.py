"""The loop of one worker: sends what is due, stamps and writes down what comes, and knows nothing of what it means.

Lives here: the path from a readable socket to the capture, and the life of an exchange. Must not live here: JSON, events,
tokens, statistics; which request is due when (due.py); how connections come to be (pool.py).

The schedule is absolute. `epoll.poll` rounds its wait up to a millisecond, so the last stretch before a due instant is
waited for with `select` on the epoll descriptor, which does not, and the very last is spent polling: a sleeper wakes some
50 µs late (docs/decisions/0021-waiting-for-a-due-instant.md). Reads that are ready when a request is due wait for the send:
their kernel stamps lose nothing by it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from phasemeter.io import load_options as counters
from phasemeter.io.addresses import error_text
from phasemeter.io.capture_file import FLUSH_BYTES, CaptureWriter
from phasemeter.io.chores import Books, Chores, ns
from phasemeter.io.connection import CONTROL_BYTES, OPEN, READ_BYTES, TIMESPEC, Connection, Route, close_kind
from phasemeter.io.due import Due
from phasemeter.io.exchange import Exchange
from phasemeter.io.load_options import LoadOptions, NextRequest
from phasemeter.io.message_end import MALFORMED, MessageEnd
from phasemeter.io.pool import Pool
from phasemeter.io.precedence import Precedence
from phasemeter.io.readiness import READ, WRITE, wait_finely
from phasemeter.io.target import head, with_body
from phasemeter.records.capture import Close, Read

BATCH = 32  # events a poll
COARSE_NS = 2_000_000
SPIN_NS = 100_000
SPIN_SHARE = 10  # at most a tenth of the time between two sends is spent polling
NEVER_NS = 1 << 62
UNREACHED = frozenset({"refused", "timeout_connect", "client_resource"})  # closes of requests that had no connection
monotonic_ns = time.monotonic_ns
unpack_timespec = TIMESPEC.unpack


class Sender:
    """One worker's run. `control` is a descriptor that becomes readable when the parent is gone."""

    def __init__(
        self, route: Route, options: LoadOptions, shown: memoryview, control: int | None, precedence: Precedence
    ) -> None:
        self.options = options
        self._precedence = precedence
        self.limits = route.target.limits
        self.pool = Pool(route, options.connecting_at_once, self._ready, self._not_connected)
        self.shown = shown  # the shared counters, as 64-bit integers
        self.next_request: NextRequest | None = None
        self.waiting: deque[Exchange] = deque()
        self.active: dict[int, Exchange] = {}
        self.writer: CaptureWriter
        self.due: Due
        self.chores: Chores
        self.stopped: str | None = None
        self._control = control
        self._prefix = head(route.target)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._buffers = [self._buffer]
        self._number = 0
        self._now_ns = 0  # as of the last look at the clock
        self._look_ns = 0  # when something may be due; 0 after each change that may move it
        self._spin_ns = 0  # how long before that to begin polling
        self._resending = 0  # exchanges that wait for the fresh connection of their re-send
        self._worker = 0
        self._note_number: Callable[[int], None]
        self._note_read: Callable[[tuple[int, int | None, bytes]], None]
        if control is not None:
            self.pool.poll.register(control, READ)

    # ── before and around the run ────────────────────────────────────────────────────────────────────────────────

    def prewarm(self, until_ns: int, share: int) -> None:
        """Have `share` connections stand ready, or as many as come to be by `until_ns`; failures wait for the first request."""
        while (now := monotonic_ns()) < until_ns:
            self.pool.look_after(now, ns(self.limits.connect_s))
            short = self.pool.warm_up(now, share)
            if not short and not self.pool.connecting:
                return
            self._events(self.pool.poll.poll(0.001 if short else (until_ns - now) / 1e9, BATCH))

    def run(self, writer: CaptureWriter, due: Due, worker: int) -> str:
        """Send and capture until all is answered or something ends the run: "done", or what ended it.

        Raises OSError when the capture can't be written any more (full disk).
        """
        self.writer, self.due, self._worker = writer, due, worker
        self._note_number, self._note_read = writer.numbers.append, writer.reads.append
        chores = self.chores = Chores(
            Books(
                self.options,
                self.limits,
                self.shown,
                self.pool,
                due,
                writer,
                self.active,
                self.waiting,
                self._cut,
                self._precedence.look,
            )
        )
        while self.stopped is None:
            now = monotonic_ns()
            if now >= self._look_ns:
                self._send_due(now)
                if due.exhausted and not self.in_flight:
                    chores.show()
                    return due.reason or "done"
                now = monotonic_ns()
            if (
                now >= chores.next_ns
                or len(writer.numbers) >= chores.flush_reads
                or chores.pending_bytes >= FLUSH_BYTES
            ):
                chores.do(now, self._look_ns)
                self.stopped = self.stopped or chores.stopped
                now = monotonic_ns()
            self._now_ns = now
            self._events(self._wait(now))
        chores.cancel_all(self.stopped)
        chores.show()
        return self.stopped

    def _send_due(self, now: int) -> None:
        for exchange in self.due.take(now, self.in_flight):
            self._start(exchange)
        self._look_ns = self.due.next_ns(self.in_flight)
        self._spin_ns = min(SPIN_NS, (self._look_ns - now) // SPIN_SHARE)

    @property
    def in_flight(self) -> int:
        return len(self.active) + len(self.waiting) + self._resending

    def _wait(self, now: int) -> list[tuple[int, int]]:
        """Sleep until something is readable or `_spin_ns` before something is due, whichever is first."""
        poll = self.pool.poll
        wake_ns = self._look_ns - self._spin_ns
        left = (wake_ns if wake_ns < self.chores.next_ns else self.chores.next_ns) - now
        if left > COARSE_NS:
            return poll.poll(left / 1e9 - 0.001, BATCH)
        if left > 0:
            found = wait_finely(poll, left / 1e9, BATCH)
            if found or monotonic_ns() >= wake_ns:
                return found  # none: what is due goes first
        return poll.poll(0, BATCH)

    def _events(self, events: list[tuple[int, int]]) -> None:
        """Answer what a poll found. Once something is due the rest waits: the next poll tells of it again."""
        by_fd = self.pool.by_fd
        due_ns = self._look_ns if self._look_ns > self._now_ns else NEVER_NS
        for fd, mask in events:
            conn = by_fd.get(fd)
            if conn is None:
                if fd == self._control:
                    self.stopped = "the parent process is gone"
            elif conn.state == OPEN:
                if mask & WRITE:
                    self._go_on_sending(conn)
                if mask & ~WRITE and conn.state == OPEN:
                    self._read(conn)
            else:
                self.pool.progress(conn)
            if self._now_ns >= due_ns:
                return

    # ── an exchange's life ───────────────────────────────────────────────────────────────────────────────────────

    def _start(self, exchange: Exchange) -> None:
        exchange.number = self._number
        self._number += 1
        conn = self.pool.acquire()
        if conn is not None:
            self._send(conn, exchange)
        else:
            self.waiting.append(exchange)
            self.pool.ensure(len(self.waiting))

    def _ready(self, conn: Connection) -> None:
        """A connection is open and free: the longest waiting request gets it."""
        if conn.reserved_for is not None:
            exchange, conn.reserved_for = conn.reserved_for, None
            self._resending -= 1
            self._send(conn, exchange)
        elif self.waiting:
            self._send(conn, self.waiting.popleft())
            self.pool.ensure(len(self.waiting))
        else:
            self.pool.keep(conn, monotonic_ns())

    def _not_connected(self, conn: Connection, close: Close, error: str) -> None:
        exchange = conn.reserved_for
        if exchange is not None:
            self._resending -= 1
        elif self.waiting:
            exchange = self.waiting.popleft()
        if exchange is None:
            self.pool.cool(monotonic_ns())
            return
        self.writer.starts.append(exchange.start_record(conn))
        self._finish(exchange, close, error, monotonic_ns())
        self.pool.ensure(len(self.waiting))

    def _send(self, conn: Connection, exchange: Exchange) -> None:
        exchange.conn, conn.exchange = conn, exchange
        conn.used += 1
        self.active[exchange.number] = exchange
        exchange.end = MessageEnd()
        exchange.feed = exchange.end.feed
        if self.next_request is not None:
            exchange.kept = []
        planned = exchange.planned
        data = with_body(self._prefix, exchange.body, planned.traceparent, planned.sent_id)
        exchange.request_bytes = len(data)
        now = exchange.send_start_ns = exchange.last_ns = monotonic_ns()
        try:
            if conn.send(data):
                exchange.sent_ns = monotonic_ns()
            else:
                self.pool.want(conn, READ | WRITE)
        except OSError as error:
            self._send_failed(conn, error)
            return
        self.writer.starts.append(exchange.start_record(conn))
        late = now - exchange.due_ns
        shown = self.shown
        shown[counters.SENT] += 1
        shown[counters.LATE] = late
        if late > shown[counters.LATE_MAX]:
            shown[counters.LATE_MAX] = late

    def _go_on_sending(self, conn: Connection) -> None:
        try:
            if not conn.flush():
                return
        except OSError as error:
            self._send_failed(conn, error)
            return
        self.pool.want(conn, READ)
        if conn.exchange is not None and conn.exchange.sent_ns is None:
            conn.exchange.sent_ns = monotonic_ns()

    def _send_failed(self, conn: Connection, error: OSError) -> None:
        """The peer takes no more, but may have answered before (413, 401 to a body it did not want): what came is read first,
        and only where that leads to no end the failure is one (RFC 9112 section 9.6)."""
        exchange = conn.exchange
        if exchange.started is None:
            self.writer.starts.append(exchange.start_record(conn))
        conn.failure = error
        conn.leave()
        self.pool.want(conn, READ)
        while conn.exchange is exchange and conn.state == OPEN and self._read(conn):
            pass

    def _read(self, conn: Connection) -> bool:
        """Take what one read gives; whether there was anything to take."""
        try:
            count, control, _, _ = conn.recvmsg_into(self._buffers, CONTROL_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._broken(conn, close_kind(error, False), error_text(error))
            return True
        user_ns = self._now_ns = monotonic_ns()
        exchange = conn.exchange
        if not count or exchange is None:
            self._ended(conn, user_ns)
            return True
        kernel_ns = None
        if control:
            seconds, nanoseconds = unpack_timespec(control[0][2])
            kernel_ns = seconds * 1_000_000_000 + nanoseconds
        data = bytes(self._buffer[:count])
        if conn.tls is not None:
            plain = self._decrypt(conn, data)
            if not plain:
                return True
            data = plain
        self._note_number(exchange.number)
        self._note_read((user_ns, kernel_ns, data))
        self.chores.pending_bytes += count
        exchange.last, exchange.last_ns = data, user_ns
        exchange.got_bytes = True
        if not exchange.spoke:
            exchange.spoke = not self.limits.is_heartbeat(data)
        if exchange.kept is not None:
            exchange.kept.append(Read(user_ns, kernel_ns, data))
        try:
            exchange.feed(data)
        except MALFORMED as error:
            if not exchange.end.complete:
                self.pool.drop(conn)
                self._finish(exchange, "malformed", f"{type(error).__name__}: {error}", user_ns)
                return True
        if exchange.end.complete:
            self._completed(conn, exchange, user_ns)
        elif conn.tls is not None and conn.tls.ended:
            self._ended(conn, user_ns)
        return True

    def _decrypt(self, conn: Connection, data: bytes) -> bytes | None:
        """The plaintext that a read released; None when there is none, or when the connection broke over it."""
        try:
            plain: bytes = conn.tls.received(data)
            if more := conn.tls.pending():
                conn.outgoing += more
                if not conn.flush():
                    self.pool.want(conn, READ | WRITE)
        except OSError as error:
            self._broken(conn, close_kind(error, False), error_text(error))
            return None
        if not plain and conn.tls.ended:
            self._ended(conn, monotonic_ns())
        return plain

    def _completed(self, conn: Connection, exchange: Exchange, now_ns: int) -> None:
        end = exchange.end
        usable = end is not None and end.keep_alive and not end.excess and exchange.sent_ns is not None
        conn.exchange = None
        self._finish(exchange, "complete", None, now_ns)
        if usable and not (conn.tls is not None and conn.tls.ended):
            self._ready(conn)
        else:
            self.pool.drop(conn)
            self.pool.ensure(len(self.waiting))

    def _ended(self, conn: Connection, now_ns: int) -> None:
        """The peer closed, or spoke without having been asked."""
        if conn.exchange is None:
            self.pool.drop(conn)
        elif conn.failure is not None:
            self._broken(conn, close_kind(conn.failure, False), error_text(conn.failure))
        else:
            self._broken(conn, "eof", None)

    def _broken(self, conn: Connection, close: Close, error: str | None) -> None:
        """An exchange lost its connection. A reused one that died before any response byte is sent again once, on a fresh
        connection, marked, its due unchanged: the server had closed an idle connection while the request was on its way."""
        exchange: Exchange | None = conn.exchange
        reused = conn.used > 1
        conn.exchange = None
        if exchange is not None and exchange.resent and not exchange.got_bytes:
            close = "stale"
        self.pool.drop(conn)
        if exchange is None:
            return
        self.active.pop(exchange.number, None)
        if reused and not exchange.got_bytes and not exchange.resent:
            exchange.resent = True
            if exchange.end is not None:
                exchange.end.release()
            exchange.send_start_ns = exchange.sent_ns = exchange.conn = exchange.started = None
            self._resending += 1
            self.pool.open(exchange)
            return
        self._finish(exchange, close, error, monotonic_ns())

    def _finish(self, exchange: Exchange, close: Close, error: str | None, now_ns: int) -> None:
        self.active.pop(exchange.number, None)
        record = exchange.close_record(now_ns, close, error)
        self.writer.closes.append(record)
        if exchange.end is not None:
            exchange.end.release()
        exchange.feed = None
        kind = {"complete": counters.DONE, "eof": counters.DONE, "cancelled": counters.CANCELLED}
        said_all = close == "timeout_idle" and self.limits.said_all(exchange.last)
        self.shown[counters.DONE if said_all else kind.get(close, counters.FAILED)] += 1
        follow = None
        if self.next_request is not None and close != "cancelled":
            capture = exchange.capture(record, self._worker)
            follow = self.next_request(exchange.planned, exchange.body, capture) if capture is not None else None
        self.due.closed(now_ns, follow, reached=close not in UNREACHED)
        self._look_ns = 0

    def _cut(self, exchange: Exchange, close: Close, error: str, now: int) -> None:
        if exchange.conn is not None:
            exchange.conn.exchange = None
            self.pool.drop(exchange.conn)
        self._finish(exchange, close, error, now)
