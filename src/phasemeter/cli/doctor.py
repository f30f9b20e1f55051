"""`phasemeter doctor`: what this machine can do for a measurement."""

from __future__ import annotations

import json as json_module
from typing import Annotated

from cyclopts import Parameter

from phasemeter import lazy

MARKS = {"ok": "  ok     ", "note": "  note   ", "problem": "  PROBLEM"}


def doctor(*, json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False) -> int:
    """Check this machine: limits, clocks, kernel timestamps, what is installed, and what to do about it.

    Ends with 1 when something would disturb a measurement.

    Examples:
        phasemeter doctor
        phasemeter doctor --json
    """
    findings = lazy.load("phasemeter.runs.doctor").examine()
    if json:
        document = {
            "findings": [{"id": f.id, "state": f.state, "seen": f.seen, "remedy": f.remedy or None} for f in findings]
        }
        print(json_module.dumps(document, indent=2))
    else:
        lines = []
        for finding in findings:
            lines.append(f"{MARKS[finding.state]} {finding.id:<17}  {finding.seen}")
            lines += [f"{'':>27}  do: {finding.remedy}"] if finding.remedy else []
        lazy.load("phasemeter.report.fold").show(lines)
    return int(any(finding.state == "problem" for finding in findings))
