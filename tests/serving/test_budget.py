"""vLLM v1 walks its list and stops where the budget ends; counting decodes first comes to the same, however small the budget."""

from __future__ import annotations

from random import Random

from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished
from phasemeter.serving.kv_cache import CountedKv
from phasemeter.serving.policies.vllm_v1 import VllmV1
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.state import Limits
from tests.serving.reference import Reference, lived
from tests.serving.test_engine import finished, run
from tests.serving.workloads import requests, step_time


def test_no_decode_is_ever_left_without_its_token() -> None:
    waited = 0
    for seed in range(200):
        random = Random(seed)
        longest, threshold = random.choice([40, 120]), random.randrange(1, 15)
        seats = random.choice([3, 8, 20])
        limits = Limits(max_num_seqs=seats, max_num_batched_tokens=seats + random.randrange(10))
        blocks = -(-longest // 4) * random.choice([1, 2, 5]) + 3
        model, asked = step_time(random), requests(random, 25, longest)
        log = SegmentLog()
        engine = Engine(VllmV1(long_prefill_threshold=threshold), CountedKv(blocks, 4), model, limits, log=log)
        flats = Reference("vllm_v1", blocks - 1, model, limits, block=4, threshold=threshold).run(asked)
        events = run(engine, asked)
        assert finished(events) == lived(flats), seed
        spans = {e.request_id: e.truth.spans for e in events if isinstance(e, Finished)}
        for flat in flats:
            told = log.token_ns(spans[flat.request.request_id])
            assert list(told) == [(t + 512) >> 10 for t in flat.tokens], seed
        waited += sum(flat.start > flat.request.arrival_ns << 10 for flat in flats)
    assert waited > 1000
