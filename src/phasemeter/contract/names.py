"""What a contract's metric names mean: the house's, and `dialect:name` for another tool's.

Lives here: finding the definition that a name stands for. Must not live here: the definitions (metrics/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import GAPS, HOUSE, PER_REQUEST, Definition
from phasemeter.metrics.gaps import Gaps
from phasemeter.records.request_row import RequestRow

EARLY_ENDS = frozenset({"send_start", "sent", "headers", "first_read", "first_chunk", "first_token", "first_output",
                        "connect_start", "dns_done", "tcp_start", "tcp_connected", "connected", "dispatch"})  # fmt: skip


def per_request() -> Mapping[str, Callable[[RequestRow], float]]:
    """Every metric with one value a request, in seconds; each raises Undefined with its reason."""
    return PER_REQUEST


def gaps() -> Mapping[str, Callable[[RequestRow], Gaps]]:
    """Every metric with many values a request."""
    return GAPS  # type: ignore[return-value]


def definition_of(metric: str) -> Definition:
    """The row behind a name."""
    return HOUSE[metric]


def seen_early(metric: str) -> bool:
    """Whether the metric's value, once it is there, can't change any more although its request goes on (ttft, not e2e)."""
    return definition_of(metric).end in EARLY_ENDS


def spans_whole(metric: str) -> bool:
    """Whether the metric is a plain duration from a start that a cut-off request can be censored at (not a cadence)."""
    row = definition_of(metric)
    return row.kind == "request" and row.special is None and row.divisor is None


def value(metric: str, row: RequestRow) -> float:
    """The metric of one request, in seconds. Raises Undefined."""
    found = per_request().get(metric)
    if found is None:
        raise Undefined("many_values_a_request")
    return found(row)
