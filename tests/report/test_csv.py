"""Every request has its line, whatever became of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.evidence import EvidenceInstant, EvidenceValue, Told
from phasemeter.report import csv as tables
from tests.metrics.rows import MS, row

ROWS = [
    row([100, 120, 140], request_id="a", send_ms=10, due_ms=5, end_ms=150, input_tokens=9),
    row([90], request_id="b", outcome="failed", failure="truncated_stream", output_tokens=None),
    row([], request_id="c", outcome="unsent", send_start_ns=None, sent_ns=None),
]


def read(lines: Iterable[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(lines))))


def test_failed_and_unsent_requests_have_a_line_and_empty_fields_where_nothing_was() -> None:
    table = read(tables.requests([(one, Told()) for one in ROWS], 5 * MS))
    assert [line["id"] for line in table] == ["a", "b", "c"]
    ok, failed, unsent = table
    assert float(ok["scheduled_s"]) == 0
    assert float(ok["sent_s"]) == 0.005
    assert (float(ok["ttft_ms"]), float(ok["tpot_ms"]), float(ok["e2e_ms"])) == (100, 20, 140)
    assert (ok["prompt_tokens"], ok["output_tokens"], ok["output_tokens_source"]) == ("9", "3", "usage")
    assert failed["outcome"] == "failed"
    assert failed["error"] == "truncated_stream"
    assert float(failed["ttft_ms"]) == 90
    assert failed["tpot_ms"] == ""
    assert failed["tpot_null_reason"] == "unknown_tokens"
    assert unsent["sent_s"] == unsent["ttft_ms"] == unsent["request_complete_ts"] == ""


def test_instants_stand_beside_the_clock_that_they_were_read_on() -> None:
    at = EvidenceInstant(boundary="queue_enter", at_ns=777, source="span", clock="engine_wall")
    queue = EvidenceValue(
        phase="queue", value_s=0.25, start="queue_enter", end="prefill_start", source="body", clock="engine_monotonic",
        definition="",
    )  # fmt: skip
    server = {"a": Told(values=(queue,), instants=(at,))}
    ok, failed, _ = read(tables.requests([(one, server.get(one.request_id, Told())) for one in ROWS], 0))
    assert (ok["server_queue_ms"], ok["server_prefill_ms"], ok["server_evidence"]) == ("250.0", "", "body; span")
    assert (ok["queue_enter_ts"], ok["queue_enter_ts_clock"]) == ("777", "engine_wall")
    assert (failed["queue_enter_ts"], failed["queue_enter_ts_clock"]) == ("", "")
    assert (ok["first_output_received_ts"], ok["first_output_received_ts_clock"]) == (str(110 * MS), "client_monotonic")
    assert ok["first_output_received_class"] == "output"
    assert ok["request_complete_ts"] == str(160 * MS)


def test_every_output_event_has_a_line_and_the_first_has_no_gap() -> None:
    table = read(tables.events(ROWS))
    assert [(line["id"], line["t_ms"], line["gap_ms"]) for line in table] == [
        ("a", "100.0", ""), ("a", "120.0", "20.0"), ("a", "140.0", "20.0"), ("b", "90.0", ""),
    ]  # fmt: skip


def test_a_metrics_table_has_each_metric_once_and_its_reason() -> None:
    table = {line["metric"]: line for line in read(tables.metrics(analyse_rows(ROWS)))}
    assert float(table["ttft"]["p50"]) == 0.1
    assert table["visible_tpot"]["reason"] == "no_hidden_reasoning"
    assert table["visible_tpot"]["mean"] == ""
