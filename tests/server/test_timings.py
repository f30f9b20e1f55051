"""Each engine's own words become values with their own meaning; impossible ones are flagged, not believed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.server.headers import server_timing, timings_in_headers
from phasemeter.server.otlp import spans_of_json, timings_of
from phasemeter.server.timings import faults_of, found_in, llamacpp


def phases(body: dict[str, Any]) -> dict[str, float]:
    return {v.phase: v.value_s for timing in found_in(body) for v in timing.values}


def test_what_vllm_calls_time_to_first_token_is_prefill() -> None:
    (timing,) = found_in(
        {"metrics": {"time_to_first_token_ms": 80.5, "queue_time_ms": 2, "generation_time_ms": 900, "mean_itl_ms": 30}}
    )
    found = {v.phase: v for v in timing.values}
    assert "ttft" not in found and found["prefill"].value_s == pytest.approx(0.0805)
    assert (found["prefill"].start, found["prefill"].end) == ("prefill_start", "first_token")


@pytest.mark.parametrize("divisor", [9, 10])
def test_llamacpp_pace_is_recomputed_whatever_the_build_divides_by(divisor: int) -> None:
    timing = llamacpp({"prompt_ms": 12, "predicted_ms": 90, "predicted_n": 10, "predicted_per_token_ms": 90 / divisor})
    assert {v.phase: v.value_s for v in timing.values}["tpot"] == pytest.approx(0.01)
    assert any("older_build" in note for note in timing.notes) == (divisor == 10)


def test_one_token_has_no_pace() -> None:
    assert "tpot" not in phases({"timings": {"predicted_ms": 5, "predicted_n": 1, "prompt_ms": 1}})


def test_ollama_counts_nanoseconds() -> None:
    assert phases({"total_duration": 2_000_000_000, "eval_duration": 500_000_000}) == {"e2e": 2.0, "decode": 0.5}


def test_groqs_total_leaves_the_queue_out_and_cerebras_does_not() -> None:
    parts = {"queue_time": 0.5, "prompt_time": 0.1, "completion_time": 0.2, "total_time": 0.3}
    assert phases({"usage": parts})["inference"] == 0.3 and phases({"time_info": parts})["e2e"] == 0.3


def test_impossible_throughput_is_refused() -> None:
    (timing,) = found_in({"meta_info": {"e2e_latency": 1.0, "decode_throughput": 3.3e7}})
    assert any("implausible" in note for note in timing.notes)


def test_mixed_clocks_and_negative_differences_are_flagged_and_kept() -> None:
    (timing,) = found_in({"arrival_time": 6843.6, "first_scheduled_time": 1.7e9, "first_token_time": 1.7e9 - 1})
    flags = {v.phase: v.warnings for v in timing.values}
    assert "implausible" in flags["queue"][0] and "negative" in flags["prefill"][0]


def test_disaggregated_servers_keep_their_phases_apart() -> None:
    stamps = {
        "server_arrival_time": 1.0, "arrival_time": 1.1, "first_scheduled_time": 1.3, "first_token_time": 1.7,
        "last_token_time": 1.7,
    }  # fmt: skip
    body = {"ctx_perf_metrics": {"request_id": 3, "perf_metrics": {"timing_metrics": stamps}},
            "gen_perf_metrics": {"perf_metrics": {"timing_metrics": stamps}}}  # fmt: skip
    found = phases(body)
    assert found["queue"] == pytest.approx(0.2) and found["gen_prefill"] == pytest.approx(0.4)
    assert "decode" not in found and found["gen_decode"] == 0


@pytest.mark.parametrize("odd", [None, "x", math.nan, True, [], {}])
def test_a_field_that_is_no_number_gives_no_value(odd: object) -> None:
    assert "queue" not in phases({"metrics": {"queue_time_ms": odd, "generation_time_ms": 1.0}})


def test_a_body_without_timings_gives_none() -> None:
    assert found_in({"usage": {"prompt_tokens": 3}, "metrics": None, "timings": [], "nvext": {"timing": 3}}) == []


def test_headers_are_read_by_engine_and_unit() -> None:
    found = timings_in_headers(
        [("X-Queue-Time", "12"), ("openai-processing-ms", "835"), ("X-Envoy-Upstream-Service-Time", "oops")]
    )
    values = {(t.engine, v.phase): v.value_s for t in found for v in t.values}
    assert values == {("tgi", "queue"): pytest.approx(0.012), ("openai", "processing"): pytest.approx(0.835)}
    assert any("unreadable" in note for t in found for note in t.notes)


def test_server_timing_entries_are_read_as_the_standard_says() -> None:
    assert server_timing('cache;desc="a, b";dur=23.2, db;dur="5", miss') == [
        ("cache", 0.0232),
        ("db", 0.005),
        ("miss", None),
    ]
    (found,) = [
        t for t in timings_in_headers({"Server-Timing": "server_queue;dur=4, app;dur=9"}) if t.engine == "trtllm"
    ]
    assert found.values[0].phase == "queue" and found.values[0].value_s == pytest.approx(0.004)


def test_a_difference_of_two_clocks_is_implausible_on_either_side_of_zero() -> None:
    for value in (1.8e9, -1.8e9):
        assert faults_of(value)[0].startswith("implausible")
    assert faults_of(-0.2)[0].startswith("negative") and faults_of(0.2) == ()


def test_a_stamp_beyond_any_calendar_is_no_instant() -> None:
    told = found_in({"meta_info": {"e2e_latency": 1.0, "forward_entry_time": 1e308, "prefill_finished_time": 1.0}})[0]
    assert [one.boundary for one in told.instants] == ["prefill_end"]


_KEYS = st.sampled_from([
    "meta_info", "metrics", "timings", "usage", "time_info", "nvext", "timing", "perf_metrics", "timing_metrics", "values",
    "e2e_latency", "queue_time", "forward_entry_time", "prompt_ms", "predicted_n", "predicted_ms", "total_duration",
    "arrival_time", "first_scheduled_time", "last_token_time", "ttft_ms", "queue_time_ms", "resourceSpans", "scopeSpans", "spans",
    "attributes", "key", "value", "arrayValue", "intValue", "doubleValue", "startTimeUnixNano", "name",
])  # fmt: skip
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from(["", "x", "1e3", "nan", "llm_request"]),
)
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=4)),
    max_leaves=25,
)


@given(st.dictionaries(_KEYS, _DOCUMENTS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=150)
def test_no_shape_of_json_breaks_a_reader(document: dict[str, object]) -> None:
    found_in(document)
    for span in spans_of_json(document):
        timings_of(span)
