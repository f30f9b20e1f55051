"""Quantised KV: half the bytes a value is half of what attention reads, and twice the tokens that fit.

Which of the two pays depends on the load. Few requests gain the reading alone, which is little beside the weights; many gain seats, and
then each step serves more of them: the answer comes sooner although a token may take longer.
"""

from phasemeter.runs.simulate import replicate
from phasemeter.serving.plan import demand_of, parse_plan, pools_of

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: 1500, p95: 4000}}}}
  output_tokens: {{lognormal: {{median: 250, p95: 800}}}}
  arrivals: {{concurrency: {clients}}}
  requests: {requests}
deployment: {{model: llama-2-13b, hardware: A100-40G, max_num_batched_tokens: 2048, kv_bytes: {kv_bytes}, weight_bytes: {weight_bytes}}}
"""

print(
    "clients  KV     weights   fits tokens  running  preempted  tpot mean  e2e mean  requests/s  KV's part of step time"
)
for clients, requests in ((1, 30), (48, 300)):
    for kv_bytes, weight_bytes in ((2, 2), (1, 2), (1, 1)):
        plan = parse_plan(PLAN.format(clients=clients, requests=requests, kv_bytes=kv_bytes, weight_bytes=weight_bytes))
        outcome = replicate(plan, demand_of(plan), plan.seed)
        truths = [one.truth for one in outcome.ended]
        tpots = [(t.finish_ns - t.first_token_ns) / (t.output_tokens - 1) for t in truths if t.output_tokens > 1]
        e2e = sum(t.finish_ns - t.arrival_ns for t in truths) / len(truths)
        running = sum(one.running for one in outcome.samples) / len(outcome.samples)
        kv_part = outcome.spent["all"]["time_share"]["kv_memory"]
        print(
            f"{clients:7}  {kv_bytes} byte {weight_bytes} byte  {pools_of(plan)['all'].kv_tokens:13}  {running:7.1f}"
            f"  {sum(t.preemptions for t in truths):9}  {sum(tpots) / len(tpots) / 1e6:6.1f} ms  {e2e / 1e9:6.2f} s"
            f"  {1e9 * len(truths) / max(t.finish_ns for t in truths):10.2f}  {100 * kv_part:9.0f} %"
        )
