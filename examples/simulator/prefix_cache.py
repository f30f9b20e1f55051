"""A prefix cache that removes work, and one that only moves it.

Prompts that begin alike are computed once. Where prompts are what the accelerator is busy with, that is work removed: the first token
comes sooner, the whole answer too, and more requests fit into a second. Where decoding is what is short, as here in the decode half of a
split, prompts are done sooner and then wait for memory of the decode engine instead: ttft says a tenth, the whole answer hardly moves.
"""

from phasemeter.runs.simulate import replicate
from phasemeter.serving.plan import demand_of, parse_plan

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: 3400, p95: 4500}}}}
  output_tokens: {{fixed: {output}}}
  shared_prefix: {{tokens: 3000, groups: 4}}
  arrivals: {{concurrency: {clients}}}
  requests: 300
deployment: {{model: llama-3.1-8b, hardware: L40S, prefix_cache: {cache}, {shape}}}
"""


def show(title, output, clients, shape):
    print(f"{title}\ncache   prompt computed   ttft   then the second token   e2e   requests/s   tokens/s")
    for cache in ("false", "true"):
        plan = parse_plan(PLAN.format(output=output, clients=clients, cache=cache, shape=shape))
        ended = list(replicate(plan, demand_of(plan), plan.seed, tokens=True).ended)[60:]
        truths = [one.truth for one in ended]
        computed = sum(t.prompt_tokens - t.cached_tokens for t in truths) / len(truths)
        ttft = sum(t.first_token_ns - t.arrival_ns for t in truths) / len(truths) / 1e6
        second = sum(one.times_ns[1] - one.times_ns[0] for one in ended) / len(truths) / 1e6
        e2e = sum(t.finish_ns - t.arrival_ns for t in truths) / len(truths) / 1e9
        rate = len(truths) / (max(t.finish_ns for t in truths) - min(t.arrival_ns for t in truths)) * 1e9
        print(
            f"{'on' if cache == 'true' else 'off':5}  {computed:8.0f} tokens  {ttft:7.0f} ms  {second:16.0f} ms  {e2e:8.2f} s"
            f"  {rate:9.2f}  {rate * output:9.0f}"
        )


show("Together, answers of 50: prompts are the work, and the cache removes it", 50, 16, "policy: vllm_v1")
show("Apart, answers of 200: most of the wait moves from the prefill to the decode engine", 200, 80, "split: {}")
