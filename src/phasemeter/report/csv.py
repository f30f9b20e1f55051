"""A run as CSV: its metrics, a line a request, a line an output event.

Lives here: columns and their order. Instants are in seconds from the run's first due instant and, raw, in ns of their own
clock, with the clock's name in a column beside; durations carry their unit in the name. Absent is an empty field.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from phasemeter.metrics.definitions import PER_REQUEST, value_or_reason
from phasemeter.phases.budget import durations_of
from phasemeter.records.evidence import Told
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result

METRICS = (
    "metric", "definition", "unit", "n", "mean", "std", "min", "max", "p50", "p50_low", "p50_high", "p90", "p90_low",
    "p90_high", "p95", "p95_low", "p95_high", "p99", "p99_low", "p99_high", "reason",
)  # fmt: skip

CLIENT = "client_monotonic"
SERVER_INSTANTS = (
    ("request_arrival_ts", "arrival"), ("queue_enter_ts", "queue_enter"), ("prefill_start_ts", "prefill_start"),
    ("prefill_end_ts", "prefill_end"), ("decode_end_ts", "decode_end"),
)  # fmt: skip
SERVER_DURATIONS = ("queue", "prefill", "first_token", "decode", "ttft", "e2e", "ingress")  # on the server's own clock
_OWN = (
    "id", "request_id", "phase", "worker", "workload_class", "outcome", "error", "error_text", "http_status",
    "scheduled_s", "sent_s", "first_output_s", "last_output_s", "end_s", "ttft_ms", "ttfo_ms", "tpot_ms",
    "tpot_null_reason", "e2e_ms", "prompt_tokens", "input_tokens", "output_tokens", "output_tokens_source",
    "reasoning_tokens", "cached_tokens", "asked_input_tokens", "asked_output_tokens", "finish_reason", "warnings",
    "observer_lag_ms", "resent", "sent_id",
)  # fmt: skip
_DURATIONS = tuple(name for name in PER_REQUEST if name not in {"ttft", "ttfo", "tpot", "e2e"})
REQUESTS = (
    *_OWN,
    *(column for name, _ in SERVER_INSTANTS for column in (name, f"{name}_clock")),
    "first_output_received_ts", "first_output_received_ts_clock", "first_output_received_class",
    "request_complete_ts", "request_complete_ts_clock",
    *(f"server_{name}_ms" for name in SERVER_DURATIONS), "server_evidence",
    *(f"{name}_ms" for name in _DURATIONS),
)  # fmt: skip
EVENTS = ("id", "choice", "event", "t_ms", "gap_ms", "read", "tokens", "class")


def _line(fields: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue()


def metrics(result: Result) -> Iterator[str]:
    """One line a metric, in the metric's own unit."""
    yield _line(METRICS)
    for name, metric in result.metrics.items():
        fields: list[Any] = [
            name,
            metric.definition,
            metric.unit,
            metric.n,
            metric.mean,
            metric.std,
            metric.min,
            metric.max,
        ]
        for label in ("p50", "p90", "p95", "p99"):
            percentile = metric.percentiles.get(label)
            fields += [None] * 3 if percentile is None else [percentile.value, *percentile.ci95]
        yield _line([*fields, metric.reason])


def requests(rows: Iterable[tuple[RequestRow, Told]], origin_ns: int) -> Iterator[str]:
    """One line a request, whatever became of it, with what its server told. `origin_ns`: what `_s` columns count from."""
    yield _line(REQUESTS)
    for row, told in rows:
        fields = request_fields(row, origin_ns) | server_fields(told)
        yield _line(fields.get(column) for column in REQUESTS)


def server_fields(told: Told) -> dict[str, Any]:
    """The server's instants, each with its clock; its durations; and where each of these came from. First source first."""
    fields: dict[str, Any] = {}
    for instant in told.instants:
        column = next((name for name, boundary in SERVER_INSTANTS if boundary == instant.boundary), None)
        if column is not None and column not in fields:
            fields[column], fields[f"{column}_clock"] = instant.at_ns, instant.clock
    durations = durations_of(told.values)
    fields |= {f"server_{name}_ms": ns / 1e6 for name, (ns, _) in durations.items()}
    sources = [source for _, source in durations.values()] + [at.source for at in told.instants]
    return fields | {"server_evidence": "; ".join(dict.fromkeys(sources)) or None}


def request_fields(row: RequestRow, origin_ns: int) -> dict[str, Any]:
    """A request's columns by name; what is undefined is None."""

    def since(instant: int | None) -> float | None:
        return None if instant is None else (instant - origin_ns) / 1e9

    def ms(name: str) -> float | None:
        value = value_or_reason(name, row)[0]
        return None if value is None else value * 1e3

    fields: dict[str, Any] = {
        "id": row.request_id, "request_id": row.request_id, "sent_id": row.sent_id, "phase": row.phase, "worker": row.worker,
        "workload_class": row.workload_class, "outcome": row.outcome, "error": row.failure,
        "error_text": row.failure_text, "http_status": row.http_status, "scheduled_s": since(row.due_ns),
        "sent_s": since(row.send_start_ns), "first_output_s": since(row.first_token_ns),
        "last_output_s": since(row.last_token_ns), "end_s": since(row.stream_end_ns),
        "ttft_ms": ms("ttft"), "ttfo_ms": ms("ttfo"), "tpot_ms": ms("tpot"),
        "tpot_null_reason": value_or_reason("tpot", row)[1], "e2e_ms": ms("e2e"), "prompt_tokens": row.input_tokens,
        "input_tokens": row.input_tokens, "output_tokens": row.output_tokens,
        "output_tokens_source": row.output_tokens_source, "reasoning_tokens": row.reasoning_tokens,
        "cached_tokens": row.cached_tokens, "asked_input_tokens": row.asked_input_tokens,
        "asked_output_tokens": row.asked_output_tokens, "finish_reason": row.finish_reason,
        "warnings": " ".join(row.warnings) or None,
        "observer_lag_ms": None if row.observer_lag_ns is None else row.observer_lag_ns / 1e6, "resent": row.resent,
    }  # fmt: skip
    if row.first_token_ns is not None:
        reasoning = row.first_output_ns is None or row.first_output_ns > row.first_token_ns
        fields |= {
            "first_output_received_ts": row.first_token_ns,
            "first_output_received_ts_clock": CLIENT,
            "first_output_received_class": "reasoning" if reasoning else "output",
        }
    if row.stream_end_ns is not None:
        fields |= {"request_complete_ts": row.stream_end_ns, "request_complete_ts_clock": CLIENT}
    return fields | {f"{name}_ms": ms(name) for name in _DURATIONS}


def events(rows: Iterable[RequestRow]) -> Iterator[str]:
    """One line an output event: when it came since the send, the gap before it (empty for the first), its read, its tokens."""
    yield _line(EVENTS)
    for row in rows:
        start = row.send_start_ns if row.send_start_ns is not None else row.due_ns
        for choice in row.choices:
            before: int | None = None
            for i, at in enumerate(choice.times_ns):
                yield _line([
                    row.request_id, choice.index, i, (at - start) / 1e6, None if before is None else (at - before) / 1e6,
                    choice.reads[i] if i < len(choice.reads) else None,
                    choice.tokens[i] if choice.tokens else None,
                    "reasoning" if i < choice.reasoning_events else "output",
                ])  # fmt: skip
                before = at
