"""e2e = ttft + (n − 1) · tpot: which term dominates, and where the law fails.

One request on an empty server obeys it exactly. A fitted law stops holding where requests share steps: then neither ttft nor
tpot belongs to the request alone.
"""

from statistics import fmean

from phasemeter.runs.simulate import replicate
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {{fixed: {prompt}}}
  output_tokens: {output}
  arrivals: {{{arrivals}}}
  requests: {requests}
  warmup: 0
deployment:
  model: llama-3.1-8b
  hardware: H100
  step_time:
    linear: {{prefill_s: [{ttft}, {per_token}, 0], decode_s: [{tpot}, 0, {per_sequence}]}}
"""


def served(prompt, output, ttft, tpot, per_token=0, per_sequence=0, arrivals="constant: 0.01/s", requests=1):
    plan = parse_plan(PLAN.format(**locals()))
    return [one.truth for one in replicate(plan, demand_of(plan), plan.seed).ended]


def seconds(truth):
    ttft, e2e = (truth.first_token_ns - truth.arrival_ns) / 1e9, (truth.finish_ns - truth.arrival_ns) / 1e9
    return ttft, e2e


print("A request of 120 tokens on an empty server")
for label, ttft, tpot in (("as it is", 0.450, 0.025), ("ttft − 100 ms", 0.350, 0.025), ("tpot − 1 ms", 0.450, 0.024)):
    first, e2e = seconds(served(500, 120, ttft, tpot)[0])
    print(f"  {label:14} ttft {first:.3f} s  e2e {e2e:.3f} s")

print("Which term dominates (10 ms and 45 µs a prompt token; a step 20 ms and 0.1 ms a sequence)")
for label, prompt, output, clients in (
    ("long prompt, short answer", 30_000, 20, 1),
    ("short prompt, 4,000 tokens", 100, 4_000, 1),
    ("64 clients, 1,000 and 120", 1_000, 120, 64),
):
    truths = served(prompt, output, 0.01, 0.02, 45e-6, 1e-4, f"concurrency: {clients}", 4 * clients)
    first, e2e = map(fmean, zip(*map(seconds, truths), strict=True))
    print(
        f"  {label:27} ttft {100 * first / e2e:5.1f} %, {output - 1:4} tokens {100 - 100 * first / e2e:5.1f} % of {e2e:7.3f} s"
    )

print("Where it fails: what an empty server showed, against what requests met")
for clients in (1, 8, 64):
    truths = served(1000, 120, 0.01, 0.02, 45e-6, 1e-4, f"concurrency: {clients}", 4 * clients + 20)
    alone = 0.01 + 1000 * 45e-6 + 119 * (0.02 + 1e-4)
    mean = fmean(seconds(one)[1] for one in truths)
    print(f"  {clients:3} clients: law {alone:.3f} s, met {mean:.3f} s ({mean / alone - 1:+.0%})")

print("Where it fails: percentiles don't add up, and neither do means of answers of different lengths")
mixed = "{lognormal: {median: 100, p95: 600}}"
truths = served(1000, 120, 0.01, 0.02, 45e-6, 1e-4, "poisson: 6 req/s", 300)
firsts, ends = zip(*map(seconds, truths), strict=True)
tpots = [(end - first) / 119 for first, end in zip(firsts, ends, strict=True)]
p99 = [sorted(values)[int(0.99 * len(values))] for values in (firsts, tpots, ends)]
print(f"  p99 of ttft + 119 · p99 of tpot = {p99[0] + 119 * p99[1]:.3f} s, p99 of e2e {p99[2]:.3f} s")
truths = served(1000, mixed, 0.01, 0.02, 45e-6, 1e-4, "poisson: 6 req/s", 300)
ends = [seconds(one)[1] for one in truths]
firsts = [seconds(one)[0] for one in truths]
several = [(t, first, end) for t, first, end in zip(truths, firsts, ends, strict=True) if t.output_tokens > 1]
tpot = fmean((end - first) / (t.output_tokens - 1) for t, first, end in several)
tokens = fmean(t.output_tokens - 1 for t in truths)
law = fmean(firsts) + tokens * tpot
print(f"  mean ttft + {tokens:.1f} · mean tpot = {law:.3f} s, mean e2e {fmean(ends):.3f} s")
