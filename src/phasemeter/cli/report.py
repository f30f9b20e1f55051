"""`phasemeter report`: a run, read again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.completed import FileName, Tool
from phasemeter.cli.contract import read_contract
from phasemeter.errors import UserError


def report(
    run: FileName,
    *,
    as_tool: Annotated[
        Tool | None,
        Parameter(
            name="--as",
            show_choices=False,
            help="print it as that tool would: vllm, aiperf, genai-perf, nim, guidellm, sglang, inference-perf, evalscope,"
            " genai-bench",
        ),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False,
    csv: Annotated[Literal["metrics", "requests", "events"] | None, Parameter(help="print that table as CSV")] = None,
    markdown: Annotated[bool, Parameter(negative="", help="print Markdown")] = False,
    html: Annotated[Path | None, Parameter(help="write the report as one HTML file, whole in itself")] = None,
    openmetrics: Annotated[
        bool, Parameter(negative="", help="print OpenMetrics text, for Prometheus and its kin")
    ] = False,
    llmd: Annotated[bool, Parameter(negative="", help="print an llm-d benchmark report, version 0.2, in YAML")] = False,
    contract: Annotated[
        Path | None, Parameter(help="count its goodput; default: the contract that the run was measured under")
    ] = None,
) -> int:
    """Read a run: its latencies, throughput and validity, under our definitions or another tool's.

    Needs no server: all is derived from the capture. A result that `import` brought in is shown under its own tool's
    definitions. Ends with 1 where nothing succeeded.

    Parameters
    ----------
    run
        a run directory

    Examples:
        phasemeter report runs/20261129-smollm2
        phasemeter report runs/20261129-smollm2 --as vllm
        phasemeter report runs/20261129-smollm2 --json > result.json
        phasemeter report runs/20261129-smollm2 --csv requests > requests.csv
        phasemeter report runs/20261129-smollm2 --html report.html
        phasemeter report runs/20261129-smollm2 --as aiperf --json > profile_export_aiperf.json
        phasemeter report runs/20261129-smollm2 --openmetrics > phasemeter.prom
    """
    if json + markdown + openmetrics + llmd + (csv is not None) + (html is not None) > 1:
        raise UserError("--json, --csv, --markdown, --html, --openmetrics and --llmd each print a run: take one")
    stored = lazy.load("phasemeter.runs.imported").imported_result(run)
    if stored is not None:
        other = (
            as_tool is not None and lazy.load("phasemeter.metrics.dialects").dialect(as_tool).id != stored.definitions
        )
        asked = {"--as": other or None, "--csv requests and events": csv in ("requests", "events") or None, "--html": html,
                 "--openmetrics": openmetrics or None, "--llmd": llmd or None, "--contract": contract}  # fmt: skip
        refuse_of_imported(run, [name for name, value in asked.items() if value is not None])
        _print(stored, json=json, csv=csv is not None, markdown=markdown)
        return 0 if stored.outcomes.ok or not stored.outcomes.failed else 1
    if html is not None:
        return _write_html(run, html, as_tool)
    analysis = lazy.load("phasemeter.runs.analysis")
    if csv in ("requests", "events"):
        _write(_table(csv, run))
        return 0
    if as_tool is not None:
        lazy.load("phasemeter.metrics.dialects").dialect(as_tool)  # a wrong name is said before the run is read
    given = {} if contract is None else {"contract": read_contract(contract)}
    if openmetrics or llmd:
        writer = lazy.load("phasemeter.report.llmd") if llmd else lazy.load("phasemeter.report.openmetrics")
        exported = analysis.analyse(run, **given)
        sys.stdout.write(writer.text(exported))
        return 0 if exported.outcomes.ok else 1
    result = analysis.analyse(run, tool=as_tool, **given)
    if json and as_tool is not None and lazy.load("phasemeter.report.foreign").writes(as_tool):
        print(lazy.load("phasemeter.report.foreign").dumps(result, analysis.rows(run)))
        return 0 if result.outcomes.ok else 1
    return _print(result, json=json, csv=csv is not None, markdown=markdown)


def refuse_of_imported(run: FileName, asked: list[str]) -> None:
    """What needs the requests themselves, which another tool's file does not hold. Raises UserError."""
    if asked:
        raise UserError(
            f"{run}: brought in from another tool's file, no request of it is on record: {asked[0]} needs a run of `bench`"
        )


def _print(result: Any, *, json: bool, csv: bool, markdown: bool) -> int:
    if json:
        print(lazy.load("phasemeter.report.json").dumps(result))
    elif csv:
        _write(lazy.load("phasemeter.report.csv").metrics(result))
    elif markdown:
        sys.stdout.write(lazy.load("phasemeter.report.markdown").text(result))
    else:
        lazy.load("phasemeter.report.terminal").show(result)
    return 0 if result.outcomes.ok else 1


def _write_html(run: FileName, out: Path, as_tool: str | None) -> int:
    if as_tool is not None:
        lazy.load("phasemeter.metrics.dialects").dialect(as_tool)
    succeeded = lazy.load("phasemeter.report.html.write").write_report(Path(run), out, as_tool)
    print(f"report: {out}", file=sys.stderr)
    return 0 if succeeded else 1


def _table(which: str, run: FileName) -> Iterator[str]:
    analysis, tables = lazy.load("phasemeter.runs.analysis"), lazy.load("phasemeter.report.csv")
    if which == "events":
        yield from tables.events(analysis.rows(run))
        return
    first = min((row.due_ns for row in analysis.rows(run)), default=0)
    yield from tables.requests(analysis.rows_with_server(run), first)


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line)
