"""Chunked prefill against stalls: whole prompts stop everybody's decoding, chunks only slow it, and both have a price.

Long prompts among decodes: prefill first (vllm_v0), mixed steps under a token budget (vllm_v1, sarathi). Smaller chunks mean
smoother gaps and a later first token. Where no decode is there to be stalled, chunking only loses.
"""

from phasemeter.runs.simulate import manifest_of, replicate, result_of
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: 1730, p95: 5000}}}}
  output_tokens: {{fixed: {output}}}
  arrivals: {{poisson: {rate} req/s}}
  requests: 300
deployment: {{model: mistral-7b, hardware: A100-80G, policy: {policy}, max_num_batched_tokens: {budget}, max_num_seqs: 128}}
"""

CASES = (("vllm_v0", 16384), ("sarathi", 2048), ("sarathi", 512), ("vllm_v1", 2048), ("vllm_v1", 512))


def show(title, output, rate):
    print(f"{title}\npolicy   budget  ttft p50  ttft p99  gap p50  gap p99  stalled by others' prompts")
    for policy, budget in CASES:
        plan = parse_plan(PLAN.format(policy=policy, budget=budget, output=output, rate=rate))
        demand = demand_of(plan)
        outcome = replicate(plan, demand, plan.seed)
        result = result_of(plan, outcome, manifest_of(plan, demand, plan.seed, 1))
        ttft, gap = result.metrics["ttft"].percentiles, result.metrics["inter_chunk"].percentiles
        known = result.metrics["inter_chunk"].n > 0
        gaps = [f"{1e3 * gap[p].value:7.1f}" if known else "      -" for p in ("p50", "p99")]
        truths = [one.truth for one in outcome.ended]
        whole, mixed = (
            sum(getattr(one, name) for one in truths) / len(truths) / 1e6
            for name in ("stall_prefill_ns", "stall_mixed_ns")
        )
        print(
            f"{policy:8} {budget:6}  {1e3 * ttft['p50'].value:8.0f}  {1e3 * ttft['p99'].value:8.0f}  {gaps[0]}  {gaps[1]}"
            f"  {whole:6.0f} ms left out, {mixed:6.0f} ms slowed"
        )


show("Answers of 200 tokens", 200, 1.5)
show("Answers of one token: nobody decodes, chunking only loses", 1, 4)
