"""A step time in a file of its own, named by a plan."""

from __future__ import annotations

import pytest

from phasemeter.errors import FileError, UserError
from phasemeter.serving.deploy import cost_of
from phasemeter.serving.plan import Plan, parse_plan, pools_of
from phasemeter.serving.step_time_file import parse_step_time

MODEL = """
phasemeter: 1
linear: {prefill_s: [0.02, 1e-4, 2e-9], decode_s: [0.01, 1e-7, 2e-4]}
outside_s: 0.001
calibration: {engine: one}
"""
PLAN = """
workload: {input_tokens: 100, output_tokens: 10, arrivals: {poisson: 1/s}}
deployment: {model: llama-3.1-8b, hardware: H100, step_time: {file: model.yaml}}
"""


def read_with(text: str) -> Plan:
    return parse_plan(PLAN, "plan.yaml", lambda name: {"model.yaml": text.splitlines(keepends=True)}[name])


def test_a_plan_takes_its_lines_from_the_file_that_it_names() -> None:
    cost = cost_of(pools_of(read_with(MODEL))["all"])
    assert cost.step_s(3, 500, ()) == pytest.approx(0.01 + 500e-7 + 6e-4)
    assert cost.step_s(0, 0, [(50, 0)]) == pytest.approx(0.02 + 50e-4 + 2500 * 2e-9)


def test_a_pool_of_a_split_has_a_file_of_its_own() -> None:
    text = PLAN.replace(
        "step_time: {file: model.yaml}", "split: {prefill: {step_time: {file: a}}, decode: {step_time: {file: b}}}"
    )
    slow = MODEL.replace("0.01,", "0.5,")
    plan = parse_plan(text, "plan.yaml", lambda name: [slow if name == "b" else MODEL])
    assert cost_of(pools_of(plan)["decode"]).cost_line(1, 10).base_s == pytest.approx(0.5002)
    assert cost_of(pools_of(plan)["prefill"]).cost_line(1, 10).base_s == pytest.approx(0.0102)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linear: {prefill_s: [1, 2], decode_s: [0, 0, 0]}", "model.yaml: .*linear.prefill_s"),
        ("[1", "model.yaml: line 1, column 3: no readable YAML"),
        ("kind: other", "model.yaml: .*kind"),
        (MODEL.replace("phasemeter: 1", "phasemeter: 2"), "model.yaml: .*phasemeter.*2"),
        (MODEL.replace("0.02", "-0.02"), "plan.yaml: .*step_time.linear.prefill_s"),
    ],
)
def test_what_is_wrong_with_the_file_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as told:
        read_with(text)
    assert "\n" not in str(told.value)


def test_two_step_times_are_one_too_many() -> None:
    both = PLAN.replace("{file: model.yaml}", "{file: model.yaml, tables: here}")
    with pytest.raises(UserError, match=r"deployment.step_time.*not two"):
        parse_plan(both, "plan.yaml", lambda name: [MODEL])


def test_a_file_needs_a_folder_to_be_read_from() -> None:
    with pytest.raises(UserError, match="without a folder"):
        parse_plan(PLAN)


def test_the_file_says_where_its_lines_come_from() -> None:
    assert parse_step_time(MODEL, "m").calibration == {"engine": "one"}
    with pytest.raises(FileError):
        parse_step_time("", "m")
