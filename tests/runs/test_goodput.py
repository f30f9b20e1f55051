"""The search on the simulator, on a service it can't tell from it, and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from phasemeter.cli.main import run
from phasemeter.contract.model import parse
from phasemeter.errors import UserError
from phasemeter.runs.goodput import Limits, look_seed, promised, search_plan, seen_in, workload_of
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
TRUE_PER_S = 10.19  # 10^6 requests a rate: 94.96 % at 10.2/s, 94.19 % at 10.4/s


def plan(seed: int = 0) -> Plan:
    return msgspec.structs.replace(parse_plan(PLAN), seed=seed)


def test_searches_on_the_simulator_cover_its_capacity() -> None:
    covered = 0
    for seed in range(8):
        found, _ = search_plan(plan(seed), parse(CONTRACT), Limits(), None, lambda line: None)
        low, high = found.interval
        covered += (low or 0) <= TRUE_PER_S <= (high or 1e9)
        assert found.binding == "tpot"
    assert covered >= 6  # 90 % in the long run


def test_the_contracts_workload_is_what_is_offered() -> None:
    own = workload_of(plan(), parse(CONTRACT))
    assert own.workload.input_tokens == {"lognormal": {"median": 400, "p95": 1500}}
    with pytest.raises(UserError, match="classes"):
        workload_of(
            plan(), parse("phasemeter: 1\nworkload: {classes: {a: {share: 1, latency_slo: {ttft: {p95: 1 s}}}}}")
        )


def test_rates_share_their_draws_and_looks_do_not() -> None:
    assert look_seed(7, 0) == 7
    assert len({look_seed(7, look) for look in range(5)}) == 5


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
