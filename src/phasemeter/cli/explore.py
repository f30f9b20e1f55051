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
    """
    text = lazy.load("phasemeter.report.explore").explore_page(run)
    lazy.load("phasemeter.report.html.write").write_page(text, output)
    print(f"page: {output}", file=sys.stderr)
    return 0
