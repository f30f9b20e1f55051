"""What KV memory does to batch size: reserving against paging, and values of one byte against two.

The batch is what fits; a reserved slot that no token fills is a request that waits.
"""

from phasemeter.runs.simulate import replicate
from phasemeter.serving.ended import Served
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: 120, p95: 500}}}}
  output_tokens: {{lognormal: {{median: 250, p95: 900}}}}
  arrivals: {{concurrency: 64}}
  requests: 300
deployment: {{model: opt-13b, hardware: A100-40G, max_model_len: 2048, {more}}}
"""

CASES = (
    ("orca, reserving the maximum", "policy: orca, policy_options: {reserve: max}"),
    ("orca, powers of two", "policy: orca, policy_options: {reserve: pow2}"),
    ("orca, knowing the length", "policy: orca, policy_options: {reserve: oracle}"),
    ("paged (vllm_v0)", "policy: vllm_v0"),
    ("paged, KV of one byte", "policy: vllm_v0, kv_bytes: 1"),
)

print(f"{'':30} running  KV held  requests/s  preempted")
for label, more in CASES:
    plan = parse_plan(PLAN.format(more=more))
    outcome = replicate(plan, demand_of(plan), plan.seed, tokens=False)
    busy = [one for one in outcome.samples if one.waiting]
    running = sum(one.running for one in busy) / len(busy)
    held = sum(one.kv_share for one in busy) / len(busy)
    truths = [
        one.truth for one in outcome.ended if isinstance(one, Served)
    ]  # a few are longer than the model's context
    end = max(one.finish_ns for one in truths) / 1e9
    preempted = sum(one.preemptions for one in truths)
    print(f"{label:30} {running:7.1f}  {100 * held:5.0f} %  {len(truths) / end:10.2f}  {preempted:9}")
