"""A result as a person reads it in a terminal: what was measured, how sure it is, whether to believe it.

Lives here: layout. Must not live here: computing, or any word that the result doesn't carry. Colours are rich's: NO_COLOR and
a pipe switch them off, a narrow terminal drops the intervals' lines first and says where they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasemeter.metrics.document import error_rate
from phasemeter.records.result import Metric, Result
from phasemeter.report import unread
from phasemeter.report.budget import budget
from phasemeter.report.plain import plain_tree
from phasemeter.report.words import COLUMNS, DASH, interval, number, percentile, scale_of

NARROW = 96  # columns: below, intervals go
IN_A_PIPE = 120  # columns: a file or a log is no narrow window
VERDICT_STYLE = {"valid": "bold green", "suspect": "bold yellow", "invalid": "bold red"}
ALWAYS = ("ttft", "tpot", "itl", "e2e")
OPEN = ("ttft_from_due", "ttft", "ttfo", "tpot", "itl", "e2e_from_due", "e2e", "client_queue")
CLOSED = ("ttft", "ttfo", "tpot", "itl", "e2e", "client_queue")

ERRORS_SHOWN = 3


def show(result: Result, console: Console | None = None) -> None:
    """Print the whole view."""
    target = console or standard_output()
    target.print(view(result, target.width))


class Paper(Console):
    """A console that leaves the exit code to the verb when its reader has gone."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        unread.dropped()


def standard_output() -> Console:
    """As wide as its terminal, or as COLUMNS says; where there is neither, wide enough for the intervals."""
    found = Paper(highlight=False)
    return found if found.is_terminal or os.environ.get("COLUMNS") else Paper(highlight=False, width=IN_A_PIPE)


def view(result: Result, width: int = 120) -> Group:
    """The view's parts, top to bottom; a server's own words can't steer the terminal."""
    result = msgspec.convert(plain_tree(msgspec.to_builtins(result)), Result)
    parts: list[RenderableType] = [title(result), outcomes(result), Text(), latency(result, width)]
    parts += list(definitions(result, width))
    parts += list(budget(result))
    parts += [Text(), *throughput(result), *workload(result), *as_tool(result), Text(), *validity(result)]
    parts += list(warnings(result))
    return Group(*parts)


def title(result: Result) -> Text:
    """What was measured, in one line."""
    run = result.run
    service = " · ".join(str(run[key]) for key in ("model", "engine", "url") if run.get(key))
    line = Text.assemble(("phasemeter ", "bold"), service or str(run.get("kind", "run")))
    line.append(f" · {load_words(result)} · definitions {result.definitions}", style="dim")
    if result.partial:
        line.append("  PARTIAL: the run was cut off", style="bold yellow")
    return line


def load_words(result: Result) -> str:
    """How the load was driven: "4 req/s", "8 at a time"."""
    load = result.workload.get("load") or {}
    if load.get("mode") == "open" and load.get("rate_per_s"):
        return f"{number(load['rate_per_s'])} req/s on a schedule"
    if load.get("mode") == "open":
        return "on a schedule"
    if load.get("mode") == "closed":
        return f"{load.get('concurrency')} at a time"
    return "all at once" if load.get("mode") == "inf" else "load unrecorded"


def outcomes(result: Result) -> Text:
    """The balance: scheduled = ok + failed + cancelled + unsent."""
    seen = result.outcomes
    failed = sum(seen.failed.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in seen.failed.items())
    line = Text("requests  ", style="dim")
    line.append(f"{seen.scheduled} scheduled = {seen.ok} ok + ")
    line.append(f"{failed} failed" + (f" ({kinds})" if kinds else ""), style="red" if failed else "")
    line.append(f" + {seen.cancelled} cancelled + {seen.unsent} unsent")
    rate = error_rate(seen)
    if failed and rate is not None:
        line.append(f" · error rate {rate:.1%}", style="red")
    for error in result.errors[:ERRORS_SHOWN]:
        status = f" {error.status}" if error.status and error.status >= 300 else ""
        line.append(f"\n          {error.count} × {error.kind}{status}: ", style="red")
        line.append(" ".join((error.message or "no words").split()))
    if len(result.errors) > ERRORS_SHOWN:
        line.append(f"\n          and {len(result.errors) - ERRORS_SHOWN} other messages", style="dim")
    return line


def shown(result: Result) -> dict[str, Metric]:
    """The metrics of the headline table, in order; an undefined itl gives its place to inter_chunk."""
    if "tpot" not in result.metrics or "inter_chunk" not in result.metrics:
        return dict(result.metrics)  # another tool's own rows
    mode = (result.workload.get("load") or {}).get("mode")
    chosen: dict[str, Metric] = {}
    for name in OPEN if mode == "open" else CLOSED:
        metric = result.metrics[name]
        if name == "ttfo" and metric.n and _same(metric, result.metrics["ttft"]):
            continue
        if metric.n or name in ALWAYS:
            chosen[name] = metric
        if name == "tpot" and not metric.n and result.metrics["visible_tpot"].n:
            chosen["visible_tpot"] = result.metrics["visible_tpot"]
        if name == "itl" and result.metrics["inter_chunk"].n != metric.n:
            chosen["inter_chunk"] = result.metrics["inter_chunk"]
    if result.metrics["stall"].n:
        chosen["stall"] = result.metrics["stall"]
    return chosen


def undefined(metric: Metric) -> bool:
    """Whether there is no value; another tool's file may hold values and not say of how many."""
    values = [metric.mean, *(found.value for found in metric.percentiles.values())]
    return not metric.n and all(value is None for value in values)


def count(metric: Metric) -> str:
    return str(metric.n) if metric.n else DASH


def _same(one: Metric, other: Metric) -> bool:
    return one.n == other.n and one.mean == other.mean and one.max == other.max


def latency(result: Result, width: int) -> Table:
    """The headline table: n, mean, percentiles, with 95 % intervals in a line below where there is room."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("metric", style="bold", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    for name in ("n", "mean", *COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    for name, metric in shown(result).items():
        factor, unit = scale_of(metric)
        if undefined(metric):
            table.add_row(name, "", "0", *[Text(DASH, style="dim")] * (1 + len(COLUMNS)))
            continue
        cells = [percentile(metric.percentiles.get(label), factor) for label in COLUMNS]
        mean = DASH if metric.mean is None else number(metric.mean * factor)
        table.add_row(name, unit, count(metric), mean, *cells)
        bounds = [interval(metric.percentiles.get(label), factor) for label in COLUMNS]
        if width >= NARROW and any(bounds):
            table.add_row("", "", "", "", *(Text(bound, style="dim") for bound in bounds))
    return table


def definitions(result: Result, width: int) -> Iterator[RenderableType]:
    """One line a metric of the table: its boundaries; and who was left out."""
    rows = shown(result)
    long = max((len(name) for name in rows), default=0)
    lines = Text(style="dim")
    for name, metric in rows.items():
        left_out = ", ".join(f"{count} {reason}" for reason, count in metric.excluded.items() if metric.n)
        lines.append(f"\n{name:<{long}}  {metric.definition}" + (f"  (left out: {left_out})" if left_out else ""))
        if undefined(metric):
            lines.append(f"  undefined: {metric.reason}", style="yellow")
    flagged = any(
        percent.flag == "few_samples" and label in COLUMNS
        for metric in rows.values()
        for label, percent in metric.percentiles.items()
    )
    bounded = any(percent.ci95 != (None, None) for metric in rows.values() for percent in metric.percentiles.values())
    where = "[ ] 95 % interval, – a bound that so few samples can't give"
    if width < NARROW:
        where = f"95 % intervals: in a window of {NARROW} columns, in report --markdown and --json"
    notes = [where] if bounded else []
    notes += ["* too few samples for this percentile"] if flagged else []
    lines.append("\n" + " · ".join(notes) if notes else "")
    yield lines


def throughput(result: Result) -> Iterator[RenderableType]:
    """What came per second, with the window it came in."""
    told = result.throughput
    if not told:
        return
    window = told.get("window") or {}
    keys = [key for key in told if key.endswith("_per_s") and told[key] is not None] or [
        key for key, value in told.items() if isinstance(value, int | float)
    ]
    parts = " · ".join(
        f"{key.removesuffix('_per_s').replace('_', ' ')} {number(told[key])}" + _per(key) for key in keys
    )
    line = Text.assemble(("throughput  ", "dim"), parts or f"{DASH} {told.get('reason', '')}")
    yield line
    if window.get("rule"):
        length = f"{number(window['length_s'])} s: " if window.get("length_s") is not None else ""
        yield Text(f"            in {length}{window['rule']}", style="dim")
    whole = told.get("whole_run") or {}
    if whole.get("output_tokens_per_s") is not None and window.get("kind") == "steady":
        peak = (told.get("peak") or {}).get("peak_output_tokens_per_s")
        words = f"            whole run {number(whole['output_tokens_per_s'])} output tokens/s"
        words += f" · busiest second {number(peak)}" if peak is not None else ""
        yield Text(words, style="dim")


def _per(key: str) -> str:
    return "/s" if key.endswith("_per_s") else ""


def workload(result: Result) -> Iterator[RenderableType]:
    """Asked and realised lengths: a throughput means nothing without them."""
    asked, real = result.workload.get("asked") or {}, result.workload.get("realised") or {}
    words = []
    for name, key in (("input", "input_tokens"), ("output", "output_tokens")):
        got, wanted = real.get(key) or {}, asked.get(key) or {}
        if got.get("mean") is None:
            words.append(f"{name} tokens not known")
            continue
        span = number(got["min"]) if got["min"] == got["max"] else f"{number(got['min'])} to {number(got['max'])}"
        goal = f", asked {number(wanted['mean'])}" if wanted.get("mean") is not None else ""
        words.append(f"{name} {number(got['mean'])} tokens in the mean ({span}{goal})")
    sources = result.workload.get("output_tokens_sources") or {}
    told = ", ".join(f"{source} {count}" for source, count in sources.items())
    yield Text.assemble(("workload    ", "dim"), " · ".join(words), (f" · counted by {told}" if told else "", "dim"))


def as_tool(result: Result) -> Iterator[RenderableType]:
    """Another tool's own keys, and what of its numbers can't be re-created."""
    told: dict[str, Any] | None = result.workload.get("as_tool")
    if told is None:
        return
    yield Text(f"\nas {told['tool']} would print it", style="bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for key, value in told["printed"].items():
        table.add_row(Text(key), DASH if value is None else number(value, 6))
    yield Padding(table, (0, 0, 0, 2))
    yield Text("can't be re-created from a capture of ours:", style="dim")
    for line in told["cannot_recreate"]:
        yield Text(f"  - {line}", style="dim")


def validity(result: Result) -> Iterator[RenderableType]:
    """The verdict, and each check that isn't well: what was seen and what to do."""
    judged = result.validity
    bad = [check for check in judged.checks if check.verdict in ("suspect", "invalid")]
    fine = sum(check.verdict == "ok" for check in judged.checks)
    unknown = [check.id for check in judged.checks if check.verdict == "unknown"]
    line = Text.assemble(("this run is ", ""), (judged.verdict.upper(), VERDICT_STYLE[judged.verdict]))
    line.append(f"  {fine} of {len(judged.checks)} checks passed", style="dim")
    if unknown:
        line.append(f", not known: {', '.join(unknown)}", style="dim")
    yield line
    for check in bad:
        mark = Text("  ✗ " if check.verdict == "invalid" else "  ! ", style=VERDICT_STYLE[check.verdict])
        yield mark + Text.assemble((check.id, "bold"), f"  {check.evidence}")
        if check.remedy:
            yield Text(f"    → {check.remedy}", style="dim")


def warnings(result: Result) -> Iterator[RenderableType]:
    """Where replies bent their standard, by name."""
    if result.warnings:
        told = ", ".join(f"{name} {count}" for name, count in sorted(result.warnings.items()))
        yield Text.assemble(("warnings    ", "dim"), told)
