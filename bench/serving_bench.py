"""How fast the serving engine is: seconds a million chat requests, and its speed over a flat-list token-by-token engine.

    python bench/serving_bench.py [--requests N]

A chat request has about 500 tokens in and 200 out. The ratio is to `tests/serving/reference.py` on the same requests. What can't be
aggregated: sglang looks at every running request when it admits (its guess of their future memory, clipped per request), a prefix
cache takes blocks one by one (which block is taken decides what is forgotten), vllm_v1 with a long-prefill threshold walks its
list while a prompt is half done (whether a later decode gets budget depends on the earlier ones).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.serving.reference import Reference

from phasemeter.serving.engine import Engine
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime, ticks_of_ns

MODEL = LinearStepTime(
    fixed=ticks_of_ns(5_000_000), per_decode=ticks_of_ns(20_000), per_context=60, per_new_token=ticks_of_ns(25_000)
)
LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=8192)
BLOCKS = 16_000


def chat(many: int, rate_per_s: float) -> list[Request]:
    random, t, found = Random(1), 0, []
    for i in range(many):
        t += int(random.expovariate(rate_per_s) * 1e9)
        prompt, output = max(1, int(random.gauss(500, 150))), max(1, int(random.gauss(200, 60)))
        hashes = tuple((i % 50) << 20 | j if j < 16 else i << 20 | j for j in range((prompt + output) // 16))
        found.append(
            Request(request_id=str(i), prompt_tokens=prompt, output_tokens=output, arrival_ns=t, block_hashes=hashes)
        )
    return found


def engine_s(policy: str, requests: list[Request], *, prefix_caching: bool = False) -> float:
    kv: CountedKv | ReservedKv = PagedKv(BLOCKS) if prefix_caching else CountedKv(BLOCKS)
    if policy in {"orca", "request_level"}:
        kv = ReservedKv(BLOCKS * 16, "max", 2048)
    engine = Engine(POLICIES[policy](), kv, MODEL, LIMITS)
    engine.requests_only = True
    done = 0
    start = time.process_time()
    for i, request in enumerate(requests):
        engine.submit(request.arrival_ns, request)
        if i % 4096 == 4095:
            done += len(engine.advance(request.arrival_ns))
    done += len(engine.advance(1 << 60))
    if done != len(requests):
        raise SystemExit(f"{policy}: {done} of {len(requests)} finished")
    return time.process_time() - start


def reference_s(policy: str, requests: list[Request]) -> float:
    reference = Reference(policy, BLOCKS, MODEL, LIMITS, longest=2048)
    start = time.process_time()
    reference.run(requests)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    many = parser.parse_args().requests
    rows = []
    for rate in (5.0, 15.0, 22.0):
        requests = chat(many, rate)
        few = chat(min(many, 1000), rate)
        for policy in POLICIES:
            if policy.startswith("distserve") or (policy == "request_level" and rate > 5):
                continue
            million_s = engine_s(policy, requests) / many * 1e6
            row = {"policy": policy, "rate_per_s": rate, "s_per_million": round(million_s, 1)}
            if hasattr(Reference, policy):
                row["times_reference"] = round(reference_s(policy, few) / len(few) * 1e6 / million_s, 1)
            if policy in {"vllm_v1", "sglang"}:
                row["s_per_million_prefix_caching"] = round(
                    engine_s(policy, requests, prefix_caching=True) / many * 1e6, 1
                )
            rows.append(row)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
