"""Every command of docs/contract.md runs as written, in order, in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from phasemeter.cli.main import run

PAGE = Path(__file__).parent.parent / "docs" / "contract.md"
PLAN = """
workload: {input_tokens: {fixed: 300}, output_tokens: {fixed: 40}, arrivals: {poisson: 4/s}, requests: 300}
deployment: {model: llama-3.1-8b, hardware: L40S, policy: vllm_v1}
"""
SLO = """
phasemeter: 1
workload: {input_tokens: {fixed: 300}, output_tokens: {fixed: 40}, arrivals: {poisson: 4/s}}
latency_slo: {ttft: {p95: 1 s}}
capacity: {objectives: {ttft: 500 ms, tpot: 40 ms}}
"""


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(PLAN)
    Path("slo.yaml").write_text(SLO)
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) >= 9
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "phasemeter"
        assert run(words) == 0, line
    assert Path("check.xml").read_text().startswith("<?xml")
