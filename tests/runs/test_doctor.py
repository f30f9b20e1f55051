"""The doctor looks at the real machine, and each trouble comes with what to do."""

from __future__ import annotations

import json

import pytest

from phasemeter.cli.main import run
from phasemeter.runs import doctor


def test_every_check_answers_and_each_problem_has_a_remedy() -> None:
    findings = doctor.examine()
    assert len({finding.id for finding in findings}) == len(doctor.CHECKS)
    assert all(finding.seen for finding in findings)
    assert all(finding.remedy for finding in findings if finding.state == "problem")


def test_a_busy_machine_is_a_problem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    assert run(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (cores,) = [finding for finding in document["findings"] if finding["id"] == "cores"]
    assert cores["state"] == "problem" and "stop it" in cores["remedy"]
