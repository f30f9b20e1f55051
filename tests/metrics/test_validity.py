"""Each check of a run's soundness on the run that it is there for."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.metrics.summary import Summary
from phasemeter.metrics.validity import CHECKS, RunFacts, Seen, judge
from phasemeter.records.manifest import Manifest
from tests.metrics.rows import MS, row

GOOD = Seen(ok=200, failed={}, mode="open", sent_rate_per_s=10.0, due_rate_per_s=10.0, lateness_p99_s=1e-4, ttft_p50_s=0.2,
            lag_p99_s=1e-5, gap_p50_s=0.02, coalesced_share=0.0, token_pairs=200, input_ratio=1.0, input_excess=0.0,
            output_ratio=1.0, cached_share=0.0)  # fmt: skip
FACTS = RunFacts(stamps="kernel", clock_step_s=0.0)


def but(**changed: object) -> Seen:
    return msgspec.structs.replace(GOOD, **changed)


def test_a_sound_run_is_valid() -> None:
    judged = judge(GOOD, FACTS)
    assert judged.verdict == "valid"
    assert {check.verdict for check in judged.checks} == {"ok"}
    assert [check.id for check in judged.checks] == list(CHECKS)


@pytest.mark.parametrize(
    ("check", "seen", "facts", "expected"),
    [
        ("samples", but(ok=0), FACTS, "invalid"),
        ("samples", but(ok=10), FACTS, "suspect"),
        ("failures", but(failed={"transport": 10}), FACTS, "suspect"),
        ("failures", but(failed={"transport": 300}), FACTS, "invalid"),
        ("achieved_load", but(sent_rate_per_s=9.5), FACTS, "suspect"),
        ("achieved_load", but(sent_rate_per_s=5.0), FACTS, "invalid"),
        ("achieved_load", but(mode="closed", asked_concurrency=8, peak_concurrency=9), FACTS, "invalid"),
        ("achieved_load", but(mode="closed", asked_concurrency=8, peak_concurrency=5), FACTS, "suspect"),
        ("send_lateness", but(lateness_p99_s=0.003), FACTS, "ok"),
        ("send_lateness", but(lateness_p99_s=0.003, replay=True), FACTS, "suspect"),
        ("send_lateness", but(lateness_p99_s=0.0015, replay=True), FACTS, "ok"),
        ("send_lateness", but(lateness_p99_s=0.03), FACTS, "suspect"),
        ("send_lateness", but(lateness_p99_s=0.15), FACTS, "invalid"),
        ("send_lateness", but(lateness_p99_s=2.0, asked_concurrency=1, peak_concurrency=1), FACTS, "ok"),
        ("observer_lag", but(lag_p99_s=0.05), FACTS, "suspect"),
        ("observer_lag", but(lag_p99_s=None), FACTS, "unknown"),
        ("coalescing", but(coalesced_share=0.5), FACTS, "suspect"),
        ("growing_queue", but(trend=3.0), FACTS, "suspect"),
        ("token_counts", but(token_mismatches=100), FACTS, "suspect"),
        ("input_lengths", but(input_ratio=1.312), FACTS, "suspect"),
        ("input_lengths", but(input_ratio=2.6), RunFacts(history=True), "ok"),
        ("input_lengths", but(input_ratio=0.6), RunFacts(history=True), "suspect"),
        ("output_lengths", but(output_ratio=0.7), FACTS, "suspect"),
        ("prefix_cache", but(cached_share=0.6), FACTS, "suspect"),
        ("prefix_cache", but(cached_share=0.6), RunFacts(unique_prompts=False), "ok"),
        ("prefix_cache", but(cached_share=None), FACTS, "unknown"),
        ("prefix_cache", but(cached_share=None), RunFacts(cache_counters=(60.0, 100.0)), "suspect"),
        ("prefix_cache", but(cached_share=None, template_share=0.55), RunFacts(cache_counters=(60.0, 100.0)), "ok"),
        ("prefix_cache", but(cached_share=None), RunFacts(cache_counters=(0.0, 0.0)), "unknown"),
        (
            "prefix_cache",
            but(cached_share=0.0),
            RunFacts(cache_counters=(60.0, 100.0)),
            "ok",
        ),  # of others' requests, too
        ("clock_step", GOOD, RunFacts(clock_step_s=-2.0), "suspect"),
        ("client_limits", but(failed={"client_resource": 1}), FACTS, "invalid"),
        ("client_limits", GOOD, RunFacts(file_descriptors=(2000, 1024)), "invalid"),
        ("client_attrition", but(mode="closed", in_flight_late_share=40 / 64), FACTS, "suspect"),
        ("first_wave_dominates_tail", but(p95_all_s=27.0, p95_without_first_wave_s=0.96), FACTS, "suspect"),
        ("complete", GOOD, RunFacts(partial=True), "suspect"),
        ("complete", GOOD, RunFacts(lost_workers=1), "suspect"),
    ],
)
def test_a_fault_is_named_with_what_was_seen_and_what_to_do(
    check: str, seen: Seen, facts: RunFacts, expected: str
) -> None:
    found = {one.id: one for one in judge(seen, facts).checks}[check]
    assert found.verdict == expected
    assert found.evidence
    assert found.remedy or expected in ("ok", "unknown") or facts.partial
    if expected in ("suspect", "invalid"):
        assert judge(seen, facts).verdict in (expected, "invalid")


def test_clients_that_leave_are_seen_in_the_rows() -> None:
    summary = Summary()
    number = 0
    for turn in range(20):
        for _slot in range(64 - (turn * 24 // 19)):  # 64 open clients at the start, 40 at the end
            at = turn * 1000.0
            summary.add(row([800, 999], request_id=str(number), send_ms=at, due_ms=at))
            number += 1
    result = summary.result(Manifest(concurrency=64))
    checks = {check.id: check.verdict for check in result.validity.checks}
    assert checks["client_attrition"] == "suspect"
    assert result.workload["in_flight"]["requests"][0] == 64
    assert result.workload["in_flight"]["requests"][-1] < 48


def test_a_queue_that_grows_shows_as_a_trend_and_a_settled_one_does_not() -> None:
    for growth, expected in ((40.0, "suspect"), (0.0, "ok")):
        summary = Summary()
        for k in range(200):
            summary.add(
                row(
                    [100 + growth * k + 7 * (k % 5), 6000 + growth * k],
                    request_id=str(k),
                    due_ms=50 * k,
                    send_ms=50 * k,
                )
            )
        result = summary.result(Manifest(rate_per_s=20.0))
        assert {check.id: check.verdict for check in result.validity.checks}["growing_queue"] == expected


def test_the_observers_lag_is_read_from_the_rows() -> None:
    summary = Summary()
    for k in range(50):
        summary.add(row([100, 120, 140], request_id=str(k), observer_lag_ns=30 * MS))
    result = summary.result(Manifest(stamps="kernel"))
    assert {check.id: check.verdict for check in result.validity.checks}["observer_lag"] == "suspect"
