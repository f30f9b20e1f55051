"""Engine and oracle live the same lives: whole batches, SGLang, and prefixes found by hash, whatever runs out."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.serving.cluster import Split
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished, Preempted, Tokens
from phasemeter.serving.hardware import Link
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_radix import RadixKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.policies.distserve import DistserveDecode, DistservePrefill
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime
from tests.serving.oracle import Lived, Oracle, lived
from tests.serving.pool_oracle import Pools
from tests.serving.radix_oracle import SglangOracle
from tests.serving.workloads import requests, step_time

NEVER = 1 << 60


def run(engine: Engine, asked: list[Request]) -> Lived:
    for request in asked:
        engine.submit(request.arrival_ns, request)
    truths = [e.truth for e in engine.advance(NEVER) if isinstance(e, Finished)]
    assert engine.state.kv.free == engine.state.kv.total
    return {
        t.request_id: (t.prefill_start_ns, t.first_token_ns, t.finish_ns, t.preemptions, t.cached_tokens)
        for t in truths
    }


def sharing(random: Random, asked: list[Request], size: int, *, answers: bool = False) -> list[Request]:
    """The same requests with names: prompts of a family begin alike, and some begin with part of another one's prompt. `answers`: and of
    its answer, which may be under way.
    """
    found: list[Request] = []
    common = [random.randrange(0, 120) for _ in range(3)]
    for number, request in enumerate(asked):
        family = random.randrange(3)
        alike = min(common[family], request.prompt_tokens) // size
        whole = (request.prompt_tokens + request.output_tokens) // size
        names = [hash((family, i)) for i in range(alike)]
        if found and random.random() < 0.3:
            other = random.choice(found)
            said = other.block_hashes if answers else other.block_hashes[: other.prompt_tokens // size]
            names = list(said[: random.randrange(1 + min(len(said), request.prompt_tokens // size))])
        names += [hash((number, "own", i)) for i in range(len(names), whole)]
        cap = random.choice([None, request.output_tokens, request.output_tokens + 30])
        found.append(
            Request(
                request_id=request.request_id, prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens,
                arrival_ns=request.arrival_ns, max_tokens=cap, block_hashes=tuple(names),
            )
        )  # fmt: skip
    return found


SEEDS = st.integers(0, 10**9)


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_whole_batches_live_what_token_by_token_lives(seed: int) -> None:
    random = Random(seed)
    size = random.choice([1, 4, 16])
    longest = random.choice([40, 120])
    blocks = -(-longest // size) * random.choice([1, 2, 5]) + random.randrange(8)
    limits, model = Limits(max_num_seqs=random.choice([1, 3, 8])), step_time(random)
    asked = requests(random, random.randrange(1, 25), longest)
    oracle = Oracle("request_level", blocks, size, model, limits, longest=longest)
    kv = ReservedKv(blocks * size, "max", longest, buddy=False, block_size=size)
    assert run(Engine(POLICIES["request_level"](), kv, model, limits), asked) == lived(oracle.run(asked))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(SEEDS, st.booleans())
def test_sglang_lives_what_token_by_token_lives(seed: int, named: bool) -> None:
    sglang_beside_its_oracle(seed, named)


def sglang_beside_its_oracle(seed: int, named: bool) -> None:
    random = Random(seed)
    size, longest = random.choice([4, 16, 50]), random.choice([40, 120, 300])
    blocks = -(-longest // size) * random.choice([1, 2, 4]) + random.randrange(8) + 1
    limits = Limits(
        max_num_seqs=random.choice([1, 3, 8, 40]), max_model_len=random.choice([None, longest + random.randrange(40)])
    )
    model, chunk = step_time(random), random.choice([30, 100, 8192])
    asked = sharing(random, requests(random, random.randrange(1, 30), longest), size, answers=random.random() < 0.5)
    oracle = SglangOracle(blocks, size, model, limits, chunk=chunk, named=named)
    kv = RadixKv(blocks, size) if named else CountedKv(blocks, size)
    assert run(Engine(POLICIES["sglang"](chunk_size=chunk), kv, model, limits), asked) == lived(oracle.run(asked))


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_prefixes_are_found_and_forgotten_as_block_by_block(seed: int) -> None:
    random = Random(seed)
    size, longest = random.choice([4, 16]), random.choice([40, 120, 300])
    blocks = -(-longest // size) * random.choice([1, 2, 4]) + random.randrange(8) + 2
    limits = Limits(
        max_num_seqs=random.choice([1, 3, 8]), max_num_batched_tokens=random.choice([20, longest, 3 * longest])
    )
    threshold = random.choice([None, random.randrange(1, 60)])
    model, asked = step_time(random), requests(random, random.randrange(1, 30), longest)
    asked = sharing(random, asked, size)
    oracle = Oracle("vllm_v1", blocks - 1, size, model, limits, threshold=threshold or 0, named=True)
    engine = Engine(POLICIES["vllm_v1"](long_prefill_threshold=threshold), PagedKv(blocks, size), model, limits)
    assert run(engine, asked) == lived(oracle.run(asked))


@settings(max_examples=250, deadline=None)
@given(SEEDS)
def test_pools_live_what_token_by_token_lives(seed: int) -> None:
    """Durations are whole nanoseconds, and long: what passes between engines is not rounded, and no two instants fall together."""
    random = Random(seed)
    size, longest = random.choice([1, 4, 16]), random.choice([6, 40, 120, 300])
    blocks = tuple(-(-longest // size) * random.choice([1, 2, 4]) + random.randrange(8) + 2 for _ in range(2))
    model = LinearStepTime(
        fixed=random.randrange(10**6, 10**7) << 10, per_decode=random.randrange(10**5) << 10,
        per_context=random.randrange(10**4) << 10, per_new_token=random.randrange(10**5) << 10,
        per_swapped_block=random.randrange(10**5) << 10,
    )  # fmt: skip
    limits = Limits(max_num_seqs=random.choice([1, 2, 3, 40]), max_num_batched_tokens=random.choice([1, 50, 500]))
    asked, pace, t = [], random.choice([0, 10**6, 10**7, 10**8]), 0
    for number in range(random.randrange(1, 30)):
        t += random.randrange(pace + 1) * random.choice([0, 1, 1])
        prompt = random.randrange(1, longest)
        output = min(random.choice([1, 2, longest, longest]), random.randrange(1, longest - prompt + 1))
        asked.append(Request(request_id=f"r{number}", prompt_tokens=prompt, output_tokens=output, arrival_ns=t))
    token_ns, named = random.choice([1003, 100_003, 1_000_003]), random.random() < 0.4
    many, stages = random.choice([(1, 1), (1, 2), (2, 1), (3, 2), (2, 3)]), random.choice([1, 1, 2, 3])
    asked, late = sharing(random, asked, size) if named else asked, random.random() < 0.4
    pools = Pools(
        (blocks[0], blocks[1]), size, model, limits, token_ns, many=many, stages=stages, named=named, late=late
    )
    lives = pools.run(asked)
    kinds = (PagedKv if named else CountedKv, CountedKv)
    tokens = random.random() < 0.3
    prefill, decode = (
        [Engine(policy, kind(all_of, size), model, limits, tokens=tokens) for policy in policies]
        for policies, kind, all_of in zip(
            ([DistservePrefill() for _ in range(many[0])], [DistserveDecode(emits_first=late) for _ in range(many[1])]),
            kinds, blocks, strict=True,
        )
    )  # fmt: skip
    link = Link(latency_s=0.0, bytes_per_s=1e9)
    split = Split(prefill, decode, link, token_ns, stages, first_from_decode=late)
    events = []
    for request in asked:
        events += split.advance(request.arrival_ns - 1)
        split.submit(request.arrival_ns, request)
    while (due := split.due_ns()) is not None:
        events += split.advance(due)
    truths = [e.truth for e in events if isinstance(e, Finished)]
    found = {
        t.request_id: (t.prefill_start_ns, t.first_token_ns, t.finish_ns, t.preemptions, t.cached_tokens)
        for t in truths
    }
    assert found == lived(lives)
    if tokens and late:
        firsts = {name: e.at_ns for e in events if isinstance(e, Tokens) for name in e.first}
        assert firsts == {t.request_id: t.first_token_ns for t in truths}
        told = [name for e in events if isinstance(e, Tokens) for name in (*e.first, *e.more)]
        assert sorted(told) == sorted(r.request_id for r in asked for _ in range(r.output_tokens))
    assert all(engine.state.kv.free == engine.state.kv.total for engine in (*prefill, *decode))
    assert not split.moving and not any((*split.in_prefill, *split.in_decode))


def test_who_was_swapped_out_of_a_decode_pool_first_comes_back_first() -> None:
    """14 blocks of one token, prompts of two: after d steps all hold 6 + 3d. c goes before step 3, b before step 6: that makes room for c,
    first in line, at once. c goes again before step 7; with a's end b comes first, then c, which goes for b's sake before step 10.
    """
    engine = Engine(POLICIES["distserve_decode"](1.0), CountedKv(14, 1), LinearStepTime(fixed=1 << 10), Limits())
    for name, output in (("a", 9), ("b", 12), ("c", 12)):
        engine.offer(0, Request(request_id=name, prompt_tokens=2, output_tokens=output, arrival_ns=0))
    assert [type(event).__name__ for event in engine.advance(0)] == ["Pull"] * 3
    for name in "abc":
        engine.delivered(0, name)
    events = engine.advance(NEVER)
    assert [(e.request_id, e.at_ns) for e in events if isinstance(e, Preempted)] == [
        ("c", 2), ("b", 5), ("c", 6), ("c", 9),
    ]  # fmt: skip
    assert {e.request_id: e.at_ns for e in events if isinstance(e, Finished)} == {"a": 8, "b": 14, "c": 21}


def test_the_next_turn_finds_what_was_said_and_answered() -> None:
    """After its k-th token a sequence holds KV for prompt + k − 1 tokens: an answer's last token is not in the cache."""
    names = tuple(range(100, 130))
    model, limits = step_time(Random(1)), Limits()
    first = Request(request_id="a", prompt_tokens=20, output_tokens=13, arrival_ns=0, block_hashes=names[:8])
    longer = Request(request_id="b", prompt_tokens=40, output_tokens=5, arrival_ns=10**9, block_hashes=names[:11])
    for policy, kv in (("vllm_v1", PagedKv(64, 4)), ("sglang", RadixKv(64, 4))):
        found = run(Engine(POLICIES[policy](), kv, model, limits), [first, longer])
        assert found["b"][4] == 32  # 20 + 13 - 1, in blocks of 4
