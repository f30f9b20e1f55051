"""The connections of one worker: opened at a pace, kept, watched while idle, replaced.

Lives here: which connections exist and in what state. Must not live here: requests (load.py asks for connections and is
told which came to be and which did not).
"""

from __future__ import annotations

from collections.abc import Callable

from phasemeter.io import readiness
from phasemeter.io.addresses import error_text
from phasemeter.io.connection import Connection, Route, close_kind
from phasemeter.io.readiness import READ, WRITE
from phasemeter.records.capture import Close

IDLE_LIMIT_NS = 30_000_000_000  # middleboxes forget silent connections: an old one is replaced rather than trusted
RETRY_WARM_NS = 1_000_000_000
WARM_STEP = 4  # connections begun in one go: each takes some 40 µs, and a send may be due


class Pool:
    """`on_ready(conn)` is called for each connection that came to be, `on_failed(conn, close, error)` for one that did not."""

    def __init__(
        self,
        route: Route,
        at_once: int,
        on_ready: Callable[[Connection], None],
        on_failed: Callable[[Connection, Close, str], None],
    ) -> None:
        self.route = route
        self.poll = readiness.poller()
        self.by_fd: dict[int, Connection] = {}
        self.idle: dict[Connection, None] = {}  # by when they became so
        self.connecting: dict[Connection, None] = {}
        self._at_once = at_once
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._warm_after_ns = 0
        self._looked_up = True

    def acquire(self) -> Connection | None:
        """An idle connection, the one used last first: it is the least likely to have been closed by the server."""
        return self.idle.popitem()[0] if self.idle else None

    def ensure(self, waiting: int) -> None:
        """Open connections until as many are being made as requests wait, or as may be made at once."""
        while len(self.connecting) < min(waiting, self._at_once):
            if not self.open():
                return

    def open(self, reserved_for: object = None) -> bool:
        """Begin one connection; False when it failed at once (`on_failed` has been told)."""
        conn = Connection(self.route)
        conn.reserved_for = reserved_for
        conn.follows_look_up, self._looked_up = self._looked_up, False
        self.connecting[conn] = None
        return self._attempt(conn, None)

    def _attempt(self, conn: Connection, before: OSError | None) -> bool:
        """Try the addresses left, one after another."""
        failed = before
        while conn.addresses_left > 0:
            self.by_fd.pop(conn.fd, None)
            readiness.forget(self.poll, conn.fd)
            try:
                conn.open_attempt()
            except OSError as error:
                failed = error
                continue
            self.by_fd[conn.fd] = conn
            conn.interest = WRITE
            self.poll.register(conn.fd, WRITE)
            return True
        if failed is not None:
            self.fail(conn, close_kind(failed, True), error_text(failed))
        return False

    def fail(self, conn: Connection, close: Close, error: str) -> None:
        self.connecting.pop(conn, None)
        self.drop(conn)
        self._on_failed(conn, close, error)

    def progress(self, conn: Connection) -> None:
        """An event on a connection that is being made."""
        try:
            is_open = conn.advance()
        except OSError as error:
            self._attempt(conn, error)
            return
        if is_open:
            self.connecting.pop(conn, None)
            self.want(conn, READ)
            self._on_ready(conn)
        else:
            self.want(conn, READ | WRITE if conn.outgoing else READ)

    def want(self, conn: Connection, interest: int) -> None:
        if conn.interest != interest and conn.fd >= 0:
            conn.interest = interest
            self.poll.modify(conn.fd, interest)

    def keep(self, conn: Connection, now_ns: int) -> None:
        """Put an open connection aside for the next request."""
        conn.idle_since_ns = now_ns
        self.idle[conn] = None

    def drop(self, conn: Connection) -> None:
        """Close it."""
        self.by_fd.pop(conn.fd, None)
        self.idle.pop(conn, None)
        readiness.forget(self.poll, conn.fd)
        conn.close()

    def look_after(self, now_ns: int, connect_limit_ns: int | None) -> None:
        """Now and then: end attempts that take too long, let go of idle connections that are old."""
        if connect_limit_ns is not None:
            for conn in [c for c in self.connecting if now_ns - (c.connect_start_ns or now_ns) > connect_limit_ns]:
                self.fail(conn, "timeout_connect", f"no connection to {conn.peer} within {connect_limit_ns / 1e9:g} s")
        while self.idle and now_ns - (oldest := next(iter(self.idle))).idle_since_ns > IDLE_LIMIT_NS:
            self.drop(oldest)

    def warm_up(self, now_ns: int, warm: int) -> bool:
        """Begin a few of the connections that lack to `warm` idle ones; whether more are wanting still."""
        for _ in range(WARM_STEP):
            if len(self.idle) + len(self.connecting) >= warm or now_ns < self._warm_after_ns:
                return False
            if len(self.connecting) >= self._at_once:
                return True
            if not self.open():
                self.cool(now_ns)
        return True

    def cool(self, now_ns: int) -> None:
        """A connection for the warm reserve failed: not again at once."""
        self._warm_after_ns = now_ns + RETRY_WARM_NS

    def close(self) -> None:
        for conn in list(self.by_fd.values()):
            conn.close()
        self.by_fd.clear()
        self.idle.clear()
        self.connecting.clear()
        self.poll.close()
