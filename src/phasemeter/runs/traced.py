"""A request's identity towards the server, so that its spans and logs can be joined to what the client saw.

Lives here: the W3C traceparent of each measured request, the x-request-id of every one. Must not live here: reading spans or logs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phasemeter.records.request import PlannedRequest
from phasemeter.workload.streams import stable_hash

LOW_64 = 2**64 - 1
REQUEST_ID = "x-request-id"
LONGEST_NAME = 48


def traced(planned: PlannedRequest, run_id: str) -> PlannedRequest:
    """With a traceparent of its own, the same for the same run and request. W3C Trace Context, section 3.2."""
    high, low = (stable_hash(run_id, part, planned.request_id) & LOW_64 for part in ("trace", "trace-low"))
    span = stable_hash(run_id, "span", planned.request_id) & LOW_64
    return msgspec.structs.replace(planned, traceparent=f"00-{high:016x}{low or 1:016x}-{span or 1:016x}-01")


def tag_of(run_id: str, salt: str, headers: Iterable[str]) -> str | None:
    """What the ids of a run begin with: its name, and a mark that keeps two runs of one name apart (vLLM refuses an id that is
    under way already). None where the person sends an x-request-id of their own."""
    if REQUEST_ID in {name.lower() for name in headers}:
        return None
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in run_id)
    return f"{plain[:LONGEST_NAME]}-{stable_hash(salt, run_id) & 0xFFFFFF:06x}"


def named(planned: PlannedRequest, tag: str | None) -> PlannedRequest:
    """With the id that it is sent under; unchanged without a tag."""
    return planned if tag is None else msgspec.structs.replace(planned, sent_id=f"{tag}-{planned.request_id}")
