"""How fast the serving engine is: seconds a million chat requests, its speed over a flat-list token-by-token engine, what it keeps.

    python bench/serving_bench.py [--requests N] [--long]

A chat request has about 500 tokens in and 200 out. A row a policy and load, handed over in thousandths of the run, as `simulate` does it;
`times_reference` is to `frozen_reference.py` on the first 1000 of the requests, in turns with the engine. Orca's is the lowest: its
reference has least to do (memory is reserved whole: no block is counted at a token). Then: how the cost grows with the number of
requests (1 where it is linear), the whole way of a plan, tables written (seconds of CPU and peak memory a million requests, less what
the program itself takes), the whole of a simulation over its engine alone, and the bytes a request that stay beyond its columns.
`--long` takes the growth and the plan at 1,000,000 requests.

What can't be aggregated: sglang looks at every running request when it admits (its guess of their future memory, clipped per request);
with a prefix cache, blocks have names, and which one is taken decides what is forgotten: a stretch of decode steps is one, but each of a
request's 28 own blocks is taken, named, let go and forgotten by itself, a dozen look-ups in tables too large for a processor's cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from random import Random
from statistics import median

from frozen_reference import Cost, FrozenReference

from phasemeter.runs.simulate import SAMPLES, simulate
from phasemeter.serving.deploy import build
from phasemeter.serving.ended import NUMBERS, Ended
from phasemeter.serving.engine import Engine
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_radix import RadixKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.plan import Plan, demand_of, parse_plan
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.simulate import Simulation
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime, ticks_of_ns

COST = Cost(ticks_of_ns(5_000_000), ticks_of_ns(20_000), 60, ticks_of_ns(25_000))
MODEL = LinearStepTime(
    fixed=COST.fixed, per_decode=COST.per_decode, per_context=COST.per_context, per_new_token=COST.per_new_token
)
LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=8192)
BLOCKS = 16_000
TURNS = 3
PLAN = """
workload:
  input_tokens: {normal: {mean: 500, sd: 150}}
  output_tokens: {normal: {mean: 200, sd: 60}}
  arrivals: {poisson: 15/s}
  requests: REQUESTS
deployment: {model: llama-3.1-8b, hardware: H100, policy: vllm_v1}
"""


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
    make = CountedKv if not prefix_caching else RadixKv if policy == "sglang" else PagedKv
    kv: CountedKv | ReservedKv = make(BLOCKS)
    if policy in {"orca", "request_level"}:
        kv = ReservedKv(BLOCKS * 16, "max", 2048)
    engine = Engine(POLICIES[policy](), kv, MODEL, LIMITS)
    engine.requests_only = True
    done, handed = 0, -(-len(requests) // SAMPLES)
    start = time.process_time()
    for i, request in enumerate(requests):
        engine.submit(request.arrival_ns, request)
        if not i % handed:
            done += len(engine.advance(request.arrival_ns))
    done += len(engine.advance(1 << 60))
    if done != len(requests):
        raise SystemExit(f"{policy}: {done} of {len(requests)} finished")
    return time.process_time() - start


def reference_s(policy: str, requests: list[Request]) -> float:
    if not hasattr(FrozenReference, policy):
        return 0.0
    reference = FrozenReference(policy, BLOCKS, COST)
    asked = [(r.prompt_tokens, r.output_tokens, ticks_of_ns(r.arrival_ns)) for r in requests]
    start = time.process_time()
    reference.run(asked)
    return time.process_time() - start


def plan_of(many: int) -> Plan:
    return parse_plan(PLAN.replace("REQUESTS", str(many)))


def plan_row(many: int) -> dict[str, float]:
    """In a process of its own: its peak memory is the run's."""
    done = subprocess.run([sys.executable, __file__, "--plan", str(many)], capture_output=True, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout)
    return row


def run_plan(many: int) -> dict[str, float]:
    def peak_mb() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    with tempfile.TemporaryDirectory() as folder:
        simulate(plan_of(100), output=Path(folder) / "first")  # what loads on first use is not the run's
        before, start = peak_mb(), time.process_time()
        simulate(plan_of(many), output=Path(folder) / "run")
        took, more = time.process_time() - start, peak_mb() - before
    return {
        "plan_requests": many, "s_per_million": round(took / many * 1e6, 1), "mb_per_million": round(more / many * 1e6)
    }  # fmt: skip


def plan_engine_s(plan: Plan) -> float:
    """The engine alone on the plan's requests, drawn before."""
    requests, serving, done = list(demand_of(plan).open_loop(plan.seed)), build(plan, tokens=False), 0
    start = time.process_time()
    for i, request in enumerate(requests):
        serving.submit(request.arrival_ns, request)
        if i % 4096 == 4095:
            done += len(serving.advance(request.arrival_ns))
    done += len(serving.advance(1 << 60))
    if done != len(requests):
        raise SystemExit(f"{done} of {len(requests)} finished")
    return time.process_time() - start


def whole_row(many: int) -> dict[str, float]:
    """What a simulation takes from its plan to its result, and with its tables, over its engine alone; interleaved."""
    plan = plan_of(many)
    engine, whole, tables = [], [], []
    for _ in range(3):
        engine.append(plan_engine_s(plan))
        start = time.process_time()
        simulate(plan)
        whole.append(time.process_time() - start)
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            simulate(plan, output=Path(folder) / "run")
            tables.append(time.process_time() - start)
    return {
        "whole_simulate_requests": many, "engine_s_per_million": round(min(engine) / many * 1e6, 1),
        "over_engine": round(min(whole) / min(engine), 2), "with_tables_over_engine": round(min(tables) / min(engine), 2),
    }  # fmt: skip


def kept_bytes(many: int) -> float:
    """What a request leaves behind in engine and simulation, its columns left out."""
    kept = []
    for requests in (many, 2 * many):
        plan = plan_of(requests)
        run = Simulation(build(plan, tokens=False), demand_of(plan), 0, tokens=False, sample_every_ns=10**10)
        ended = Ended(tokens=False)
        tracemalloc.start()
        run.fill(ended)
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return (kept[1] - kept[0]) / many - 8 * (len(NUMBERS) + 1)


def policy_rows(many: int) -> None:
    for rate in (5.0, 15.0, 22.0):
        requests = chat(many, rate)
        few = chat(min(many, 1000), rate)
        for policy in POLICIES:
            if policy.startswith("distserve") or (policy == "request_level" and rate > 5):
                continue
            turns = [(engine_s(policy, requests), reference_s(policy, few)) for _ in range(TURNS)]
            row = {"policy": policy, "rate_per_s": rate, "s_per_million": round(min(turns)[0] / many * 1e6, 1)}
            if hasattr(FrozenReference, policy):
                row["times_reference"] = round(median(b / len(few) / (a / many) for a, b in turns), 1)
            if policy in {"vllm_v1", "sglang"}:
                caching_s = engine_s(policy, requests, prefix_caching=True)
                row["s_per_million_prefix_caching"] = round(caching_s / many * 1e6, 1)
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--long", action="store_true", help="growth and plan at a million requests")
    parser.add_argument("--plan", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(run_plan(options.plan)))
        return
    many = options.requests
    policy_rows(many)
    most = 1_000_000 if options.long else 5 * many
    requests = chat(most, 15.0)
    few_s, many_s = (min(engine_s("vllm_v1", requests[:n]) / n for _ in range(2)) for n in (most // 10, most))
    print(json.dumps({"growth_from_to": [most // 10, most], "s_per_million": round(many_s * 1e6, 1),
                      "cost_ratio": round(many_s / few_s, 2)}), flush=True)  # fmt: skip
    del requests
    print(json.dumps(plan_row(1_000_000 if options.long else 50_000)), flush=True)
    print(json.dumps(whole_row(200_000 if options.long else 50_000)), flush=True)
    print(json.dumps({"kept_bytes_a_request": round(kept_bytes(min(many, 5000)), 1)}), flush=True)


if __name__ == "__main__":
    main()
