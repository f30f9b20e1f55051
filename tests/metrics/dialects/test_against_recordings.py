"""Each tool's printed summary, recomputed from its own per-request detail through our rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from phasemeter.metrics.dialects import dialect
from phasemeter.metrics.dialects.reading import Reading
from phasemeter.records.request_row import ChoiceTimes, RequestRow

RESULTS = Path(__file__).parents[4] / "shared" / "recordings" / "results"
SECOND = 1_000_000_000


def load(name: str) -> str:
    path = RESULTS / name
    if not path.exists():
        pytest.skip("../shared is not here: no result file of another tool to hold a dialect against")
    return path.read_text()


def request(
    start_s: float, times_s: Sequence[float], tokens: int, prompt: int, end_s: float | None = None
) -> RequestRow:
    """A request whose events came at `times_s` on the same clock as `start_s`."""
    origin = 10**15
    stamps = tuple(origin + round(at * SECOND) for at in times_s)
    return RequestRow(
        request_id="r",
        outcome="ok",
        due_ns=0,
        send_start_ns=origin + round(start_s * SECOND),
        first_token_ns=stamps[0],
        first_output_ns=stamps[0],
        last_token_ns=stamps[-1],
        stream_end_ns=stamps[-1] if end_s is None else origin + round(end_s * SECOND),
        input_tokens=prompt,
        output_tokens=tokens,
        output_tokens_source="usage",
        choices=(ChoiceTimes(times_ns=stamps, reads=tuple(range(len(stamps)))),),
    )


def read(tool: str, rows: Iterator[RequestRow]) -> dict[str, float | int | None]:
    reading = Reading(dialect(tool))
    for row in rows:
        reading.add(row)
    return reading.printed().values


def close(ours: float | int | None, theirs: float, digits: float = 1e-9) -> bool:
    """Equal but for the rounding of a float that held seconds: our instants are whole nanoseconds."""
    return ours is not None and ours == pytest.approx(theirs, rel=digits, abs=2e-6)


def test_vllm_prints_what_its_own_rows_give() -> None:
    told = json.loads(load("vllm/bench_serve_detailed.json"))
    origin = min(told["start_times"])

    def rows() -> Iterator[RequestRow]:
        for start, ttft, itls, tokens, prompt in zip(
            told["start_times"], told["ttfts"], told["itls"], told["output_lens"], told["input_lens"], strict=True
        ):
            at = start - origin
            yield request(at, list(accumulate([at + ttft, *itls])), tokens, prompt)

    ours = read("vllm", rows())
    for name in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "p50", "p90", "p99"):
            key = f"{statistic}_{name}_ms"
            assert close(ours[key], told[key]), key
        assert ours[f"std_{name}_ms"] == pytest.approx(told[f"std_{name}_ms"], rel=1e-5, abs=1e-6)
    assert ours["completed"] == told["completed"]
    # its duration ends when its last task is gathered, which its detail doesn't hold: within 2 ms
    assert ours["duration"] == pytest.approx(told["duration"], abs=2e-3)
    assert ours["output_throughput"] == pytest.approx(told["output_throughput"], rel=2e-4)
    assert ours["total_token_throughput"] == pytest.approx(told["total_token_throughput"], rel=2e-4)


def test_aiperf_prints_what_its_own_records_give() -> None:
    records = [json.loads(line) for line in load("aiperf/profile_export.jsonl").splitlines()]
    told = json.loads(load("aiperf/profile_export_aiperf.json"))
    origin = min(record["metadata"]["request_start_ns"] for record in records)

    def rows() -> Iterator[RequestRow]:
        for record in records:
            metrics = record["metrics"]
            start = (record["metadata"]["request_start_ns"] - origin) / 1e9
            first = start + metrics["time_to_first_token"]["value"] / 1e3
            gaps = [gap / 1e3 for gap in metrics["inter_chunk_latency"]["value"]]
            tokens = metrics["output_sequence_length"]["value"]
            yield request(start, list(accumulate([first, *gaps])), tokens, metrics["input_sequence_length"]["value"])

    ours = read("aiperf", rows())
    for row in dialect("aiperf").rows:
        labels = [label for label, _ in dialect("aiperf").percentiles] + ["avg", "min", "max", "count"]
        for label in labels:
            assert close(ours[f"{row.key}.{label}"], told[row.key][label], 1e-8), (row.key, label)
        assert ours[f"{row.key}.std"] == pytest.approx(told[row.key]["std"], rel=1e-5)
    assert close(ours["benchmark_duration.avg"], told["benchmark_duration"]["avg"], 1e-8)
    # its rates divide by the span of its phase, not by the duration that it prints: 5 ms longer here
    phase_s = (datetime.fromisoformat(told["end_time"]) - datetime.fromisoformat(told["start_time"])).total_seconds()
    for key, total in (("request_throughput", 150), ("output_token_throughput", 38400)):
        assert told[key]["avg"] == pytest.approx(total / phase_s, rel=1e-6)
        assert ours[f"{key}.avg"] == pytest.approx(told[key]["avg"], rel=5e-4)


def test_guidellm_prints_what_its_own_requests_give() -> None:
    benchmark = json.loads(load("guidellm/benchmarks.json"))["benchmarks"][0]
    told, requests = benchmark["metrics"], benchmark["requests"]["successful"]
    origin = min(one["info"]["timings"]["request_start"] for one in requests)

    def rows() -> Iterator[RequestRow]:
        for one in requests:
            times = one["info"]["timings"]
            marks = [times[name] - origin for name in ("first_token_iteration", "last_token_iteration")]
            tokens, prompt = one["output_metrics"]["total_tokens"], one["input_metrics"]["total_tokens"]
            yield request(times["request_start"] - origin, marks, tokens, prompt, times["request_end"] - origin)

    ours = read("guidellm", rows())
    for row in dialect("guidellm").rows:
        theirs = told[row.key]["successful"]
        for statistic in ("mean", "median", "min", "max"):
            assert close(ours[f"{row.key}.{statistic}"], theirs[statistic], 1e-8), (row.key, statistic)
        for label, value in theirs["percentiles"].items():
            assert close(ours[f"{row.key}.{label}"], value, 1e-8), (row.key, label)
        assert ours[f"{row.key}.std_dev"] == pytest.approx(theirs["std_dev"], rel=1e-4)
        assert ours[f"{row.key}.count"] == theirs["count"], row.key
    for key in ("requests_per_second", "output_tokens_per_second"):
        assert close(ours[f"{key}.mean"], told[key]["successful"]["mean"], 1e-7), key


def test_sglang_prints_what_its_own_lists_give_as_far_as_they_go() -> None:
    told = json.loads(load("sglang/bench_serving.jsonl").splitlines()[0])
    # its detail holds no end of a request: the mean it prints says how far [DONE] lay behind the last token
    seen = [ttft + sum(itls) for ttft, itls in zip(told["ttfts"], told["itls"], strict=True)]
    tail = told["mean_e2e_latency_ms"] / 1e3 - sum(seen) / len(seen)
    assert 0 < tail < 1e-3

    def rows() -> Iterator[RequestRow]:
        detail = zip(told["ttfts"], told["itls"], told["output_lens"], told["input_lens"], strict=True)
        for ttft, itls, tokens, prompt in detail:
            times = list(accumulate([ttft, *itls]))
            yield request(0.0, times, tokens, prompt, times[-1] + tail)

    ours = read("sglang", rows())
    for name in ("ttft", "itl"):
        for statistic in ("mean", "median", "p90", "p95", "p99"):
            assert close(ours[f"{statistic}_{name}_ms"], told[f"{statistic}_{name}_ms"]), (name, statistic)
    for key in ("mean_tpot_ms", "mean_e2e_latency_ms"):
        assert close(ours[key], told[key], 1e-8), key


def test_inference_perf_reads_the_servers_true_times_in_its_own_detail() -> None:
    told = json.loads(load("inferenceperf/per_request_lifecycle_metrics.first8.json"))
    origin = min(one["start_time"] for one in told)

    def rows() -> Iterator[RequestRow]:
        for one in told:
            seen = one["info"]["response_metrics"]
            times = [at - origin for at in seen["output_token_times"]]
            end = one["end_time"] - origin
            yield request(one["start_time"] - origin, times, seen["output_tokens"], one["info"]["input_tokens"], end)

    ours = read("inference-perf", rows())
    own: list[float] = []
    for one in told:
        own += [later - sooner for sooner, later in pairwise(one["info"]["response_metrics"]["output_token_times"])]
    assert close(ours["latency.inter_token_latency.mean"], sum(own) / len(own), 1e-7)
    ends = [one["end_time"] - one["start_time"] for one in told]
    assert close(ours["latency.request_latency.mean"], sum(ends) / len(ends), 1e-8)
    normal = [end / 256 for end in ends]
    assert close(ours["latency.normalized_time_per_output_token.max"], max(normal), 1e-7)


def test_evalscope_prints_the_throughput_its_timeline_gives() -> None:
    summary: dict[str, Any] = json.loads(load("evalscope/benchmark_summary.json"))
    points = json.loads(load("evalscope/workload_timeline.json"))["points"]
    wall = json.loads(load("evalscope/workload_throughput.json"))["wall_time_s"]
    assert points[-1]["cum_completion"] / wall == pytest.approx(summary["Output Throughput (tok/s)"], rel=1e-4)
