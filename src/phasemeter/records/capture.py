"""One request as the client lived it: bytes and clock readings, nothing else.

Lives here: what the sender writes down. Must not live here: what the bytes mean (wire/) or any metric (metrics/).
All `_ns` instants share one CLOCK_MONOTONIC; `kernel_realtime_ns` is CLOCK_REALTIME as the kernel gave it, raw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Close = Literal[
    "complete",  # the HTTP message ended by its own framing
    "eof",  # the peer closed (ends a read-until-close body; otherwise a truncation)
    "reset",  # ECONNRESET, EPIPE or another transport error while in flight
    "refused",  # no connection could be made (refused, unreachable, DNS, TLS)
    "stale",  # a reused connection died before any response byte, and the one re-send did too
    "timeout_connect",
    "timeout_first_byte",
    "timeout_idle",
    "timeout_total",
    "client_resource",  # EMFILE, ENOBUFS, no ports left: ours
    "malformed",  # not HTTP
    "cancelled",  # cut by us at the end of the run or by a signal
    "unsent",  # never sent
]


class Read(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one read returned: `data` is raw HTTP (head and framing included; plaintext under TLS)."""

    user_ns: int
    kernel_realtime_ns: int | None
    data: bytes


class ClockPair(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Both clocks read back to back: maps CLOCK_REALTIME stamps to CLOCK_MONOTONIC and shows a clock step."""

    monotonic_ns: int
    realtime_ns: int


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One request's life. `None` means that it did not happen (or was not seen); 0 is a reading.

    `due_ns` is when the plan said to send (closed loop: when its slot was free, think time added), `send_start_ns` just
    before the first byte's write, `sent_ns` when the kernel had taken the last byte. `send_start_ns - due_ns` is our own
    lateness: hiding it is coordinated omission.
    """

    request_id: str
    worker: int = 0
    due_ns: int
    dns_start_ns: int | None = None
    dns_done_ns: int | None = None
    connect_start_ns: int | None = None
    tcp_connected_ns: int | None = None
    connected_ns: int | None = None  # after TLS, where there is TLS
    send_start_ns: int | None = None
    sent_ns: int | None = None
    reads: Sequence[Read] = ()
    closed_ns: int | None = None  # None: still open in a capture that was cut off (kill -9)
    close: Close | None = None
    error: str | None = None  # the exception's class and text, where there was one
    reused_connection: bool = False
    resent: bool = False
    local_port: int | None = None
    peer: str | None = None
    request_bytes: int | None = None
