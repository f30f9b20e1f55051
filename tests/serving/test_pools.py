"""A prefill pool and a decode pool: KV stays until it is pulled, nothing is lost, memory is kept."""

from __future__ import annotations

from random import Random

import pytest

from phasemeter.errors import UserError
from phasemeter.serving.cluster import Serving
from phasemeter.serving.deploy import build
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished, Preempted, Prefilled, Pull, Tokens, Truth
from phasemeter.serving.kv_cache import CountedKv
from phasemeter.serving.plan import parse_plan
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime

MODEL = LinearStepTime(fixed=5 << 10, per_decode=300, per_context=3, per_new_token=200, per_swapped_block=50)
LINK_NS = 40


def served(seed: int, decode_blocks: int) -> tuple[dict[str, Truth], int]:
    """Everything through both pools, instant by instant, oldest first."""
    random = Random(seed)
    prefill = Engine(POLICIES["distserve_prefill"](), CountedKv(30, 4), MODEL, Limits(max_num_seqs=8))
    decode = Engine(POLICIES["distserve_decode"](), CountedKv(decode_blocks, 4), MODEL, Limits(max_num_seqs=8))
    asked = {
        str(i): Request(
            request_id=str(i),
            prompt_tokens=random.randrange(1, 50),
            output_tokens=random.randrange(1, 40),
            arrival_ns=i * 20,
        )
        for i in range(30)
    }
    coming = list(asked.values())
    links: list[tuple[int, str]] = []
    done: dict[str, Truth] = {}
    swaps = 0
    while True:
        dues = [d for d in (prefill.due_ns(), decode.due_ns()) if d is not None]
        dues += [r.arrival_ns for r in coming[:1]] + [at for at, _ in links[:1]]
        if not dues:
            break
        now = min(dues)
        while coming and coming[0].arrival_ns <= now:
            prefill.submit(now, coming.pop(0))
        while links and links[0][0] <= now:
            _, name = links.pop(0)
            decode.delivered(now, name)
            prefill.release(now, name)
        for event in prefill.advance(now) + decode.advance(now):
            if isinstance(event, Prefilled):
                decode.offer(now, asked[event.request_id])
            elif isinstance(event, Pull):
                assert event.tokens == asked[event.request_id].prompt_tokens
                links.append((now + LINK_NS, event.request_id))
            elif isinstance(event, Finished):
                done[event.request_id] = event.truth
            elif isinstance(event, Preempted):
                swaps += event.how == "swap"
    assert prefill.state.kv.free == 30 and decode.state.kv.free == decode_blocks
    assert sorted(done) == sorted(asked)
    return done, swaps


def test_every_request_goes_through_both_pools_and_all_memory_comes_back() -> None:
    swapped = 0
    for seed in range(40):
        done, swaps = served(seed, 30 + seed)
        swapped += swaps
        for truth in done.values():
            assert truth.arrival_ns <= truth.prefill_start_ns <= truth.finish_ns
            assert truth.stall_preempted_ns <= truth.finish_ns - truth.first_token_ns
    assert swapped > 10


def test_a_finished_prompt_keeps_its_memory_until_released() -> None:
    engine = Engine(POLICIES["distserve_prefill"](), CountedKv(10, 4), MODEL, Limits())
    for name in "ab":
        engine.submit(0, Request(request_id=name, prompt_tokens=24, output_tokens=2, arrival_ns=0))
    first = [e for e in engine.advance(10**6) if isinstance(e, Prefilled)]
    assert [e.request_id for e in first] == ["a"] and engine.due_ns() is None and engine.state.kv.free == 4
    engine.release(10**6, "a")
    assert engine.due_ns() == 10**6
    then = [e for e in engine.advance(10**7) if isinstance(e, Prefilled)]
    assert [e.request_id for e in then] == ["b"] and then[0].truth.prefill_start_ns == 10**6


def test_a_one_token_answer_is_never_offered_to_decode() -> None:
    engine = Engine(POLICIES["distserve_decode"](), CountedKv(10), MODEL, Limits())
    with pytest.raises(UserError, match="nothing is left to decode"):
        engine.offer(0, Request(request_id="a", prompt_tokens=4, output_tokens=1, arrival_ns=0))


PLAN = """
workload: {{input_tokens: {{fixed: 1000}}, output_tokens: {{fixed: {output}}}, arrivals: {{constant: 1 req/s}}}}
deployment:
  model: opt-13b
  hardware: A100-80G
  step_time: {{linear: {{prefill_s: [0.020, 0.0001, 0.0], decode_s: [0.005, 0.0, 0.0]}}}}
  split: {{first_token: {side}, link: {{bytes_per_s: 32.768 GB/s, latency: 0 s}}, {pools}}}
"""


def split_of(side: str, output: int, pools: str = "") -> Serving:
    return build(parse_plan(PLAN.format(side=side, output=output, pools=pools)), tokens=True)


def served_alone(serving: Serving, request: Request) -> tuple[Truth, list[int]]:
    """Its truth and the instants of its tokens, as they are told, in ms."""
    serving.submit(0, request)
    instants: dict[int, None] = {}
    truth: Truth | None = None
    while (due := serving.due_ns()) is not None:
        for event in serving.advance(due):
            if isinstance(event, Prefilled) or (isinstance(event, Tokens) and (event.first or event.more)):
                instants[event.at_ns // 10**6] = None
            if isinstance(event, Finished):
                truth = event.truth
    assert truth is not None
    return truth, list(instants)


@pytest.mark.parametrize(
    ("side", "output", "instants"),
    [
        ("prefill", 5, [120, 150, 155, 160, 165]),
        ("decode", 5, [150, 155, 160, 165, 170]),
        ("prefill", 1, [120]),
        ("decode", 1, [150]),
    ],
)
def test_the_first_token_leaves_the_side_that_the_plan_names(side: str, output: int, instants: list[int]) -> None:
    """A prefill of 120 ms, 0.8192 GB of KV over 32.768 GB/s (25 ms), decode steps of 5 ms. By the decode side the prompt's last token is
    computed again there: the first token comes with its first step, and each later one a step after it.
    """
    request = Request(request_id="r0", prompt_tokens=1000, output_tokens=output, arrival_ns=0)
    truth, told = served_alone(split_of(side, output), request)
    assert told == instants
    assert (truth.prefill_end_ns, truth.first_token_ns, truth.finish_ns) == tuple(
        ms * 10**6 for ms in (120, instants[0], instants[-1])
    )
    assert truth.output_tokens == output


def test_who_is_too_long_for_the_decode_pool_is_refused_when_it_comes_and_not_in_the_middle() -> None:
    serving = split_of("prefill", 5, "prefill: {kv_tokens: 4000}, decode: {kv_tokens: 1200}")
    with pytest.raises(UserError, match="needs KV for 1299 tokens, the pool can give one request 1184"):
        serving.submit(0, Request(request_id="r0", prompt_tokens=1000, output_tokens=300, arrival_ns=0))
    assert serving.due_ns() is None
    one = Request(request_id="r1", prompt_tokens=1190, output_tokens=1, arrival_ns=0)
    assert served_alone(serving, one)[0].finish_ns == 139 * 10**6  # it never goes there


def test_a_prefill_pool_needs_room_for_prompts_alone() -> None:
    serving = split_of("prefill", 300, "prefill: {kv_tokens: 1008}, decode: {kv_tokens: 4000}")
    truth, _ = served_alone(serving, Request(request_id="r0", prompt_tokens=1000, output_tokens=300, arrival_ns=0))
    assert truth.finish_ns == (145 + 299 * 5) * 10**6
