"""`phasemeter explore`: the terms of the budget to play with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phasemeter import lazy


def explore(
    run: Path | None = None,
    /,
    *,
    output: Annotated[Path, Parameter(alias="-o", help="the page's file")] = Path("explore.html"),
    json: Annotated[
        bool, Parameter(negative="", help="print one JSON document: the page's file and the settings of its sliders")
    ] = False,
) -> int:
    """Write a page with sliders for the terms of the budget: what dominates, where the SLO breaks.

    One HTML file that works offline. With a run it starts from that run's own fitted numbers.

    Parameters
    ----------
    run
        a run directory

    Examples:
        phasemeter explore
        phasemeter explore runs/20261129-smollm2 -o what-if.html
        phasemeter explore runs/20261129-smollm2 --json
    """
    explorer = lazy.load("phasemeter.report.explore")
    begun = explorer.beginning(run)
    lazy.load("phasemeter.report.html.write").write_page(explorer.explore_page(run, begun), output)
    if json:
        start = lazy.load("msgspec").to_builtins(begun[0])
        told = {"phasemeter": 1, "page": str(output), "start": start, "how": begun[1]}
        print(lazy.load("json").dumps(told, ensure_ascii=False, allow_nan=False))
    print(f"page: {output}", file=sys.stderr)
    return 0
