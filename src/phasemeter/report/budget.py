"""A run's budget as a person reads it: the mean by segment, the tails beside it, what could not be split and why.

Lives here: layout. Must not live here: computing (phases/budget.py). Percentiles of parts don't add, so a tail's column is the
mean of the requests near that percentile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasemeter.phases.budget import PERCENTILES, SEGMENTS
from phasemeter.records.result import Result
from phasemeter.report.words import DASH, number

WORDS = {
    "client_queue": "client queue", "connect": "connect", "upload": "upload", "ingress_delivery": "ingress + delivery",
    "queue": "queue", "prefill": "prefill", "first_token": "first-token hand-off", "reasoning": "reasoning", "decode": "decode",
    "stalls": "stalls", "tail": "tail", "unattributed": "unattributed",
}  # fmt: skip


def budget(result: Result) -> Iterator[RenderableType]:
    """Nothing where the result holds no budget."""
    told = result.budget
    if not told or not told.get("mean"):
        return
    mode = (result.workload.get("load") or {}).get("mode")
    metric = "ttft_from_due" if mode == "open" else "ttft"
    yield Text()
    yield heading(told)
    yield Padding(_table(told, metric), (0, 0, 0, 2))
    yield from _notes(told, metric)


def heading(told: Mapping[str, Any]) -> Text:
    """Where the time went, and on whose word."""
    line = Text.assemble(("where the time goes  ", "bold"))
    requests, known = told["complete"], told["with_server_evidence"]
    line.append(f"mean of {requests} requests", style="dim")
    if known:
        sources = sorted({source for found in told["evidence"].values() for source in found})
        line.append(f"; {known} with the server's own word ({', '.join(sources[:4])})", style="dim")
    elif told.get("reason"):
        line.append(f"; {told['reason']}", style="dim")
    return line


def _table(told: Mapping[str, Any], metric: str) -> Table:
    """A row a segment: mean of all, its share, then the requests near each percentile of `metric`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("segment", no_wrap=True)
    table.add_column("mean ms", justify="right")
    table.add_column("share", justify="right")
    tails = told["tails"][metric]
    decided = [label for label in (f"p{p}" for p in PERCENTILES) if tails[label]["verdict"] == "decided"]
    for label in decided:
        table.add_column(f"near {metric} {label}", justify="right")
    mean = told["mean"]["total"]
    whole = sum(mean.values())
    for name in SEGMENTS:
        near = [tails[label]["segments_s"].get(name) for label in decided]
        if not mean[name] and not any(near):
            continue
        share = f"{mean[name] / whole:.0%}" if whole > 0 else DASH
        cells = ["" if value is None else number(value * 1e3) for value in near]
        table.add_row(WORDS[name], number(mean[name] * 1e3), share, *cells)
    totals = [number(tails[label]["band_mean_s"] * 1e3) for label in decided]
    table.add_row(Text("sum", style="bold"), Text(number(whole * 1e3), style="bold"), "", *totals)
    if decided:
        off = [number(tails[label]["percentile_minus_band_mean_s"] * 1e3) for label in decided]
        table.add_row(
            Text("percentile − mean near it", style="dim"), "", "", *(Text(text, style="dim") for text in off)
        )
    return table


def _notes(told: Mapping[str, Any], metric: str) -> Iterator[RenderableType]:
    for name, why in told.get("lumps", {}).items():
        inside = told.get("inside_server_mean") if name == "ingress_delivery" else None
        known = "" if not inside else f"; the server's own TTFT holds {number(inside * 1e3)} ms of it"
        yield Text(f"  {WORDS[name]}: {why}{known}", style="dim")
    if told.get("before_text_mean"):
        textless = number(told["before_text_mean"] * 1e3)
        yield Text(
            f"  of the wait, {textless} ms pass from the first chunk without text to the first with text: tokens whose text "
            "comes later",
            style="dim",
        )
    undecided = {label: found for label, found in told["tails"][metric].items() if found["verdict"] != "decided"}
    if undecided:
        needs = ", ".join(f"{label} about {found['needs_requests']}" for label, found in undecided.items())
        yield Text(f"  too few requests for the tail at {needs} would do", style="dim")
    if told["negative_remainders"]:
        yield Text(
            f"  ! {told['negative_remainders']} requests have a negative remainder: their server's parts exceed the client's "
            "wait (another definition, or a clock fault); shown as it is",
            style="yellow",
        )
    for engine, found in (told.get("aggregate") or {}).items():
        yield Text(f"  {engine}, over the scrapes' window: {aggregate_words(found)}", style="dim")
    for warning in told.get("warnings", ()):
        yield Text(f"  ! {warning}", style="yellow")


def aggregate_words(found: Mapping[str, Any]) -> str:
    """What a window of aggregates adds: means, or why not."""
    if not found.get("mean"):
        return f"no mean budget ({found.get('reason')})"
    parts = [f"{WORDS[name]} {number(value * 1e3)} ms" for name, value in found["mean"].items()]
    return "mean wait = " + " + ".join(parts) + "; of tails it says nothing"
