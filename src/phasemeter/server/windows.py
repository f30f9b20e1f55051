"""Whether a window holds our requests and nothing else.

Lives here: choosing the baseline scrape, comparing the server's counts with ours. Must not live here: differences (prometheus.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from phasemeter.server.prometheus import EngineReading


def baseline_index(counts: Sequence[Mapping[str, float | None]], warmup_requests: int) -> int | None:
    """Which of the scrapes taken after the warm-up is the baseline: the first on which every count has reached it.

    An engine may book a warm-up request's observation late (ai-dynamo/aiperf #1435). None: none has; a metric that is
    absent (None) on a scrape hasn't reached anything.
    """
    for index, seen in enumerate(counts):
        if seen and all(count is not None and count >= warmup_requests for count in seen.values()):
            return index
    return None


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How far above ours a server may count without anybody else's requests: choices are counted apart, and so, or not at all,
    is what failed or was cancelled on the way. `tokens` None: no bound."""

    requests: int = 0
    tokens: int | None = 0


EXACT = Room()


def window_mismatches(
    reading: EngineReading, requests: int | None, output_tokens: int | None, room: Room = EXACT
) -> list[str]:
    """Where the server counted something else than we sent: other people's traffic, or a late observation."""
    found = []
    for key in ("requests_finished", "ttft", "e2e", "prefill", "queue"):
        seen = reading.readings.get(key)
        count = None if seen is None else seen.value if seen.row.kind == "counter" else seen.n
        if (
            requests is not None
            and count is not None
            and seen is not None
            and seen.status == "present"
            and not requests <= count <= requests + room.requests
        ):
            most = f" to {requests + room.requests}" if room.requests else ""
            found.append(f"server_count_mismatch: {seen.metric} counted {count:g}, we {requests}{most}")
    tokens = reading.readings.get("generated_tokens")
    value = tokens.value if tokens is not None and tokens.status == "present" else None
    if output_tokens is not None and value is not None:
        over = value - output_tokens
        if over < 0 or (room.tokens is not None and over > room.tokens):
            found.append(f"server_token_mismatch: the server generated {value:g} tokens, we received {output_tokens}")
    return found


def is_idle(reading: EngineReading) -> bool | None:
    """Nothing running, nothing waiting, on any engine of the page. None: the page doesn't tell."""
    seen = [reading.readings.get(key) for key in ("running_requests", "waiting_requests")]
    values = [one.value for one in seen if one is not None and one.status == "present"]
    return None if not values or any(value is None for value in values) else not any(values)
