"""What a server said about its own time, each value with where it came from and what it means.

Lives here: the value. Must not live here: which engine means what (server/) or a join with the client (phases/).
"""

from __future__ import annotations

from typing import Literal

import msgspec

ClockDomain = Literal["engine_monotonic", "engine_wall", "server_wall", "client_monotonic", "duration_only", "unknown"]


class EvidenceValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A duration (or count) that a server reported for one request.

    `phase` is ours (queue, prefill, first_token, decode, ttft, e2e, ingress, ...); `start` and `end` name the server-side
    boundaries of DESIGN section 4 that it spans, so that equal names with different meanings stay different.
    """

    phase: str
    value_s: float
    start: str | None = None
    end: str | None = None
    source: str  # e.g. "vllm: body `metrics.queue_time_ms`"
    clock: ClockDomain
    definition: str
    request_id: str | None = None
    warnings: tuple[str, ...] = ()


class EvidenceInstant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instant that a server stamped on a clock of its own. Never subtracted from a client instant."""

    boundary: str  # arrival | queue_enter | prefill_start | prefill_end | first_token | decode_end | complete
    at_ns: int
    source: str
    clock: ClockDomain
    request_id: str | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that one request's server told of it, from whatever source."""

    values: tuple[EvidenceValue, ...] = ()
    instants: tuple[EvidenceInstant, ...] = ()
