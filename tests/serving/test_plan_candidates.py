"""The keys that make candidates of a plan: what they make, and one line for each mistake."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import UserError
from phasemeter.serving.plan import demand_of, parse_plan
from phasemeter.serving.plan_candidates import Choice, keys, parse_choice, schema
from phasemeter.serving.plan_changes import accelerators_of, copies, hardware_of, slowed, unseen_changes

COMMON = """
workload: {input_tokens: 512, output_tokens: 64}
capacity: {objectives: {ttft: 400 ms, tpot: 40 ms}, attainment: 90 %}
"""


def parsed(more: str, deployment: str = "{model: llama-3.1-8b, hardware: H100}") -> Choice:
    return parse_choice(f"{COMMON}deployment: {deployment}\n{more}", "plan.yaml")


def refused(more: str, deployment: str = "{model: llama-3.1-8b, hardware: H100}") -> str:
    with pytest.raises(UserError) as caught:
        parsed(more, deployment)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    return str(caught.value)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(["vllm_v0", "vllm_v1", "sarathi", "orca"]), min_size=1, max_size=4, unique=True),
)
def test_vary_makes_each_with_each_and_each_is_the_plan_that_says_the_same(sizes: list[int], names: list[str]) -> None:
    choice = parsed(f"vary: {{tensor_parallel: {sizes}, policy: {names}}}")
    assert len(choice.candidates) == len(sizes) * len(names)
    for one in choice.candidates:
        size, policy = one.varied["tensor_parallel"], one.varied["policy"]
        alone = parse_plan(
            COMMON.replace("output_tokens: 64", "output_tokens: 64, arrivals: {poisson: 1/s}")
            + f"deployment: {{model: llama-3.1-8b, hardware: H100, tensor_parallel: {size}, policy: {policy}}}"
        )
        assert one.plan is not None
        assert one.plan.deployment == alone.deployment and demand_of(one.plan) == demand_of(alone)


def test_blocks_and_single_candidates_are_added_up_and_named_by_what_they_vary() -> None:
    choice = parsed(
        "vary:\n  - {policy: [vllm_v1], tensor_parallel: [1, 2]}\n  - {split.prefill.replicas: [1, 2], split.decode.replicas: [1]}\n"
        "candidates:\n  - {name: ours, replicas: 2, policy_options: {watermark: 0.01}, policy: vllm_v0}\n"
        "  - {split: {prefill: {tensor_parallel: 2}, decode: {replicas: 2}}}\n"
    )
    told = {one.name: accelerators_of(one.plan) for one in choice.candidates if one.plan is not None}
    assert told == {"vllm_v1 tp1": 1, "vllm_v1 tp2": 2, "1p 1d": 2, "2p 1d": 3, "ours": 2, "ptp2 2d": 4}


def test_what_does_not_go_together_is_a_candidate_with_a_reason() -> None:
    choice = parsed(
        "vary: {hardware: [L40S, H100], model: [llama-3.1-8b, llama-3.1-70b]}\n"
        "candidates: [{tensor_parallel: 3}, {split: {}, policy: vllm_v1}, {max_num_batched_tokens: 64}]",
        "{model: llama-3.1-8b, hardware: H100}",
    )
    reasons = {one.name: one.reason for one in choice.candidates if one.plan is None}
    assert set(reasons) == {"L40S llama-3.1-70b", "H100 llama-3.1-70b", "tp3", "split vllm_v1", "batch 64"}
    assert "does not fit" in str(reasons["L40S llama-3.1-70b"])
    assert "does not divide" in str(reasons["tp3"])


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ("vary: {tensor_paralel: [1, 2]}", "`vary.tensor_paralel`: no such key of a deployment: tensor_parallel?"),
        ("vary: {gpu_memory_utilization: [0.8]}", "`vary.gpu_memory_utilization`: no such key of a deployment: memory_share?"),
        ("vary: {tensor_parallel: []}", "`vary.tensor_parallel`: an empty list"),
        ("vary: {tensor_parallel: 2}", "`vary"),
        ("vary: {}", "`vary`: no candidate"),
        ("vary: [{policy: [orca]}, {}]", "`vary[1]`: empty"),
        ("", "`vary`: no candidate"),
        ("vary: {tensor_parallel: [one]}", "`vary.tensor_parallel`"),
        ("vary: {replicas: [0]}", "`vary.replicas`"),
        ("vary: {hardware: [B9000]}", "`vary.hardware`: no accelerator `B9000`"),
        ("vary: {policy: [fastest]}", "`vary.policy`: `fastest` is none I know"),
        ("candidates: [{router: best}]", "`candidates[0].router`: `best` is none I know"),
        ("candidates: [{split: {prefill: {replica: 2}}}]", "`candidates[0].split.prefill.replica`: no such key"),
        ("vary: {policy: [vllm_v1]}\nprices: {L40S: 1}", "`prices`: none for H100"),
        ("vary: {policy: [vllm_v1]}\nprices: {H100: free}", "`prices.H100`"),
        ("vary: {policy: [vllm_v1]}\nprices: {H100: 2 USD, L40S: 1 EUR}", "two currencies"),
        ("vary: {policy: [vllm_v1]}\ntarget_rate: often", "`target_rate`"),
        ("vary: {policy: [vllm_v1]}\nbudget: 0", "`budget`"),
        ("vary: {policy: [vllm_v1]}\nheadroom: 300 %", "`headroom`"),
        ("vary: {policy: [vllm_v1]}\ntarget: 4/s", "`target`: no such key: target_rate?"),
        ("vary: {policy: [vllm_v1, vllm_v1]}", "two are called `vllm_v1`"),
        (f"vary: {{max_num_seqs: {list(range(1, 402))}}}", "401 candidates"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_path(more: str, path: str) -> None:
    words = refused(more)
    assert words.startswith("plan.yaml: ") and path in words


def test_a_mistake_beside_the_candidates_is_one_too() -> None:
    with pytest.raises(UserError, match=r"plan.yaml: `workload.input_tokens`"):
        parse_choice(
            "workload: {output_tokens: 3}\ndeployment: {model: opt-13b}\nvary: {hardware: [H100]}", "plan.yaml"
        )
    assert "`deployment.model`: missing" in refused("vary: {policy: [orca]}", "{hardware: H100}")


def test_a_trace_is_read_once_however_many_candidates_there_are() -> None:
    reads: list[str] = []

    def read(name: str) -> Iterable[str]:
        reads.append(name)
        return ["timestamp,input_length,output_length\n", "0,10,5\n", "1,20,5\n", "2,30,5\n"]

    text = "workload: {trace: t.csv}\ndeployment: {model: llama-3.1-8b}\nvary: {hardware: [L40S, H100, A100-80G]}"
    choice = parse_choice(text, "plan.yaml", read)
    assert reads == ["t.csv"]
    assert all(one.plan is not None and len(one.plan.trace_rows or ()) == 3 for one in choice.candidates)


@pytest.mark.parametrize("deployment", ["replicas: 2, tensor_parallel: 2", "split: {prefill: {replicas: 2}}"])
def test_copies_have_as_many_accelerators_and_slowed_steps_take_as_much_longer(deployment: str) -> None:
    text = COMMON.replace("output_tokens: 64", "output_tokens: 64, arrivals: {poisson: 1/s}")
    plan = parse_plan(f"{text}deployment: {{model: llama-3.1-8b, hardware: H100, {deployment}}}")
    assert accelerators_of(copies(plan, 3)) == 3 * accelerators_of(plan) and hardware_of(plan) == "H100"
    assert slowed(slowed(plan, 1.1), 2).deployment.step_time.scale == pytest.approx(2.2)


def test_the_schema_knows_each_key_that_may_vary_and_is_strict_json() -> None:
    found = json.loads(json.dumps(schema(), allow_nan=False))
    vary = found["$defs"]["ChoiceFile"]["properties"]["vary"]["anyOf"][0]
    assert set(vary["properties"]) == keys()
    assert "workload" in found["$defs"]["ChoiceFile"]["required"]


def test_a_line_fitted_to_one_engine_says_what_it_cannot_follow() -> None:
    line = "{linear: {prefill_s: [0.009, 6.0e-5, 0], decode_s: [0.008, 2.0e-7, 1.0e-4]}}"
    fitted = f"{{model: llama-3.1-8b, hardware: H100, step_time: {line}}}"
    more = "vary: {tensor_parallel: [1, 2], policy: [vllm_v1, sarathi]}"

    def unseen(more: str, deployment: str) -> list[str]:
        return unseen_changes(one.plan for one in parsed(more, deployment).candidates if one.plan is not None)

    assert unseen(more, fitted) == ["tensor_parallel"]
    assert unseen("vary: {policy: [vllm_v1, sarathi]}", fitted) == []
    assert unseen(more, "{model: llama-3.1-8b, hardware: H100}") == []
