"""`phasemeter bench`: send a load, write down what came when, report it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.bench_options import BenchOptions


def bench(url: str, *, options: Annotated[BenchOptions | None, Parameter(name="*")] = None) -> int:
    """Measure a service: send a load, write down what came when, report it.

    Writes a run directory that `report`, `check`, `compare` and `diagnose` read. Ends with 0, or 1 when nothing succeeded,
    2 for a mistake found before anything was sent, 3 when a contract is undecided, 130 when interrupted.

    Parameters
    ----------
    url
        the service, with or without /v1

    Examples:
        phasemeter bench http://127.0.0.1:8000 --rate 4/s --requests 200
        phasemeter bench http://127.0.0.1:8000 --concurrency 8 --duration 60s --input-tokens lognormal:512:2048
        phasemeter bench http://127.0.0.1:8000 --trace azure.csv --rate-scale 10 -o runs/azure
        phasemeter bench http://127.0.0.1:8000 --contract chat.yaml --json > result.json
    """
    wanted = options or BenchOptions()
    asked = lazy.load("phasemeter.runs.asked").Asked(**vars(wanted))
    live = lazy.load("phasemeter.report.live")
    with live.view(quiet=wanted.quiet) as watchers:
        done = lazy.load("phasemeter.runs.many").bench_all(url, asked, watchers)
    return tell(done, wanted)


def tell(done: Any, wanted: BenchOptions) -> int:
    """Print the result (one, or a table of several) and where it lies; the exit code."""
    if wanted.json:
        print(lazy.load("phasemeter.report.json").dumps(done.last.result))
    else:
        for measured in done.measured:
            lazy.load("phasemeter.report.terminal").show(measured.result)
    for measured in done.measured:
        print(f"run: {measured.path}", file=sys.stderr)
    return int(done.exit_code)
