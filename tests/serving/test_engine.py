"""The engine on aggregates lives the same lives as the token-by-token reference, whatever runs out."""

from __future__ import annotations

from random import Random

import numpy as np
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
from tests.serving.workloads import requests, step_time

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
