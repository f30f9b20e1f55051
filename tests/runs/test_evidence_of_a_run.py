"""A run against the emulator, whose truth is on file: what the client saw and what the server told fit together."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import socket
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phasemeter.cli.main import run
from phasemeter.io.emulator_spans import SpanExporter
from phasemeter.io.emulator_truth import Truth, TruthFile, read_truth
from phasemeter.io.run_directory import RunDirectory
from phasemeter.runs.bounded_view import bounded_view
from phasemeter.runs.emulate import emulator
from phasemeter.runs.server_view import on_record, server_view
from phasemeter.serving.plan import parse_plan
from tests.runs.whole import Bench

PLAN = """
workload: {input_tokens: 3, output_tokens: {fixed: 8}, arrivals: {poisson: 1/s}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  max_num_seqs: 2
  step_time: {linear: {prefill_s: [0.03, 0.0001, 0], decode_s: [0.01, 0, 0]}}
"""


@contextmanager
def emulated(truth: Path, spans: str | None = None) -> Iterator[str]:
    server = emulator(parse_plan(PLAN), "plan.yaml", host="127.0.0.1", port=0)
    server.truth = TruthFile(truth)
    server.spans = SpanExporter(spans) if spans else None
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server.port}"
    finally:
        server.stop()
        thread.join(60)


def port_nobody_is_given() -> int:
    """A free port below those that the system hands out by itself (Linux: 32768 to 60999): nobody gets it meanwhile by chance."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def parts(truth: Truth) -> dict[str, int]:
    """Queue, prefill and decode as they were written, ns."""
    assert truth.scheduled_ns is not None
    first, last = truth.written_ns[0], truth.written_ns[-1]
    assert first is not None and last is not None
    return {
        "queue": truth.scheduled_ns - truth.arrival_ns,
        "prefill": first - truth.scheduled_ns,
        "decode": last - first,
    }


@pytest.mark.parametrize("load", [("--rate", "12/s"), ("--concurrency", "4")])
def test_what_the_server_told_is_joined_to_every_request_and_fits_its_truth(
    load: tuple[str, ...], tmp_path: Path, bench: Bench
) -> None:
    port = port_nobody_is_given()
    truth_file = tmp_path / "truth.jsonl"
    with emulated(truth_file, f"http://127.0.0.1:{port}/v1/traces") as url:
        ran = bench(
            url, *load, "--requests", "24", "--warmup", "2", "--input-tokens", "uniform:8:64", "--output-tokens", "8",
            "--otlp-listen", f":{port}",
        )  # fmt: skip
    assert ran.code == 0
    budget = ran.result["budget"]
    assert budget["spans"] == {"joined": 24, "ambiguous": 0} and budget["with_server_evidence"] == 24
    assert budget["warnings"] == [] and budget["negative_remainders"] == 0
    mean = ran.result["metrics"]["ttft"]["mean"]
    assert sum(budget["mean"]["ttft"].values()) == pytest.approx(mean, rel=1e-9)
    assert budget["mean"]["total"]["queue"] > 0.001  # two sequences at once, and more than two came
    aggregate = budget["aggregate"]["vllm"]
    assert aggregate["told"]["n"] == 24 + (2 if load[0] == "--concurrency" else 0)  # its warm-up shares the slots

    view = server_view(ran.path)
    truths = {truth.traceparent: truth for truth in read_truth(truth_file) if truth.traceparent}
    parents = {one.request_id: one.traceparent for one in RunDirectory.open(ran.path).planned()}
    off: dict[str, list[float]] = {name: [] for name in ("queue", "prefill", "decode", "rest")}
    for row in view.rows:
        if row.phase != "measured":
            continue
        found = view.budgets()[row.request_id]
        assert row.stream_end_ns is not None
        assert sum(found.segments.values()) == row.stream_end_ns - row.due_ns
        expected = parts(truths[str(parents[row.request_id])])
        for name in ("queue", "prefill"):
            off[name].append(abs(found.segments[name] - expected[name]) / 1e9)
        assert found.segments["ingress_delivery"] >= 0
        off["rest"].append(found.segments["ingress_delivery"] / 1e9)
    # medians, with room for a busy machine: bench/evidence_bench.py prints the figures
    assert statistics.median(off["queue"]) < 0.001 and statistics.median(off["prefill"]) < 0.002
    assert statistics.median(off["rest"]) < 0.02
    rows = list(csv.DictReader(io.StringIO(bench.report(ran.path, "--csv", "requests").out)))
    told = [row for row in rows if row["phase"] == "measured"]
    assert len(told) == 24 and all(row["request_arrival_ts_clock"] == "engine_wall" for row in told)
    assert all(float(row["server_queue_ms"]) >= 0 and float(row["server_prefill_ms"]) > 0 for row in told)
    seen = on_record(ran.path)
    assert {"queue", "prefill", "decode", "ttft", "e2e"} <= seen.phases.keys()
    assert {"arrival", "prefill_start", "first_token", "decode_end", "complete", "queue"} <= seen.boundaries


def test_without_being_asked_the_page_beside_the_api_is_read_and_none_means_none(tmp_path: Path, bench: Bench) -> None:
    with emulated(tmp_path / "truth.jsonl") as url:
        own = bench(url, "--concurrency", "1", "--requests", "2")
        left = bench(url, "--concurrency", "1", "--requests", "2", "--server-metrics", "none")
    assert {"metrics-before.http", "metrics-after.http"} <= {path.name for path in (own.path / "evidence").iterdir()}
    assert own.result["budget"]["aggregate"]["vllm"]["told"]["n"] == 2
    assert not (left.path / "evidence").exists() and left.result["budget"]["aggregate"] is None
    assert left.result["budget"]["with_server_evidence"] == 2  # timings in the answers themselves
    checks = [{one["id"]: one for one in ran.result["validity"]["checks"]}["prefix_cache"] for ran in (own, left)]
    assert [check["verdict"] for check in checks] == ["ok", "unknown"] and "counters" in checks[0]["evidence"]
    assert "complete" in on_record(own.path).boundaries and "complete" not in on_record(left.path).boundaries


def test_other_peoples_requests_in_the_window_are_noticed(tmp_path: Path, bench: Bench) -> None:
    with emulated(tmp_path / "truth.jsonl") as url:
        ran = bench(url, "--concurrency", "1", "--requests", "3")
        bench(url, "--concurrency", "1", "--requests", "2")
        # the second run's closing page, laid into the first run's window
        other = bench.folder / "run-2" / "evidence" / "metrics-after.http"
        (ran.path / "evidence" / "metrics-after.http").write_bytes(other.read_bytes())
    view = server_view(ran.path)
    assert any(text.startswith("server_count_mismatch") for text in view.warnings)
    told = bench.report(ran.path, "--json").result["budget"]["aggregate"]["vllm"]
    assert told["mean"] is None and "server_count_mismatch" in told["reason"]


def test_a_long_run_is_diagnosed_within_bounds_and_says_what_was_let_go(tmp_path: Path, bench: Bench) -> None:
    with emulated(tmp_path / "truth.jsonl") as url:
        ran = bench(url, "--concurrency", "2", "--requests", "12", "--output-tokens", "8")
    whole, view = server_view(ran.path), bounded_view(ran.path)
    assert view.rows == whole.rows and view.budgets == whole.budgets() and view.warnings == whole.warnings
    thin = bounded_view(ran.path, most_events=40)
    assert thin.budgets == view.budgets  # made before the times were let go
    kept = [bool(row.choices) for row in thin.rows]
    assert kept == [at % 4 == 0 for at in range(len(kept))]  # 12 · 8 events, every fourth request's: 24
    assert sum(len(choice.times_ns) for row in thin.rows for choice in row.choices) <= 40
    assert [text for text in thin.warnings if "every 4th request" in text]
    few = bounded_view(ran.path, most_requests=5)
    assert few.rows == view.rows[:5] and any(text.startswith("long_run") for text in few.warnings)
    exactly = bounded_view(ran.path, most_requests=len(view.rows))
    assert exactly.rows == view.rows and exactly.warnings == view.warnings


def test_a_diagnosis_sends_the_single_requests_that_it_lacks_and_weighs_a_contract(
    tmp_path: Path, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = tmp_path / "slo.yaml"
    contract.write_text("phasemeter: 1\nlatency_slo:\n  ttft: {p95: 45 ms}\n  e2e: {p95: 10 s}\n")
    with emulated(tmp_path / "truth.jsonl") as url:
        ran = bench(
            url, "--concurrency", "6", "--requests", "24", "--input-tokens", "uniform:8:64", "--output-tokens", "8"
        )
        assert run(["diagnose", str(ran.path), "--probe", url, "--contract", str(contract), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["features"]["alone_ttft_s"] < found["features"]["ttft_p50_s"]
    assert found["steps"][4]["finding"] == "yes" and found["features"]["breaches"]["ttft"] > 0.5
    # a queue; on a busy machine the emulator comes late to it, and looks like a policy that holds requests back though there is room
    assert found["steps"][5]["finding"] == found["causes"][0]["cause"] in ("queueing", "scheduler_policy")
    assert len(list((ran.path / "probe").iterdir())) == 3
    assert run(["diagnose", str(ran.path), "--json"]) == 0  # what was measured once is read again
    assert json.loads(capsys.readouterr().out)["features"]["alone_ttft_s"] == found["features"]["alone_ttft_s"]
