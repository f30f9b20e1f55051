"""A client that leaves takes its sequence and its blocks with it, and changes nobody's tokens but by the room it leaves."""

from __future__ import annotations

from random import Random

import pytest

from phasemeter.serving.cluster import Split
from phasemeter.serving.deploy import build
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Aborted, Event, Finished
from phasemeter.serving.kv_cache import CountedKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.plan import parse_plan
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime
from tests.serving.reference import lived
from tests.serving.test_engine import NEVER, case, finished
from tests.serving.workloads import moved


def leaving(random: Random, asked: list[Request], span: int) -> list[tuple[int, str]]:
    """Who leaves when: some requests, at or after their arrival."""
    chosen = [r for r in asked if random.random() < 0.4]
    return sorted((r.arrival_ns + random.randrange(span), r.request_id) for r in chosen)


def live(engine: Engine, asked: list[Request], aborts: list[tuple[int, str]]) -> list[Event]:
    return moved(engine, asked, aborts) + engine.advance(NEVER)


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v1", "sarathi", "orca"])
def test_aggregates_lose_whom_token_by_token_loses(policy: str) -> None:
    left = 0
    for seed in range(250):
        reference, engine, asked = case(seed, policy)
        span = random_span(seed)
        aborts = leaving(Random(seed), asked, span)
        flats = reference.run(asked, aborts)
        events = live(engine, asked, aborts)
        assert finished(events) == lived(flats), seed
        assert [e.request_id for e in events if isinstance(e, Aborted)] == reference.gone, seed
        assert engine.state.kv.free == engine.state.kv.total and not engine.state.seats, seed
        left += len(reference.gone)
    assert left > 300


def random_span(seed: int) -> int:
    return Random(~seed).choice([1, 1000, 100_000, 3_000_000])


@pytest.mark.parametrize("policy", ["vllm_v0", "request_level", "sglang"])
def test_every_request_ends_or_is_called_off_and_all_memory_comes_back(policy: str) -> None:
    for seed in range(60):
        random = Random(seed)
        kv: CountedKv | ReservedKv = ReservedKv(512, "max", 128) if policy == "request_level" else CountedKv(20)
        engine = Engine(POLICIES[policy](), kv, LinearStepTime(fixed=999, per_context=3), Limits(max_num_seqs=6))
        asked = [
            Request(
                request_id=f"r{i}", prompt_tokens=random.randrange(1, 60), output_tokens=random.randrange(1, 60),
                arrival_ns=i * 5, samples=random.choice([1, 2]) if policy == "vllm_v0" else 1,
            )
            for i in range(20)
        ]  # fmt: skip
        events = live(engine, asked, leaving(random, asked, 300))
        ends = [e.request_id for e in events if isinstance(e, Finished | Aborted)]
        assert sorted(ends) == sorted(r.request_id for r in asked), seed
        assert kv.free == kv.total and engine.due_ns() is None and not engine._aborts.unheard


def test_who_is_not_here_cannot_be_called_off() -> None:
    engine = Engine(POLICIES["vllm_v1"](), CountedKv(20), LinearStepTime(fixed=1 << 10), Limits())
    assert not engine.abort(0, "nobody")
    engine.submit(0, Request(request_id="a", prompt_tokens=5, output_tokens=3, arrival_ns=0))
    engine.advance(NEVER)
    assert not engine.abort(NEVER, "a") and engine.due_ns() is None


PLAN = """
workload: {input_tokens: 50, output_tokens: 20, arrivals: {poisson: 1/s}}
deployment:
  model: opt-13b
  hardware: A100-80G
  kv_tokens: 900
  split: {prefill: {pipeline_parallel: 2}, decode: {replicas: 2}, link: {bytes_per_s: 2 GB/s}}
"""


def test_a_split_frees_both_pools_wherever_a_request_is() -> None:
    gone = 0
    for seed in range(60):
        random = Random(seed)
        split = build(parse_plan(PLAN), tokens=False)
        assert isinstance(split, Split)
        asked = [
            Request(request_id=f"r{i}", prompt_tokens=random.randrange(1, 300), output_tokens=random.randrange(1, 30),
                    arrival_ns=i * 20_000_000)
            for i in range(15)
        ]  # fmt: skip
        events: list[Event] = []
        steps = sorted(
            [(r.arrival_ns, 0, r.request_id) for r in asked]
            + [(at, 1, name) for at, name in leaving(random, asked, 900_000_000)]
        )
        for at, kind, name in steps:
            events += split.advance(at - 1)
            if kind:
                split.abort(at, name)
            else:
                split.submit(at, next(r for r in asked if r.request_id == name))
        while (due := split.due_ns()) is not None:
            events += split.advance(due)
        ends = [e.request_id for e in events if isinstance(e, Finished | Aborted)]
        assert sorted(ends) == sorted(r.request_id for r in asked), seed
        assert not split.moving and sum(split.in_prefill) == sum(split.in_decode) == 0
        assert split.load() == (0, 0, 0.0), seed
        gone += sum(isinstance(e, Aborted) for e in events)
    assert gone > 60
