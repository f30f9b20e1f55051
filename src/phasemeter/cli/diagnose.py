"""The verb `diagnose`: six steps to a cause, or what is missing to name one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter.errors import UserError
from phasemeter.lazy import load


def diagnose(
    run: Path,
    *,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
    contract: Path | None = None,
    probe: str | None = None,
    api_key: str | None = None,
    header: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> int:
    """Find out why a run was slow: six steps, each with evidence and strength, or "cannot say" with what is missing.

    Parameters
    ----------
    run
        A run directory.
    json_
        One JSON document on stdout.
    contract
        A contract: step 5 says how many requests keep its objectives, and which one is broken.
    probe
        The service's URL: send it single requests at three input lengths, and compare them with the run's.
    api_key
        For the probe; default: OPENAI_API_KEY from the environment.
    header
        For the probe: an extra header "Name: value" (repeatable).

    Examples:
      phasemeter diagnose runs/last
      phasemeter diagnose runs/last --contract chat.yaml --json
      phasemeter diagnose runs/last --probe http://127.0.0.1:8000
    """
    if not run.is_dir():
        raise UserError(f"{run}: no run directory: name one that `phasemeter bench` or `simulate` wrote")
    asked = load("phasemeter.runs.asked").Asked(api_key=api_key, header=header)
    document = load("phasemeter.runs.diagnose").diagnosis_of(run, contract=contract, probe=probe, asked=asked)
    shown = load("phasemeter.report.plain").plain_tree(document)
    for warning in shown["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if json_:
        print(json.dumps(document, allow_nan=False))
        return 0
    load("phasemeter.report.fold").show(lines(shown))
    return 0


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The six steps for a person."""
    for step in document["steps"]:
        strength = "" if step["strength"] == step["finding"] else f" ({step['strength']})"
        yield f"{step['step']}. {step['question']}"
        yield f"   {step['finding']}{strength}"
        yield f"   evidence: {step['evidence']}"
        yield f"   next: {step['next']}"
    for cause in document["causes"][1:]:
        yield f"also: {cause['cause']} ({cause['strength']}): {cause['evidence']}"
    if document["missing"]:
        yield "not on record:"
        yield from (f"  - {text}" for text in document["missing"])
