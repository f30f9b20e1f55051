"""How often the intervals of `phasemeter plan` hold a capacity that is known: the figures of docs/decisions/0031-choosing-a-deployment.md.

    python bench/choice_coverage.py [SEEDS [REQUESTS ...]]

Two deployments of bench/goodput_coverage.py, whose capacities come from a million simulated requests at each of four rates
(docs/validation/goodput.md). One crossing a seed from looks of REQUESTS (1,000, 4,000 and 12,000); with 60 seeds some five minutes.
"""

from __future__ import annotations

import sys
from statistics import fmean, median

from phasemeter.contract.goodput import Promise
from phasemeter.runs.choose_looks import Simulated
from phasemeter.serving.plan import parse_plan
from phasemeter.studies.paired import Asked, Crossing, Look, Targets, crossing

PLAN = """
workload: {{input_tokens: {{lognormal: {{median: 400, p95: 1500}}}}, output_tokens: {answers}, arrivals: {{poisson: 1 req/s}}}}
deployment: {{model: llama-3.1-8b, hardware: L40S, policy: vllm_v1}}
"""
DEPLOYMENTS = {
    "TTFT binds": ("{uniform: {min: 40, max: 160}}", {"ttft": 0.2, "tpot": 0.1}, 10.98),
    "TPOT binds": ("{uniform: {min: 20, max: 120}}", {"ttft": 0.5, "tpot": 0.04}, 10.11),
}


def crossed(name: str, seed: int, requests: int) -> Crossing:
    """One candidate's crossing."""
    answers, objectives, _ = DEPLOYMENTS[name]
    promise = Promise(objectives={None: objectives}, attainment=0.95)
    simulated = Simulated([parse_plan(PLAN.format(answers=answers))], promise, seed)

    def look(rate: float) -> Look:
        return simulated.look(0, rate, requests, 0, 1.0)

    return crossing(look, Asked(targets=Targets(whole=0.95), start_per_s=10, requests=requests, resolution=0.015))


def main() -> None:
    seeds, *sizes = [int(word) for word in sys.argv[1:]] or [60]
    for name, (_, _, truth) in DEPLOYMENTS.items():
        for requests in sizes or [1000, 4000, 12000]:
            found = [crossed(name, seed, requests) for seed in range(seeds)]
            ends = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
            hits = sum(low <= truth <= high for low, high in ends)
            bias = fmean(one.rate_per_s for one in found if one.rate_per_s is not None) / truth - 1
            half = median((high / low) ** 0.5 - 1 for low, high in ends)
            print(
                f"{name}, looks of {requests}: {hits} of {seeds} hold {truth} req/s, half width {half:.1%}, mean {bias:+.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
