"""`phasemeter calibrate`, as a person runs it: the document, the file that a plan takes, what is refused, a real server."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.cli.main import run
from phasemeter.io.embedded_engine import EmbeddedEngine
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.report import calibration as report
from phasemeter.runs.asked import Asked
from phasemeter.runs.calibrate import Measured, document, study
from phasemeter.runs.measure import bench
from phasemeter.runs.simulate import simulate
from phasemeter.runs.tables import read_rows, write_tables
from phasemeter.serving.plan import Plan, parse_plan
from phasemeter.serving.step_time_file import parse_step_time
from phasemeter.studies.calibrate.observed import Observed, Run, in_order
from phasemeter.studies.calibrate.study import calibrate

PREFILL, DECODE = (0.009, 0.00006, 2e-9), (0.008, 2e-7, 0.0001)
PLAN = f"""
workload: {{input_tokens: {{uniform: [32, 512]}}, output_tokens: {{uniform: [8, 64]}}, arrivals: ARRIVALS, requests: 60}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  step_time: {{linear: {{prefill_s: {list(PREFILL)}, decode_s: {list(DECODE)}}}}}
"""
Capture = pytest.CaptureFixture[str]
Change = Callable[[RequestRow], RequestRow]


def plan_with(arrivals: str) -> Plan:
    return parse_plan(PLAN.replace("ARRIVALS", arrivals))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate") / "loaded"
    simulate(plan_with("{poisson: 6/s}"), output=folder)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate") / "alone"
    simulate(plan_with("{concurrency: 1}"), output=folder)
    return folder


@cache
def document_of(*runs: Path) -> dict[str, Any]:
    return study(runs)


def copied(source: Path, target: Path, change: Change | None = None, **manifest: Any) -> Path:
    """The run with its rows and its manifest changed."""
    target.mkdir()
    write_tables(target, [row if change is None else change(row) for row in read_rows(source)])
    told = json.loads((source / "manifest.json").read_bytes()) | manifest
    (target / "manifest.json").write_text(json.dumps(told))
    return target


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, float):
        yield value


def test_the_document_is_strict_and_tells_every_constant_and_error(alone: Path, loaded: Path, capsys: Capture) -> None:
    assert run(["calibrate", str(alone), str(loaded), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(math.isfinite(one) for one in numbers(told))
    constants = {one["name"]: one for one in told["calibration"]["constants"]}
    assert [one["status"] for one in constants.values()] == ["identified"] * 7
    assert tuple(told["linear"]["prefill_s"]) == pytest.approx(PREFILL, rel=1e-4)
    assert tuple(told["linear"]["decode_s"]) == pytest.approx(DECODE, rel=1e-4)
    assert [(one["run"], one["fitted_on"]) for one in told["calibration"]["errors"]] == [
        (str(path), on) for on in ("all of it", "its first half") for path in (alone, loaded)
    ]
    for one in told["calibration"]["errors"]:
        assert {"n", "mean", "median", "p95", "measured_mean_s"} == set(one["ttft"]) == set(one["e2e"])
        assert abs(one["tpot"]["mean"]) < 1e-3


def test_the_file_is_a_plans_step_time_as_it_is(
    alone: Path, loaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", str(alone), str(loaded), "-o", "model.yaml"]) == 0
    text = Path("model.yaml").read_text(encoding="utf-8")
    assert parse_step_time(text, "model.yaml").linear.decode_s == pytest.approx(DECODE, rel=1e-4)
    assert yaml.safe_load(text)["calibration"]["engine"] == "phasemeter simulator", "any reader of YAML reads it"
    named = PLAN.replace("ARRIVALS", "{poisson: 6/s}").split("  step_time")[0] + "  step_time: {file: model.yaml}\n"
    Path("fitted.yaml").write_text(named)
    Path("true.yaml").write_text(PLAN.replace("ARRIVALS", "{poisson: 6/s}"))
    capsys.readouterr()
    means = []
    for name in ("true.yaml", "fitted.yaml"):
        assert run(["simulate", name, "--json"]) == 0
        means.append(json.loads(capsys.readouterr().out)["metrics"]["ttft"]["mean"])
    assert means[1] == pytest.approx(means[0], rel=1e-3)


def test_a_table_for_people_says_what_is_open_and_what_to_measure(alone: Path, capsys: Capture) -> None:
    assert run(["calibrate", str(alone)]) == 0
    out = capsys.readouterr().out
    assert "95 % interval" in out and "its first half" in out
    assert "unidentified: the batch was nearly always 1" in out
    assert "phasemeter bench URL --concurrency 8" in out and "(decode, a sequence)" in out
    assert max(len(line) for line in out.splitlines()[:14]) <= 140


def test_a_run_held_out_is_predicted_and_fits_nothing(alone: Path, loaded: Path) -> None:
    told = study([alone], [loaded])["calibration"]
    assert told["errors"][-1]["fitted_on"] == "other runs"
    assert [one["fitted"] for one in told["runs"]] == [True, False]
    assert told["rows"] == document_of(alone)["calibration"]["rows"]
    plan = plan_with("{poisson: 6/s}")
    assert study([alone], [loaded], plan)["calibration"]["errors"][-1]["tpot"]["median"] < 0.1


REFUSED: dict[str, tuple[Change, dict[str, Any], str]] = {
    "no request succeeded": (lambda row: msgspec.structs.replace(row, outcome="failed"), {}, "no request of 60 succeeded"),
    "no streams": (lambda row: msgspec.structs.replace(row, stream=False), {}, "not streamed"),
    "no output tokens": (lambda row: msgspec.structs.replace(row, output_tokens=None), {}, "--tokenizer"),
    "no input tokens": (
        lambda row: msgspec.structs.replace(row, input_tokens=None, asked_input_tokens=None), {}, "--input-tokens"
    ),
    "no token after another": (
        lambda row: msgspec.structs.replace(row, choices=(), last_token_ns=row.first_token_ns), {}, "one after another"
    ),
    "replicas": (lambda row: row, {"data_parallel": 2}, "data_parallel"),
    "stages": (lambda row: row, {"pipeline_parallel": 4}, "pipeline_parallel"),
    "pools": (lambda row: row, {"topology": "prefill and decode pools"}, "pools of their own"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fitted_is_one_line(case: str, alone: Path, tmp_path: Path, capsys: Capture) -> None:
    change, manifest, says = REFUSED[case]
    path = copied(alone, tmp_path / "run", change, **manifest)
    assert run(["calibrate", str(path), "--json", "-o", str(tmp_path / "model.yaml")]) == 2
    told = capsys.readouterr()
    assert told.out == "" and says in told.err and str(path) in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "model.yaml").exists()


def bundled(row: RequestRow) -> RequestRow:
    """As behind a proxy that passes on five tokens at a time."""
    choices = tuple(
        msgspec.structs.replace(one, tokens=None, times_ns=one.times_ns[::5], reads=one.reads[::5])
        for one in row.choices
    )
    return msgspec.structs.replace(row, choices=choices)


@pytest.mark.parametrize(
    "change", [bundled, lambda row: msgspec.structs.replace(row, choices=())], ids=["bundles", "no times"]
)
def test_a_run_whose_steps_cannot_be_seen_is_fitted_by_whole_answers_and_says_so(
    change: Change, alone: Path, loaded: Path, tmp_path: Path, capsys: Capture
) -> None:
    paths = [copied(source, tmp_path / source.name, change) for source in (alone, loaded)]
    assert run(["calibrate", *map(str, paths), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (
        set(found["calibration"]["by_answers"]) == {str(path) for path in paths} and "no step can be seen" in told.err
    )
    assert found["linear"]["decode_s"][0] == pytest.approx(DECODE[0], rel=0.03)
    assert found["linear"]["prefill_s"][1] == pytest.approx(PREFILL[1], rel=0.1)
    whole = [one for one in found["calibration"]["errors"] if one["fitted_on"] == "all of it"]
    assert all(abs(one["e2e"]["mean"]) < 0.03 for one in whole)


@pytest.mark.parametrize(
    ("field", "value"), [("model", "another"), ("engine_version", "0.0"), ("accelerator", "A100-80G")]
)
def test_runs_of_different_engines_are_not_fitted_together(
    field: str, value: str, alone: Path, loaded: Path, tmp_path: Path, capsys: Capture
) -> None:
    other = copied(loaded, tmp_path / "other", **{field: value})
    assert run(["calibrate", str(alone), str(other)]) == 2
    assert f"differ in `{field}`" in capsys.readouterr().err
    unrecorded = copied(loaded, tmp_path / "unrecorded", **{field: None})
    assert run(["calibrate", str(alone), str(unrecorded)]) == 0, "what is not on record contradicts nothing"


def test_an_invalid_run_is_fitted_only_when_asked(alone: Path, tmp_path: Path, capsys: Capture) -> None:
    path = copied(alone, tmp_path / "run")
    (path / "result.json").write_text(json.dumps({"validity": {"verdict": "invalid"}}))
    assert run(["calibrate", str(path)]) == 2
    assert "--even-invalid" in capsys.readouterr().err
    assert run(["calibrate", str(path), "--even-invalid"]) == 0


def test_a_mistake_in_what_is_named_is_one_line(alone: Path, tmp_path: Path, capsys: Capture) -> None:
    for words, says in (
        ([], "needs a run directory"),
        ([str(tmp_path / "nothing")], "no run directory"),
        ([str(alone), str(alone)], "named twice"),
        ([str(alone), "--hold-out", str(alone)], "named twice"),
        ([str(alone), "-o", str(tmp_path)], "is a folder"),
        ([str(alone), "-o", str(tmp_path / "no" / "model.yaml")], "no folder"),
        ([str(alone), "--plan", str(tmp_path / "no.yaml")], "no.yaml"),
    ):
        assert run(["calibrate", *words]) == 2
        told = capsys.readouterr().err
        assert says in told and told.count("\n") == 1, told


def test_runs_that_tell_no_whole_step_time_end_with_3_and_write_nothing(
    alone: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Every step gives somebody's first token: none is a decode alone."""
    example = next(read_rows(alone))

    def row(name: str, sent: float, *times: float) -> RequestRow:
        ns = tuple(round(one * 1e9) for one in (sent, *times))
        choice = msgspec.structs.replace(
            example.choices[0], times_ns=ns[1:], reads=tuple(range(len(times))), tokens=None, output_tokens=len(times)
        )
        return msgspec.structs.replace(
            example, request_id=name, due_ns=ns[0], send_start_ns=ns[0], first_token_ns=ns[1], last_token_ns=ns[-1],
            stream_end_ns=ns[-1], output_tokens=len(times), choices=(choice,), phase="measured",
        )  # fmt: skip

    path, model = tmp_path / "run", tmp_path / "model.yaml"
    path.mkdir()
    write_tables(path, [row("a", 0, 1, 2), row("b", 0.5, 2, 3), row("c", 1.5, 3)])
    (path / "manifest.json").write_bytes((alone / "manifest.json").read_bytes())
    assert run(["calibrate", str(path), "--even-invalid", "-o", str(model), "--json"]) == 3
    told = capsys.readouterr()
    assert json.loads(told.out)["linear"] is None and "no step time" in told.err
    assert run(["calibrate", str(path), "--even-invalid", "-o", str(model)]) == 3
    assert "to tell more" in capsys.readouterr().out
    assert not model.exists()


def any_run(seed: int) -> Run:
    """A few requests whose times and lengths have no sense."""
    draw = random.Random(seed)
    requests = []
    for number in range(draw.choice([1, 2, 3, 5, 12])):
        sent = draw.choice([0.0, draw.random(), float(number)])
        first = sent + draw.choice([0.0, 1e-9, draw.random()])
        times = list(
            accumulate(
                [first, *(draw.choice([0.0, 0.01, draw.random() / 10]) for _ in range(draw.choice([0, 1, 2, 19])))]
            )
        )
        requests.append(
            Observed(
                request_id=str(number), sent_s=sent, first_s=first, last_s=times[-1], prompt_tokens=draw.choice([1, 10, 5000]),
                output_tokens=len(times), times_s=tuple(times) if draw.random() < 0.8 else (),
                prefill_s=draw.choice([None, 0.0, first - sent, 5.0]), queue_s=draw.choice([None, 0.0]),
            )
        )  # fmt: skip
    budget, concurrency = draw.choice([None, 64]), draw.choice([None, 1, 4])
    return Run(name="any", requests=in_order(requests), concurrency=concurrency, budget=budget)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_whatever_the_arrivals_the_answer_is_strict_and_can_be_read_again(seed: int) -> None:
    one = any_run(seed)
    found = calibrate([one], [])
    if isinstance(found, str):
        return
    told = document([Measured(path="any", run=one, manifest=Manifest(), told=0)], [], found, None)
    assert all(math.isfinite(each) for each in numbers(told))
    assert json.loads(report.dumps(told)) == told
    assert report.words(told)
    if told["linear"] is not None:
        model = parse_step_time(report.model_yaml(told), "model.yaml")
        assert min(*model.linear.prefill_s, *model.linear.decode_s) >= 0
        assert model.linear.decode_s == pytest.approx(told["linear"]["decode_s"], rel=1e-6)


def test_an_emulator_on_the_wall_clock_gets_its_constants_back(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN.replace("ARRIVALS", "{poisson: 4/s}"))
    command = [sys.executable, "-m", "phasemeter", "emulate", str(tmp_path / "plan.yaml"), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = re.search(r"http://[\d.:]+", server.stderr.readline())
        assert url is not None
        for name, load in (("alone", {"concurrency": "1", "requests": "6"}), ("loaded", {"concurrency": "6", "requests": "40"}),
                           ("fresh", {"rate": "12/s", "requests": "30", "seed": 3})):  # fmt: skip
            asked = Asked(
                **load, warmup="0", input_tokens="uniform:32:512", output_tokens="uniform:8:32", ignore_eos=True,
                output=str(tmp_path / name),
            )  # fmt: skip
            bench(url[0], asked)
    finally:
        server.terminate()
        server.communicate(timeout=90)
    told = study([tmp_path / "alone", tmp_path / "loaded"], [tmp_path / "fresh"], even_invalid=True)
    linear, errors = told["linear"], told["calibration"]["errors"]
    assert linear["decode_s"][0] == pytest.approx(DECODE[0], rel=0.05)
    assert 6 * linear["decode_s"][2] == pytest.approx(6 * DECODE[2], abs=0.05 * DECODE[0])
    assert linear["prefill_s"][1] == pytest.approx(PREFILL[1], rel=0.15)
    assert errors[-1]["run"] == str(tmp_path / "fresh") and errors[-1]["fitted_on"] == "other runs"
    assert errors[-1]["e2e"]["median"] < 0.15
    assert 0 <= told["outside_s"] < 0.05


@pytest.mark.engine
def test_a_real_engine_is_fitted_and_its_own_word_agrees(engine: EmbeddedEngine, tmp_path: Path) -> None:
    for name, concurrency, requests in (("alone", "1", "5"), ("pair", "2", "6")):
        asked = Asked(
            concurrency=concurrency, requests=requests, warmup="1", input_tokens="uniform:16:64", output_tokens="8",
            ignore_eos=True, output=str(tmp_path / name),
        )  # fmt: skip
        bench(engine.url, asked)
    told = study([tmp_path / "alone", tmp_path / "pair"], even_invalid=True)
    runs = told["calibration"]["runs"]
    assert all(one["with_server_prefill"] == one["requests"] for one in runs), "llama.cpp tells its prompt time"
    assert told["linear"]["decode_s"][0] + told["linear"]["decode_s"][2] > 0
    assert sum(told["linear"]["prefill_s"]) > 0
    whole = [one for one in told["calibration"]["errors"] if one["fitted_on"] == "all of it"]
    assert all(one["e2e"]["n"] > 0 and abs(one["e2e"]["mean"]) < 0.6 for one in whole)
