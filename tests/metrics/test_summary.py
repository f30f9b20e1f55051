"""What enters which statistic, and that every request is accounted for."""

from __future__ import annotations

import json
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasemeter.metrics import distribution
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.metrics.definitions import GAPS, HOUSE, PER_REQUEST, value_or_reason
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.metrics.summary import Summary
from phasemeter.metrics.timeline import Timeline
from phasemeter.metrics.validity import RunFacts
from phasemeter.records.evidence import Told
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.records.result import Result
from phasemeter.report import markdown
from phasemeter.report.csv import events, requests
from phasemeter.report.json import dumps
from tests.metrics.rows import row


def summed(rows: list[RequestRow], manifest: Manifest | None = None, facts: RunFacts | None = None) -> Result:
    summary = Summary()
    for request in rows:
        summary.add(request)
    return summary.result(manifest, facts)


def test_failed_and_cancelled_requests_are_counted_and_enter_no_latency() -> None:
    rows = [row([100 + k, 300], request_id=str(k), output_tokens=10) for k in range(7)]
    rows.append(row([], request_id="7", outcome="failed", failure="transport", end_ms=5))
    rows.append(row([90, 95], request_id="8", outcome="failed", failure="truncated_stream", output_tokens=3))
    rows.append(row([120], request_id="9", outcome="cancelled", output_tokens=4))
    result = summed(rows)
    seen = result.outcomes
    assert (seen.scheduled, seen.ok, seen.cancelled, seen.unsent) == (10, 7, 1, 0)
    assert seen.failed == {"transport": 1, "truncated_stream": 1}
    assert result.metrics["ttft"].mean == pytest.approx(0.103)
    assert result.metrics["ttft"].n == 7
    assert result.workload["error_rate"] == pytest.approx(2 / 9)
    assert result.workload["partial_output_tokens"] == 7
    assert result.workload["realised"]["output_tokens"]["sum"] == 70


def test_a_percentiles_flag_stands_beside_it_only_where_there_is_one() -> None:
    told = json.loads(dumps(summed([row([100 + k, 300], request_id=str(k)) for k in range(12)])))["metrics"]["ttft"]
    assert told["p99"]["flag"] == "few_samples"
    assert "flag" not in told["p50"] and told["p50"]["value"] == pytest.approx(0.1055)


def test_metrics_with_equal_numbers_keep_their_own_names_and_exclusions() -> None:
    rows = [row([50 + 10 * k, 300], request_id=str(k)) for k in range(60)]
    rows.append(row([40], request_id="whole", stream=False, first_output_ns=None))
    result = summed(rows)
    ttft, ttfo, from_due = (result.metrics[name] for name in ("ttft", "ttfo", "ttft_from_due"))
    assert ttft.percentiles == ttfo.percentiles == from_due.percentiles and ttft.n == 60
    assert [metric.definition for metric in (ttft, ttfo, from_due)] == [
        HOUSE[name].line() for name in ("ttft", "ttfo", "ttft_from_due")
    ]
    seen = [one for one in rows if one.outcome == "ok"]
    for name, metric in result.metrics.items():
        if name in PER_REQUEST and name != "jitter":
            told = [value_or_reason(name, one) for one in seen]
            assert metric.n == sum(value is not None for value, _ in told), name
            assert metric.excluded == Counter(reason for _, reason in told if reason), name


def test_a_run_without_a_success_has_nulls_and_a_reason_and_no_zero() -> None:
    rows = [
        row([], request_id=str(k), outcome="failed", failure="refused", send_start_ns=None, sent_ns=None)
        for k in range(3)
    ]
    result = summed(rows, facts=RunFacts(started_ns=0, ended_ns=400_000_000))
    assert result.outcomes.failed == {"refused": 3}
    for name, metric in result.metrics.items():
        assert metric.mean is None, name
        assert metric.percentiles["p99"].value is None
        assert metric.reason == "no_successful_requests"
    assert result.throughput["output_tokens_per_s"] == 0.0
    assert result.validity.verdict == "invalid"
    assert json.loads(dumps(result), parse_constant=pytest.fail)["metrics"]["ttft"]["mean"] is None


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ok", "failed", "cancelled", "unsent"]), st.sampled_from(["measured", "warmup", "probe"]),
                  st.lists(st.integers(0, 5000), max_size=6)),
        max_size=40,
    ),
    st.integers(0, 50),
)  # fmt: skip
def test_scheduled_is_ok_and_failed_and_cancelled_and_unsent(
    given_rows: list[tuple[str, str, list[int]]], planned: int
) -> None:
    rows = []
    for k, (outcome, phase, times) in enumerate(given_rows):
        failure = "timeout_idle" if outcome == "failed" else None
        rows.append(
            row(sorted(times), request_id=str(k), due_ms=k, send_ms=k, outcome=outcome, phase=phase, failure=failure)
        )
    result = summed(rows, facts=RunFacts(planned_requests=planned))
    seen = result.outcomes
    measured = [request for request in rows if request.phase == "measured"]
    assert seen.scheduled == seen.ok + sum(seen.failed.values()) + seen.cancelled + seen.unsent
    assert seen.scheduled == max(len(measured), planned)
    ok = sum(request.outcome == "ok" for request in measured)
    assert seen.ok == ok
    for name in PER_REQUEST:
        if name != "jitter":
            assert result.metrics[name].n + sum(result.metrics[name].excluded.values()) == ok, name
    json.loads(dumps(result), parse_constant=pytest.fail)


@st.composite
def odd_rows(draw: st.DrawFn) -> RequestRow:
    """Any row that a stream could make: several choices, some silent, tokens known or not, boundaries missing."""
    choices = []
    for index in range(draw(st.integers(0, 3))):
        times = tuple(sorted(draw(st.lists(st.integers(0, 10**10), max_size=5))))
        held = draw(st.none() | st.just(tuple(draw(st.integers(0, 3)) for _ in times)))
        own = draw(st.none() | st.integers(0, 9))
        choices.append(
            ChoiceTimes(index=index, times_ns=times, reads=tuple(range(len(times))), tokens=held, output_tokens=own)
        )
    stamps = [at for choice in choices for at in choice.times_ns]
    instant = st.none() | st.integers(0, 10**10)
    return RequestRow(
        request_id="r", outcome=draw(st.sampled_from(["ok", "failed", "cancelled"])), n=max(len(choices), 1),
        stream=draw(st.booleans()), due_ns=draw(st.integers(0, 10**9)), send_start_ns=draw(instant), sent_ns=draw(instant),
        connect_start_ns=draw(instant), dns_done_ns=draw(instant), tcp_connected_ns=draw(instant), connected_ns=draw(instant),
        first_token_ns=min(stamps, default=draw(instant)), first_output_ns=draw(instant),
        last_token_ns=max(stamps, default=draw(instant)), stream_end_ns=draw(instant), output_tokens=draw(st.none() | st.integers(0, 20)),
        input_tokens=draw(st.none() | st.integers(0, 20)), reasoning_tokens=draw(st.none() | st.integers(0, 20)),
        hidden_reasoning=draw(st.booleans()), choices=tuple(choices), observer_lag_ns=draw(instant), usage_ns=draw(instant),
        warnings=draw(st.sampled_from([(), ("usage_exceeds_max_tokens",)])), output_tokens_source=draw(st.sampled_from([None, "usage"])),
    )  # fmt: skip


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(odd_rows(), max_size=12), st.sampled_from([None, *DIALECTS]), st.sampled_from([None, 1, 3]))
def test_whatever_a_stream_was_like_there_is_a_strict_document(
    rows: list[RequestRow], tool: str | None, concurrency: int | None
) -> None:
    result = analyse_rows(rows, Manifest(concurrency=concurrency), tool=tool)
    json.loads(dumps(result), parse_constant=pytest.fail)
    markdown.text(result)
    assert list(events(rows))
    assert len(list(requests([(one, Told()) for one in rows], 0))) == len(rows) + 1


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=20), min_size=1, max_size=30))
def test_the_columns_give_what_each_request_gives_alone(times: list[list[int]]) -> None:
    rows = [row(sorted(own), request_id=str(k), due_ms=k * 10, send_ms=k * 10) for k, own in enumerate(times)]
    result = summed(rows)
    for name in ("inter_chunk", "itl", "itl_spread"):
        alone = [gap for request in rows for gap in GAPS[name](request)]
        assert result.metrics[name].n == len(alone), name
        if alone:
            assert result.metrics[name].mean == pytest.approx(float(np.mean(alone)))
            assert result.metrics[name].percentiles["p90"].value == pytest.approx(float(np.quantile(alone, 0.9)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=200))
def test_percentiles_rise_and_stay_within_the_extremes(values: list[float]) -> None:
    metric = distribution.of_requests(np.array(values), "d", "s", {})
    points = [metric.percentiles[name].value for name in distribution.PERCENTILES]
    assert metric.min is not None and metric.max is not None
    known = [metric.min, *(point for point in points if point is not None), metric.max]
    assert known == sorted(known)
    assert len(known) == len(points) + 2
    for name, q in distribution.PERCENTILES.items():
        found = metric.percentiles[name]
        assert found.value == pytest.approx(float(np.quantile(values, q)))
        low, high = found.ci95
        assert low is None or high is None or low <= high
        if (
            name == "p50"
        ):  # beyond it a bound may pass the estimate: the largest of 2 values lies below p99 almost surely
            assert low is None or (found.value is not None and low <= found.value + 1e-9)
            assert high is None or (found.value is not None and high >= found.value - 1e-9)


def test_a_p99_of_fewer_than_a_hundred_is_flagged_and_of_a_hundred_is_not() -> None:
    for n, flag in ((99, "few_samples"), (100, None)):
        values = np.random.default_rng(3).normal(1, 0.1, n)
        assert distribution.of_requests(values, "d", "s", {}).percentiles["p99"].flag == flag


def test_intervals_of_gaps_resample_requests_because_gaps_of_one_request_are_alike() -> None:
    generator = np.random.default_rng(7)
    level = generator.normal(20, 4, 60)
    values = np.repeat(level, 200) + generator.normal(0, 0.1, 12_000)
    owners = np.repeat(np.arange(60), 200)
    low, high = distribution.of_gaps(values, owners, "d", "s", {}).percentiles["p50"].ci95
    assert low is not None and high is not None
    # 60 independent levels with deviation 4: a median known to about ±1.3, not to the ±0.1 of 12 000 loose gaps
    assert 1.2 < high - low < 5
    assert low < np.median(values) < high


def test_a_run_cold_at_its_start_shows_its_first_wave_apart() -> None:
    cold = [21000 + 1500 * k for k in range(10)]
    warm = [450 + 6 * k for k in range(90)]
    rows = [row([at, at + 10], request_id=str(k), send_ms=k, due_ms=k) for k, at in enumerate(cold + warm)]
    result = summed(rows, Manifest(concurrency=10))
    wave = result.workload["first_wave"]
    assert wave["requests"] == 10
    assert wave["p50_all"] == pytest.approx(0.747)
    assert wave["p95_all"] == pytest.approx(27.075)
    assert wave["p95_without"] == pytest.approx(0.9573)
    assert wave["p50_without"] == pytest.approx(0.717)
    verdicts = {check.id: check.verdict for check in result.validity.checks}
    assert verdicts["first_wave_dominates_tail"] == "suspect"


def test_requests_weigh_equal_in_tpot_and_gaps_weigh_equal_in_itl() -> None:
    rows = [row([0, 100]), row([10 * k for k in range(101)], request_id="b")]
    metrics = summed(rows).metrics
    assert metrics["tpot"].mean == pytest.approx(0.055)
    assert metrics["itl"].mean == pytest.approx(1.1 / 101)


def test_several_tokens_a_step_keep_gap_and_time_per_token_apart() -> None:
    result = summed([row([50 + 9 * k for k in range(101)], tokens=[1] + [3] * 100)])
    assert result.metrics["inter_chunk"].mean == pytest.approx(0.009)
    assert result.metrics["tpot"].mean == pytest.approx(0.003)
    assert result.metrics["itl"].reason == "multi_token_chunks"
    assert result.workload["tokens_per_chunk"] == pytest.approx(301 / 101)


def test_merged_reads_are_said_to_be_merged() -> None:
    result = summed([row([100, 100, 100, 140])])
    assert result.workload["gaps"]["coalesced_share"] == pytest.approx(2 / 3)
    checks = {check.id: check for check in result.validity.checks}
    assert checks["coalescing"].verdict == "suspect"
    assert "66.7" in checks["coalescing"].evidence


def test_warm_up_stands_apart() -> None:
    rows = [row([900], request_id="w", phase="warmup"), row([100], request_id="a")]
    result = summed(rows)
    assert result.metrics["ttft"].n == 1
    assert result.workload["warmup"]["ok"] == 1


def test_the_order_in_which_rows_come_does_not_matter() -> None:
    rows = [row([100 + 7 * (k % 13), 300 + k], request_id=str(k), due_ms=k * 9, send_ms=k * 9) for k in range(60)]
    forward, backward = summed(rows), summed(rows[::-1])
    for name in PER_REQUEST:
        assert forward.metrics[name].percentiles == backward.metrics[name].percentiles, name
    assert forward.throughput["whole_run"] == backward.throughput["whole_run"]


def test_a_run_larger_than_the_store_keeps_every_second_request_and_says_so() -> None:
    timeline = Timeline(limit=1000)
    for number in range(100):
        timeline.add(number, row([10.0 * k for k in range(50)]), usable=True)
    assert len(timeline.times) <= 1000
    kept = len(timeline.owner)
    assert kept + timeline.let_go == 100
    values, owners, _ = timeline.gap_columns()
    assert set(owners.tolist()) == {number for number in range(100) if number % timeline.step == 0}
    assert np.allclose(values, 0.01)
    weights, _ = timeline.weights()
    assert weights.sum() * timeline.step == pytest.approx(5000, rel=0.2)


def test_a_thinned_run_still_counts_all_its_tokens() -> None:
    summary = Summary()
    summary.timeline = Timeline(limit=1000)
    for number in range(128):
        summary.add(row([10.0 * k for k in range(1, 51)], request_id=str(number)))
    result = summary.result()
    assert result.throughput["whole_run"]["output_tokens_per_s"] == pytest.approx(128 * 50 / 0.5)
    assert result.metrics["inter_chunk"].excluded["sampled_out"] == summary.timeline.let_go > 0


def test_each_metric_of_the_house_is_in_every_result() -> None:
    assert list(summed([]).metrics) == list(HOUSE)


def test_no_infinity_leaves_in_a_document_and_an_unlimited_rate_is_a_word() -> None:
    result = summed([row([100])], Manifest(rate_per_s="inf"))
    bad = msgspec.structs.replace(
        result, throughput={"x": math.nan, "y": [math.inf]}, run={"request_rate": math.inf, "p99": math.inf}
    )
    plain = json.loads(dumps(bad), parse_constant=pytest.fail)
    assert plain["throughput"] == {"x": None, "y": [None]}
    assert plain["run"] == {"request_rate": "inf", "p99": None}
