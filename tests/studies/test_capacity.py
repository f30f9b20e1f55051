"""The ceiling of a deployment is one: no schedule serves a workload quicker, whatever the policy, the memory and the lengths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.serving.deploy import build
from phasemeter.serving.ended import Ended
from phasemeter.serving.plan import demand_of, parse_plan
from phasemeter.serving.simulate import Simulation
from phasemeter.studies.capacity import ceiling_per_s, first_requests, likely_per_s, work_of

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: {prompt}, p95: {p95}}}}}
  output_tokens: {{uniform: {{min: 1, max: {output}}}}}
  arrivals: {{poisson: 1 req/s}}
  requests: 300
deployment: {{{deployment}}}
"""
LINES = "step_time: {linear: {prefill_s: [0.0181, 0.0001019, 7.1e-9], decode_s: [0.01993, 6.27e-7, 0.0000385]}}"
DEPLOYMENTS = (
    "model: llama-3.1-8b, hardware: L40S, policy: vllm_v1",
    "model: llama-3.1-8b, hardware: L40S, policy: vllm_v0, max_num_batched_tokens: 32768",
    "model: llama-3.1-8b, hardware: H100, policy: sarathi, max_num_batched_tokens: 512, tensor_parallel: 2",
    "model: llama-3.1-8b, hardware: L40S, kv_tokens: 40000, policy: vllm_v1, max_num_seqs: 16",
    "model: opt-13b, hardware: A100-80G, policy: orca, kv_tokens: 60000, max_model_len: 2048",
    "model: qwen3-30b-a3b, hardware: H100, policy: sglang, weight_bytes: 1",
    "model: llama-3.1-8b, hardware: A100-80G, pipeline_parallel: 2, replicas: 2",
    "model: llama-3.1-8b, hardware: A100-80G, split: {prefill: {replicas: 2}, decode: {tensor_parallel: 2}}",
    f"model: opt-13b, hardware: A100-80G, policy: vllm_v1, {LINES}",
    f"model: opt-13b, hardware: A100-80G, {LINES.replace('{linear', '{scale: 1.5, linear')}, split: {{}}",
)


@settings(max_examples=40, deadline=None)
@given(
    deployment=st.sampled_from(DEPLOYMENTS),
    prompt=st.integers(20, 800),
    output=st.integers(2, 200),
    seed=st.integers(0, 1000),
)
def test_nothing_is_served_faster_than_the_ceiling(deployment: str, prompt: int, output: int, seed: int) -> None:
    """All requests at once, so that batches are as full as they can be: their number over the time until the last has ended."""
    plan = parse_plan(PLAN.format(prompt=prompt, p95=2 * prompt, output=output, deployment=deployment))
    demand = demand_of(plan).at_rate(1e6)
    ended = Ended(tokens=False)
    Simulation(build(plan, tokens=False), demand, seed, tokens=False, sample_every_ns=10**15).fill(ended)
    ended.sort()
    served = ended.served()
    chosen = [one for one, own in zip(first_requests(demand, seed), served.tolist(), strict=True) if own]
    ceiling = ceiling_per_s(plan, work_of(chosen, len(chosen)))
    seconds = float(ended.column("finish_ns")[served].max()) / 1e9
    assert len(chosen) / seconds <= ceiling * (1 + 1e-6)


def test_a_ceiling_is_near_what_a_full_batch_reaches() -> None:
    """A bound that is never near would rule nobody out."""
    plan = parse_plan(PLAN.format(prompt=100, p95=150, output=200, deployment=DEPLOYMENTS[0]))
    demand = demand_of(plan).at_rate(1e6)
    requests = first_requests(demand, 1)
    ended = Ended(tokens=False)
    Simulation(build(plan, tokens=False), demand, 1, tokens=False, sample_every_ns=10**15).fill(ended)
    ended.sort()
    reached = len(requests) / float(ended.column("finish_ns").max()) * 1e9
    assert reached > 0.4 * ceiling_per_s(plan, work_of(requests, len(requests)))


def test_steps_of_half_the_time_have_twice_the_ceiling_and_a_prefix_cache_a_higher_one() -> None:
    plain, fast, cached = (
        parse_plan(PLAN.format(prompt=400, p95=800, output=50, deployment=f"{DEPLOYMENTS[0]}{more}"))
        for more in ("", ", step_time: {scale: 0.5}", ", prefix_cache: true")
    )
    requests = first_requests(demand_of(plain), 0)
    work = work_of(requests, len(requests))
    assert ceiling_per_s(fast, work) == pytest.approx(2 * ceiling_per_s(plain, work))
    assert ceiling_per_s(cached, work) > 1.5 * ceiling_per_s(plain, work)


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_search_without_a_ceiling_begins_within_its_reach(deployment: str) -> None:
    """A bracket grows by 120 times at most, either way (studies/paired.py)."""
    plan = parse_plan(PLAN.format(prompt=200, p95=500, output=100, deployment=deployment))
    requests = first_requests(demand_of(plan), 0)
    work = work_of(requests, len(requests))
    assert ceiling_per_s(plan, work) / 10 < likely_per_s(plan, work) < 2 * ceiling_per_s(plan, work)
