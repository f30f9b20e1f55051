"""One exchange, waited for: probes before a run, scrapes beside it. The same record as a measured request.

Must not live here: what an answer means, or a retry.
"""

from __future__ import annotations

import select
import time
from typing import NoReturn

import msgspec

from phasemeter.errors import NetworkError
from phasemeter.io.addresses import LONGEST_MS, answering_first, error_text, resolve
from phasemeter.io.connection import CONTROL_BYTES, OPEN, READ_BYTES, TIMESPEC, Connection, close_kind, route_to
from phasemeter.io.message_end import MALFORMED, MessageEnd
from phasemeter.io.target import Target, head, with_body
from phasemeter.records.capture import Capture, Close, Read


class Ended(Exception):
    def __init__(self, close: Close, error: str | None = None) -> None:
        super().__init__(close)
        self.close: Close = close
        self.error = error


def fetch(target: Target, method: str = "GET", path: str | None = None, body: bytes | None = None) -> Capture:
    """Send one request and wait for its whole answer within the target's limits; failures are in the record's `close`.

    `path` replaces the target's; `body` is sent with a Content-Length. Raises UserError for what can't be sent at all.
    """
    due_ns = time.monotonic_ns()
    where = (target.proxy.host, target.proxy.port) if target.proxy else (target.host, target.port)
    prefix = head(target, method, path)
    data = prefix + b"\r\n" if body is None else with_body(prefix, body)
    capture = Capture(request_id=f"{method} {path or target.path}", due_ns=due_ns, request_bytes=len(data))
    try:
        resolved = answering_first(resolve(*where), target.limits.connect_s)
    except NetworkError as failed:
        return msgspec.structs.replace(capture, close="refused", error=str(failed), closed_ns=time.monotonic_ns())
    one = _Exchange(Connection(route_to(target, resolved, True)), method)
    try:
        one.connect()
        one.send(data)
        one.receive()
    except Ended as end:
        return one.record(capture, end)
    finally:
        one.conn.close()


class _Exchange:
    def __init__(self, conn: Connection, method: str) -> None:
        self.conn = conn
        self.end = MessageEnd(head_only=method == "HEAD")
        self.reads: list[Read] = []
        self.send_start_ns: int | None = None
        self.sent_ns: int | None = None
        self._limits = conn.route.target.limits
        self._total_ns: int | None = None

    def _await(self, events: int, since_ns: int, limit_s: float | None, close: Close, *, firm: bool = False) -> None:
        """Raises Ended(close) when nothing happens in time. What came while we slept was in time, unless the limit is `firm`."""
        until = [since_ns + round(limit_s * 1e9)] if limit_s is not None else []
        total = self._limits.total_s
        if total is not None and self.send_start_ns is not None:
            until.append(self.send_start_ns + round(total * 1e9))
        poll = select.poll()
        poll.register(self.conn.fd, events)
        if not until:
            poll.poll()
            return
        left_ms = (min(until) - time.monotonic_ns()) / 1e6
        by_total = (len(until) == 2 and until[1] < until[0]) or not limit_s
        over = left_ms <= 0 and (by_total or firm)
        if over or not poll.poll(min(max(left_ms, 0), LONGEST_MS)):
            raise Ended("timeout_total" if by_total else close, "no answer in time")

    def connect(self) -> None:
        began, failed = time.monotonic_ns(), OSError("no address")
        while self.conn.addresses_left > 0:
            try:
                self.conn.open_attempt()
                events = select.POLLOUT
                while self.conn.state != OPEN:
                    self._await(events, began, self._limits.connect_s, "timeout_connect")
                    self.conn.advance()
                    events = select.POLLIN | select.POLLOUT if self.conn.outgoing else select.POLLIN
                self.conn.used = 1
                return
            except OSError as error:
                failed = error
        raise Ended(close_kind(failed, True), error_text(failed))

    def send(self, data: bytes) -> None:
        now = self.send_start_ns = time.monotonic_ns()
        try:
            done = self.conn.send(data)
            while not done:
                self._await(select.POLLOUT, now, self._limits.idle_s, "timeout_idle")
                done = self.conn.flush()
        except OSError as error:
            raise Ended(close_kind(error, False), error_text(error)) from error
        self.sent_ns = time.monotonic_ns()

    def receive(self) -> NoReturn:
        limits, buffer, last_ns = self._limits, memoryview(bytearray(READ_BYTES)), time.monotonic_ns()
        spoke = False
        while True:
            since_ns = last_ns
            limit, close = (
                (limits.idle_s, "timeout_idle") if self.reads else (limits.first_byte_s, "timeout_first_byte")
            )
            if self.reads and limits.said_all(self.reads[-1].data):
                limit = limits.after_end_s if limit is None else min(limit, limits.after_end_s)
            spoke = spoke or bool(self.reads and not limits.is_heartbeat(self.reads[-1].data))
            hums = bool(self.reads) and not spoke
            if hums and self.send_start_ns is not None:
                since_ns, limit, close = self.send_start_ns, limits.first_byte_s, "timeout_first_byte"
            self._await(select.POLLIN, since_ns, limit, close, firm=hums)  # type: ignore[arg-type]
            try:
                count, control, _, _ = self.conn.recvmsg_into([buffer], CONTROL_BYTES)
                last_ns = time.monotonic_ns()
                data = bytes(buffer[:count])
                if count and self.conn.tls is not None:
                    data = self.conn.tls.received(data)
                    self.conn.outgoing += self.conn.tls.pending()
                    self.conn.flush()
            except BlockingIOError:
                continue
            except OSError as error:
                raise Ended(close_kind(error, False), error_text(error)) from error
            if data:
                self._take(last_ns, control, data)
            if not count or (self.conn.tls is not None and self.conn.tls.ended):
                raise Ended("eof")

    def _take(self, now_ns: int, control: list[tuple[int, int, bytes]], data: bytes) -> None:
        kernel_ns = None
        if control:
            seconds, nanoseconds = TIMESPEC.unpack(control[0][2])
            kernel_ns = seconds * 1_000_000_000 + nanoseconds
        self.reads.append(Read(now_ns, kernel_ns, data))
        try:
            self.end.feed(data)
        except MALFORMED as error:
            if not self.end.complete:
                raise Ended("malformed", f"{type(error).__name__}: {error}") from error
        if self.end.complete:
            raise Ended("complete")

    def record(self, capture: Capture, end: Ended) -> Capture:
        self.end.release()
        conn = self.conn
        return msgspec.structs.replace(
            capture, dns_start_ns=conn.route.resolved.dns_start_ns, dns_done_ns=conn.route.resolved.dns_done_ns,
            connect_start_ns=conn.connect_start_ns, tcp_connected_ns=conn.tcp_connected_ns,
            connected_ns=conn.connected_ns, send_start_ns=self.send_start_ns, sent_ns=self.sent_ns,
            reads=tuple(self.reads), closed_ns=time.monotonic_ns(), close=end.close, error=end.error,
            local_port=conn.local_port, peer=conn.peer,
        )  # fmt: skip
