"""Met, missed, undecided: never flattering, and wrong at the boundary no more often than promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.contract.goodput import goodput, judge
from phasemeter.contract.lines import Histogram, decided
from phasemeter.contract.model import parse
from phasemeter.contract.verdict import Check, Facts, check, overall
from phasemeter.errors import FileError
from tests.contract.rows import row

settings.register_profile("ours", deadline=None, max_examples=60)
settings.load_profile("ours")


def verdict(text: str, rows: list, **facts: object) -> Check:  # type: ignore[type-arg]
    return check(parse("phasemeter: 1\n" + text), Facts(rows=rows, **facts))  # type: ignore[arg-type]


def test_the_whole_interval_on_one_side_decides_and_nothing_else() -> None:
    assert decided((0.1, 0.2), 0.2) == "met"
    assert decided((0.21, 0.3), 0.2) == "missed"
    assert decided((0.1, 0.3), 0.2) == "undecided"
    assert decided((0.1, None), 0.2) == "undecided"
    assert decided((None, 0.1), 0.2) == "met"
    assert decided((0.95, 0.99), 0.9, at_most=False) == "met"
    assert decided((0.7, 0.8), 0.9, at_most=False) == "missed"


@given(st.lists(st.sampled_from(["met", "missed", "undecided"])))
def test_missed_beats_undecided_beats_met(verdicts: list) -> None:  # type: ignore[type-arg]
    expected = next((v for v in ("missed", "undecided") if v in verdicts), "met" if verdicts else "undecided")
    assert overall(verdicts) == expected


def test_a_clear_run_meets_and_a_slow_one_misses() -> None:
    fast = [row(i, ttft=0.2) for i in range(100)]
    assert verdict("latency_slo: {ttft: {p95: 450 ms}}", fast).verdict == "met"
    assert verdict("latency_slo: {ttft: {p95: 150 ms}}", fast).verdict == "missed"


def test_too_few_requests_are_undecided_with_the_number_that_would_decide() -> None:
    line = verdict("latency_slo: {ttft: {p99: 450 ms}}", [row(i) for i in range(100)]).lines[0]
    assert (line.verdict, line.n_to_decide, line.reason) == ("undecided", 368, "too_few_samples")


def test_failures_rank_as_never_and_the_ok_only_value_stands_beside() -> None:
    bad = {"outcome": "failed", "first_token_ns": None}
    rows = [row(i, **(bad if i * 7 % 11 < 2 else {})) for i in range(220)]
    line = verdict("latency_slo: {ttft: {p95: 450 ms}}", rows).lines[0]
    assert line.verdict == "missed"
    assert line.value is None  # never
    assert line.ok_only == pytest.approx(0.2)


def test_a_failed_request_with_a_quick_first_token_is_still_never() -> None:
    assert judge(row(outcome="failed", ttft=0.01), {"ttft": 1.0}) == "bad"


def test_what_the_runs_end_cut_off_counts_at_its_age_at_least() -> None:
    cut = {"outcome": "cancelled", "first_token_ns": None, "first_output_ns": None, "last_token_ns": None}

    def seen(age_s: float) -> list:  # type: ignore[type-arg]
        ends = [{**cut, "stream_end_ns": round(i * 5e8 + age_s * 1e9)} for i in range(100)]
        return [row(i, **(ends[i] if i * 7 % 10 < 2 else {})) for i in range(100)]

    assert verdict("latency_slo: {ttft: {p90: 450 ms}}", seen(9.0)).lines[0].verdict == "missed"  # 9 s old and no token
    line = verdict("latency_slo: {ttft: {p90: 450 ms}}", seen(0.1)).lines[0]
    assert line.verdict == "undecided"  # 0.1 s old: could still have gone either way


def test_an_invalid_run_is_undecided_never_met_and_never_missed() -> None:
    for limit in ("450 ms", "1 ms"):
        answer = verdict(f"latency_slo: {{ttft: {{p95: {limit}}}}}", [row(i) for i in range(100)], validity="invalid")
        assert answer.verdict == "undecided"
        assert answer.exit_code == 3


def test_a_line_without_evidence_is_undecided_and_says_so() -> None:
    answer = verdict("phase_budget: {queue: {p95: 1 s}}", [row(i) for i in range(100)])
    assert (answer.lines[0].verdict, answer.lines[0].reason, answer.exit_code) == ("undecided", "no_evidence", 3)
    one = verdict("latency_slo: {tpot: {p95: 1 s}}", [row(i, tokens=1) for i in range(100)])
    assert (one.lines[0].verdict, one.lines[0].reason) == ("undecided", "no_evidence")
    assert "fewer_than_2_tokens" in one.lines[0].notes[0]


def test_server_evidence_decides_a_phase() -> None:
    facts = {"phases": {"queue": [0.01 + 0.0001 * (i * 37 % 100) for i in range(200)]}}
    assert verdict("phase_budget: {queue: {p95: 100 ms}}", [row()], **facts).verdict == "met"


def test_what_must_be_on_record_and_is_not_is_missed() -> None:
    rows = [row(i, sent_ns=None) for i in range(5)]
    answer = verdict("observability: {client: [sent, last_token], server: [queue]}", rows)
    assert [line.verdict for line in answer.lines] == ["missed", "met", "missed"]


@pytest.mark.parametrize(
    ("phase", "share"),
    [([0.01], 0.2), ([0.01] * 5, 1.0), (Histogram(edges_s=(1.0,), cumulative=(4.0, 4.0)), 0.8),
     (Histogram(edges_s=(1.0,), cumulative=(5.0, 7.0)), 1.0)],
)  # fmt: skip
def test_what_a_server_told_of_some_requests_only_is_not_on_record(
    phase: list[float] | Histogram, share: float
) -> None:
    line = verdict("observability: {server: [queue]}", [row(i) for i in range(5)], phases={"queue": phase}).lines[-1]
    assert (line.value, line.n, line.verdict) == (share, 5, "met" if share == 1 else "missed")


def test_another_workload_than_promised_decides_nothing() -> None:
    rows = [row(i, tokens=11) for i in range(100)]
    text = "workload: {output_tokens: 128}\nlatency_slo: {ttft: {p95: 450 ms}}"
    answer = verdict(text, rows)
    assert answer.verdict == "undecided"
    assert answer.lines[1].reason == "other_workload"


def test_a_bare_ttft_on_a_reasoning_run_asks_for_the_token_class() -> None:
    rows = [row(i, reasoning_tokens=5) for i in range(100)]
    assert "ttfo" in verdict("latency_slo: {ttft: {p95: 1 s}}", rows).warnings[0]
    assert not verdict("latency_slo: {ttfo: {p95: 1 s}}", rows).warnings


def test_goodput_promised_above_what_was_offered_is_undecided() -> None:
    rows = [row(i) for i in range(200)]  # two a second
    text = "capacity: {objectives: {ttft: 1 s}, goodput: 3.5 req/s}"
    line = verdict(text, rows, offered_per_s=2.0).lines[0]
    assert line.verdict == "undecided"
    assert (line.reason or "").startswith("offered_less")


def test_what_a_cut_off_run_never_offered_does_not_lower_its_rates() -> None:
    rows = [row(i) for i in range(200)]  # two a second
    unsent = [row(i, outcome="unsent", send_start_ns=None, sent_ns=None) for i in range(200, 1000)]
    text = "workload: {arrivals: {poisson: 2/s}}\ncapacity: {objectives: {ttft: 1 s}, goodput: 1.8 req/s}"
    whole, cut = verdict(text, rows), verdict(text, [*rows, *unsent])
    assert [(line.verdict, line.value) for line in cut.lines] == [(line.verdict, line.value) for line in whole.lines]
    assert whole.verdict == "met"


def test_a_cut_off_request_has_no_age_in_a_metric_that_it_could_never_have() -> None:
    """A first token's time of an answer that is not streamed, a connection's of one that was open: the rest of the run has none."""
    cut: dict[str, object] = {"outcome": "cancelled", "stream": False, "first_token_ns": None, "first_output_ns": None}
    rows = [row(i, **(cut | {"connect_start_ns": 0, "due_ns": 10**9})) for i in range(1, 60)]  # type: ignore[arg-type]
    for metric in ("ttft", "ttfo", "ttft_from_due", "generation", "connect", "tpot"):
        line = verdict(f"latency_slo: {{{metric}: {{p50: 1 ms}}}}", rows).lines[0]
        assert (line.verdict, line.value, line.reason) == ("undecided", None, "no_evidence"), metric
    assert verdict("latency_slo: {e2e: {p50: 1 ms}}", rows).lines[0].value is not None


def test_cost_follows_from_the_price_and_the_tokens() -> None:
    rows = [row(i) for i in range(400)]  # 22 tokens a second
    answer = verdict("cost: {price_per_hour: 2.2, per_million_output_tokens: 100}", rows)
    assert answer.lines[0].value == pytest.approx(2.2 / 3600 / 22 * 1e6, rel=0.02)
    assert answer.verdict == "met"


@given(st.lists(st.sampled_from(["ok", "slow", "failed", "one", "cut", "cut_late", "unsent"]), min_size=1, max_size=40))
def test_goodput_counts_each_request_once_by_its_rule(kinds: list[str]) -> None:
    made = {
        "ok": ({}, "good"), "slow": ({"ttft": 2.0}, "bad"), "failed": ({"outcome": "failed"}, "bad"),
        "one": ({"tokens": 1}, "not_evaluable"), "unsent": ({"outcome": "unsent"}, "unsent"),
        "cut": ({"outcome": "cancelled"}, "not_evaluable"), "cut_late": ({"outcome": "cancelled", "ttft": 2.0}, "bad"),
    }  # fmt: skip
    objectives = {"ttft": 1.0, "tpot": 0.05}
    rows = [row(i, **made[kind][0]) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]
    seen = goodput(rows, objectives)
    expected = [made[kind][1] for kind in kinds]
    assert [judge(r, objectives) for r in rows] == expected
    assert (seen.good, seen.bad, seen.not_evaluable, seen.unsent) == tuple(
        expected.count(each) for each in ("good", "bad", "not_evaluable", "unsent")
    )
    assert sum(seen.not_evaluable_reasons.values()) == seen.not_evaluable


def test_joint_attainment_is_below_each_marginal_and_grows_with_the_scale() -> None:
    generator = np.random.default_rng(1)
    rows = [
        row(i, ttft=float(generator.lognormal(-1.6, 0.5)), tpot=float(generator.lognormal(-4, 0.3))) for i in range(500)
    ]
    seen = goodput(rows, {"ttft": 0.3, "tpot": 0.02})
    assert seen.attainment is not None
    assert all(share is not None and seen.attainment <= share for share, _ in seen.marginal.values())
    curve = [v for v in seen.sensitivity.values() if v is not None]
    assert curve == sorted(curve)
    assert seen.sensitivity["1"] == seen.attainment


@pytest.mark.parametrize("alike", [False, True])
def test_a_met_at_the_boundary_is_wrong_in_at_most_5_percent(alike: bool) -> None:
    """The true p95 lies exactly on the limit (the hardest service that still breaks it): the whole procedure, correlated too."""
    generator = np.random.default_rng(11)
    phi, n, trials = (0.7 if alike else 0.0), 400, 250
    contract = parse("phasemeter: 1\nlatency_slo: {ttft: {p95: 200 ms}}")
    met = 0
    for _ in range(trials):
        noise = generator.standard_normal(n)
        values = np.empty(n)
        values[0] = noise[0]
        for i in range(1, n):
            values[i] = phi * values[i - 1] + math.sqrt(1 - phi * phi) * noise[i]
        ttfts = 0.2 * np.exp(0.4 * (values - 1.6448536))
        met += check(contract, Facts(rows=[row(i, ttft=float(t)) for i, t in enumerate(ttfts)])).verdict == "met"
    assert met / trials <= 0.05


def test_undecided_shrinks_as_n_grows() -> None:
    generator = np.random.default_rng(12)
    contract = parse("phasemeter: 1\nlatency_slo: {ttft: {p90: 240 ms}}")  # the true p90 is 200 ms
    shares = []
    for n in (40, 120, 400):
        verdicts = []
        for _ in range(60):
            ttfts = 0.2 * np.exp(0.5 * (generator.standard_normal(n) - 1.2815516))
            verdicts.append(check(contract, Facts(rows=[row(i, ttft=float(t)) for i, t in enumerate(ttfts)])).verdict)
        shares.append(verdicts.count("undecided") / 60)
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.1


def test_another_tools_metric_can_be_promised_under_its_own_definition() -> None:
    rows = [row(i) for i in range(100)]
    text = (
        "latency_slo: {'vllm:ttft': {p95: 450 ms}, 'aiperf:inter_token_latency': {p95: 25 ms}, 'vllm:itl': {p95: 1 s}}"
    )
    answer = verdict(text, rows)
    assert [line.verdict for line in answer.lines] == ["met", "met", "undecided"]  # no events in these rows: no gaps
    with pytest.raises(FileError, match="did you mean `vllm:ttft`"):
        parse("phasemeter: 1\nlatency_slo: {'vllm:ttfft': {p95: 1 s}}")


@pytest.mark.parametrize(("limit", "expected"), [("1 s", "met"), ("10 ms", "missed"), ("300 ms", "undecided")])
def test_a_histogram_decides_only_where_both_edges_beside_the_limit_agree(limit: str, expected: str) -> None:
    seen = Histogram(edges_s=(0.01, 0.1, 0.5, 1.0, math.inf), cumulative=(10, 500, 990, 1000, 1000))
    line = verdict(f"phase_budget: {{queue: {{p95: {limit}}}}}", [row()], phases={"queue": seen}).lines[0]
    assert line.verdict == expected
    assert line.ci95 == (0.1, 0.5)


def test_another_concurrency_than_promised_decides_nothing() -> None:
    text = "workload: {arrivals: {concurrency: 8}}\nlatency_slo: {ttft: {p95: 1 s}}"
    rows = [row(i) for i in range(100)]
    assert verdict(text, rows, manifest={"concurrency": 8}).verdict == "met"
    assert verdict(text, rows, manifest={"concurrency": 2}).verdict == "undecided"


@pytest.mark.parametrize("target", [0.9, 0.99])
def test_an_attainment_at_the_boundary_is_met_in_at_most_5_percent(target: float) -> None:
    generator = np.random.default_rng(13)
    contract = parse(f"phasemeter: 1\ncapacity: {{objectives: {{ttft: 1 s}}, attainment: {100 * target:g} %}}")
    met = 0
    for _ in range(200):
        good = generator.random(300) < target
        rows = [row(i, ttft=0.5 if g else 2.0) for i, g in enumerate(good)]
        met += check(contract, Facts(rows=rows)).verdict == "met"
    assert met / 200 <= 0.05
