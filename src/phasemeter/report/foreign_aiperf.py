"""AIPerf's blocks beside those of its latencies: HTTP parts, token counts, totals, rates, each under its own name and unit.

Lives here: their names for our boundaries. Must not live here: the latencies that its dialect has rows for (metrics/dialects).
Source: the fields of AIPerf 0.13's `profile_export_aiperf.json`; checked against a recorded one (`http_req_duration` is sending
+ waiting + receiving, `total_token_throughput` is (total_isl + total_osl) / benchmark_duration; the sweeps over time give the recorded
file's own numbers from its records: prefill and concurrency within 0.03 %, as its window is 5 ms longer). Not written: what a run's rows
don't hold (bytes and chunks of a request, a local count beside the server's), and the sweeps of decode and total throughput and of
`tokens_in_flight`: AIPerf spreads tokens over a request's chunks by a rule that its files don't tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import BOUNDARIES
from phasemeter.metrics.gaps import inter_chunk
from phasemeter.records.request_row import RequestRow

Block = dict[str, Any]
Instants = npt.NDArray[np.int64]
Heights = npt.NDArray[np.float64]
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


SHARES = (50, 90, 95, 99)  # percentiles of a sweep: shares of time


def sweeps(rows: Sequence[RequestRow]) -> dict[str, Block]:
    """How many requests were at work, and how fast prompts were read, over the time from the first send to the last token.

    A prompt counts as read evenly from the send to the first token. `effective_…` weighs all of that time, `active_…` that with any.
    """
    whole = [
        (row.send_start_ns, row.first_token_ns, row.last_token_ns, row.input_tokens)
        for row in rows
        if row.send_start_ns is not None and row.first_token_ns is not None and row.last_token_ns is not None
    ]
    if not whole:
        return {}
    sent, first, last = (np.array(column, dtype=np.int64) for column in list(zip(*whole, strict=True))[:3])
    window = int(sent.min()), int(last.max())
    ones = np.ones(len(whole))
    found: dict[str, Block | None] = {
        "effective_concurrency": _over_time(_steps(sent, last, ones, window), "requests"),
        "effective_prefill_concurrency": _over_time(_steps(sent, first, ones, window), "requests"),
        "effective_decode_concurrency": _over_time(_steps(first, last, ones, window), "requests"),
    }
    if all(row[3] is not None for row in whole) and (first > sent).all():
        rates = np.array([row[3] for row in whole], dtype=np.float64) / ((first - sent) / 1e9)
        values, weights = _steps(sent, first, rates, window)
        busy = _steps(sent, first, ones, window)[0] > 0
        values[~busy] = 0.0  # what adding and taking away left of it
        found["effective_prefill_throughput"] = _over_time((values, weights), "tokens/sec")
        found["active_prefill_throughput"] = _over_time((values[busy], weights[busy]), "tokens/sec")
    return {name: block for name, block in found.items() if block is not None}


def _steps(start: Instants, end: Instants, height: Heights, window: tuple[int, int]) -> tuple[Heights, Heights]:
    """The sum of all heights between their starts and ends, as (value, ns it lasts) for each piece of the window."""
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    values = np.concatenate([[0.0], np.cumsum(np.concatenate([height, -height])[order])])
    lasts = np.diff(np.concatenate([[window[0]], at[order], [window[1]]])).astype(np.float64)
    return values[lasts > 0], lasts[lasts > 0]


def _over_time(steps: tuple[Heights, Heights], unit: str) -> Block | None:
    values, weights = steps
    if not values.size:
        return None
    mean = float(np.average(values, weights=weights))
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    told = {f"p{share}": float(values[order][np.searchsorted(reached, share / 100 - 1e-12)]) for share in SHARES}
    std = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    return {"unit": unit, "avg": mean, **told, "min": float(values.min()), "max": float(values.max()), "std": std}
