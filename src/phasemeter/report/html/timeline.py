"""Which requests the time line draws, and each as the script needs it.

Lives here: the choice (stated on the page) and the marks' budget. Must not live here: drawing (assets/timeline.js).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars

from phasemeter.errors import Undefined
from phasemeter.metrics.columns import end_of
from phasemeter.metrics.gaps import STALL_FACTOR, inter_chunk
from phasemeter.records.request_row import RequestRow
from phasemeter.report.html.measures import Measures
from phasemeter.report.html.run_tables import RunTables
from phasemeter.report.html.server_side import ORDER, ServerSide, strip
from phasemeter.stats.quantiles import ordered_quantile

ALL_UP_TO = 400  # requests that are drawn whole
SPREAD, AROUND, SLOWEST, BROKEN = 150, 120, 80, 50
STALLS_A_ROW = 4
EVENTS_A_ROW = 300
TEXT = 300  # letters of a server's own words
EVERY, NEAR, SLOW, BAD = 1, 2, 4, 8

Groups = dict[int, int]  # request number: bits


def chosen(tables: RunTables, measures: Measures) -> Groups:
    """The requests to draw, with the groups each belongs to."""
    n = len(tables.requests)
    order = tables.requests.sort("due_ns")["number"].to_numpy()
    bits: Groups = {}

    def mark(numbers: Any, bit: int) -> None:
        for number in numbers:
            bits[int(number)] = bits.get(int(number), 0) | bit

    mark(order if n <= ALL_UP_TO else order[np.linspace(0, n - 1, SPREAD).astype(int)], EVERY)
    broken = tables.requests.filter(polars.col("outcome").is_in(["failed", "cancelled"]))["number"].to_numpy()
    mark(broken if n <= ALL_UP_TO else broken[:BROKEN], BAD)
    ttft = measures.values["ttft"]
    there = np.flatnonzero(~np.isnan(ttft))
    if len(there) and n > 20:
        slow = there[np.argsort(ttft[there])[::-1]]
        mark(measures.numbers[slow[: min(SLOWEST, max(10, n // 10))]], SLOW)
        if n > ALL_UP_TO:
            place = int(np.flatnonzero(order == measures.numbers[slow[0]])[0])
            mark(order[max(0, place - AROUND // 2) : place + AROUND // 2], NEAR)
    return bits


def document(
    rows: dict[int, RequestRow], bits: Groups, tables: RunTables, side: ServerSide, origin_ns: int
) -> dict[str, Any]:
    """What the script reads: rows in due order, times in ms since the first due."""
    lines = [_line(rows[number], bits[number], side, origin_ns) for number in bits]
    lines.sort(key=lambda line: line["due"])
    whole = len(tables.requests) <= ALL_UP_TO
    names = {
        NEAR: "around the slowest TTFT",
        EVERY: "all requests" if whole else "evenly spaced over the run",
        SLOW: "slowest TTFT",
        BAD: "failed or cancelled",
    }
    groups = [
        {"bit": bit, "name": name, "n": count}
        for bit, name in names.items()
        if (count := sum(bool(line["groups"] & bit) for line in lines))
    ]
    return {
        "rows": lines,
        "groups": groups,
        "from_ms": min((line["due"] for line in lines), default=0.0),
        "to_ms": max((line["end"] for line in lines), default=1.0),
    }


def note(bits: Groups, n: int) -> str:
    """What of the run is drawn."""
    if n <= ALL_UP_TO:
        return f"All {n:,} requests."
    return (
        f"{len(bits):,} of {n:,} requests: {SPREAD} evenly spaced over the run, {AROUND} around the slowest TTFT, the {SLOWEST}"
        f" slowest and the first {BROKEN} that failed or were cancelled."
    )


def _line(row: RequestRow, groups: int, side: ServerSide, origin_ns: int) -> dict[str, Any]:
    def ms(instant: int | None) -> float | None:
        return None if instant is None else round((instant - origin_ns) / 1e6, 3)

    events = sorted({at for choice in row.choices for at in choice.times_ns})
    send = row.send_start_ns if row.send_start_ns is not None else row.due_ns
    instants = side.instants.get(row.request_id, ())
    end = end_of(row)
    return {
        "id": row.request_id[:80], "groups": groups, "outcome": row.outcome, "failure": row.failure,
        "text": None if row.failure_text is None else row.failure_text[:TEXT], "status": row.http_status,
        "input": row.input_tokens, "output": row.output_tokens, "source": row.output_tokens_source,
        "cached": row.cached_tokens, "finish": None if row.finish_reason is None else row.finish_reason[:TEXT],
        "warnings": ", ".join(row.warnings)[:TEXT] or None,
        "due": ms(row.due_ns), "send": ms(row.send_start_ns), "first": ms(row.first_token_ns),
        "firstOut": ms(row.first_output_ns), "last": ms(row.last_token_ns),
        "end": ms(row.due_ns if end is None else max(end, row.due_ns)),
        "laid": _laid(row, instants, origin_ns), "stalls": _stalls(row, origin_ns),
        "server": strip(side.values.get(row.request_id, ()), instants),
        "events": [round((at - send) / 1e6, 2) for at in events[:EVENTS_A_ROW]],
        "cut": len(events) if len(events) > EVENTS_A_ROW else None,
    }  # fmt: skip


def _laid(row: RequestRow, instants: tuple[tuple[str, int, str], ...], origin_ns: int) -> list[list[Any]]:
    """The wait in its parts, where the server's instants are on the client's own clock (a simulation); else none."""
    mine = {boundary: at for boundary, at, clock in instants if clock == "client_monotonic"}
    if row.first_token_ns is None or row.send_start_ns is None or "prefill_start" not in mine:
        return []
    mine.setdefault("first_token", row.first_token_ns)
    seen = [(name, mine[name]) for name in ORDER[: ORDER.index("first_token") + 1] if name in mine]
    kinds = {
        "arrival": "ingress_delivery",
        "queue_enter": "queue",
        "prefill_start": "prefill",
        "prefill_end": "first_token",
    }
    return [
        [kinds[name], round((a - origin_ns) / 1e6, 3), round((b - origin_ns) / 1e6, 3)]
        for (name, a), (_, b) in pairwise(seen)
        if b > a
    ]


def _stalls(row: RequestRow, origin_ns: int) -> list[list[float]]:
    """The longest gaps over 5 times the request's median gap, as [from, to]."""
    try:
        gaps = inter_chunk(row)
    except Undefined:
        return []
    middle = ordered_quantile(np.sort(gaps), 0.5) if len(gaps) >= 3 else 0.0
    if middle <= 0:
        return []
    ends = [at for choice in row.choices for at in choice.times_ns[1:]]
    long = [(gap, end) for gap, end in zip(gaps.tolist(), ends, strict=True) if gap > STALL_FACTOR * middle]
    long.sort(reverse=True)
    return [
        [round((end - origin_ns) / 1e6 - gap * 1e3, 3), round((end - origin_ns) / 1e6, 3)]
        for gap, end in long[:STALLS_A_ROW]
    ]
