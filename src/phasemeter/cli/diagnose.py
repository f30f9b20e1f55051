"""The verb `diagnose`: six steps to a cause, or what is missing to name one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phasemeter.errors import UserError
from phasemeter.lazy import load


def diagnose(run: Path, *, json_: Annotated[bool, Parameter(name="--json", negative="")] = False) -> int:
    """Find out why a run was slow: six steps, each with evidence and strength, or "cannot say" with what is missing.

    Parameters
    ----------
    run
        A run directory.
    json_
        One JSON document on stdout.

    Examples:
      phasemeter diagnose runs/last
      phasemeter diagnose runs/last --json
    """
    if not run.is_dir():
        raise UserError(f"{run}: no run directory: name one that `phasemeter bench` or `simulate` wrote")
    document = load("phasemeter.runs.diagnose").diagnosis_of(run)
    for warning in document["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if json_:
        print(json.dumps(document, allow_nan=False))
        return 0
    for step in document["steps"]:
        print(f"{step['step']}. {step['question']}\n   {step['finding']} ({step['strength']})")
        print(f"   evidence: {step['evidence']}\n   next: {step['next']}")
    for cause in document["causes"][1:]:
        print(f"also: {cause['cause']} ({cause['strength']}): {cause['evidence']}")
    if document["missing"]:
        print("not on record:\n" + "\n".join(f"  - {text}" for text in document["missing"]))
    return 0
