"""A plan says what it is, or in one line, with the path, why it can't be."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from phasemeter.errors import UserError
from phasemeter.serving.demand import replication_seed
from phasemeter.serving.hardware import accelerator
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
    "no YAML": ("workload:", "workload: [", "no readable YAML"),
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


SHAPE = (
    "{name: own, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, intermediate: 128, vocabulary: 1000, "
    "max_context_tokens: 4096}"
)
# (path it has to name, what it says instead of the plan's own line)
ABSURD = {
    "deployment.replicas": "RTX4090\n  replicas: 1000000000",
    "deployment.block_size": "RTX4090\n  block_size: 4000\n  kv_tokens: 3000",
    "deployment.max_model_len": "RTX4090\n  max_model_len: 1000000000",
    "workload": "RTX4090\n  max_model_len: 100",
    "deployment.policy_options.watermark": "RTX4090\n  policy_options: {watermark: 2}",
    "deployment.policy_options.long_prefill_threshold": "RTX4090\n  policy_options: {long_prefill_threshold: 0}",
    "deployment.policy_options.chunk_size": "RTX4090\n  policy: sarathi\n  policy_options: {chunk_size: many}",
    "deployment.policy_options.ratio": "RTX4090\n  policy: sglang\n  policy_options: {ratio: -3}",
    "deployment.step_time.step_overhead": "RTX4090\n  step_time: {step_overhead: 1 h}",
    "deployment.step_time.sequence_overhead": "RTX4090\n  step_time: {sequence_overhead: -1 ms}",
    "capacity.attainment": "RTX4090\ncapacity: {attainment: 0}",
    "phasemeter": "RTX4090\nphasemeter: 9",
}
OWN = {
    "deployment.model.layers": ("layers: 2", "layers: 0"),
    "deployment.model.heads": ("heads: 4,", "heads: -4,"),
    "deployment.model.kv_heads": ("kv_heads: 2", "kv_heads: 3"),
    "deployment.model.experts_per_token": ("hidden", "experts: 4, experts_per_token: 9, hidden"),
    "deployment.model.max_context_tokens": ("4096}", "0}"),
}


@pytest.mark.parametrize("path", ABSURD)
def test_an_absurd_number_is_one_line_with_its_path(path: str) -> None:
    with pytest.raises(UserError, match=rf"^plan\.yaml: `{path}`: ") as caught:
        parse_plan(
            PLAN.replace("{lognormal: {median: 512, p95: 2048}}", "512").replace("RTX4090", ABSURD[path]), "plan.yaml"
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", OWN)
def test_a_shape_of_ones_own_has_to_be_one(path: str) -> None:
    assert parse_plan(PLAN.replace("llama-3.1-8b", SHAPE))
    with pytest.raises(UserError, match=rf"^plan: `{path}`: "):
        parse_plan(PLAN.replace("llama-3.1-8b", SHAPE.replace(*OWN[path])))


def test_an_accelerator_of_ones_own_has_to_be_one() -> None:
    own: dict[str, object] = {**msgspec.to_builtins(accelerator("RTX4090")), "memory_bytes_per_s": 0.0, "sources": []}
    with pytest.raises(UserError, match=r"`deployment\.hardware\.memory_bytes_per_s`: 0\.0 has to be above 0"):
        parse_plan(PLAN.replace("RTX4090", yaml.safe_dump(own, default_flow_style=True, width=10_000).strip()))


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("4 req/s", "1e30 req/s", "workload.arrivals"),
        ("requests: 100", "requests: 100\n  warmup: 100", "workload.warmup"),
        ("{fixed: 128}", "{fixed: 1000000000}", "workload"),
    ],
)
def test_a_workload_that_cannot_be_run_is_one_line(old: str, new: str, path: str) -> None:
    with pytest.raises(UserError, match=f"^plan: `{path}`: "):
        parse_plan(PLAN.replace(old, new))
