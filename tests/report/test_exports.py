"""What is written for other tools reads back to the same numbers, by their rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from phasemeter.comparison import foreign as importers
from phasemeter.contract.goodput import goodput
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.report import foreign, foreign_aiperf, llmd, openmetrics
from tests.metrics.rows import row

MANIFEST = Manifest(
    run_id="r1", model="m", api="openai.chat", engine="e", concurrency=2, input_tokens="32", output_tokens="3",
    started_utc="2026-01-02T03:04:05Z", streaming=True, url="http://x", body={"prompts": "generated, unique"},
)  # fmt: skip


def rows() -> list[RequestRow]:
    good = [
        row([100 + 3 * k, 120 + 5 * k, 140 + 6 * k], request_id=str(k), due_ms=k * 50, send_ms=k * 50, input_tokens=32,
            server_output_tokens=3)
        for k in range(30)
    ]  # fmt: skip
    return [*good, row([], request_id="bad", outcome="failed", failure="refused", failure_text="no 'one' home")]


def written(tool: str) -> dict[str, Any]:
    text = foreign.dumps(analyse_rows(rows(), MANIFEST, tool=tool), rows())
    return json.loads(text, parse_constant=pytest.fail)  # type: ignore[no-any-return]


def test_aiperfs_parts_of_http_add_up_and_its_totals_are_its_blocks_sums() -> None:
    whole = [
        msgspec.structs.replace(one, sent_ns=one.send_start_ns, first_read_ns=one.first_token_ns) for one in rows()
    ]
    file = json.loads(foreign.dumps(analyse_rows(whole, MANIFEST, tool="aiperf"), whole))
    parts = sum(file[f"http_req_{part}"]["avg"] for part in ("sending", "waiting", "receiving"))
    assert parts == pytest.approx(file["http_req_duration"]["avg"])
    assert file["total_osl"]["avg"] == file["output_sequence_length"]["sum"] == 90
    assert file["total_token_throughput"]["avg"] == pytest.approx(30 * 35 / file["benchmark_duration"]["avg"])
    assert file["request_error_rate"]["avg"] == pytest.approx(100 / 31)
    assert file["time_to_second_token"]["min"] == pytest.approx(20)
    assert file["credit_to_start_latency"]["max"] == 0 and file["effective_latency"]["avg"] > 0


def test_aiperfs_sweeps_weigh_each_number_by_how_long_it_held() -> None:
    file = written("aiperf")
    good = rows()[:-1]
    begun = [one.send_start_ns // 10**6 for one in good]  # type: ignore[operator]
    first = [one.first_token_ns // 10**6 for one in good]  # type: ignore[operator]
    ended = [one.last_token_ns // 10**6 for one in good]  # type: ignore[operator]
    moments = [moment + 0.5 for moment in range(min(begun), max(ended))]  # everything happens on whole milliseconds
    for name, starts, ends in (("", begun, ended), ("prefill_", begun, first), ("decode_", first, ended)):
        held = sorted(sum(a < moment < b for a, b in zip(starts, ends, strict=True)) for moment in moments)
        block = file[f"effective_{name}concurrency"]
        assert block["avg"] == pytest.approx(sum(held) / len(held)), name
        assert (block["min"], block["max"], block["p50"]) == (held[0], held[-1], held[(len(held) - 1) // 2]), name
    busy = sum(any(a < moment < b for a, b in zip(begun, first, strict=True)) for moment in moments)
    read = file["effective_prefill_throughput"]["avg"] * len(moments) / 1e3
    assert read == pytest.approx(30 * 32) == pytest.approx(file["active_prefill_throughput"]["avg"] * busy / 1e3)
    assert file["active_prefill_throughput"]["min"] > 0


def test_aiperfs_own_records_give_the_sweeps_that_it_wrote() -> None:
    folder = Path(__file__).parents[3] / "shared" / "recordings" / "results" / "aiperf"
    if not folder.is_dir():
        pytest.skip("../shared is not here: AIPerf's recorded files are in it")
    told = json.loads((folder / "profile_export_aiperf.json").read_bytes())
    whole = []
    for number, line in enumerate((folder / "profile_export.jsonl").read_bytes().splitlines()):
        record = json.loads(line)
        values = {name: one["value"] for name, one in record["metrics"].items()}
        sent = record["metadata"]["request_start_ns"]
        if record["metadata"]["benchmark_phase"] != "profiling":
            continue
        whole.append(msgspec.structs.replace(
            rows()[0], request_id=str(number), send_start_ns=sent, input_tokens=values["input_sequence_length"],
            first_token_ns=sent + round(values["time_to_first_token"] * 1e6),
            last_token_ns=sent + round(values["request_latency"] * 1e6),
        ))  # fmt: skip
    found = foreign_aiperf.sweeps(whole)
    assert len(found) == 5
    for name, block in found.items():
        assert block["avg"] == pytest.approx(told[name]["avg"], rel=5e-4), name  # their window is 5 ms longer than ours
        for share in ("p50", "p90", "p95", "p99", "max"):
            assert block[share] == pytest.approx(told[name][share], rel=1e-4), (name, share)


def test_vllms_peaks_are_counted_by_the_second() -> None:
    file = written("vllm")
    assert file["max_output_tokens_per_s"] == 3 * 30 - sum(one > 1.0 - 1e-9 for one in _instants(file))
    assert 2 <= file["max_concurrent_requests"] <= 30
    assert file["queue_times"] == [0.0] * 31


def _instants(file: dict[str, Any]) -> list[float]:
    """Seconds from the first send to each chunk, from the file's own arrays."""
    found = []
    for start, ttft, gaps, error in zip(file["start_times"], file["ttfts"], file["itls"], file["errors"], strict=True):
        at = start - file["start_times"][0] + ttft
        for gap in [] if error else [0.0, *gaps]:
            at += gap
            found.append(at)
    return found


@pytest.mark.parametrize("tool", ["vllm", "aiperf"])
def test_a_tools_file_reads_back_to_the_same_numbers(tool: str) -> None:
    result = analyse_rows(rows(), MANIFEST, tool=tool)
    (back,) = importers.read(foreign.dumps(result, rows()), "written.json")
    assert back.tool == tool
    assert back.result.outcomes.ok == 30
    assert sum(back.result.outcomes.failed.values()) == 1
    assert (back.result.run["model"], back.result.run["concurrency"]) == ("m", 2)
    for name, metric in result.metrics.items():
        read = back.result.metrics[name]
        scale = 1000 if read.unit == "s" else 1
        assert read.mean == pytest.approx((metric.mean or 0) / scale)
        for label, percentile in read.percentiles.items():
            assert percentile.value == pytest.approx((metric.percentiles[label].value or 0) / scale), (name, label)


def test_vllms_arrays_are_in_seconds_in_request_order_and_explain_its_summaries() -> None:
    file = written("vllm")
    lengths = {
        len(file[key]) for key in ("ttfts", "itls", "latencies", "input_lens", "output_lens", "errors", "start_times")
    }
    assert lengths == {31}
    ok = [i for i, error in enumerate(file["errors"]) if not error]
    assert 1000 * sum(file["ttfts"][i] for i in ok) / len(ok) == pytest.approx(file["mean_ttft_ms"])
    for i in ok:
        assert file["ttfts"][i] + sum(file["itls"][i]) == pytest.approx(file["latencies"][i])
    assert (file["endpoint_type"], file["request_rate"], file["failed"]) == ("openai-chat", "inf", 1)
    assert file["date"] == "20260102-030405"


def test_aiperfs_blocks_carry_their_unit_and_its_errors_their_count() -> None:
    file = written("aiperf")
    block = file["time_to_first_token"]
    assert (block["unit"], block["count"], block["avg"]) == ("ms", 30, pytest.approx(143.5))
    assert block["sum"] == pytest.approx(block["avg"] * 30)
    assert file["error_summary"][0]["count"] == 1
    assert file["usage_completion_tokens"]["sum"] == 90


@pytest.mark.parametrize("tool", ["vllm", "aiperf"])
def test_our_own_result_stands_in_the_same_document(tool: str) -> None:
    file = written(tool)
    assert file["phasemeter"] == 1
    assert file["workload"]["as_tool"]["printed"]


def test_openmetrics_parses_and_holds_the_house_numbers() -> None:
    result = analyse_rows(rows(), MANIFEST)
    result = msgspec.structs.replace(result, goodput=goodput(rows(), {"ttft": 0.15}).document())
    families = {one.name: one for one in text_string_to_metric_families(openmetrics.text(result))}
    ttft = {
        s.labels["statistic"]: s.value for s in families["phasemeter_ttft_seconds"].samples if "ci95" not in s.labels
    }
    assert ttft["mean"] == result.metrics["ttft"].mean
    assert ttft["p99"] == result.metrics["ttft"].percentiles["p99"].value
    requests = {s.labels["outcome"]: s.value for s in families["phasemeter_requests"].samples}
    assert (requests["ok"], requests["failed"]) == (30, 1)
    assert families["phasemeter_attainment_ratio"].samples[0].value == pytest.approx(17 / 31)


# what the schema of version 0.2.1 allows and asks for, by path; their Statistics take only these keys
STATISTICS = {
    "units",
    "mean",
    "mode",
    "stddev",
    "min",
    "p0p1",
    "p1",
    "p5",
    "p10",
    "p25",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "p99p9",
    "max",
}
LOAD = {"tool", "tool_version", "parallelism", "source", "stage", "input_seq_len", "output_seq_len", "prefix", "multi_turn", "rate_qps",
        "concurrency"}  # fmt: skip


def test_an_llmd_report_has_their_keys_and_units() -> None:
    result = analyse_rows(rows(), MANIFEST)
    report = yaml.safe_load(llmd.text(result))
    assert set(report) == {"version", "run", "scenario", "results"}
    assert report["version"] == "0.2.1"
    (component,) = report["scenario"]["stack"]
    assert set(component) == {"metadata", "standardized", "native"}
    load = report["scenario"]["load"]["standardized"]
    assert set(load) <= LOAD and {"tool", "tool_version", "source", "input_seq_len"} <= set(load)
    assert load["source"] == "random" and load["input_seq_len"] == {"distribution": "fixed", "value": 32}
    aggregate = report["results"]["request_performance"]["aggregate"]
    assert (aggregate["requests"]["total"], aggregate["requests"]["failures"]) == (31, 1)
    units = {
        "time_to_first_token": "s",
        "time_per_output_token": "s/token",
        "inter_token_latency": "s/token",
        "request_latency": "s",
    }
    for name, block in aggregate["latency"].items():
        assert block["units"] == units[name] and set(block) <= STATISTICS
    assert aggregate["latency"]["time_to_first_token"]["mean"] == result.metrics["ttft"].mean
    assert all(block["units"] in ("queries/s", "tokens/s") for block in aggregate["throughput"].values())
