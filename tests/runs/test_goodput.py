"""The search on the simulator, on a service it can't tell from it, and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from phasemeter.cli.main import run
from phasemeter.contract.model import parse
from phasemeter.runs.goodput import Limits, look_seed, promised, search_plan, seen_in, simulator, workload_of
from phasemeter.serving.plan import Plan, parse_plan
from tests.contract.rows import row

PLAN = """
workload:
  input_tokens: {fixed: 100}
  output_tokens: {fixed: 10}
  arrivals: {poisson: 4/s}
  requests: 300
deployment: {model: llama-3.1-8b, hardware: L40S, policy: vllm_v1}
"""
CONTRACT = """
phasemeter: 1
workload:
  input_tokens: {lognormal: {median: 400, p95: 1500}}
  output_tokens: {uniform: {min: 20, max: 120}}
  arrivals: {poisson: 4/s}
capacity: {objectives: {ttft: 500 ms, tpot: 40 ms}, attainment: 95 %}
"""
TRUE_PER_S = 10.11  # 10^6 requests a rate: 95.04 % at 10.1/s, 93.90 % at 10.4/s (bench/goodput_coverage.py)


def plan(seed: int = 0) -> Plan:
    return msgspec.structs.replace(parse_plan(PLAN), seed=seed)


def test_searches_on_the_simulator_cover_its_capacity() -> None:
    covered = 0
    for seed in range(2):
        found, _ = search_plan(plan(seed), parse(CONTRACT), Limits(), None, lambda line: None)
        low, high = found.interval
        covered += (low or 0) <= TRUE_PER_S <= (high or 1e9)
        assert found.binding == "tpot"
    assert covered >= 1  # docs/validation/goodput.md has the long run


def test_the_contracts_workload_is_what_is_offered() -> None:
    own = workload_of(plan(), parse(CONTRACT))
    assert own.workload.input_tokens == {"lognormal": {"median": 400, "p95": 1500}}


def test_first_looks_share_their_draws_over_the_rates_and_later_ones_do_not() -> None:
    assert look_seed(7, 0, 1.0) == look_seed(7, 0, 2.0) == 7
    assert len({look_seed(7, look, rate) for look in range(1, 5) for rate in (1.0, 2.0)} | {7}) == 9


CLASSES = """
phasemeter: 1
workload:
  arrivals: {poisson: 4/s}
  classes:
    short: {share: 80 %, input_tokens: 200, output_tokens: {uniform: {min: 20, max: 60}}, latency_slo: {ttft: {p90: 150 ms}}}
    long: {share: 20 %, input_tokens: 4000, output_tokens: 100, latency_slo: {ttft: {p90: 2 s}}}
"""


def test_a_class_states_its_share_or_has_its_highest_percentiles_and_the_mix_the_lowest_of_them() -> None:
    stated = CLASSES.replace(
        "latency_slo: {ttft: {p90: 150 ms}}", "latency_slo: {ttft: {p90: 150 ms}}, capacity: {attainment: 80 %}"
    )
    promise = promised(parse(stated + "latency_slo: {e2e: {p95: 9 s}}\n"), "c")
    assert promise.shares == {"short": 0.8, "long": 0.95}
    assert promise.attainment == 0.8
    assert promise.objectives["short"] == {"ttft": 0.15, "e2e": 9.0}
    whole = promised(parse(stated + "capacity: {objectives: {e2e: 9 s}, attainment: 99 %}\n"), "c")
    assert (whole.attainment, whole.shares["long"]) == (0.99, 0.99)


def test_each_class_is_held_to_its_own_share_and_the_mix_carries_what_its_weakest_class_does() -> None:
    contract = parse(CLASSES)
    promise = promised(contract, "c")
    assert promise.shares == {"short": 0.9, "long": 0.9} and promise.attainment == 0.9
    own = workload_of(plan(), contract)
    seen = simulator(own, promise, None)(3.0, 400, 0)
    assert set(seen.parts) == {"short", "long"}
    assert sum(one.size for one in seen.parts.values()) == seen.good.size
    assert 0.1 < seen.parts["long"].size / seen.good.size < 0.3
    found, _ = search_plan(plan(), contract, Limits(precision=0.2), None, lambda line: None)
    loose = parse(CLASSES.replace("150 ms", "30 s"))
    without, _ = search_plan(plan(), loose, Limits(precision=0.2), None, lambda line: None)
    assert found.binding == "short.ttft"
    assert found.value is not None and without.value is not None and found.value < 0.8 * without.value


def test_a_probe_that_kept_up_is_stable_and_one_that_fell_behind_is_not() -> None:
    promise = promised(parse(CONTRACT), "c")
    level = seen_in([row(i, every=0.1) for i in range(300)], promise)
    growing = seen_in([row(i, every=0.1, ttft=0.2 + 0.05 * i) for i in range(300)], promise)
    assert (level.stable, growing.stable) == (True, False)
    assert level.good.all() and not growing.good.all()


def test_the_verb_answers_in_the_documented_shape_and_leaves_probes_that_report_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "c.yaml").write_text(CONTRACT)
    words = ["goodput", "--simulate", str(tmp_path / "plan.yaml"), "--contract", str(tmp_path / "c.yaml"), "--json", "--quiet",
             "-o", str(tmp_path / "g"), "--precision", "30 %"]  # fmt: skip
    assert run(words) == 0
    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert {"value", "ci95"} == set(answer["goodput_per_s"])
    assert {"rate_per_s", "attainment", "stable", "run"} <= set(answer["probes"][0])
    assert {"value", "ci95"} <= set(answer["probes"][0]["attainment"])
    assert run(["report", answer["probes"][0]["run"], "--json"]) == 0
    capsys.readouterr()
    assert run(words) == 2
    assert "--resume" in capsys.readouterr().err
    assert run([*words, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["goodput_per_s"] == answer["goodput_per_s"]


def test_mistakes_are_one_line_before_anything_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "c.yaml").write_text(CONTRACT)
    (tmp_path / "none.yaml").write_text("phasemeter: 1\ncapacity: {error_budget: 1 %}\n")
    base = ["goodput", "--simulate", str(tmp_path / "plan.yaml")]
    for words, part in (
        (["goodput", "--contract", str(tmp_path / "c.yaml")], "URL"),
        (base, "--contract"),
        ([*base, "--contract", str(tmp_path / "none.yaml")], "promises no latency"),
        ([*base, "--contract", str(tmp_path / "c.yaml"), "--concurrency", "4"], "--concurrency"),
        ([*base, "--contract", str(tmp_path / "c.yaml"), "--max-time", "4"], "unit"),
    ):
        assert run(words) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert part in told.err
