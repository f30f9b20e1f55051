"""vLLM's own word about its time, from three sources, against what the client saw."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from phasemeter.cli.main import run
from phasemeter.records.evidence import EvidenceValue
from phasemeter.runs.server_view import ServerView, server_view, server_window
from phasemeter.server.histograms import quantile_bounds
from tests.real.conftest import RealServer

REQUESTS = 40


@pytest.fixture(scope="module")
def measured(vllm: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evidence") / "run"
    code = run([
        "bench", vllm.url, "--rate", "4/s", "--requests", str(REQUESTS), "--warmup", "4", "--input-tokens", "uniform:16:400",
        "--output-tokens", "uniform:16:48", "--ignore-eos", "--otlp-listen", f"127.0.0.1:{vllm.otlp_port}", "--quiet",
        "-o", str(path),
    ])  # fmt: skip
    assert code == 0
    return path


@pytest.fixture(scope="module")
def view(measured: Path) -> ServerView:
    return server_view(measured)


@pytest.fixture(scope="module")
def budget(measured: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((measured / "result.json").read_bytes())["budget"]
    return found


def value(view: ServerView, request: str, phase: str, place: str) -> EvidenceValue:
    (found,) = [v for v in view.values[request] if v.phase == phase and place in v.source]
    return found


def measured_rows(view: ServerView) -> list[Any]:
    rows = [row for row in view.rows if row.phase == "measured"]
    assert len(rows) == REQUESTS and all(row.outcome == "ok" for row in rows)
    return rows


def test_a_span_joins_every_request(budget: dict[str, Any]) -> None:
    assert budget["spans"] == {"joined": REQUESTS, "ambiguous": 0}


def test_ttft_is_queue_and_prefill_and_a_remainder_that_is_never_negative(view: ServerView) -> None:
    budgets = view.budgets()
    for row in measured_rows(view):
        found = budgets[row.request_id]
        assert row.stream_end_ns is not None and row.first_token_ns is not None and row.send_start_ns is not None
        assert sum(found.segments.values()) == row.stream_end_ns - row.due_ns
        assert {"queue", "prefill"} <= found.evidence.keys()
        in_one_piece = row.first_token_ns == row.last_token_ns
        remainder = row.first_token_ns - row.send_start_ns - found.segments["queue"] - found.segments["prefill"]
        assert (
            remainder
            == sum(found.segments[name] for name in ("upload", "ingress_delivery", "first_token"))
            + in_one_piece * found.segments["decode"]
        )
        assert remainder >= 0


def test_what_vllm_calls_time_to_first_token_in_a_body_is_read_as_prefill(view: ServerView) -> None:
    for row in measured_rows(view):
        body = value(view, row.request_id, "prefill", "time_to_first_token_ms")
        span = value(view, row.request_id, "prefill", "time_in_model_prefill")
        ttft = value(view, row.request_id, "ttft", "gen_ai.latency.time_to_first_token")
        assert body.value_s == pytest.approx(span.value_s, abs=1e-6)  # ms as a float of the same difference
        assert body.value_s < ttft.value_s


@pytest.mark.parametrize(
    ("phase", "in_body", "in_span"),
    [("queue", "queue_time_ms", "time_in_queue"), ("decode", "generation_time_ms", "time_in_model_decode")],
)
def test_body_and_span_tell_the_same(view: ServerView, phase: str, in_body: str, in_span: str) -> None:
    for row in measured_rows(view):
        body, span = value(view, row.request_id, phase, in_body), value(view, row.request_id, phase, in_span)
        assert body.value_s == pytest.approx(span.value_s, abs=1e-6)


@pytest.mark.parametrize("phase", ["queue", "prefill", "decode", "ttft", "e2e"])
def test_the_window_of_the_histograms_holds_exactly_our_requests_and_their_sums(view: ServerView, phase: str) -> None:
    reading = view.engines["vllm"].readings[phase]
    spans = [
        next(v.value_s for v in view.values[row.request_id] if v.phase == phase and "span" in v.source)
        for row in measured_rows(view)
    ]
    assert reading.status == "present" and reading.n == REQUESTS and reading.hist is not None
    # TTFT and e2e are stamped apart for the histogram and the span, on one wall clock
    room = 0.01 * REQUESTS if phase in {"ttft", "e2e"} else 1e-6 * REQUESTS
    assert reading.total == pytest.approx(sum(spans), abs=room)
    for q in (0.5, 0.9, 0.99):
        bounds = quantile_bounds(reading.hist, q)
        exact = sorted(spans)[math.ceil(q * REQUESTS) - 1]
        slack = 0.01 if phase in {"ttft", "e2e"} else 1e-6
        assert bounds.low is None or bounds.low - slack <= exact
        assert bounds.high is None or exact <= bounds.high + slack


def test_the_window_is_ours_alone_and_its_gauges_are_read(view: ServerView) -> None:
    assert view.warnings == ()
    window = server_window(view)
    assert window is not None and window.preemptions == 0 and window.kv_usage_max is not None
    assert 0 <= window.kv_usage_max <= 1 and window.running_max is not None and window.waiting_max is not None


def test_the_aggregate_budget_agrees_with_the_requests_own(budget: dict[str, Any]) -> None:
    mean, aggregate = budget["mean"]["ttft"], budget["aggregate"]["vllm"]["mean"]
    for segment in ("queue", "prefill"):
        assert aggregate[segment] == pytest.approx(mean[segment], abs=1e-6)


def test_evidence_of_the_saved_files_reads_alone(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured / "evidence"
    pages = [str(folder / f"metrics-{when}.http") for when in ("before", "after")]
    assert run(["evidence", *pages, "--json", "--requests", str(REQUESTS)]) == 0
    told = json.loads(capsys.readouterr().out)["engines"]["vllm"]
    assert told["queue"]["n"] == REQUESTS and told["warnings"] == []
    assert run(["diagnose", str(measured), "--json"]) == 0
    assert {cause["strength"] for cause in json.loads(capsys.readouterr().out)["causes"]} <= {
        "certain",
        "likely",
        "weak",
    }
