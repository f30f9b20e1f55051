"""The verbs on a run directory: exit codes, JSON, JUnit, GitHub, a baseline, help that is quick to read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from phasemeter.cli.check import table
from phasemeter.cli.main import run
from phasemeter.runs.tables import write_tables
from tests.comparison.test_foreign import VLLM
from tests.contract.rows import row

CONTRACT = "phasemeter: 1\nlatency_slo: {ttft: {p95: 450 ms}, tpot: {p95: 25 ms}}\n"


def made(directory: Path, ttft: float = 0.2, seed: int = 0, n: int = 300, **manifest: object) -> Path:
    """A run directory as a simulator leaves it: manifest and tables."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    rows = [row(i, ttft=float(ttft * generator.lognormal(0, 0.2))) for i in range(n)]
    write_tables(directory, rows)
    fields = {"kind": "simulated", "model": "m", "rate_per_s": 2.0} | manifest
    (directory / "manifest.json").write_text(json.dumps(fields))
    return directory


def printed(capsys: pytest.CaptureFixture[str]) -> dict:  # type: ignore[type-arg]
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("ttft", "n", "code"), [(0.2, 300, 0), (0.9, 300, 1), (0.2, 30, 3)])
def test_the_exit_code_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ttft: float, n: int, code: int
) -> None:
    directory = made(tmp_path / "r", ttft, n=n)
    contract = tmp_path / "c.yaml"
    contract.write_text(CONTRACT)
    junit = tmp_path / "j.xml"
    answer = run(["check", str(directory), "--contract", str(contract), "--json", "--junit", str(junit), "--github"])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert answer == code
    assert document["verdict"] == {0: "met", 1: "missed", 3: "undecided"}[code]
    assert {"path", "verdict", "value", "ci95", "n", "n_to_decide"} <= set(document["lines"][0])
    suite = ElementTree.fromstring(junit.read_text())
    assert len(suite) == len(document["lines"])
    assert (int(suite.get("failures", "0")) > 0) == (code == 1)
    assert "::" in captured.err


def test_a_run_worse_than_its_baseline_is_missed_and_an_equal_one_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = made(tmp_path / "old", 0.2, 1)
    contract = tmp_path / "c.yaml"
    contract.write_text("phasemeter: 1\nlatency_slo: {ttft: {p50: 450 ms}}\n")
    verdicts = {}
    for name, ttft in (("same", 0.2), ("worse", 0.26)):
        new = made(tmp_path / name, ttft, 2)
        run(["check", str(new), "--contract", str(contract), "--baseline", str(old), "--worse", "10 %", "--json"])
        verdicts[name] = [line["verdict"] for line in printed(capsys)["lines"]]
    assert verdicts == {"same": ["met", "met"], "worse": ["met", "missed"]}


def test_mistakes_are_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = made(tmp_path / "r", n=20)
    bad = tmp_path / "bad.yaml"
    bad.write_text("phasemeter: 1\nlatency_slo: {ttft: {p59: 450 ms}}\n")
    for arguments in (
        ["check", str(directory), "--contract", str(bad)],
        ["check", str(directory), "--contract", str(tmp_path / "none.yaml")],
        ["check", str(tmp_path / "none"), "--contract", str(bad)],
        ["import", str(bad)],
        ["compare", str(directory), str(tmp_path / "none")],
        ["contract", "explain"],
    ):
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1


def test_compare_answers_in_json_and_refuses_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made(tmp_path / "a", 0.2, 1), made(tmp_path / "b", 0.25, 2)
    c = made(tmp_path / "c", 0.2, 3, model="other")
    assert run(["compare", str(a), str(b), "--json"]) == 0
    document = printed(capsys)
    assert {"comparable", "refusals", "warnings", "differences"} <= set(document)
    assert any(d["significant"] for d in document["differences"] if d["metric"] == "ttft")
    assert run(["compare", str(a), str(c), "--json"]) == 3
    assert "model differs" in printed(capsys)["refusals"][0]
    assert run(["compare", str(a), str(c), "--varying", "model", "--json"]) == 0


def test_a_run_is_compared_with_another_tools_file_under_that_tools_definitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made(tmp_path / "a", n=20)
    file = tmp_path / "vllm.json"
    file.write_text(json.dumps(VLLM | {"request_rate": 2.0}))
    run(["compare", str(a), str(file), "--json", "--varying", "concurrency"])
    capsys.readouterr()
    assert run(["compare", str(a), str(file), "--json"]) in (0, 3)
    assert {"a": "tpot", "b": "tpot"}.items() <= next(p for p in printed(capsys)["pairs"] if p["a"] == "tpot").items()


def test_an_imported_file_becomes_a_run_that_compare_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vllm.json"
    file.write_text(json.dumps(VLLM))
    assert run(["import", str(file), "-o", str(tmp_path / "v"), "--json"]) == 0
    assert printed(capsys)["imported"]["numbers"]["ttfts"]["unit"] == "s"
    assert run(["compare", str(tmp_path / "v"), str(file), "--json"]) == 0
    assert run(["import", str(file), "-o", str(tmp_path / "v")]) == 2


@pytest.mark.parametrize("verb", ["check", "contract", "compare", "import"])
def test_help_ends_in_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


def test_a_classs_promise_is_shown_as_one_and_its_declared_lengths_as_declared() -> None:
    base = {"verdict": "met", "value": 0.1, "ci95": [None, None], "n": 9, "n_to_decide": None, "limit": 0.2, "comparison": "<=",
            "unit": "s", "ok_only": None, "reason": None, "notes": []}  # fmt: skip
    shown = table([base | {"path": f"workload.classes.a.{last}"} for last in ("latency_slo.ttft.p95", "input_tokens")])
    assert "<= 200 ms" in shown[1] and "declared" in shown[2]
