"""Every number of another tool's file comes back, with its unit and its definition."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phasemeter.comparison import foreign
from phasemeter.comparison.foreign import model
from phasemeter.comparison.foreign.model import SECONDS, Imported
from phasemeter.errors import FileError
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.records.manifest import Manifest

RECORDED = Path(__file__).parents[3] / "shared" / "recordings" / "results"
FILES = (
    "vllm/bench_serve_detailed.json", "sglang/bench_serving.jsonl", "aiperf/profile_export_aiperf.json",
    "aiperf/profile_export.jsonl", "guidellm/benchmarks.json", "inferenceperf/summary_lifecycle_metrics.json",
    "inferenceperf/stage_0_lifecycle_metrics.json", "inferenceperf/per_request_lifecycle_metrics.first8.json",
    "evalscope/benchmark_percentile.json", "evalscope/benchmark_summary.json", "evalscope/workload_throughput.json",
    "evalscope/workload_timeline.json", "evalscope/benchmark_args.json",
)  # fmt: skip

VLLM = {
    "date": "20260101-000000", "endpoint_type": "openai-chat", "backend": "openai-chat", "model_id": "m", "num_prompts": 3,
    "request_rate": "inf", "max_concurrency": 2, "duration": 4.0, "completed": 2, "failed": 1, "request_throughput": 0.5,
    "output_throughput": 5.0, "total_token_throughput": 9.0, "input_lens": [8, 8, 8], "output_lens": [11, 11, 0],
    "ttfts": [0.25, 0.5, 0.0], "itls": [[0.02] * 10, [0.03] * 10, []], "latencies": [0.45, 0.8, 0.0], "errors": ["", "", "x"],
    "mean_ttft_ms": 375.0, "median_ttft_ms": 375.0, "std_ttft_ms": 125.0, "p99_ttft_ms": 497.5, "mean_tpot_ms": 25.0,
    "median_tpot_ms": 25.0, "std_tpot_ms": 5.0, "p99_tpot_ms": 29.9, "mean_itl_ms": 25.0, "p99_itl_ms": 30.0,
    "mean_e2el_ms": 625.0, "p99_e2el_ms": 796.5,
}  # fmt: skip


def leaves(document: Any, path: str = "") -> list[tuple[str, float]]:
    """An oracle of its own: every single number with its path."""
    if isinstance(document, dict):
        return [found for k, v in document.items() for found in leaves(v, f"{path}.{k}" if path else k)]
    if isinstance(document, list):
        return [found for i, v in enumerate(document) for found in leaves(v, f"{path}[{i}]")]
    return [(path, document)] if isinstance(document, int | float) and not isinstance(document, bool) else []


def recovered(imported: Imported) -> dict[str, float]:
    found = {}
    for path, number in imported.numbers.items():
        assert number.unit
        assert number.definition
        plain = path.removeprefix("report:")
        for inner, value in leaves({"": number.value}) or [("", None)]:
            found[plain + inner.removeprefix(".")] = value
    return found


def holds_every_number(text: str, file: str) -> list[Imported]:
    found = foreign.read(text, file)
    got: dict[str, float] = {}
    for one in found:
        got |= recovered(one)
    for document in foreign.documents(text, file):
        for path, value in leaves(document):
            short = path.split("].", 1)[1] if path.startswith("benchmarks[") else path
            assert short in got, short
            assert got[short] == value or not math.isfinite(value), short
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_number_of_a_recorded_file_round_trips(name: str) -> None:
    if not RECORDED.is_dir():
        pytest.skip("../shared is not here: recorded result files")
    file = RECORDED / name
    for one in holds_every_number(file.read_text(encoding="utf-8"), file.name):
        for metric in one.result.metrics.values():
            assert metric.definition.startswith(DIALECTS[one.tool].id + ":")


def test_metrics_are_the_files_statistics_in_seconds() -> None:
    (one,) = holds_every_number(json.dumps(VLLM), "a.json")
    ttft = one.result.metrics["ttft"]
    assert (ttft.definition, ttft.unit, ttft.n, ttft.mean, ttft.std) == ("vllm@0.33:ttft", "s", 2, 0.375, 0.125)
    assert ttft.percentiles["p99"].value == 0.4975
    assert ttft.percentiles["p50"].value == 0.375
    assert one.result.outcomes.failed == {"unspecified": 1}
    assert one.values["tpot"] == pytest.approx([0.02, 0.03])
    assert one.result.run["rate_per_s"] == "inf"


def test_appended_runs_are_a_result_each() -> None:
    assert len(foreign.read("\n".join([json.dumps(VLLM)] * 3), "a.jsonl")) == 3


def test_infinity_in_a_file_becomes_null_not_broken_json() -> None:
    (one,) = foreign.read(json.dumps(VLLM | {"rtfx": math.inf}), "a.json")
    assert one.numbers["rtfx"].value is None


def test_each_tool_is_told_from_what_its_file_holds() -> None:
    block = {"unit": "ms", "avg": 200.0, "p50": 199.0, "p99": 230.0, "min": 1.0, "max": 300.0, "std": 3.0, "count": 9}
    genai = {"time_to_first_token": block, "request_latency": block, "input_config": {"model": ["m"]}}
    aiperf = genai | {"aiperf_version": "0.13.0", "schema_version": "1.4"}
    profile = {"service_kind": "openai", "experiments": [{"requests": [
        {"timestamp": 10**9, "response_timestamps": [10**9 + 2 * 10**8, 2 * 10**9]}]}]}  # fmt: skip
    for document, tool in ((genai, "genai-perf"), (aiperf, "aiperf"), (profile, "genai-perf")):
        (one,) = holds_every_number(json.dumps(document), "x.json")
        assert one.tool == tool
        assert one.result.metrics["time_to_first_token"].mean == pytest.approx(0.2)


def test_a_file_from_before_vllm_named_its_endpoint_is_read_under_the_rules_of_then() -> None:
    older = {k: v for k, v in VLLM.items() if k not in ("endpoint_type", "failed")} | {"request_goodput:": None}
    (one,) = foreign.read(json.dumps(older), "a.json")
    assert one.result.definitions == "vllm@0.32"
    assert one.result.outcomes.failed == {"unspecified": 1}  # of 3 prompts 2 completed


@pytest.mark.parametrize(("endpoint", "said"), [("openai-chat", True), ("openai", False)])
def test_a_chat_file_of_vllm_does_not_tell_its_version_and_that_is_said(endpoint: str, said: bool) -> None:
    """0.32 and 0.33 write the same fields, and start their chat clocks at different chunks."""
    (found,) = foreign.read(json.dumps(VLLM | {"endpoint_type": endpoint}), "x.json")
    assert any("role chunk" in note for note in found.result.run["notes"]) is said


def test_zeros_that_stand_for_no_value_are_no_latency() -> None:
    nothing = {k: 0.0 for k in VLLM if k.endswith("_ms")}
    (one,) = foreign.read(json.dumps(VLLM | nothing | {"completed": 0, "failed": 3}), "a.json")
    assert (one.result.metrics, one.result.outcomes.ok) == ({}, 0)
    single = {k: 0.0 for k in VLLM if "_tpot_" in k or "_itl_" in k}
    (one,) = foreign.read(json.dumps(VLLM | single), "a.json")
    assert sorted(one.result.metrics) == ["e2el", "ttft"]


def test_gaps_are_counted_as_gaps_not_as_requests() -> None:
    (one,) = foreign.read(json.dumps(VLLM | {"itls": [[0.02] * 10, [0.03] * 7, [0.5]]}), "a.json")
    assert {name: metric.n for name, metric in one.result.metrics.items()} == {
        "ttft": 2,
        "tpot": 2,
        "itl": 17,
        "e2el": 2,
    }


def test_a_profile_is_read_without_its_first_and_last_responses_that_hold_no_content() -> None:
    def chat(delta: dict[str, Any]) -> dict[str, str]:
        return {"response": f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n"}

    told = [chat({"role": "assistant", "content": ""}), chat({"content": "a"}), chat({}), chat({"content": "b"}),
            {"response": 'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n'}]  # fmt: skip
    request = {"timestamp": 0, "response_timestamps": [10**8, 2 * 10**8, 3 * 10**8, 5 * 10**8, 10**9]}
    silent = {"timestamp": 0, "response_timestamps": [10**8], "response_outputs": told[:1]}
    profile = {"service_kind": "openai", "experiments": [{"requests": [request | {"response_outputs": told}, silent]}]}
    (one,) = foreign.read(json.dumps(profile), "x.json")
    assert {name: metric.mean for name, metric in one.result.metrics.items()} == pytest.approx(
        {"time_to_first_token": 0.2, "request_latency": 0.5}
    )
    assert (one.result.outcomes.ok, one.result.outcomes.failed) == (1, {"unspecified": 1})


def test_counts_of_infinity_and_aggregates_of_runs_are_refused_in_one_line() -> None:
    with pytest.raises(FileError, match="looks like vllm's"):
        foreign.read(json.dumps(VLLM | {"completed": math.inf}), "f.json")
    aggregate = {"aiperf_version": "0.13", "schema_version": "1.0", "metadata": {"aggregation_type": "confidence"}}
    with pytest.raises(FileError, match=r"import the profile_export_aiperf\.json of each"):
        foreign.read(json.dumps(aggregate), "f.json")


BLOCK = {"unit": "ms", "avg": 200.0, "p50": 199.0, "p99": 230.0}


def test_aiperf_from_before_it_wrote_its_version_is_no_genai_perf() -> None:
    older = {
        "request_count": {"unit": "requests", "avg": 100.0}, "error_summary": [{"count": 3}], "was_cancelled": False,
        "time_to_first_token": BLOCK, "inter_chunk_latency": BLOCK,
        "input_config": {
            "endpoint": {"model_names": ["m"], "type": "chat", "streaming": True}, "tokenizer": {"name": "t"},
            "loadgen": {"concurrency": 8, "request_count": 103},
            "input": {"prompt": {"input_tokens": {"mean": 128, "stddev": 0}, "output_tokens": {"mean": 64, "stddev": 5}}},
        },
    }  # fmt: skip
    (one,) = holds_every_number(json.dumps(older), "x.json")
    run = one.result.run
    assert (one.tool, one.result.outcomes.ok, one.result.outcomes.failed) == ("aiperf", 100, {"unspecified": 3})
    assert (run["model"], run["api"], run["concurrency"], run["requests"]) == ("m", "openai.chat", 8, 103)
    assert (run["tokenizer"], run["input_tokens"]) == ("t", {"fixed": 128})
    assert {name: metric.n for name, metric in one.result.metrics.items()} == {
        "time_to_first_token": 100, "inter_chunk_latency": 0,
    }  # fmt: skip


def test_a_configuration_of_either_form_and_of_none_makes_a_manifest_that_can_be_read_again() -> None:
    nested = {"model_names": ["m"], "endpoint": {"type": "chat", "streaming": True}, "tokenizer": {"name": "t"},
              "perf_analyzer": {"stimulus": {"concurrency": 4}}}  # fmt: skip
    flat = {"model": ["m"], "endpoint_type": "chat", "streaming": True, "tokenizer": "t", "concurrency": 4}
    for config in (nested, flat):
        (one,) = foreign.read(json.dumps({"time_to_first_token": BLOCK, "input_config": config}), "x.json")
        run = msgspec.convert(one.result.run, Manifest)
        assert (run.model, run.api, run.streaming, run.tokenizer, run.concurrency) == ("m", "openai.chat", True, "t", 4)
    odd = {"model": [7], "endpoint_type": {"a": 1}, "streaming": "yes", "tokenizer": ["t"], "concurrency": "many"}
    (one,) = foreign.read(json.dumps({"time_to_first_token": BLOCK, "input_config": odd}), "x.json")
    assert msgspec.convert(one.result.run, Manifest).tokenizer is None


def test_a_byte_order_mark_and_odd_line_separators_inside_text_are_no_fault() -> None:
    one, two = json.dumps(VLLM | {"generated_texts": ["a\u2028b"]}, ensure_ascii=False), json.dumps(VLLM)
    assert len(foreign.read("\ufeff" + one, "f.json")) == 1
    assert len(foreign.read(f"\ufeff{one}\r\n{two}\n", "f.jsonl")) == 2


def test_a_report_without_a_run_and_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(FileError, match="no run is in it"):
        foreign.read('{"metadata": {"guidellm_version": "0.8"}, "benchmarks": []}', "f.json")
    with pytest.raises(FileError, match="1 ttfts, 3 itls, 3 output_lens"):
        foreign.read(json.dumps(VLLM | {"ttfts": [0.25]}), "f.json")


def test_an_unknown_file_names_what_is_known() -> None:
    with pytest.raises(FileError) as unknown:
        foreign.read('{"a": 1}', "x.json")
    text = str(unknown.value)
    assert all(tool in text for tool in foreign.TOOLS)
    assert "\n" not in text


@pytest.mark.parametrize(("text", "part"), [("not json", "no JSON"), ('{"a": 1}\n{"a":', "line 2: no JSON")])
def test_a_broken_file_is_one_line(text: str, part: str) -> None:
    with pytest.raises(FileError, match=part):
        foreign.read(text, "x.json")


def test_a_known_file_of_another_form_says_so() -> None:
    with pytest.raises(FileError, match="looks like guidellm's"):
        foreign.read('{"metadata": {"guidellm_version": "9"}, "benchmarks": [{}]}', "x.json")


def test_units_are_seconds_by_exact_factors() -> None:
    assert SECONDS == {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    assert model.look({"a": {"b.c": 3}}, "a.b.c") == 3
