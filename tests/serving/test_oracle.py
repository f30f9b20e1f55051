"""Engine and oracle live the same lives: whole batches, SGLang, and prefixes found by hash, whatever runs out."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from tests.serving.oracle import Lived, Oracle, lived
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


def sharing(random: Random, asked: list[Request], size: int, *, answers: bool = True) -> list[Request]:
    """The same requests with names: prompts of a family begin alike, and some go on from another one's prompt and answer.

    `answers` False: from its prompt alone. (SGLang's tree learns an answer when it is over, ours block by block.)
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
            said = other.block_hashes[: None if answers else other.prompt_tokens // size]
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


@settings(max_examples=400, deadline=None)
@given(SEEDS, st.booleans())
def test_sglang_lives_what_token_by_token_lives(seed: int, named: bool) -> None:
    random = Random(seed)
    size, longest = random.choice([4, 16]), random.choice([40, 120, 300])
    blocks = -(-longest // size) * random.choice([1, 2, 4]) + random.randrange(8) + 1
    limits, model = Limits(max_num_seqs=random.choice([1, 3, 8, 40])), step_time(random)
    asked = sharing(random, requests(random, random.randrange(1, 30), longest), size, answers=False)
    chunk = random.choice([30, 100, 8192])
    oracle = Oracle("sglang", blocks, size, model, limits, chunk=chunk, named=named)
    kv = PagedKv(blocks, size, prefix_caching=named) if named else CountedKv(blocks, size)
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
    asked = sharing(random, asked, size, answers=threshold is None)
    oracle = Oracle("vllm_v1", blocks - 1, size, model, limits, threshold=threshold or 0, named=True)
    engine = Engine(POLICIES["vllm_v1"](long_prefill_threshold=threshold), PagedKv(blocks, size), model, limits)
    assert run(engine, asked) == lived(oracle.run(asked))
