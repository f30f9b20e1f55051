"""What a contract's metric names mean: the house's, and `dialect:name` for another tool's.

Lives here: finding the definition that a name stands for. Must not live here: the definitions (metrics/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import GAP_FUNCTIONS, GAPS, HOUSE, PER_REQUEST, Definition, compute
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.metrics.gaps import Gaps
from phasemeter.records.request_row import RequestRow

EARLY_ENDS = frozenset({"send_start", "sent", "headers", "first_read", "first_chunk", "first_token", "first_output",
                        "first_token_or_empty", "connect_start", "dns_done", "tcp_start", "tcp_connected", "connected",
                        "dispatch"})  # fmt: skip


def _foreign() -> Iterator[tuple[str, Definition]]:
    """`dialect:name` under the tool's own name and, where that is another, under the word people use for it."""
    for name, dialect in DIALECTS.items():
        usable = [row for row in dialect.rows if row.weight is None and not row.inverse]
        yield from ((f"{name}:{row.key}", row.definition) for row in usable)
        taken = {row.key for row in usable}
        yield from ((f"{name}:{row.word}", row.definition) for row in usable if row.word not in taken)


FOREIGN: Mapping[str, Definition] = dict(_foreign())
_DEFINITIONS: Mapping[str, Definition] = {**HOUSE, **FOREIGN}
_PER_REQUEST: Mapping[str, Callable[[RequestRow], float]] = {
    **PER_REQUEST,
    **{name: partial(compute, row) for name, row in FOREIGN.items() if row.kind == "request"},
}
_GAPS: Mapping[str, Callable[[RequestRow], Gaps]] = {
    **GAPS,  # type: ignore[dict-item]
    **{name: GAP_FUNCTIONS[row.special or ""] for name, row in FOREIGN.items() if row.kind == "gap"},
}


def per_request() -> Mapping[str, Callable[[RequestRow], float]]:
    """Every metric with one value a request, in seconds; each raises Undefined with its reason."""
    return _PER_REQUEST


def gaps() -> Mapping[str, Callable[[RequestRow], Gaps]]:
    """Every metric with many values a request."""
    return _GAPS


def definition_of(metric: str) -> Definition:
    """The row behind a name."""
    return _DEFINITIONS[metric]


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
