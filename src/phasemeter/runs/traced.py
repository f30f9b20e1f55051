"""A request's identity towards the server, so that its spans and logs can be joined to what the client saw.

Lives here: the W3C traceparent of each measured request. Must not live here: reading spans.
"""

from __future__ import annotations

import msgspec

from phasemeter.records.request import PlannedRequest
from phasemeter.workload.streams import stable_hash

LOW_64 = 2**64 - 1


def traced(planned: PlannedRequest, run_id: str) -> PlannedRequest:
    """With a traceparent of its own, the same for the same run and request. W3C Trace Context, section 3.2."""
    high, low = (stable_hash(run_id, part, planned.request_id) & LOW_64 for part in ("trace", "trace-low"))
    span = stable_hash(run_id, "span", planned.request_id) & LOW_64
    return msgspec.structs.replace(planned, traceparent=f"00-{high:016x}{low or 1:016x}-{span or 1:016x}-01")
