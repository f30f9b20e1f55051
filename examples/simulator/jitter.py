"""Continuous batching against jitter: who joins a running batch, and what the others feel of it.

A batch that nobody may join gives even gaps and a long wait for the first token. Letting requests join at any step takes the wait away
and puts other people's prompts into everybody's gaps; chunks spread them out.
"""

from phasemeter.runs.simulate import manifest_of, replicate, result_of
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: 600, p95: 2000}}}}
  output_tokens: {{lognormal: {{median: 100, p95: 300}}}}
  arrivals: {{poisson: {rate} req/s}}
  requests: 150
deployment: {{model: llama-2-13b, hardware: A100-80G, max_num_seqs: 32, max_model_len: 4096, {policy}}}
"""
CASES = (
    ("whole batches", "policy: request_level"),
    ("join at any step", "policy: orca, policy_options: {reserve: oracle}"),
    ("prompts first", "policy: vllm_v0"),
    ("chunks of 256", "policy: sarathi, max_num_batched_tokens: 256"),
)

for rate in (0.5, 2):
    print(f"{rate} requests/s\n{'':18}ttft p50  ttft p99   gap p50   gap p99   gap p99/p50   e2e p50")
    for label, policy in CASES:
        plan = parse_plan(PLAN.format(rate=rate, policy=policy))
        demand = demand_of(plan)
        result = result_of(plan, replicate(plan, demand, plan.seed), manifest_of(plan, demand, plan.seed, 1))
        ttft, gap, e2e = (result.metrics[name].percentiles for name in ("ttft", "itl", "e2e"))
        middle, tail = 1e3 * gap["p50"].value, 1e3 * gap["p99"].value
        print(
            f"{label:18}{1e3 * ttft['p50'].value:8.0f}  {1e3 * ttft['p99'].value:8.0f}  {middle:8.1f}  {tail:8.1f}  {tail / middle:12.1f}"
            f"  {1e3 * e2e['p50'].value:8.0f}"
        )
