"""Ctrl-C during one of several measurements ends the whole, and what was captured stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phasemeter.io.run_directory import RunDirectory
from phasemeter.records.manifest import Manifest
from phasemeter.runs import demo as demos
from phasemeter.runs import diagnose, simulate
from phasemeter.runs.asked import Asked
from phasemeter.serving.plan import parse_plan
from tests.contract.rows import row


class Interrupted:
    """A `bench` that Ctrl-C cuts short; `asked` is what it was called for."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def __call__(self, url: str, asked: Asked, watchers: Any = None) -> Any:
        self.asked.append(asked)
        RunDirectory.create(asked.output or "").write_manifest(Manifest())
        return SimpleNamespace(path=Path(asked.output or ""), interrupted=True)


def test_a_diagnosis_sends_no_further_single_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupted()
    monkeypatch.setattr(diagnose, "bench", bench)
    RunDirectory.create(tmp_path / "run").write_manifest(Manifest(model="m", api="openai.chat"))
    rows = [row(i, asked_input_tokens=10 * (i + 1)) for i in range(40)]
    for again in range(2):  # what was cut short is set aside, and measured anew the next time
        with pytest.raises(KeyboardInterrupt):
            diagnose.measure_alone(tmp_path / "run", rows, "http://127.0.0.1:1", Asked())
        assert len(bench.asked) == again + 1
    assert len({asked.input_tokens for asked in bench.asked}) == 1


def test_a_demo_measures_nothing_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Interrupted()

    @contextmanager
    def engine() -> Iterator[Any]:
        yield SimpleNamespace(weights="none", slots=1, url="http://127.0.0.1:1")

    monkeypatch.setattr(demos, "bench", bench)
    monkeypatch.setattr(demos, "embedded_engine", engine)
    with pytest.raises(KeyboardInterrupt):
        demos.demo(tmp_path / "demo")
    assert len(bench.asked) == 1 and Path(bench.asked[0].output or "").is_dir()


def test_a_simulation_that_was_interrupted_leaves_its_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = parse_plan(
        "workload: {input_tokens: 64, output_tokens: 4, arrivals: {poisson: 5/s}, requests: 20}\n"
        "deployment: {model: llama-3.1-8b, hardware: L40S, policy: vllm_v1}\n",
        "plan.yaml",
    )

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(simulate, "replicate", cut)
        with pytest.raises(KeyboardInterrupt):
            simulate.simulate(plan, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert simulate.simulate(plan, output=tmp_path / "run")["outcomes"]["scheduled"] == 18  # a tenth is warm-up
    assert (tmp_path / "run" / "result.json").exists()
