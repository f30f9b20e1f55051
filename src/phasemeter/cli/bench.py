"""`phasemeter bench`: send a load, write down what came when, report it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.bench_options import BenchOptions
from phasemeter.errors import PhasemeterError


def bench(url: str, *, options: Annotated[BenchOptions | None, Parameter(name="*")] = None) -> int:
    """Measure a service: send a load, write down what came when, report it.

    Writes a run directory that `report`, `check`, `compare` and `diagnose` read. Ends with 0, or 1 when nothing succeeded
    or a contract is missed, 2 for a mistake found before anything was sent, 3 when a contract is undecided, 130 when
    interrupted.

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
    if wanted.tokenizer:
        lazy.load("phasemeter.cli.tokenizer_option").tokenizer_at(
            Path(wanted.tokenizer)
        )  # said before anything is sent
    asked = lazy.load("phasemeter.runs.asked").Asked(**vars(wanted))
    live = lazy.load("phasemeter.report.live")
    with live.view(quiet=wanted.quiet) as watchers:
        done = lazy.load("phasemeter.runs.many").bench_all(url, asked, watchers)
    return tell(done, wanted)


def tell(done: Any, wanted: BenchOptions) -> int:
    """Print the result (one, or all of a series) and where it lies; the exit code."""
    check = lazy.load("phasemeter.cli.check")
    verdicts = [
        check.verdict_document(measured.path, Path(wanted.contract)) if wanted.contract else None
        for measured in done.measured
    ]
    if wanted.json:
        results = [document(*pair) for pair in zip(done.measured, verdicts, strict=True)]
        series = {"phasemeter": 1, "runs": results, "spread": done.spread}
        told = json.dumps(results[0] if done.index is None else series, allow_nan=False, ensure_ascii=False)
        lazy.load("phasemeter.report.unread").write(told + "\n")
    else:
        for measured, verdict in zip(done.measured, verdicts, strict=True):
            lazy.load("phasemeter.report.terminal").show(measured.result)
            if verdict is not None:
                lazy.load("phasemeter.report.fold").show(["", *check.words(verdict)])
    for measured, verdict in zip(done.measured, verdicts, strict=True):
        print(f"run: {measured.path} ({looked_at(measured.path, verdict)})", file=sys.stderr)
    if done.index is not None:
        together = done.index.with_name("report.html")
        lazy.load("phasemeter.report.html.write").write_html(done.index.parent, together)
        print(f"all runs: {done.index} (to look at: {together})", file=sys.stderr)
    codes = [done.exit_code, *(check.exit_code(verdict) for verdict in verdicts if verdict is not None)]
    return next((code for code in (130, 1, 3) if code in codes), 0)


def looked_at(run: Path, verdict: dict[str, Any] | None) -> str:
    """Where a run's page is, or why there is none: the run is made, and a page that can't be written takes nothing of it."""
    try:
        return f"to look at: {beside(run, verdict)}"
    except (OSError, PhasemeterError) as trouble:
        return f"without a page to look at: {trouble}"


def beside(run: Path, verdict: dict[str, Any] | None = None) -> Path:
    """Write report.html beside a run's result, the contract's verdict (kept in result.json) on it; where it lies."""
    if verdict is not None:
        lazy.load("phasemeter.runs.analysis").keep_verdict(run, verdict)
    page = run / "report.html"
    lazy.load("phasemeter.report.html.write").write_html(run, page)
    return page


def document(measured: Any, verdict: dict[str, Any] | None) -> dict[str, Any]:
    """One run's result as JSON, with the contract's verdict where there is one."""
    found: dict[str, Any] = lazy.load("phasemeter.metrics.document").document(measured.result)
    return found if verdict is None else found | {"contract": verdict}
