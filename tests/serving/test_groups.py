"""vLLM v0 with several samples a request lives what token by token and table by table lives: copies on write, swaps, recomputation."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from phasemeter.errors import UserError
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime, ns_of_ticks
from tests.serving.group_oracle import Groups
from tests.serving.workloads import requests, step_time

NEVER = 1 << 60


@pytest.mark.parametrize("make", [CountedKv, PagedKv])
@pytest.mark.parametrize("tokens", [False, True])
def test_groups_of_samples_live_what_table_by_table_lives(make: type[CountedKv], tokens: bool) -> None:
    swaps = 0
    for seed in range(400):
        swaps += groups_beside_their_oracle(seed, make, tokens=tokens)
    assert swaps > 50


def groups_beside_their_oracle(seed: int, make: type[CountedKv], *, tokens: bool) -> int:
    """How many groups were swapped out."""
    random = Random(seed)
    longest, size = random.choice([6, 40, 120]), random.choice([1, 2, 4, 16])
    blocks = -(-longest // size) * random.choice([1, 2, 3, 6]) + random.randrange(8) + 1
    limits = Limits(
        max_num_seqs=random.choice([1, 3, 4, 8, 40]), max_num_batched_tokens=longest + random.randrange(longest)
    )
    model = msgspec.structs.replace(step_time(random), per_swapped_block=random.choice([0, 5000]))
    watermark = random.choice([0.0, 0.01, 0.1])
    kv = make(blocks, size)
    engine = Engine(POLICIES["vllm_v0"](watermark), kv, model, limits, tokens=tokens)
    asked: list[Request] = []
    for plain in requests(random, random.randrange(1, 20), longest):
        request = msgspec.structs.replace(plain, samples=random.choice([1, 1, 2, 3, 4]))
        try:
            engine.submit(request.arrival_ns, request)
        except UserError:
            continue  # more than the pool could ever give
        asked.append(request)
    groups = Groups(blocks, size, model, limits, int(watermark * blocks)).run(asked)
    truths = [event.truth for event in engine.advance(NEVER) if isinstance(event, Finished)]
    assert {t.request_id: (t.prefill_start_ns, t.first_token_ns, t.finish_ns, t.preemptions) for t in truths} == {
        g.request.request_id: (*map(ns_of_ticks, (g.start, g.times[0], g.times[-1])), g.preemptions) for g in groups
    }, seed
    assert kv.free == kv.total
    return sum(group.preemptions for group in groups if group.request.samples > 1)


def test_who_was_swapped_out_comes_back_as_soon_as_an_answer_has_ended() -> None:
    """Blocks of one token. After d decode steps a and b hold 4 + d each, the two samples of g 2 + 2d: more than 34 with the 7th. When b
    ends with the 9th, 21 blocks are free, and g needs its 14 and two more, and one goes to a: it has missed three steps.
    """
    engine = Engine(POLICIES["vllm_v0"](0.0), CountedKv(34, 1), LinearStepTime(fixed=1 << 10), Limits())
    for name, prompt, output, samples in (("a", 4, 12, 1), ("b", 4, 10, 1), ("g", 2, 15, 2)):
        engine.submit(
            0, Request(request_id=name, prompt_tokens=prompt, output_tokens=output, arrival_ns=0, samples=samples)
        )
    ends = {event.request_id: event.at_ns for event in engine.advance(NEVER) if isinstance(event, Finished)}
    assert ends == {"b": 1 + 9, "a": 1 + 11, "g": 1 + 14 + 3}


@pytest.mark.parametrize("make", [CountedKv, PagedKv])
def test_a_prompt_counts_once_whether_or_not_its_samples_could_ever_be_served(make: type[CountedKv]) -> None:
    """20 blocks of 4: a prompt of 60 tokens takes 15 of them for all four samples, and each one's 4 answer tokens one more: 19."""
    engine = Engine(POLICIES["vllm_v0"](0.0), make(20, 4), LinearStepTime(fixed=1 << 10), Limits())
    request = Request(request_id="a", prompt_tokens=60, output_tokens=5, arrival_ns=0, samples=4)
    engine.submit(0, request)
    assert [event.at_ns for event in engine.advance(NEVER) if isinstance(event, Finished)] == [5]
    with pytest.raises(UserError, match="its samples need 23 KV blocks, the pool can give one request 20"):
        engine.submit(5, msgspec.structs.replace(request, output_tokens=6))
