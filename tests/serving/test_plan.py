"""A plan says what it is, or in one line, with the path, why it can't be."""

from __future__ import annotations

import pytest

from phasemeter.errors import UserError
from phasemeter.serving.demand import replication_seed
from phasemeter.serving.plan import demand_of, link_of, objectives_of, parse_plan, pools_of

PLAN = """
workload:
  input_tokens: {lognormal: {median: 512, p95: 2048}}
  output_tokens: {fixed: 128}
  arrivals: {poisson: 4 req/s}
  requests: 100
deployment:
  model: llama-3.1-8b
  hardware: RTX4090
"""

MISTAKES = {
    "an unknown key": ("requests: 100", "reqests: 100", "`workload.reqests`: no such key"),
    "an unknown key at the top": ("workload:", "cake: 1\nworkload:", "`cake`: no such key"),
    "an unknown key inside a pool": ("RTX4090", "RTX4090\n  split: {decode: {gpus: 2}}", "`deployment.split.decode.gpus`: no such key"),
    "a type": ("RTX4090", "RTX4090\n  tensor_parallel: two", "`deployment.tensor_parallel`: Expected `int`"),
    "heads that don't divide": ("RTX4090", "RTX4090\n  tensor_parallel: 3", "tensor parallelism 3 does not divide the 32 heads"),
    "an unknown accelerator": ("RTX4090", "Z80", "no accelerator `Z80` is known"),
    "an unknown model": ("llama-3.1-8b", "llama-9", "no model `llama-9` is known"),
    "a model that doesn't fit": ("llama-3.1-8b", "llama-2-70b", "does not fit: its weights take 138.0 GB"),
    "a prompt beyond the KV pool": ("{lognormal: {median: 512, p95: 2048}}", "60000", "longer than the KV pool of 41"),
    "a prompt beyond the context": ("llama-3.1-8b", "opt-6.7b\n  kv_tokens: 9000", None),
    "a length": ("{fixed: 128}", "{fixd: 128}", "workload.output_tokens"),
    "a rate": ("4 req/s", "4 furlongs", "workload.arrivals"),
    "no replicas": ("RTX4090", "RTX4090\n  replicas: 0", "`deployment.replicas`: 0"),
    "a link's speed": ("RTX4090", "RTX4090\n  split: {link: {bytes_per_s: 3 parsec}}", "deployment.split.link.bytes_per_s"),
    "an objective": ("deployment:", "capacity: {objectives: {ttft: 300}}\ndeployment:", "capacity.objectives.ttft"),
    "replicas of a split": ("RTX4090", "RTX4090\n  replicas: 2\n  split: {}", "split.prefill"),
    "a key written twice": ("requests: 100", "requests: 100\n  requests: 5", "`requests` stands here twice"),
    "bytes of nothing": ("RTX4090", "RTX4090\n  kv_bytes: 0", "`deployment.kv_bytes`: 0"),
    "no memory": ("RTX4090", "RTX4090\n  memory_share: 0", "`deployment.memory_share`: 0"),
    "a link that carries nothing": ("RTX4090", "RTX4090\n  split: {link: {bytes_per_s: 0}}", "deployment.split.link.bytes_per_s"),
    "a step of no time": ("RTX4090", "RTX4090\n  step_time: {linear: {prefill_s: [0, 0, 0], decode_s: [1, 0, 0]}}", "linear.prefill_s"),
    "a step of negative time": ("RTX4090", "RTX4090\n  step_time: {linear: {prefill_s: [1, 0, -1], decode_s: [1, 0, 0]}}", "prefill_s"),
    "a pool's tokens": ("RTX4090", "RTX4090\n  split: {decode: {kv_tokens: -1}}", "`deployment.split.decode.kv_tokens`: -1"),
    "no YAML": ("workload:", "workload: [", "line 4: no YAML"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_path(mistake: str) -> None:
    old, new, words = MISTAKES[mistake]
    text = PLAN.replace(old, new)
    if words is None:
        text, words = (
            text.replace("{lognormal: {median: 512, p95: 2048}}", "3000"),
            "leaves no room in the context of opt-6.7b",
        )
    with pytest.raises(UserError) as caught:
        parse_plan(text, "plan.yaml")
    message = str(caught.value)
    assert message.startswith("plan.yaml") and words in message and "\n" not in message


@pytest.mark.parametrize(
    "name", ["block_size", "kv_tokens", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "pipeline_parallel"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_zero_and_less_are_no_way_to_write_unlimited(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"`deployment.{name}`: {value} has to be 1 or more"):
        parse_plan(PLAN.replace("RTX4090", f"RTX4090\n  {name}: {value}"))


def test_a_plain_plan_is_one_pool_with_kv_from_memory() -> None:
    plan = parse_plan(PLAN)
    (pool,) = pools_of(plan).values()
    assert pool.replicas == 1 and 40_000 < pool.kv_tokens < 43_000
    assert parse_plan(PLAN.replace("RTX4090", "RTX4090\n  kv_bytes: 1")) != plan
    (quantised,) = pools_of(parse_plan(PLAN.replace("RTX4090", "RTX4090\n  kv_bytes: 1"))).values()
    assert quantised.kv_tokens in {2 * pool.kv_tokens, 2 * pool.kv_tokens + 1}


def test_what_a_trace_lost_is_on_the_plan() -> None:
    rows = ["timestamp,input_tokens,output_tokens", "0,8,4", "1,8,0"]
    plan = parse_plan(PLAN.replace("  requests: 100", "  trace: t.csv"), read=lambda file: rows)
    assert plan.trace_rows is not None and len(plan.trace_rows) == 1
    assert plan.trace_notes == ("t.csv: 1 of 2 rows have no output (failures): left out",)


def test_a_split_has_two_pools_and_a_link() -> None:
    split = "RTX4090\n  split: {prefill: {replicas: 2}, decode: {tensor_parallel: 2}, link: {bytes_per_s: 25 GB/s, latency: 1 ms}}"
    plan = parse_plan(PLAN.replace("RTX4090", split))
    pools = pools_of(plan)
    assert (pools["prefill"].replicas, pools["decode"].deployment.tensor_parallel) == (2, 2)
    assert plan.deployment.split is not None and link_of(plan.deployment.split) == (0.001, 25e9)


def test_objectives_come_from_capacity_or_else_from_the_slo() -> None:
    slo = "latency_slo: {ttft: {p95: 450 ms}, tpot: {p95: 25 ms}}\n"
    assert objectives_of(parse_plan(slo + PLAN)) == {"ttft": 0.45, "tpot": 0.025}
    assert objectives_of(parse_plan(slo + "capacity: {objectives: {ttft: 1 s}}\n" + PLAN)) == {"ttft": 1.0}


def test_two_rates_see_the_same_requests_and_scaled_gaps() -> None:
    demand = demand_of(parse_plan(PLAN))
    slow, fast = list(demand.open_loop(7)), list(demand.at_rate(8.0).open_loop(7))
    assert [(one.prompt_tokens, one.output_tokens) for one in slow] == [
        (one.prompt_tokens, one.output_tokens) for one in fast
    ]
    assert all(abs(a.arrival_ns - 2 * b.arrival_ns) <= len(slow) * 2 for a, b in zip(slow, fast, strict=True))
    assert list(demand.open_loop(7)) == slow != list(demand.open_loop(replication_seed(7, 1)))


def test_a_shared_prefix_gives_equal_blocks_within_a_group_only() -> None:
    text = PLAN.replace("requests: 100", "requests: 50\n  shared_prefix: {tokens: 64, groups: 3}")
    requests = list(demand_of(parse_plan(text)).open_loop(1))
    heads = {one.block_hashes[:4] for one in requests if one.prompt_tokens >= 64}
    tails = [one.block_hashes[4] for one in requests if one.prompt_tokens >= 80]
    assert len(heads) == 3 and len(set(tails)) == len(tails)
