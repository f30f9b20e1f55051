"""One request in flight: what the loop has to remember of it, and its records."""

from __future__ import annotations

from typing import Any

from phasemeter.io.capture_file import Closed, Started, capture_of
from phasemeter.io.connection import Connection
from phasemeter.io.message_end import MessageEnd
from phasemeter.records.capture import Capture, Close, Read
from phasemeter.records.request import PlannedRequest


class Exchange:
    """Made when a request is due (or has a due time); `conn` is its connection while it has one."""

    __slots__ = (
        "body", "conn", "due_ns", "end", "feed", "got_bytes", "judged", "kept", "last", "last_ns", "number", "own", "planned",
        "request_bytes", "resent", "row", "send_start_ns", "sent_ns", "spoke", "started",
    )  # fmt: skip

    def __init__(self, planned: PlannedRequest, body: bytes, due_ns: int, row: int, own: bool) -> None:
        self.planned = planned
        self.body = body
        self.due_ns = due_ns
        self.row = row
        self.own = own
        self.number = -1
        self.conn: Connection | None = None
        self.end: MessageEnd | None = None
        self.feed: Any = None
        self.send_start_ns: int | None = None
        self.sent_ns: int | None = None
        self.last = b""  # the last read
        self.judged = b""  # the last read that was held against the last word of its API
        self.last_ns = 0
        self.got_bytes = False
        self.spoke = False  # more than heartbeats came
        self.resent = False
        self.request_bytes: int | None = None
        self.kept: list[Read] | None = None
        self.started: Started | None = None

    def start_record(self, conn: Connection | None) -> Started:
        """The start as it is now; `conn` is the connection that was used or that failed. None: there was none yet."""
        fresh = conn is not None and conn.used <= 1
        looked_up = conn.route.resolved if fresh and conn is not None and conn.follows_look_up else None
        self.started = Started(
            number=self.number,
            request_id=self.planned.request_id,
            row=self.row,
            own=self.own,
            due_ns=self.due_ns,
            dns_start_ns=looked_up.dns_start_ns if looked_up else None,
            dns_done_ns=looked_up.dns_done_ns if looked_up else None,
            connect_start_ns=conn.connect_start_ns if fresh and conn else None,
            tcp_connected_ns=conn.tcp_connected_ns if fresh and conn else None,
            connected_ns=conn.connected_ns if fresh and conn else None,
            send_start_ns=self.send_start_ns,
            sent_ns=self.sent_ns,
            reused=conn is not None and conn.used > 1,
            resent=self.resent,
            local_port=conn.local_port if conn else None,
            peer=conn.peer if conn else None,
            request_bytes=self.request_bytes,
        )
        return self.started

    def close_record(self, now_ns: int, close: Close, error: str | None) -> Closed:
        return Closed(self.number, now_ns, close, error, self.sent_ns)

    def capture(self, closed: Closed, worker: int) -> Capture | None:
        """What came, for a conversation's next turn; None when reads were not kept."""
        if self.kept is None or self.started is None:
            return None
        return capture_of(self.started, tuple(self.kept), closed, worker)
