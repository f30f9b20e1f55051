"""AIPerf's blocks beside those of its latencies: HTTP parts, token counts, totals, rates, each under its own name and unit.

Lives here: their names for our boundaries. Must not live here: the latencies that its dialect has rows for (metrics/dialects).
Source: the fields of AIPerf 0.13's `profile_export_aiperf.json`; checked against a recorded one (`http_req_duration` is sending
+ waiting + receiving, `total_token_throughput` is (total_isl + total_osl) / benchmark_duration). Not written: what a run's rows
don't hold (bytes and chunks of a request, a local count beside the server's), and the `effective_…`, `active_…` and
`tokens_in_flight` sweeps over time, whose grid is AIPerf's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import BOUNDARIES
from phasemeter.metrics.gaps import inter_chunk
from phasemeter.records.request_row import RequestRow

Block = dict[str, Any]
Labels = Sequence[tuple[str, float]]


def _ms(end: str, start: str) -> Callable[[RequestRow], float | None]:
    def read(row: RequestRow) -> float | None:
        first, last = BOUNDARIES[start](row), BOUNDARIES[end](row)
        return None if first is None or last is None else (last - first) / 1e6

    return read


def _connection(end: str) -> Callable[[RequestRow], float | None]:
    """0 for a request on a connection that stood."""
    timed = _ms(end, "connect_start")
    return lambda row: 0.0 if _reused(row) else timed(row)


def _reused(row: RequestRow) -> bool:
    return row.reused_connection or row.connect_start_ns is None


def _second(row: RequestRow) -> float | None:
    try:
        gaps = np.asarray(inter_chunk(row))
    except Undefined:
        return None
    return 1e3 * float(gaps[0]) if gaps.size else None


def _per_s(tokens: int | None, took_ms: float | None) -> float | None:
    return None if tokens is None or not took_ms else 1e3 * tokens / took_ms


def _visible(row: RequestRow) -> float | None:
    return None if row.output_tokens is None else row.output_tokens - (row.reasoning_tokens or 0)


def _both(row: RequestRow) -> float | None:
    one, other = row.input_tokens, row.server_output_tokens
    return None if one is None or other is None else one + other


def _mismatch(row: RequestRow) -> float | None:
    asked, got = row.asked_output_tokens, row.output_tokens
    return None if not asked or got is None else 100.0 * (got - asked) / asked


def _duration(row: RequestRow) -> float | None:
    return _ms("stream_end", "send_start")(row)


def _total(row: RequestRow) -> float | None:
    took, before = _duration(row), _connection("connected")(row)
    return None if took is None or before is None else took + before


PER_REQUEST: Mapping[str, tuple[str, Callable[[RequestRow], float | None]]] = {
    "time_to_second_token": ("ms", _second),
    "output_token_count": ("tokens", _visible),
    "usage_prompt_tokens": ("tokens", lambda row: row.input_tokens),
    "usage_completion_tokens": ("tokens", lambda row: row.server_output_tokens),
    "usage_total_tokens": ("tokens", _both),
    "osl_mismatch_diff_pct": ("%", _mismatch),
    "http_req_blocked": ("ms", lambda row: 0.0),  # nothing waits for a connection here: there is one for each request in flight
    "http_req_dns_lookup": ("ms", _connection("dns_done")),
    "http_req_connecting": ("ms", _connection("connected")),
    "http_req_connection_overhead": ("ms", _connection("connected")),
    "http_req_connection_reused": ("ratio", lambda row: float(_reused(row))),
    "http_req_sending": ("ms", _ms("sent", "send_start")),
    "http_req_waiting": ("ms", _ms("first_read", "sent")),
    "http_req_receiving": ("ms", _ms("stream_end", "first_read")),
    "http_req_duration": ("ms", _duration),
    "http_req_total": ("ms", _total),
    "prefill_throughput_per_user": ("tokens/sec/user", lambda row: _per_s(row.input_tokens, _ms("first_token", "send_start")(row))),
    "e2e_output_token_throughput": ("tokens/sec/user", lambda row: _per_s(row.output_tokens, _ms("last_token", "send_start")(row))),
    "credit_to_start_latency": ("ms", _ms("dispatch", "due")),
    "effective_latency": ("ms", _ms("last_token", "due")),
}  # fmt: skip


def spread(values: Sequence[float], unit: str, labels: Labels) -> Block:
    """A block as AIPerf writes one."""
    data = np.array(values, dtype=np.float64)
    told = {"unit": unit, "avg": float(data.mean()), "min": float(data.min()), "max": float(data.max()),
            "std": float(data.std()), "count": len(values), "sum": float(data.sum())}  # fmt: skip
    return told | {label: float(np.quantile(data, q)) for label, q in labels}


def per_request(rows: Sequence[RequestRow], labels: Labels) -> dict[str, Block]:
    """The blocks that hold one value a successful request; none for what no request has."""
    found = {}
    for name, (unit, reader) in PER_REQUEST.items():
        values = [value for row in rows if (value := reader(row)) is not None]
        if values:
            found[name] = spread(values, unit, labels)
    return found


def totals(rows: Sequence[RequestRow], sent: int, duration_s: float | None) -> dict[str, Block]:
    """The blocks of one number: sums, counts and rates over the benchmark's duration. `rows`: successful ones of `sent`."""
    inputs = sum(row.input_tokens or 0 for row in rows)
    outputs = sum(row.output_tokens or 0 for row in rows)
    usage = sum(row.server_output_tokens or 0 for row in rows)
    mismatched = sum(
        row.output_tokens != row.asked_output_tokens
        for row in rows
        if row.output_tokens is not None and row.asked_output_tokens is not None
    )
    told: dict[str, tuple[str, float]] = {
        "total_output_tokens": ("tokens", outputs), "total_isl": ("tokens", inputs), "total_osl": ("tokens", outputs),
        "total_usage_prompt_tokens": ("tokens", inputs), "total_usage_completion_tokens": ("tokens", usage),
        "total_usage_total_tokens": ("tokens", inputs + usage), "completed_request_count": ("requests", len(rows)),
        "osl_mismatch_count": ("requests", mismatched),
    }  # fmt: skip
    if sent:
        told["request_error_rate"] = ("%", 100 * (sent - len(rows)) / sent)
    if duration_s:
        told["input_token_throughput"] = ("tokens/sec", inputs / duration_s)
        told["total_token_throughput"] = ("tokens/sec", (inputs + outputs) / duration_s)
    return {name: {"unit": unit, "avg": float(value)} for name, (unit, value) in told.items()}
