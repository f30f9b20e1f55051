"""The plan: lazy, repeatable, the same whoever shares it."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import UserError
from phasemeter.workload.arrivals import Arrivals, parse_arrivals
from phasemeter.workload.lengths import parse_lengths
from phasemeter.workload.plan import (
    TraceRow,
    WorkloadClass,
    WorkloadSpec,
    check,
    parse_concurrency,
    parse_models,
    parse_prefix,
    plan,
    share_of,
)
from phasemeter.workload.think_time import ThinkTime


def spec(**fields: object) -> WorkloadSpec:
    first = {
        "arrivals": parse_arrivals("poisson", "5/s"),
        "requests": 40,
        "input_tokens": parse_lengths("uniform:32:128"),
    }
    return WorkloadSpec(**{**first, **fields})  # type: ignore[arg-type]


@given(
    st.integers(0, 2**40),
    st.sampled_from(["poisson", "constant", "gamma:2", "burst:3"]),
    st.sampled_from([1, 2, 7]),
    st.integers(1, 3),
)
@settings(deadline=None, max_examples=60)
def test_the_union_over_workers_is_the_plan(seed: int, pattern: str, workers: int, turns: int) -> None:
    asked = spec(seed=seed, arrivals=parse_arrivals(pattern, "5/s"), turns=turns, warmup_requests=2)
    whole = list(plan(asked))
    parts = [list(share_of(plan(asked), worker, workers)) for worker in range(workers)]
    union = sorted((request for part in parts for request in part), key=whole.index)
    assert union == whole
    for part in parts:  # a conversation stays with one worker
        mine = {request.conversation for request in part if request.conversation}
        assert all(mine.isdisjoint({r.conversation for r in other}) for other in parts if other is not part)


def test_workers_with_one_seed_get_different_requests() -> None:
    asked = spec(requests=400)
    first, second = (list(share_of(plan(asked), worker, 2)) for worker in (0, 1))
    assert [r.due_offset_ns for r in first] != [r.due_offset_ns for r in second]
    assert not {r.request_id for r in first} & {r.request_id for r in second}


def test_warm_up_does_not_change_what_is_measured() -> None:
    measured = [r for r in plan(spec(warmup_requests=9)) if r.phase == "measured"]
    assert measured == list(plan(spec()))
    warm = [r for r in plan(spec(warmup_requests=9, concurrency=4)) if r.phase == "warmup"]
    assert [r.slot for r in warm] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert all(r.due_offset_ns is None for r in warm)


def test_no_two_requests_of_a_plan_have_one_id() -> None:
    ids = [r.request_id for r in plan(spec(warmup_requests=9, turns=2))]
    assert len(set(ids)) == len(ids) == 49


def test_warm_up_by_time_is_the_head_of_the_same_arrivals() -> None:
    asked = spec(requests=None, duration_s=10.0, warmup_s=4.0)
    requests = list(plan(asked))
    assert all((r.phase == "warmup") == (r.due_offset_ns < 4 * 10**9) for r in requests if r.due_offset_ns is not None)
    assert max(r.due_offset_ns or 0 for r in requests) < 14 * 10**9
    assert {r.phase for r in requests} == {"warmup", "measured"}


def test_the_first_request_is_there_before_the_last_is_made() -> None:
    assert len(list(islice(plan(spec(requests=10**12)), 3))) == 3


@pytest.mark.parametrize("value", [0, -1, "0", "-3", "four", "1.5"])
def test_zero_is_not_unlimited(value: object) -> None:
    with pytest.raises(UserError):
        parse_concurrency(value)  # type: ignore[arg-type]


def test_unlimited_has_a_spelling_of_its_own() -> None:
    assert parse_concurrency(None) is None
    assert parse_concurrency("unlimited") is None
    assert parse_concurrency("8") == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"requests": None},
        {"requests": 0},
        {"duration_s": 0.0},
        {"arrivals": Arrivals(kind="closed")},
        {"arrivals": Arrivals(kind="inf"), "requests": None, "duration_s": 3.0},
        {"turns": 0},
        {"prefix_share": 1.5},
    ],
)
def test_an_impossible_workload_is_refused_before_anything_is_sent(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        check(spec(**wrong))


def test_a_trace_sends_every_row_once_in_order() -> None:
    rows = [TraceRow(offset_ns=i * 10**8, input_tokens=100 + i, output_tokens=5) for i in range(25)]
    asked = spec(arrivals=Arrivals(kind="trace"), requests=None)
    requests = list(plan(asked, rows))
    assert [r.input_tokens for r in requests] == list(range(100, 125))
    assert [r.due_offset_ns for r in requests] == [i * 10**8 for i in range(25)]
    assert len(list(plan(msgspec.structs.replace(asked, requests=10), rows))) == 10


@pytest.mark.parametrize("arrivals", [parse_arrivals("constant", "5/s"), Arrivals(kind="closed")])
def test_rows_without_stamps_follow_the_chosen_pattern_in_order(arrivals: Arrivals) -> None:
    rows = [TraceRow(input_tokens=100 + i) for i in range(25)]
    requests = list(plan(spec(arrivals=arrivals, requests=None, concurrency=2), rows))
    assert [r.input_tokens for r in requests] == list(range(100, 125))
    with pytest.raises(UserError, match="no time stamps"):
        list(plan(spec(arrivals=Arrivals(kind="trace"), requests=None), rows))


def test_a_mix_by_weight_is_what_its_weights_say() -> None:
    mix = (WorkloadClass(name="chat", weight=3), WorkloadClass(name="code", input_tokens=parse_lengths("900")))
    requests = list(plan(spec(requests=4000, classes=mix, models=parse_models("base=1,lora=1"))))
    share = sum(r.workload_class == "chat" for r in requests) / 4000
    assert abs(share - 0.75) < 0.04
    assert all(r.input_tokens == 900 for r in requests if r.workload_class == "code")
    assert abs(sum(r.model == "lora" for r in requests) / 4000 - 0.5) < 0.05


def test_only_the_first_turn_of_a_conversation_is_scheduled() -> None:
    requests = list(plan(spec(requests=24, turns=8)))
    assert [r.turn for r in requests] == list(range(8)) * 3
    assert all((r.due_offset_ns is None) == (r.turn > 0) for r in requests)


def test_think_time_stands_in_the_plan_of_a_closed_loop() -> None:
    requests = list(plan(spec(arrivals=Arrivals(kind="closed", think=ThinkTime(a_s=0.5)), concurrency=2)))
    assert {r.think_ns for r in requests} == {500_000_000}


@pytest.mark.parametrize("wrong", ["4", "0:5", "4:0", "a:b", "4:5:6"])
def test_a_prefix_option_that_is_none_says_how_to_write_it(wrong: str) -> None:
    with pytest.raises(UserError, match="GROUPS:TOKENS"):
        parse_prefix(wrong)


@pytest.mark.parametrize("wrong", ["a=0", "a=-1", "=3", "a=x,b=1", "a=inf"])
def test_a_weight_is_a_number_above_zero(wrong: str) -> None:
    with pytest.raises(UserError):
        parse_models(wrong)
