"""What the demo shows: the single requests by input length, the load's report, and a few sentences.

Lives here: the layout. Must not live here: any measuring.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasemeter.records.result import Result
from phasemeter.report import terminal
from phasemeter.runs.demo import Demo


def show(done: Demo, console: Console | None = None) -> None:
    """Print it for a person."""
    out = console or terminal.standard_output()
    out.print(Text("single requests, one at a time", style="bold"))
    out.print(single_table(done))
    out.print()
    out.print(Text(f"under load: {done.rate_per_s:.2f} requests/s", style="bold"))
    terminal.show(done.loaded.result, out)
    out.print()
    out.print(Text("what the numbers say", style="bold"))
    for sentence in done.sentences:
        out.print(Text("  " + sentence))
    out.print()
    out.print(Text("look further", style="bold"))
    name = called()
    for words, command in (
        ("the same run as another tool would print it", f"report {done.loaded.path} --as vllm"),
        ("one request, chunk by chunk", f"inspect {done.loaded.path}#r0"),
        ("what each tool means by the word", "define ttft"),
    ):
        out.print(Text(f"  {words}:"))
        out.print(Text(f"    {name} {command}"), soft_wrap=True)


def called() -> str:
    """How a shell finds us: by name, else by the path we were called by."""
    own = Path(sys.argv[0])
    return str(own) if own.name == "phasemeter" and which("phasemeter") is None else "phasemeter"


def single_table(done: Demo) -> Table:
    """One row an input length: TTFT, TPOT and end to end at the median."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("input tokens", "n", "ttft p50", "tpot p50", "e2e p50", "output tokens"):
        table.add_column(heading, justify="right")
    for run in done.single:
        result = run.result
        ok = str(result.outcomes.ok)
        table.add_row(
            _mean(result, "input"),
            ok,
            _ms(result, "ttft"),
            _ms(result, "tpot"),
            _ms(result, "e2e"),
            _mean(result, "output"),
        )
    return table


def _ms(result: Result, name: str) -> str:
    metric = result.metrics.get(name)
    value = metric.percentiles["p50"].value if metric and "p50" in metric.percentiles else None
    return "–" if value is None else f"{1e3 * value:.1f} ms"


def _mean(result: Result, which: str) -> str:
    lengths = result.workload["realised"][f"{which}_tokens"]
    value = lengths["mean"] if lengths else None
    return "–" if value is None else f"{value:.0f}"
