"""`phasemeter demo`: see it work on a bare laptop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phasemeter import lazy


def demo(
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="folder for its runs (default runs/<utc>-demo)")] = None,
    quiet: Annotated[bool, Parameter(negative="", help="no progress line")] = False,
    json: Annotated[bool, Parameter(negative="", help="print the load's result as one JSON document")] = False,
) -> int:
    """Start the embedded engine (llama.cpp with SmolLM2-135M), measure it, and say what the numbers mean.

    First single requests at several input lengths, then a small open-loop load. Takes about a minute and no network.

    Examples:
        phasemeter demo
        phasemeter demo -o runs/my-laptop
        phasemeter demo --json > result.json
    """
    live = lazy.load("phasemeter.report.live")
    with live.view(quiet=quiet) as watchers:
        done = lazy.load("phasemeter.runs.demo").demo(output, watchers)
    if json:
        print(lazy.load("phasemeter.report.json").dumps(done.loaded.result))
    else:
        lazy.load("phasemeter.report.demo").show(done)
    print(f"runs: {done.folder}", file=sys.stderr)
    return 0
