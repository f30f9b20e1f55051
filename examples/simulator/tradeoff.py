"""Throughput against latency: more load means more tokens a second, until the queue grows."""

from phasemeter.runs.simulate import manifest_of, replicate, result_of
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {lognormal: {median: 512, p95: 2048}}
  output_tokens: {lognormal: {median: 128, p95: 512}}
  arrivals: {poisson: 1 req/s}
  requests: 400
deployment: {model: llama-3.1-8b, hardware: L40S, max_num_batched_tokens: 2048}
"""

plan = parse_plan(PLAN)
print("req/s  tokens/s  ttft p50  ttft p99  tpot p50  itl p99   running  stable")
for rate in (1, 2, 4, 6, 8, 12):
    demand = demand_of(plan).at_rate(rate)
    outcome = replicate(plan, demand, plan.seed)
    result = result_of(plan, outcome, manifest_of(plan, demand, plan.seed, 1))
    ttft, tpot, itl = (result.metrics[name].percentiles for name in ("ttft", "tpot", "itl"))
    running = sum(one.running for one in outcome.samples) / len(outcome.samples)
    print(
        f"{rate:5}  {result.throughput['output_tokens_per_s']:8.0f}  {1e3 * ttft['p50'].value:8.0f}  {1e3 * ttft['p99'].value:8.0f}"
        f"  {1e3 * tpot['p50'].value:8.1f}  {1e3 * itl['p99'].value:7.1f}   {running:7.1f}  {outcome.stable}"
    )
