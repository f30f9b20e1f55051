"""A simulated run is a run: same records, same result, and the truth of its phases."""

from __future__ import annotations

import json
from pathlib import Path

import polars
import pytest

from phasemeter.errors import UserError
from phasemeter.io.run_directory import RunDirectory
from phasemeter.runs.simulate import Outcome, attainment_at, manifest_of, replicate, search_goodput, simulate, write
from phasemeter.runs.tables import read_rows
from phasemeter.serving.ended import Refused, Served
from phasemeter.serving.plan import Plan, demand_of, parse_plan
from phasemeter.serving.simulate import phases_of

PLAN = """
workload:
  input_tokens: {{lognormal: {{median: 400, p95: 1500}}}}
  output_tokens: {{uniform: {{min: 20, max: 120}}}}
  arrivals: {{{arrivals}}}
  requests: {requests}
capacity: {{objectives: {{ttft: 500 ms, tpot: 40 ms}}}}
deployment: {{model: llama-3.1-8b, hardware: L40S, {more}}}
"""


def plan_of(arrivals: str = "poisson: 4/s", requests: int = 300, more: str = "policy: vllm_v1") -> Plan:
    return parse_plan(PLAN.format(arrivals=arrivals, requests=requests, more=more))


def run(plan: Plan, **more: bool) -> Outcome:
    return replicate(plan, demand_of(plan), plan.seed, **more)


SHAPES = {
    "vllm_v0": "policy: vllm_v0",
    "vllm_v1": "policy: vllm_v1",
    "sarathi": "policy: sarathi, max_num_batched_tokens: 512",
    "orca": "policy: orca",
    "request_level": "policy: request_level, max_num_seqs: 16",
    "sglang": "policy: sglang, prefix_cache: true",
    "replicas": "replicas: 3, router: round_robin",
    "stages": "pipeline_parallel: 2",
    "split": "split: {prefill: {replicas: 2}, decode: {replicas: 2}}",
    "little KV": "kv_tokens: 6000",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_request_ends_once_with_phases_that_add_up(shape: str) -> None:
    plan = plan_of(requests=150, more=SHAPES[shape])
    outcome = run(plan)
    assert len(outcome.ended) == 150 == len({one.request.request_id for one in outcome.ended})
    for one in outcome.ended:
        if isinstance(one, Refused):
            continue
        truth, phases = one.truth, phases_of(one.truth)
        assert truth.output_tokens == one.request.output_tokens == len(one.times_ns)
        assert one.times_ns[0] == truth.first_token_ns and one.times_ns[-1] == truth.finish_ns
        assert list(one.times_ns) == sorted(one.times_ns)
        assert (
            truth.arrival_ns <= truth.prefill_start_ns < truth.prefill_end_ns <= truth.first_token_ns <= truth.finish_ns
        )
        whole = phases["queue"] + phases["prefill"] + phases["decode"]
        assert whole == pytest.approx((truth.finish_ns - truth.arrival_ns) / 1e9, abs=1e-8)
        stalls = phases["stall_prefill"] + phases["stall_mixed"] + phases["stall_preempted"]
        assert -1e-9 <= stalls <= phases["decode"] + 1e-6


@pytest.mark.parametrize("shape", ["vllm_v1", "split", "replicas"])
def test_telling_tokens_changes_no_instant(shape: str) -> None:
    plan = plan_of(requests=120, more=SHAPES[shape])
    told, silent = run(plan, tokens=True), run(plan, tokens=False)
    pairs = zip(told.ended, silent.ended, strict=True)
    for a, b in pairs:
        assert isinstance(a, Served) and isinstance(b, Served)
        for name in ("arrival_ns", "prefill_start_ns", "first_token_ns", "finish_ns", "preemptions"):
            assert getattr(a.truth, name) == getattr(b.truth, name)


def test_little_s_law_holds_for_the_queue_and_for_the_server() -> None:
    plan = plan_of("poisson: 6/s", requests=3000)
    outcome = run(plan, tokens=False)
    truths = [one.truth for one in outcome.ended if isinstance(one, Served)]
    end = max(one.finish_ns for one in truths)
    within = [one for one in outcome.samples if one.at_ns <= end]
    running = sum(one.running for one in within) / len(within)
    inside = sum(one.finish_ns - one.prefill_start_ns for one in truths) / end
    assert running == pytest.approx(inside, rel=0.05)


def test_a_closed_loop_never_exceeds_its_clients_and_serves_all() -> None:
    outcome = run(plan_of("concurrency: 8", requests=100))
    assert len(outcome.ended) == 100 and outcome.stable
    edges = sorted([(o.truth.arrival_ns, 1) for o in outcome.ended if isinstance(o, Served)]
                   + [(o.truth.finish_ns, -1) for o in outcome.ended if isinstance(o, Served)], key=lambda e: (e[0], e[1]))  # fmt: skip
    inside = most = 0
    for _, change in edges:
        inside += change
        most = max(most, inside)
    assert most == 8


def test_one_seed_is_one_run_and_another_is_another() -> None:
    plan = plan_of(requests=60)
    first, again = run(plan), run(plan)
    assert [o.request for o in first.ended] == [o.request for o in again.ended]
    assert [o.truth for o in first.ended if isinstance(o, Served)] == [
        o.truth for o in again.ended if isinstance(o, Served)
    ]
    other = replicate(plan, demand_of(plan), 99)
    assert [o.request for o in other.ended] != [o.request for o in first.ended]


def test_overload_is_called_unstable_and_light_load_is_not() -> None:
    assert run(plan_of("poisson: 1/s", requests=400), tokens=False).stable is True
    assert run(plan_of("poisson: 200/s", requests=1500), tokens=False).stable is False


def test_a_request_that_could_never_fit_is_a_failure_in_the_result() -> None:
    plan = plan_of(requests=100, more="kv_tokens: 1200")
    found = simulate(plan)
    failed = found["outcomes"]["failed"]
    assert failed.get("rejected", 0) > 0 and found["outcomes"]["ok"] > 0
    assert found["outcomes"]["scheduled"] == sum(failed.values()) + found["outcomes"]["ok"]


def test_the_document_is_strict_and_has_the_shape_of_a_measured_one(tmp_path: Path) -> None:
    found = simulate(plan_of(requests=120), replications=3, output=tmp_path / "run")
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["run"]["kind"] == "simulated"
    for name in ("ttft", "tpot", "itl", "e2e"):
        metric = found["metrics"][name]
        assert metric["unit"] == "s" and metric["n"] > 0 and metric["p50"]["value"] > 0
    assert found["goodput"]["attainment"]["n"] > 0
    between = found["simulation"]["replications"]["metrics"]["ttft"]["mean"]
    assert between["ci95"][0] < between["value"] < between["ci95"][1]


def test_the_run_directory_gives_the_rows_back(tmp_path: Path) -> None:
    plan = plan_of(requests=50)
    simulate(plan, output=tmp_path / "run")
    assert list(read_rows(tmp_path / "run")) == list(run(plan).rows())
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["kind"] == "simulated"
    with pytest.raises(UserError, match=r"exists|not empty"):
        simulate(plan, output=tmp_path / "run")


@pytest.mark.parametrize("shape", ["vllm_v0", "vllm_v1", "sglang", "replicas", "stages", "little KV"])
def test_a_large_run_reads_the_tokens_of_some_requests_off_its_steps(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(requests=200, more=SHAPES[shape])
    whole = list(run(plan).rows())
    monkeypatch.setattr("phasemeter.runs.simulate.TOKENS_KEPT", 100)
    monkeypatch.setattr("phasemeter.runs.simulate.TOKENS_SAMPLED", 5000)
    found = simulate(plan, output=tmp_path / "run")
    outcome = run(plan)
    for one, told in zip(outcome.rows(), whole, strict=True):
        assert one.choices in ((), told.choices)
    assert 30 < sum(bool(row.choices) for row in outcome.rows()) < 120
    assert list(read_rows(tmp_path / "run")) == list(outcome.rows())
    for name in ("itl", "inter_chunk", "jitter"):
        metric = found["metrics"][name]
        assert metric["p50"]["value"] > 0 and metric["excluded"]["sampled_out"] > 80, name


@pytest.mark.parametrize(
    "workload",
    [
        "input_tokens: {lognormal: {median: 400, p95: 1500}}, output_tokens: {uniform: {min: 1, max: 120}}",
        "input_tokens: 100, output_tokens: 9, classes: [{name: a, weight: 3, input_tokens: 10}, {name: b, input_tokens: 2000}]",
    ],
)
def test_columns_and_rows_write_the_same_table(workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasemeter.runs.simulated_tables.ROWS_A_PART", 70)
    plan = parse_plan(
        f"workload: {{{workload}, arrivals: {{poisson: 4/s}}, requests: 300, warmup: 30}}\n"
        "deployment: {model: llama-3.1-8b, hardware: L40S, kv_tokens: 1200}"
    )
    tables = []
    for tokens in (False, True):
        outcome = run(plan, tokens=tokens)
        directory = RunDirectory.create(tmp_path / str(tokens))
        write(directory, manifest_of(plan, demand_of(plan), plan.seed, 1), {}, outcome)
        assert list(read_rows(directory.path)) == list(outcome.rows())
        tables.append(polars.read_parquet(directory.path / "requests.parquet").drop("choices"))
    assert tables[0].equals(tables[1])
    assert set(tables[0]["failure"]) == {None, "rejected"} and set(tables[0]["phase"]) == {"warmup", "measured"}


def test_attainment_falls_with_load_and_the_search_finds_where() -> None:
    plan = plan_of(requests=200)
    light, heavy = attainment_at(plan, 1.0), attainment_at(plan, 40.0)
    assert light.value > 0.9 > heavy.value
    found = search_goodput(plan, precision=0.1)
    assert found.value is not None and 1.0 < found.value < 40.0
    assert attainment_at(plan, found.value).value >= 0.9
