"""The split against interference: prefill and decode on accelerators of their own, and when that loses.

Two accelerators either way. Apart, decodes are never stalled by prompts; but each half is idle while the other one is short.
"""

from phasemeter.runs.simulate import manifest_of, replicate, result_of
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {{fixed: {prompt}}}
  output_tokens: {{fixed: {output}}}
  arrivals: {{poisson: {rate} req/s}}
  requests: 400
capacity: {{objectives: {{ttft: 400 ms, tpot: {limit} ms}}}}
deployment:
  model: opt-13b
  hardware: A100-80G
  {shape}
"""

TOGETHER = "replicas: 2\n  policy: vllm_v0"
APART = "split: {link: {bytes_per_s: 300 GB/s}}"


def show(title, prompt, output, limit, rates):
    print(f"{title}\nreq/s   together: ttft p90  tpot p90  good     apart: ttft p90  tpot p90  good")
    for rate in rates:
        line = f"{rate:5}  "
        for shape in (TOGETHER, APART):
            plan = parse_plan(PLAN.format(prompt=prompt, output=output, limit=limit, rate=rate, shape=shape))
            demand = demand_of(plan)
            outcome = replicate(plan, demand, plan.seed, tokens=False)
            result = result_of(plan, outcome, manifest_of(plan, demand, plan.seed, 1))
            ttft, tpot = (result.metrics[name].percentiles["p90"].value for name in ("ttft", "tpot"))
            good = 100 * result.goodput["attainment"]["value"]
            line += f"          {1e3 * ttft:8.0f}  {1e3 * tpot:8.1f}  {good:3.0f} %"
        print(line)


show("Prompts of 512, answers of 64, tpot within 25 ms", 512, 64, 25, (4, 6, 8))
show("Prompts of 64, answers of 400, tpot within 40 ms: the split loses", 64, 400, 40, (4, 8, 12))
