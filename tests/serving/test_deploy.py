"""What a plan builds keeps the theory of queues and its own memory."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.errors import UserError
from phasemeter.serving.deploy import POLICIES, build, metered, spent
from phasemeter.serving.ended import Served
from phasemeter.serving.plan import Plan, demand_of, parse_plan
from phasemeter.serving.simulate import Simulation

PLAN = """
workload:
  input_tokens: {{fixed: 100}}
  output_tokens: {output}
  arrivals: {{poisson: {rate} req/s}}
  requests: {requests}
deployment:
  model: opt-13b
  hardware: A100-80G
  max_num_seqs: {most}
  step_time: {{linear: {{prefill_s: [{d}, 0, 0], decode_s: [{d}, 0, 0]}}}}
  {more}
"""


def plan_of(output: str = "{fixed: 1}", **more: object) -> Plan:
    values = {"rate": 10, "requests": 20_000, "d": 0.05, "most": 1, "more": ""} | more
    return parse_plan(PLAN.format(output=output, **values))


def served(plan: Plan, seed: int = 5) -> tuple[list[Served], Simulation]:
    run = Simulation(build(plan, tokens=False), demand_of(plan), seed, tokens=False, sample_every_ns=10**9)
    return [one for one in run.run() if isinstance(one, Served)], run


def mean_ttft_s(plan: Plan) -> float:
    ended, _ = served(plan)
    return sum(one.truth.first_token_ns - one.truth.arrival_ns for one in ended) / len(ended) / 1e9


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("kind", ["single", "pipeline", "tensor"])
def test_a_prefill_pool_follows_distserves_three_equations(kind: str, load: float) -> None:
    """arXiv 2401.09670, equations 1 to 3, one prompt a batch; tensor: K = 2 with perfect speed-up."""
    d = 0.05
    r = load / d
    expected = {
        "single": d + r * d**2 / (2 * (1 - r * d)),
        "pipeline": d + r * d**2 / (4 * (2 - r * d)),
        "tensor": d / 2 + r * d**2 / (4 * (2 - r * d)),
    }[kind]
    stages = 2 if kind == "pipeline" else 1
    more = f"split: {{prefill: {{pipeline_parallel: {stages}}}}}"
    plan = plan_of(rate=r, d=d / 2 if kind == "tensor" else d, more=more)
    assert mean_ttft_s(plan) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("policy", ["vllm_v0", "orca", "request_level"])
def test_one_seat_and_fixed_service_is_an_m_d_1_queue(policy: str) -> None:
    d, load = 0.05, 0.6
    r = load / d
    plan = plan_of(rate=r, d=d, more=f"policy: {policy}")
    assert mean_ttft_s(plan) == pytest.approx(d + r * d**2 / (2 * (1 - r * d)), rel=0.03)


def test_little_s_law_holds_for_queue_and_server() -> None:
    plan = plan_of(
        output="{uniform: {min: 5, max: 40}}", rate=20, requests=4000, d=0.02, most=16, more="policy: vllm_v0"
    )
    run = Simulation(build(plan, tokens=False), demand_of(plan), 3, tokens=False, sample_every_ns=7_310_003)
    truths = [one.truth for one in run.run() if isinstance(one, Served)]
    end = max(one.finish_ns for one in truths)
    samples = [one for one in run.samples if one.at_ns <= end]
    waiting = sum(one.waiting for one in samples) / len(samples)
    running = sum(one.running for one in samples) / len(samples)
    assert waiting == pytest.approx(sum(one.prefill_start_ns - one.arrival_ns for one in truths) / end, rel=0.02)
    assert running == pytest.approx(sum(one.finish_ns - one.prefill_start_ns for one in truths) / end, rel=0.02)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_all_policies_are_equal_at_batch_one(policy: str) -> None:
    more = f"policy: {policy}"
    plan = plan_of(output="{fixed: 7}", rate=0.1, requests=20, d=0.02, most=8, more=more)
    ended, _ = served(plan)
    assert {
        (one.truth.first_token_ns - one.truth.arrival_ns, one.truth.finish_ns - one.truth.arrival_ns) for one in ended
    } == {(20_000_000, 140_000_000)}


def test_kv_is_free_again_when_all_have_ended() -> None:
    for more in (
        "replicas: 2",
        "split: {decode: {replicas: 2}}",
        "prefix_cache: true",
        "policy: orca",
        "kv_tokens: 600",
    ):
        plan = plan_of(output="{uniform: {min: 2, max: 60}}", rate=30, requests=200, d=0.02, most=64, more=more)
        ended, run = served(plan)
        assert len(ended) == 200 and run.serving.load() == (0, 0, pytest.approx(0.0))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("policy: lottery", "`deployment.policy`: `lottery`"),
        ("router: oracle", "`deployment.router`: `oracle`"),
        ("policy: vllm_v0, policy_options: {magic: 1}", "`deployment.policy_options`: vllm_v0 takes no magic"),
        ("policy: vllm_v0, policy_options: {reserve: max}", "`deployment.policy_options`: vllm_v0 takes no reserve"),
        ("policy: distserve", "`deployment.policy`: `distserve` serves from two pools: write split"),
        ("policy: distserve_decode", "`deployment.policy`: `distserve_decode` serves from two pools"),
        ("router: oracle, split: {prefill: {replicas: 2}}", "`deployment.router`: `oracle`"),
        ("polcy: orca", "`deployment.polcy`: no such key: did you mean `policy`?"),
        ("split: {gpus: 2}", "`deployment.split.gpus`: no such key: write one of prefill, decode, link"),
    ],
)
def test_what_is_not_known_is_named_with_its_file_and_path(more: str, words: str) -> None:
    text = PLAN.format(output="{fixed: 1}", rate=1, requests=1, d=0.01, most=1, more="").rstrip()
    with pytest.raises(UserError) as caught:
        parse_plan(text.replace("model: opt-13b", "model: opt-13b\n  " + "\n  ".join(more.split(", ", 1))), "mine.yaml")
    assert str(caught.value).startswith(f"mine.yaml: {words}")


def test_a_rule_of_reserving_that_is_not_known_is_named_with_its_path() -> None:
    more = "policy: orca\n  policy_options: {reserve: most}"
    text = PLAN.format(output="{fixed: 1}", rate=1, requests=1, d=0.01, most=1, more=more)
    with pytest.raises(UserError, match=r"`deployment.policy_options.reserve`: `most`: write"):
        build(parse_plan(text), tokens=False)


@pytest.mark.parametrize("more", ["policy: vllm_v1", "policy: orca", "replicas: 2", "split: {decode: {replicas: 2}}"])
def test_a_metered_deployment_runs_as_a_silent_one_and_spends_as_one_that_tells_tokens(more: str) -> None:
    text = PLAN.format(output="{uniform: {min: 2, max: 40}}", rate=10, requests=200, d=0.02, most=16, more=more)
    plan = parse_plan(text.replace("  step_time: {linear: {prefill_s: [0.02, 0, 0], decode_s: [0.02, 0, 0]}}\n", ""))
    runs = []
    for tokens, make in ((False, lambda one: one), (False, metered), (True, lambda one: one)):
        run = Simulation(make(build(plan, tokens=tokens)), demand_of(plan), 5, tokens=tokens, sample_every_ns=10**9)
        runs.append((sorted(one.truth.finish_ns for one in run.run() if isinstance(one, Served)), spent(run.serving)))
    (silent, nothing), (counted, own), (told, reference) = runs
    assert silent == counted == told and nothing == {}
    for pool, shares in reference.items():
        assert sum(own[pool]["steps_bound_by"].values()) == sum(shares["steps_bound_by"].values())
        assert own[pool]["time_share"] == pytest.approx(
            shares["time_share"], rel=1e-3
        )  # a stretch counts by its middle


def test_every_step_so_many_times_as_long_is_every_answer_so_much_later() -> None:
    """At arrivals as much slower, each instant is the same number of times as late."""
    plan = plan_of(output="{fixed: 20}", rate=4.0, requests=300, d=0.02, most=8)
    half = plan_of(output="{fixed: 20}", rate=8.0, requests=300, d=0.02, most=8)
    scaled = msgspec.structs.replace(
        half,
        deployment=msgspec.structs.replace(
            half.deployment, step_time=msgspec.structs.replace(half.deployment.step_time, scale=0.5)
        ),
    )
    ends, halved = ([one.truth.finish_ns for one in served(each)[0]] for each in (plan, scaled))
    assert halved == pytest.approx([end / 2 for end in ends], abs=50)
    with pytest.raises(UserError, match=r"`deployment.step_time.scale`: 0.0 has to be above 0"):
        parse_plan(
            PLAN.format(output="3", rate=1, requests=1, d=0.01, most=1, more="").replace(
                "{linear", "{scale: 0.0, linear"
            )
        )
