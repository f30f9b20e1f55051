"""Requests of several samples where a scheduler knows one sequence a request."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import UserError
from phasemeter.serving.deploy import Fanned
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Aborted, Admitted, Event, Finished, Tokens
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_radix import RadixKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.samples import Families
from phasemeter.serving.sequence import Request, Sequence
from phasemeter.serving.state import Kv, Limits, State
from phasemeter.serving.step_shape import LinearStepTime, StepTime, ns_of_ticks
from tests.serving.oracle import Oracle
from tests.serving.test_oracle import sharing
from tests.serving.workloads import moved, requests, step_time

SIZE = 4
MODEL = LinearStepTime(fixed=10 << 10, per_new_token=1 << 10)  # 10 ns a step and 1 ns a prompt token


def fanned(policy: str, kv: Kv, model: StepTime, limits: Limits) -> Fanned:
    engine = Fanned(POLICIES[policy](), kv, model, limits, tokens=True)
    engine.families = Families(prompt_first=policy == "sglang")
    return engine


def live(engine: Fanned, asked: list[Request], aborts: tuple[tuple[int, str], ...] = ()) -> list[Event]:
    events = moved(engine, asked, aborts)
    while (due := engine.due_ns()) is not None:
        events += engine.advance(due)
    assert engine.state.kv.free == engine.state.kv.total and not engine.families.by_id and not engine.families.of
    return events


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9))
def test_samples_under_vllm_v1_live_what_requests_of_their_own_live(seed: int) -> None:
    """All enter together; the k-th token of a request is told when the last of its samples has it."""
    random = Random(seed)
    longest = random.choice([40, 120])
    blocks = -(-longest // SIZE) * random.choice([1, 2, 4]) + random.randrange(8) + 2
    limits = Limits(max_num_seqs=random.choice([1, 3, 8]), max_num_batched_tokens=random.choice([20, longest, 300]))
    model = step_time(random)
    asked = sharing(random, requests(random, random.randrange(1, 12), longest), SIZE)
    asked = [
        msgspec.structs.replace(
            r, samples=random.choice([1, 1, 2, 4]), block_hashes=r.block_hashes[: r.prompt_tokens // SIZE]
        )
        for r in asked
    ]
    alone = [
        msgspec.structs.replace(r, samples=1, request_id=f"{r.request_id} {index}")
        for r in asked
        for index in range(r.samples)
    ]
    oracle = Oracle("vllm_v1", blocks - 1, SIZE, model, limits, named=True)
    lives = {life.request.request_id: life for life in oracle.run(alone)}
    events = live(fanned("vllm_v1", PagedKv(blocks, SIZE), model, limits), asked)
    truths = {e.request_id: e.truth for e in events if isinstance(e, Finished)}
    told: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, Tokens):
            for name in (*event.first, *event.more):
                told.setdefault(name, []).append(event.at_ns)
    for request in asked:
        mine = [lives[f"{request.request_id} {index}"] for index in range(request.samples)]
        slowest = [ns_of_ticks(max(ticks)) for ticks in zip(*(life.times for life in mine), strict=True)]
        truth = truths[request.request_id]
        assert told[request.request_id] == slowest
        assert (truth.first_token_ns, truth.finish_ns) == (slowest[0], slowest[-1])
        assert truth.prefill_start_ns == ns_of_ticks(min(life.start for life in mine))
        assert truth.preemptions == sum(life.preemptions for life in mine)
        assert (truth.samples, truth.cached_tokens) == (request.samples, mine[0].cached)
    starts = [e.request_id for e in events if isinstance(e, Admitted)]
    assert sorted(starts) == sorted(r.request_id for r in asked)


@pytest.mark.parametrize("cached", [False, True])
def test_samples_share_their_prompt_through_the_prefix_cache_alone(cached: bool) -> None:
    """10 tokens of prompt, 3 samples: with names, two blocks are computed once, and the rest by each."""
    kv = PagedKv(50, SIZE) if cached else CountedKv(50, SIZE)
    engine = fanned("vllm_v1", kv, MODEL, Limits())
    request = Request(request_id="a", prompt_tokens=10, output_tokens=3, arrival_ns=0, samples=3, block_hashes=(1, 2))
    (truth,) = [e.truth for e in live(engine, [request]) if isinstance(e, Finished)]
    assert truth.first_token_ns == 10 + (10 + 2 + 2 if cached else 30)


def test_sglang_computes_a_prompt_before_its_samples_come() -> None:
    request = Request(
        request_id="a", prompt_tokens=10, output_tokens=3, arrival_ns=0, samples=3, block_hashes=(1, 2), max_tokens=3
    )
    events = live(fanned("sglang", RadixKv(50, SIZE), MODEL, Limits()), [request])
    (truth,) = [e.truth for e in events if isinstance(e, Finished)]
    assert truth.prefill_start_ns == 0 and truth.cached_tokens == 0
    assert truth.first_token_ns == (10 + 10) + (10 + 3 * 2)
    assert [(e.first, e.more) for e in events if isinstance(e, Tokens)] == [
        ((), ()), (("a",), ()), ((), ("a",)), ((), ("a",)),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang"])
def test_a_client_that_leaves_takes_all_its_samples_with_it(policy: str) -> None:
    for seed in range(80):
        random = Random(seed)
        kv = RadixKv(40, SIZE) if policy == "sglang" else PagedKv(40, SIZE)
        asked = [
            Request(request_id=f"r{i}", prompt_tokens=random.randrange(1, 40), output_tokens=random.randrange(1, 40),
                    arrival_ns=i * 9, samples=random.choice([1, 2, 3]), block_hashes=(i % 2, i))
            for i in range(12)
        ]  # fmt: skip
        leaving = tuple((r.arrival_ns + random.randrange(600), r.request_id) for r in asked if random.random() < 0.5)
        events = live(fanned(policy, kv, MODEL, Limits(max_num_seqs=5)), asked, leaving)
        ends = [e.request_id for e in events if isinstance(e, Finished | Aborted)]
        assert sorted(ends) == sorted(r.request_id for r in asked), seed


def test_samples_that_could_never_be_served_are_refused_under_their_requests_name() -> None:
    engine = fanned("vllm_v1", PagedKv(10, SIZE), MODEL, Limits())
    with pytest.raises(UserError, match="request a: needs KV for 59 tokens"):
        engine.submit(0, Request(request_id="a", prompt_tokens=30, output_tokens=30, arrival_ns=0, samples=2))
    assert engine.due_ns() is None and not engine.families.by_id


class Watched(State):
    """Who has to go came last of all that run; `late` counts those that weren't the last to be let in."""

    late = 0

    def watch(self, sequence: Sequence) -> None:
        assert sequence.order == max(s.order for s in self.running)
        self.late += sequence is not next(reversed(self.running))

    def preempt(self, sequence: Sequence) -> None:
        self.watch(sequence)
        super().preempt(sequence)

    def swap_out(self, sequence: Sequence, *, last: bool = False) -> None:
        self.watch(sequence)
        super().swap_out(sequence, last=last)


def test_vllm_v0_takes_from_who_came_last_though_others_were_let_in_later() -> None:
    """A group that was swapped comes back before the one that was preempted ahead of it, and is still the latest."""
    late = 0
    for seed in range(120):
        random = Random(seed)
        kv, limits = CountedKv(32 + random.randrange(8), SIZE), Limits(max_num_seqs=9)
        engine = Engine(POLICIES["vllm_v0"](0.0), kv, step_time(random), limits)
        engine.state = watched = Watched(kv, limits)
        engine._aborts.state = watched
        for i in range(12):
            prompt, output = random.randrange(1, 30), random.randrange(1, 30)
            samples = random.choice([1, 1, 2])
            engine.submit(
                i, Request(request_id=str(i), prompt_tokens=prompt, output_tokens=output, arrival_ns=i, samples=samples)
            )
        assert sum(isinstance(e, Finished) for e in engine.advance(1 << 60)) == 12
        late += watched.late
    assert late
