"""A cause is named only when its numbers are on record; without them the diagnosis says what is missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.phases.budget import budget_of
from phasemeter.phases.causes import RULES
from phasemeter.phases.diagnosis import diagnose
from phasemeter.phases.features import Features, ServerWindow, features_of, rank_correlation
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from tests.phases.test_budget import row, told

MS = 1_000_000
WHOLE = {"queue": 0.02, "prefill": 0.05, "ingress_delivery": 0.02, "decode": 0.9, "client_queue": 0.01}
BASE = Features(
    requests=200, with_evidence=200, ttft_p50_s=0.2, ttft_p99_s=0.4, tpot_p50_s=0.02, e2e_p50_s=2.0, alone_ttft_s=0.15,
    alone_tpot_s=0.018, whole=WHOLE, whole_tail=WHOLE, queue_share=0.2, prefill_share=0.6, lump_share=0.2, held_back=0.01,
    server=ServerWindow(preemptions=0, kv_usage_max=0.6),
)  # fmt: skip


def mostly(segment: str, share: float = 0.7) -> dict[str, dict[str, float]]:
    """A budget that one segment rules."""
    rest = 1 - share
    found = {name: value * rest for name, value in WHOLE.items()} | {segment: share}
    return {"whole": found, "whole_tail": found}


CASES: dict[str, dict[str, Any]] = {
    "client_saturation": mostly("client_queue"),
    "queueing": mostly("queue") | {"queue_share": 0.9},
    "kv_exhaustion": mostly("queue") | {"server": ServerWindow(preemptions=80, kv_usage_max=0.99)},
    "scheduler_policy": mostly("queue") | {"held_back": 0.8},
    "prefill_compute": mostly("prefill") | {"prefill_share": 0.9, "input_to_prefill": 0.95},
    "prefill_decode_interference": {"interference_share": 0.5, "interference_contrast": 4.0},
    "decode_batch_growth": {"growth": 2.5, "growth_share": 0.4},
    "decode_compute": {"alone_tpot_s": 0.09, "tpot_p50_s": 0.095},
    "prefix_cache": {"cached_ttft_ratio": 0.1, "cached_share": 0.5},
    "network_or_buffering": mostly("ingress_delivery"),
    "server_front_end": mostly("ingress_delivery") | {"front_end": 0.6, "front_end_share": 0.8, "lump_share": 0.85},
    "kv_movement": {"server": ServerWindow(kv_transfer_mean_s=0.8), "first_gap_share": 0.4},
    "multi_token_streaming": {"tokens_per_chunk": 3.0},
    "reasoning_time": mostly("reasoning"),
    "warm_up": {"warmup_ratio": 5.0},
}


@pytest.mark.parametrize("cause", CASES)
def test_a_cause_whose_evidence_stands_out_comes_first(cause: str) -> None:
    found = diagnose(msgspec.structs.replace(BASE, **CASES[cause]))
    assert found.causes[0].cause == cause and found.steps[5].finding == cause


def test_a_healthy_run_has_no_cause() -> None:
    found = diagnose(BASE)
    assert found.causes == () and found.steps[5].strength == "cannot say" and found.missing == ()


def test_without_numbers_nothing_is_said_and_what_is_missing_is() -> None:
    found = diagnose(Features())
    assert found.causes == () and len(found.missing) == 3
    assert [step.step for step in found.steps] == [1, 2, 3, 4, 5, 6] and {s.strength for s in found.steps} == {
        "cannot say"
    }


def test_few_requests_carry_only_weak_causes() -> None:
    found = diagnose(msgspec.structs.replace(BASE, requests=8, **CASES["queueing"]))
    assert {cause.strength for cause in found.causes} == {"weak"}


def test_a_queue_that_has_a_reason_stands_behind_it_and_is_not_certain() -> None:
    found = diagnose(msgspec.structs.replace(BASE, **CASES["scheduler_policy"]))
    assert [cause.cause for cause in found.causes] == ["scheduler_policy", "queueing"]
    assert found.causes[1].strength == "likely"


def test_what_takes_little_of_the_time_is_no_cause() -> None:
    """TTFT may be prefill altogether: while it is a twentieth of the time, nothing is slow because of it."""
    found = diagnose(msgspec.structs.replace(BASE, prefill_share=0.99, input_to_prefill=1.0))
    assert found.causes == ()


def test_a_wait_that_is_neither_queue_nor_prefill_is_not_called_the_larger_of_them() -> None:
    found = diagnose(msgspec.structs.replace(BASE, queue_share=0.05, prefill_share=0.1, lump_share=0.85)).steps[1]
    assert found.finding.startswith("neither") and "the rest 85%" in found.evidence
    assert diagnose(BASE).steps[1].finding == "prefill"


def test_what_the_servers_own_ttft_holds_of_the_lump_is_no_network() -> None:
    lump = mostly("ingress_delivery", 0.5) | {"lump_share": 0.8}
    outside = diagnose(msgspec.structs.replace(BASE, **lump))
    inside = diagnose(msgspec.structs.replace(BASE, front_end=0.45, front_end_share=0.7, **lump))
    assert [cause.cause for cause in outside.causes] == ["network_or_buffering"]
    assert [cause.cause for cause in inside.causes] == ["server_front_end"]
    assert "70% inside the server's own TTFT" in inside.steps[1].evidence


def test_output_that_arrives_faster_than_it_was_made_was_held_back() -> None:
    """vLLM keeps the text of a named tool's call until it knows its name; the tokens are made meanwhile."""
    decode = WHOLE | {"decode": 0.4}
    found = diagnose(msgspec.structs.replace(BASE, decode_stretch=0.4, whole=decode, whole_tail=decode))
    assert found.causes[0].cause == "network_or_buffering" and "held back" in found.causes[0].evidence
    for stretch in (0.8, None):
        assert diagnose(msgspec.structs.replace(BASE, decode_stretch=stretch)).causes == ()


def test_the_front_end_is_read_off_the_servers_own_ttft() -> None:
    rows = [row((0, 0, 0, 100 + i), request_id=f"r{i}", output_tokens=5) for i in range(12)]
    parts = [told("queue", 10e-9), told("prefill", 30e-9)]
    with_ttft = {one.request_id: budget_of(one, [*parts, told("ttft", 80e-9)]) for one in rows}
    waits = sum(100 + i for i in range(12))
    assert features_of(rows, with_ttft).front_end_share == pytest.approx(12 * 40 / waits)
    assert features_of(rows, {one.request_id: budget_of(one, parts) for one in rows}).front_end_share is None


def test_a_contract_says_whether_it_matters() -> None:
    kept = diagnose(msgspec.structs.replace(BASE, attainment=0.995, attainment_wanted=0.99)).steps[4]
    broken = diagnose(
        msgspec.structs.replace(BASE, attainment=0.7, attainment_wanted=0.99, breaches={"ttft": 0.3, "tpot": 0.0})
    ).steps[4]
    assert (kept.finding, broken.finding) == ("no", "yes") and "ttft by 30%" in broken.evidence


SERVER_CAUSES = {
    "queueing",
    "kv_exhaustion",
    "prefill_compute",
    "prefill_decode_interference",
    "kv_movement",
    "scheduler_policy",
}
CLIENT = (
    "coalesced_share", "single_arrivals", "running_to_tpot", "input_to_ttft", "ttft_p50_s", "tpot_p50_s", "e2e_p50_s",
    "alone_ttft_s", "alone_tpot_s", "warmup_ratio", "growth", "growth_share", "clean_gap_s", "first_gap_share", "first_gap_ratio",
)  # fmt: skip
share = st.none() | st.floats(0, 1)
whole = st.fixed_dictionaries(
    dict.fromkeys(("client_queue", "reasoning", "decode", "stalls", "unattributed"), st.floats(0, 1))
)


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(CLIENT, share)), whole)
def test_the_client_alone_never_names_a_servers_cause(seen: dict[str, float | None], shares: dict[str, float]) -> None:
    found = diagnose(Features(requests=500, stalls=50, whole=shares, whole_tail=shares, **seen))  # type: ignore[arg-type]
    assert not SERVER_CAUSES & {cause.cause for cause in found.causes}
    assert {c.cause for c in found.causes} <= set(RULES)
    weak = [cause.strength == "weak" for cause in found.causes]
    assert weak == sorted(weak)


def test_features_come_from_rows_and_budgets() -> None:
    rows: list[RequestRow] = []
    budgets = {}
    for i in range(40):
        made = row((0, 0, 0, 1000 + 100 * i), request_id=f"r{i}", input_tokens=10 * (i + 1), output_tokens=5)
        values: list[EvidenceValue] = [told("queue", 500e-9), told("prefill", (400 + 100 * i) * 1e-9)]
        rows.append(made)
        budgets[made.request_id] = budget_of(made, values)
    found = features_of(rows, budgets)
    assert (found.requests, found.with_evidence) == (40, 40)
    assert found.input_to_prefill == pytest.approx(1) and found.input_to_ttft == pytest.approx(1)
    total = sum(1000 + 100 * i for i in range(40))
    assert (
        found.queue_share == pytest.approx(500 * 40 / total)
        and sum(found.whole.values()) == pytest.approx(1)
        and found.tokens_per_chunk == pytest.approx(1)
    )
    assert found.stalls == 40 and found.coalesced_share == 0


def test_a_stall_knows_how_many_prefills_were_beside_it() -> None:
    victim = row((0, 0, 0, 10), (100, 100, 100, 5000, 100), request_id="v", output_tokens=6)
    budgets = {"v": budget_of(victim, [told("queue", 0.0), told("prefill", 10e-9)])}
    stall_start = victim.choices[0].times_ns[3]
    others = []
    for number, at in enumerate((stall_start + 1000, stall_start + 3000, stall_start + 90_000)):
        base = row((0, 0, 0, 500), (100,), request_id=f"o{number}", output_tokens=2)
        shift = at - base.due_ns
        moved = {
            name: getattr(base, name) + shift
            for name in ("due_ns", "connect_start_ns", "send_start_ns", "sent_ns", "first_token_ns", "first_output_ns",
                         "last_token_ns", "stream_end_ns")
        }  # fmt: skip
        times = tuple(t + shift for t in base.choices[0].times_ns)
        others.append(msgspec.structs.replace(base, choices=(ChoiceTimes(times_ns=times, reads=(0, 1)),), **moved))
        budgets[f"o{number}"] = budget_of(others[-1], [told("queue", 0.0), told("prefill", 500e-9)])
    found = features_of([victim, *others], budgets)
    assert (found.stalls, found.stalls_in_prefill, found.prefills_beside_a_stall) == (1, 1, 2)


def test_probes_are_the_single_requests_and_no_part_of_the_load() -> None:
    rows = [row((0, 0, 0, 500), request_id="p", phase="probe"), row((0, 0, 0, 900), request_id="m")]
    found = features_of(rows, {})
    assert (found.alone_ttft_s, found.ttft_p50_s, found.requests) == (500e-9, 900e-9, 1)


def test_rank_correlation_ignores_scale_and_needs_variety() -> None:
    values = [float(i) for i in range(12)]
    assert rank_correlation(values, [v**3 for v in values]) == pytest.approx(1)
    assert rank_correlation(values, [-v for v in values]) == pytest.approx(-1)
    assert rank_correlation(values, [1.0] * 12) is None and rank_correlation(values[:5], values[:5]) is None


def test_most_of_a_long_wait_is_a_cause_however_long_the_answer_is() -> None:
    far = {"whole": WHOLE | {"ingress_delivery": 0.1}, "lump_share": 0.8, "queue_share": 0.05, "prefill_share": 0.15}
    slow = diagnose(msgspec.structs.replace(BASE, ttft_p50_s=0.7, **far))
    assert slow.causes[0].cause == "network_or_buffering"
    assert not diagnose(msgspec.structs.replace(BASE, ttft_p50_s=0.4, **far)).causes


def test_a_pace_beyond_that_of_single_requests_is_the_batch_where_no_prefill_took_it() -> None:
    crowded = {"alone_tpot_s": 0.02, "tpot_p50_s": 0.034, "clean_gap_s": 0.024, "growth": 1.3, "growth_share": 0.1}
    assert diagnose(msgspec.structs.replace(BASE, **crowded)).causes[0].cause == "decode_batch_growth"
    others = crowded | {"interference_share": 0.35, "interference_contrast": 3.0}
    assert diagnose(msgspec.structs.replace(BASE, **others)).causes[0].cause == "prefill_decode_interference"


@pytest.mark.parametrize("known", [True, False])
def test_chunks_of_several_tokens_are_no_slow_pace_even_where_none_tells_its_count(known: bool) -> None:
    rows = []
    for number in range(40):
        one = row((0, 0, 0, 100 * MS), (40 * MS,) * 20, request_id=f"r{number}", output_tokens=84)
        if known:
            choice = msgspec.structs.replace(one.choices[0], tokens=(4,) * 21)
            one = msgspec.structs.replace(one, choices=(choice,))
        rows.append(one)
    parts = (told("queue", 0.01), told("prefill", 0.05))
    found = features_of(rows, {one.request_id: budget_of(one, parts) for one in rows})
    assert found.clean_gap_s == pytest.approx(0.01) and found.tokens_per_chunk == pytest.approx(4)
    assert [cause.cause for cause in diagnose(found).causes] == ["multi_token_streaming"]
