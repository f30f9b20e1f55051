"""The engine on aggregates lives the same lives as the token-by-token reference, whatever runs out."""

from __future__ import annotations

from random import Random

import pytest

from phasemeter.errors import InternalError, UserError
from phasemeter.serving.engine import Engine, steps_within
from phasemeter.serving.events import Event, Finished, Tokens
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime
from tests.serving.reference import Reference, lived
from tests.serving.workloads import paged, requests, step_time

NEVER = 1 << 60
Lives = dict[str, tuple[int, int, int, int]]


def finished(events: list[Event]) -> Lives:
    truths = [e.truth for e in events if isinstance(e, Finished)]
    return {t.request_id: (t.prefill_start_ns, t.first_token_ns, t.finish_ns, t.preemptions) for t in truths}


def run(engine: Engine, asked: list[Request]) -> list[Event]:
    for request in asked:
        engine.submit(request.arrival_ns, request)
    return engine.advance(NEVER)


def case(seed: int, policy: str) -> tuple[Reference, Engine, list[Request]]:
    random = Random(seed)
    longest, block = random.choice([40, 120, 300]), random.choice([4, 16])
    blocks = -(-longest // block) * random.choice([1, 2, 5]) + random.randrange(8) + 2
    limits = Limits(
        max_num_seqs=random.choice([1, 3, 8, 40]), max_num_batched_tokens=longest + random.randrange(longest)
    )
    model, asked = step_time(random), requests(random, random.randrange(1, 30), longest)
    options: dict[str, int] = {"block": block}
    kv: CountedKv | ReservedKv = random.choice([CountedKv, PagedKv])(blocks, block)
    extra: dict[str, int] = {}
    reference_blocks = blocks
    if policy == "vllm_v1":
        reference_blocks -= 1
        if random.random() < 0.5:
            options["threshold"] = extra["long_prefill_threshold"] = random.randrange(1, 60)
    elif policy == "sarathi":
        options["chunk"] = extra["chunk_size"] = random.randrange(1, 80)
    elif policy == "orca":
        options["longest"] = longest
        kv = ReservedKv(blocks * block, "max", longest, buddy=False, block_size=block)
    reference = Reference(policy, reference_blocks, model, limits, **options)
    return reference, Engine(POLICIES[policy](**extra), kv, model, limits, log=SegmentLog()), asked


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v1", "sarathi", "orca"])
def test_aggregates_live_what_token_by_token_lives(policy: str) -> None:
    preempted = 0
    for seed in range(400):
        reference, engine, asked = case(seed, policy)
        flats = reference.run(asked)
        events = run(engine, asked)
        assert finished(events) == lived(flats), seed
        assert engine.state.kv.free == engine.state.kv.total, seed
        preempted += sum(flat.preemptions for flat in flats)
        assert engine.log is not None
        spans = {e.request_id: e.truth.spans for e in events if isinstance(e, Finished)}
        for flat in flats[:3]:
            told = engine.log.token_ns(spans[flat.request.request_id])
            assert list(told) == [(t + 512) >> 10 for t in flat.tokens], seed
        weighted = sum(int(w) for w in engine.log.pooled_gaps(spans.values())[1])
        assert weighted == sum(flat.request.output_tokens - 1 for flat in flats), seed
    assert preempted > 100 or policy == "orca"


@pytest.mark.parametrize("policy", POLICIES)
def test_closed_forms_and_single_steps_give_the_same_instants(policy: str) -> None:
    """Every policy that runs alone: a stretch is the sum of its steps, and every token is told once."""
    if policy.startswith("distserve"):
        return
    for seed in range(60):
        lives = []
        for tokens in (False, True):
            engine, asked = alone(seed, policy, tokens=tokens)
            events = run(engine, asked)
            lives.append([e for e in events if isinstance(e, Finished)])
            assert engine.state.kv.free == engine.state.kv.total
        assert {e.request_id: e.truth for e in lives[0]} == {e.request_id: e.truth for e in lives[1]}, seed
        told = [name for e in events if isinstance(e, Tokens) for name in (*e.first, *e.more)]
        assert sorted(told) == sorted(r.request_id for r in asked for _ in range(r.output_tokens)), seed


def alone(seed: int, policy: str, *, tokens: bool = False) -> tuple[Engine, list[Request]]:
    random = Random(seed)
    longest, block = 120, random.choice([4, 16])
    blocks = -(-longest // block) * random.choice([1, 2, 5]) + 3
    limits = Limits(
        max_num_seqs=random.choice([1, 3, 8, 40]), max_num_batched_tokens=longest + random.randrange(longest)
    )
    model, asked = step_time(random), requests(random, 25, longest)
    kv: CountedKv | ReservedKv = paged(policy, blocks, block) if random.random() < 0.5 else CountedKv(blocks, block)
    if policy in {"orca", "request_level"}:
        kv = ReservedKv(256 + random.randrange(900), random.choice(["max", "pow2", "oracle"]), 128)
    return Engine(POLICIES[policy](), kv, model, limits, tokens=tokens), asked


@pytest.mark.parametrize("policy", [name for name in POLICIES if not name.startswith("distserve")])
def test_one_request_alone_is_served_alike_by_every_policy(policy: str) -> None:
    request = Request(request_id="a", prompt_tokens=100, output_tokens=20, arrival_ns=7)
    model = LinearStepTime(
        fixed=3 << 10, per_decode=1 << 10, per_context=1 << 9, per_new_token=1 << 10, per_pair=1 << 5
    )
    kv = ReservedKv(512, "max", 128) if policy in {"orca", "request_level"} else CountedKv(64)
    engine = Engine(POLICIES[policy](), kv, model, Limits())
    truth = next(e.truth for e in run(engine, [request]) if isinstance(e, Finished))
    first = 7 + 3 + 100 + (32 * 10_000 // 2 >> 10)
    assert abs(truth.first_token_ns - first) <= 1
    decode = sum(4 * 1024 + 512 * (100 + k) for k in range(1, 20)) / 1024
    assert abs(truth.finish_ns - truth.first_token_ns - decode) <= 1


def test_a_policy_that_knows_no_lengths_decides_alike_until_a_length_shows() -> None:
    """Two workloads that differ in one answer's length: every event before the shorter one ends is the same."""
    for policy in (name for name in POLICIES if not name.startswith("distserve")):
        if policy in {"orca", "request_level"}:
            continue  # what they reserve is the memory rule's business, and max knows nothing: below
        for seed in range(20):
            engine, asked = alone(seed, policy)
            other, _ = alone(seed, policy)
            changed = Random(seed).randrange(len(asked))
            end = 120 - asked[changed].prompt_tokens
            length = asked[changed].output_tokens
            new_length = length + 1 if length < end else max(1, length - 1)
            again = [
                r
                if i != changed
                else Request(
                    request_id=r.request_id,
                    prompt_tokens=r.prompt_tokens,
                    output_tokens=new_length,
                    arrival_ns=r.arrival_ns,
                )
                for i, r in enumerate(asked)
            ]
            one, two = run(engine, asked), run(other, again)
            ends = [
                e.at_ns
                for es in (one, two)
                for e in es
                if isinstance(e, Finished) and e.request_id == asked[changed].request_id
            ]
            before = [[e for e in es if e.at_ns < min(ends)] for es in (one, two)]
            assert before[0] == before[1], (policy, seed)


def test_steps_within_is_the_largest_number_that_fits() -> None:
    random = Random(5)
    for _ in range(2000):
        base, growth, room = random.randrange(1, 10**9), random.choice([0, 1, 77, 10**6]), random.randrange(10**12)
        steps = steps_within(base, growth, room)
        cost = [k * base + growth * k * (k - 1) // 2 for k in (steps, steps + 1)]
        assert cost[0] <= room < cost[1]


def test_time_never_runs_backwards() -> None:
    engine, asked = alone(1, "vllm_v0")
    engine.submit(10, asked[0])
    with pytest.raises(InternalError, match="time went backwards"):
        engine.submit(9, asked[0])


def test_what_can_never_be_served_is_refused_in_one_line() -> None:
    engine = Engine(POLICIES["vllm_v1"](), CountedKv(8), LinearStepTime(), Limits())
    with pytest.raises(UserError, match="needs KV for 127 tokens, the pool can give one request 112"):
        engine.submit(0, Request(request_id="a", prompt_tokens=100, output_tokens=28, arrival_ns=0))
    with pytest.raises(UserError, match="submit 2 requests"):
        engine.submit(0, Request(request_id="b", prompt_tokens=1, output_tokens=1, arrival_ns=0, samples=2))


@pytest.mark.parametrize(
    ("policy", "why"),
    [("sarathi", "a request to Sarathi-Serve has no `n`"), ("distserve_prefill", "generates one answer")],
)
def test_who_knows_no_samples_says_why_the_real_one_has_none(policy: str, why: str) -> None:
    engine = Engine(POLICIES[policy](), CountedKv(8), LinearStepTime(), Limits())
    with pytest.raises(UserError, match=f"2 samples, but .*{why}: submit 2 requests"):
        engine.submit(0, Request(request_id="b", prompt_tokens=1, output_tokens=1, arrival_ns=0, samples=2))


def test_samples_whose_blocks_can_never_be_there_together_are_refused_though_their_tokens_would_fit() -> None:
    """Three answers behind 15 shared tokens: 74 tokens each are 222 of 224, but 5 blocks each are 15 of 14."""
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=200)
    for kv in (CountedKv(14, 16), PagedKv(14, 16)):
        engine = Engine(POLICIES["vllm_v0"](), kv, LinearStepTime(fixed=1000), limits)
        request = Request(request_id="a", prompt_tokens=15, output_tokens=60, arrival_ns=0, samples=3)
        with pytest.raises(UserError, match="15 KV blocks"):
            engine.submit(0, request)
