"""How a run is sent, as data that crosses from the parent to its workers.

Lives here: options, the counters that workers show while they run, the protocol of a conversation's next turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from phasemeter.io.target import Target
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest

# (planned, its body, what came) → the conversation's next turn, or None. Runs between polls: keep it short.
NextRequest = Callable[[PlannedRequest, bytes, Capture], tuple[PlannedRequest, bytes] | None]

COUNTERS = (
    "state", "stop", "sent", "in_flight", "waiting", "done", "failed", "cancelled", "bytes", "lag_ns", "lag_max_ns",
    "late_ns", "late_max_ns", "rows_taken", "bodies_taken_bytes", "open_connections", "no_more_rows",
)  # fmt: skip
(
    STATE,
    STOP,
    SENT,
    IN_FLIGHT,
    WAITING,
    DONE,
    FAILED,
    CANCELLED,
    BYTES,
    LAG,
    LAG_MAX,
    LATE,
    LATE_MAX,
    ROWS,
    BODIES,
    CONNS,
    NO_MORE_ROWS,
) = range(len(COUNTERS))
COUNTER_BYTES = 8 * len(COUNTERS)
STARTING, READY, RUNNING, ENDED = range(4)


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`open`: each request at its due offset, `concurrency` is a cap (None: none). `closed`: `concurrency` slots.

    `drain_s`: how long to wait for answers after the last send, None for all; the rest is cancelled. `duration_s` ends a
    closed loop, counted from its first measured request: rows that no slot took by then were never due. `prewarm`: how
    many connections stand ready.
    """

    mode: Literal["open", "closed"] = "open"
    concurrency: int | None = None
    processes: int = 1
    drain_s: float | None = None
    duration_s: float | None = None
    prewarm: int = 4
    connecting_at_once: int = 128  # a listen backlog is finite
    start_delay_s: float = 0.02
    real_time: bool = True  # ask for a place before other processes (precedence.py)
    expected_open: int | None = None  # connections that may be open at once, for the check of limits before the run
    worker_module: str = "phasemeter.io.worker_main"
    worker_options: bytes = b""  # handed to the worker module's factory of next requests


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Told to a worker over its standard input, never in arguments or environment: it holds secrets."""

    folder: str
    worker: int
    target: Target
    load: LoadOptions
    counters_fd: int
