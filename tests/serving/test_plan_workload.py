"""Traces, classes and conversations in a plan: who asks what, and one line for what can't be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phasemeter.errors import UserError
from phasemeter.serving.demand import Draws
from phasemeter.serving.deploy import build
from phasemeter.serving.ended import Served
from phasemeter.serving.plan import Plan, demand_of, parse_plan
from phasemeter.serving.simulate import Simulation

PLAN = """
workload: {{{workload}}}
deployment: {{model: llama-3.1-8b, hardware: H100{more}}}
"""
TRACE = "timestamp,input_tokens,output_tokens\n0,100,5\n2,300,7\n3,50,1\n"


def reader(text: str = TRACE) -> Callable[[str], list[str]]:
    return lambda name: text.splitlines(keepends=True)


def plan_of(workload: str, more: str = "", text: str = TRACE) -> Plan:
    return parse_plan(PLAN.format(workload=workload, more=more), "plan.yaml", reader(text))


def served(plan: Plan) -> list[Served]:
    run = Simulation(build(plan, tokens=False), demand_of(plan), 3, tokens=False, sample_every_ns=10**9)
    return [one for one in run.run() if isinstance(one, Served)]


@pytest.mark.parametrize("workload", ["trace: t.csv", "arrivals: {trace: t.csv}, input_tokens: {trace: t.csv}"])
def test_a_trace_gives_arrivals_and_lengths_row_by_row(workload: str) -> None:
    found = [
        (one.arrival_ns, one.prompt_tokens, one.output_tokens) for one in demand_of(plan_of(workload)).open_loop(0)
    ]
    assert found == [(0, 100, 5), (2 * 10**9, 300, 7), (3 * 10**9, 50, 1)]


def test_a_trace_s_lengths_may_come_at_another_pace_and_end_the_run() -> None:
    found = list(demand_of(plan_of("trace: t.csv, arrivals: {constant: 10/s}, requests: 50")).open_loop(0))
    assert [(one.arrival_ns, one.prompt_tokens) for one in found] == [(0, 100), (10**8, 300), (2 * 10**8, 50)]


def test_a_trace_played_at_another_rate_keeps_its_shape() -> None:
    demand = demand_of(plan_of("trace: t.csv")).at_rate(2 / 1.5)
    assert [one.arrival_ns for one in demand.open_loop(0)] == [0, 10**9, 1_500_000_000]


def test_classes_are_drawn_by_weight_and_keep_their_lengths() -> None:
    plan = plan_of(
        "arrivals: {poisson: 1/s}, output_tokens: 9, requests: 2000, classes: "
        "[{name: a, weight: 3, input_tokens: 10}, {name: b, input_tokens: 20, output_tokens: 4}]"
    )
    found = [(one.prompt_tokens, one.output_tokens) for one in demand_of(plan).open_loop(1)]
    assert set(found) == {(10, 9), (20, 4)} and 0.7 < found.count((10, 9)) / 2000 < 0.8


@pytest.mark.parametrize("arrivals", ["{poisson: 2/s}", "{concurrency: 3}"])
def test_a_turn_holds_what_was_said_and_comes_after_its_answer_and_a_thought(arrivals: str) -> None:
    plan = plan_of(
        f"arrivals: {arrivals}, input_tokens: 40, output_tokens: 10, turns: 4, think_time: 2 s, requests: 30"
    )
    found = {one.request.request_id: one for one in served(plan)}
    assert len(found) == 30
    for index in range(30):
        one = found[f"r{index}"]
        assert one.request.prompt_tokens == 40 + 50 * (index % 4)
        if index % 4:
            before = found[f"r{index - 1}"].truth.finish_ns
            assert one.truth.arrival_ns == before + 2 * 10**9


def test_a_prefix_cache_finds_a_conversation_s_history() -> None:
    workload = "arrivals: {concurrency: 1}, input_tokens: 64, output_tokens: 32, turns: 3, requests: 9"
    for more in (", prefix_cache: true", ", prefix_cache: true, split: {}"):
        cached = [one.truth.cached_tokens for one in served(plan_of(workload, more))]
        assert cached[0] == cached[3] == 0
        assert all(c > 0 for i, c in enumerate(cached) if i % 3), (more, cached)
    assert not any(one.truth.cached_tokens for one in served(plan_of(workload)))


def test_equal_blocks_of_a_trace_have_equal_names() -> None:
    rows = '{"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]}\n'
    text = rows + rows.replace("[1, 2]", "[1, 3]").replace('"timestamp": 0', '"timestamp": 1000')
    one, two = demand_of(plan_of("trace: t.jsonl", ", prefix_cache: true", text)).open_loop(0)
    assert one.block_hashes[:32] == two.block_hashes[:32] and not set(one.block_hashes[32:]) & set(
        two.block_hashes[32:]
    )


@pytest.mark.parametrize(("block_size", "shared"), [(16, 4), (32, 2), (8, 8), (64, 1)])
def test_blocks_of_16_tokens_are_shared_by_engines_of_any_block_size(block_size: int, shared: int) -> None:
    row = '{"chat_id": 1, "parent_chat_id": -1, "timestamp": %d, "input_length": 96, "output_length": 3, "hash_ids": [1, 2, 3, 4, %s]}\n'
    text = row % (0, "5, 6") + row % (1, "7, 8")
    one, two = demand_of(plan_of("trace: t.jsonl", f", prefix_cache: true, block_size: {block_size}", text)).open_loop(
        0
    )
    equal = [a == b for a, b in zip(one.block_hashes, two.block_hashes, strict=True)]
    assert equal == [True] * shared + [False] * (96 // block_size - shared)


def test_draws_depend_on_seed_and_index_alone() -> None:
    demand = demand_of(plan_of("arrivals: {poisson: 1/s}, input_tokens: uniform:1:900, output_tokens: uniform:1:90"))
    draws = Draws(demand, 5)
    there, back = [draws.request(i, 0) for i in range(30)], [draws.request(i, 0) for i in reversed(range(30))]
    assert there == back[::-1] != [Draws(demand, 6).request(i, 0) for i in range(30)]


L, A = "input_tokens: 9, output_tokens: 9", "arrivals: {poisson: 1/s}"
MISTAKES = {
    "no arrivals": (L, "", "`workload.arrivals`: missing"),
    "arrivals of a wrong type": (f"{L}, arrivals: 4", "", "`workload.arrivals`: 4"),
    "no lengths": (f"{A}, input_tokens: 9", "", "`workload.output_tokens`: missing"),
    "two traces": ("trace: a.csv, input_tokens: {trace: b.csv}", "", "two traces are named"),
    "no turns": (f"{L}, {A}, turns: 0", "", "`workload.turns`: 0 is too few"),
    "turns of a trace": ("trace: a.csv, turns: 2", "", "`workload.turns`"),
    "an empty prefix": (f"{L}, {A}, shared_prefix: {{tokens: 0}}", "", "`workload.shared_prefix`"),
    "a class without weight": (f"{L}, {A}, classes: [{{name: a, weight: 0}}]", "", "`workload.classes[0].weight`"),
    "a class with a strange key": (f"{L}, {A}, classes: [{{name: a, size: 0}}]", "", "no such key"),
    "a thought that is no time": (f"{L}, {A}, think_time: soon", "", "`workload.think_time`"),
    "no duration": (f"{L}, {A}, duration: 0 s", "", "`workload.duration`"),
    "a policy on a split": (f"{L}, {A}", ", policy: sarathi, split: {}", "`deployment.policy`: sarathi"),
    "both lines and tables": (
        f"{L}, {A}", ", step_time: {linear: {prefill_s: [1, 0, 0], decode_s: [1, 0, 0]}, tables: there}", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_path(mistake: str) -> None:
    workload, more, words = MISTAKES[mistake]
    with pytest.raises(UserError) as caught:
        plan_of(workload, more)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_row_in_doubt_is_named_with_its_line() -> None:
    with pytest.raises(UserError, match=r"t\.csv:3"):
        plan_of("trace: t.csv", text=TRACE.replace("2,300,7", "2,many,7"))


def test_a_file_needs_somebody_who_reads() -> None:
    with pytest.raises(UserError, match="without a folder"):
        parse_plan(PLAN.format(workload="trace: t.csv", more=""))
