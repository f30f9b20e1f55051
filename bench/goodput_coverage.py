"""How often the goodput search's interval holds the true capacity, and what it costs beside one long run at the crossing.

    python bench/goodput_coverage.py [--deployment chat|cadence] [--searches 100] [--first-seed 0] [--truth 1000000] [--fixed 40]

Two deployments on the simulator: `chat`, where the first token's wait binds, and `cadence`, where the time per token does.

- truth: the share of `--truth` requests that keep the objectives, at each rate of a grid, from the simulator's own columns (no
  part of the search is used); the capacity is where the line through log-odds reaches the target. Kept in --cache.
- cover: how many searches' intervals hold it. A bound that is not given holds nothing back.
- cost: requests of a search over those of one run of fixed length at the crossing whose interval is as wide. The width of that one
  comes from `--fixed` runs with seeds of their own: `seen` by how much their attainments really differ, `said` by the interval each
  of them gives by the search's own rules; both through the curve's slope.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from phasemeter.contract.model import Contract, parse
from phasemeter.runs import goodput as searches
from phasemeter.runs import simulate
from phasemeter.serving.plan import Plan, demand_of, parse_plan
from phasemeter.studies.looks import interval_of
from phasemeter.studies.sequential import Search, Searcher

PLAN = """
workload: {input_tokens: {fixed: 512}, output_tokens: {fixed: 128}, arrivals: {poisson: 1/s}, requests: 250}
deployment: {model: llama-3.1-8b, hardware: L40S, policy: vllm_v1}
"""
CONTRACTS = {
    "chat": """
phasemeter: 1
workload:
  input_tokens: {lognormal: {median: 400, p95: 1500}}
  output_tokens: {uniform: {min: 40, max: 160}}
  arrivals: {poisson: 4 req/s}
capacity: {objectives: {ttft: 200 ms, tpot: 100 ms}, attainment: 95 %}
""",
    "cadence": """
phasemeter: 1
workload:
  input_tokens: {lognormal: {median: 400, p95: 1500}}
  output_tokens: {uniform: {min: 20, max: 120}}
  arrivals: {poisson: 4 req/s}
capacity: {objectives: {ttft: 500 ms, tpot: 40 ms}, attainment: 95 %}
""",
}
GRID = {"chat": (10.3, 10.7, 11.1, 11.5), "cadence": (9.8, 10.1, 10.4, 10.7)}
TRUTH_SEED, FIXED_SEED, FIXED_REQUESTS = 987_654_321, 50_000, 4000
WARMUP = 0.01  # of a run of a million requests


def attained(plan: Plan, contract: Contract, rate: float, requests: int, seed: int) -> float:
    """The share of one run's requests that keep both limits, from the simulator's instants."""
    demand = msgspec.structs.replace(demand_of(plan).at_rate(rate), requests=requests, duration_s=None)
    ended = simulate.replicate(plan, demand, seed, tokens=False).ended
    first, last, due = (ended.column(name) for name in ("first_token_ns", "finish_ns", "arrival_ns"))
    limits = contract.capacities[0].objectives
    ttft_s, tpot_s = (first - due) / 1e9, (last - first) / 1e9 / (ended.column("output_tokens") - 1)
    good = (ttft_s <= limits["ttft"]) & (tpot_s <= limits["tpot"])
    return float(good[int(WARMUP * requests) :].mean())


def truth_of(name: str, plan: Plan, contract: Contract, requests: int, cache: Path) -> dict[str, float]:
    """The capacity and the slope of attainment over the rate's logarithm there."""
    file = cache / f"truth-{name}-{requests}.json"
    told: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    for rate in GRID[name]:
        if str(rate) not in told:
            told[str(rate)] = attained(plan, contract, rate, requests, TRUTH_SEED)
            file.write_text(json.dumps(told))
            print(f"  truth at {rate:g} req/s: {100 * told[str(rate)]:.3f} %", file=sys.stderr, flush=True)
    target = contract.capacities[0].attainment or 0.0
    rates = np.array(GRID[name])
    odds = np.array([math.log(told[str(rate)] / (1 - told[str(rate)])) for rate in GRID[name]])
    level = math.log(target / (1 - target))
    if not odds[-1] < level < odds[0]:
        sys.exit(f"the grid of {name} doesn't hold the crossing: {told}")
    capacity = float(np.exp(np.interp(-level, -odds, np.log(rates))))
    slope = float(
        np.interp(
            math.log(capacity), (np.log(rates)[1:] + np.log(rates)[:-1]) / 2, np.diff(odds) / np.diff(np.log(rates))
        )
    )
    return {"capacity": capacity, "slope": slope * target * (1 - target)}


def fixed(plan: Plan, promise: Any, capacity: float, runs: int) -> dict[str, float]:
    """Half widths, in attainment, of one run of FIXED_REQUESTS at the crossing: as runs differ, and as each says."""
    seen, said = [], []
    for number in range(runs):
        own = msgspec.structs.replace(plan, seed=FIXED_SEED + number)
        one = searches.simulator(own, promise, None)(capacity, FIXED_REQUESTS, 0)
        seen.append(float(one.good.mean()))
        low, high = interval_of([one], 0.95)
        if low is not None and high is not None:
            said.append((high - low) / 2)
    return {"mean": float(np.mean(seen)), "seen": 1.96 * float(np.std(seen, ddof=1)), "said": float(np.mean(said))}


def one_search(plan: Plan, promise: Any, seed: int) -> Any:
    own = msgspec.structs.replace(plan, seed=seed)
    search = Search(target=promise.attainment, start_per_s=demand_of(plan).arrivals.rate_per_s or 1.0)
    return Searcher(searches.simulator(own, promise, None), search).run()


def report(name: str, found: list[Any], truth: dict[str, float], base: dict[str, float]) -> dict[str, Any]:
    capacity = truth["capacity"]
    covered = [(one.interval[0] or 0) <= capacity <= (one.interval[1] or math.inf) for one in found]
    bounded = [one for one in found if None not in one.interval]
    halves = np.array([math.log(one.interval[1] / one.interval[0]) / 2 for one in bounded])
    requests = np.array([one.requests for one in bounded], dtype=np.float64)
    told: dict[str, Any] = {
        "deployment": name, "capacity": round(capacity, 4), "searches": len(found), "covered": sum(covered), "bounded": len(bounded),
        "too_low": sum(one.interval[1] is not None and one.interval[1] < capacity for one in found),
        "binding": sorted({str(one.binding) for one in found}),
        "value_mean": float(np.mean([one.value for one in found])), "value_sd": float(np.std([one.value for one in found])),
        "half_width_%": [round(100 * float(q), 2) for q in np.quantile(halves, [0.1, 0.5, 0.9])],
        "requests": [int(q) for q in np.quantile(requests, [0.1, 0.5, 0.9])],
    }  # fmt: skip
    for kind in ("seen", "said"):
        needed = FIXED_REQUESTS * (base[kind] / -truth["slope"] / halves) ** 2
        told[f"cost_{kind}"] = [round(float(q), 2) for q in np.quantile(requests / needed, [0.1, 0.5, 0.9])]
        told[f"cost_{kind}_all"] = round(float(requests.sum() / needed.sum()), 2)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--deployment", choices=[*CONTRACTS], default=None)
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--truth", type=int, default=1_000_000)
    parser.add_argument("--fixed", type=int, default=40)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "phasemeter-goodput")
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    for name in [asked.deployment] if asked.deployment else CONTRACTS:
        began = time.monotonic()
        contract = parse(CONTRACTS[name], name)
        promise = searches.promised(contract, name)
        plan = searches.workload_of(parse_plan(PLAN), contract)
        truth = truth_of(name, plan, contract, asked.truth, asked.cache)
        file = asked.cache / f"fixed-{name}-{asked.fixed}.json"
        base = json.loads(file.read_text()) if file.exists() else fixed(plan, promise, truth["capacity"], asked.fixed)
        file.write_text(json.dumps(base))
        print(f"  {name}: {truth} fixed: {base}", file=sys.stderr, flush=True)

        found: list[Any] = []
        for seed in range(asked.first_seed, asked.first_seed + asked.searches):
            found.append(one_search(plan, promise, seed))
            if asked.verbose:
                one = found[-1]
                print(f"  {seed}: {one.value} {one.interval} {one.requests} {one.binding}", file=sys.stderr, flush=True)
        print(json.dumps(report(name, found, truth, base) | {"seconds": round(time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
