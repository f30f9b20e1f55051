"""A search on a service that is killed: its complete looks are taken up, the one under way is measured again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phasemeter.cli.main import run
from tests.runs.served import Behaviour, served
from tests.runs.test_interruptions import wait_for

CONTRACT = """
phasemeter: 1
workload: {input_tokens: 8, output_tokens: 4, arrivals: {poisson: 30/s}}
capacity: {objectives: {ttft: 60 s}, attainment: 80 %}
"""


def test_a_search_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    contract, folder = tmp_path / "c.yaml", tmp_path / "search"
    contract.write_text(CONTRACT)
    with served(Behaviour(gap_s=0.001)) as server:
        words = [
            "goodput",
            server.url,
            "--contract",
            str(contract),
            "--requests",
            "20",
            "-o",
            str(folder),
            "--json",
            "--quiet",
        ]
        with subprocess.Popen([sys.executable, "-m", "phasemeter", *words, "--max-time", "120 s"]) as process:
            wait_for(lambda: (folder / "rate-60" / "look-1" / "capture").exists())
            process.kill()
        first = (folder / "rate-30" / "look-1" / "result.json").stat().st_mtime_ns
        assert run([*words, "--max-time", "2 s"]) == 2  # it stands there already
        assert "--resume" in capsys.readouterr().err
        run([*words, "--max-time", "5 s", "--resume"])
    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (folder / "rate-30" / "look-1" / "result.json").stat().st_mtime_ns == first
    assert {probe["rate_per_s"] for probe in answer["probes"]} >= {30.0, 60.0}
    assert all(Path(probe["run"]).is_dir() for probe in answer["probes"])
    assert answer["reason"] in ("out_of_time", "no_rate_missed", None) and answer["goodput_per_s"]["value"] >= 30
