"""What the server itself said: each phase with its source, clock and meaning.

Lives here: layout. Must not live here: any engine's meaning (server/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from phasemeter.report.html.markup import Markup, figure, table, tag
from phasemeter.report.html.segments import swatch
from phasemeter.report.html.server_side import NAMES, ServerSide, strip
from phasemeter.report.words import DASH, number

MOST_ROWS = 60


def section(side: ServerSide) -> Markup:
    """Per-request durations, the window's aggregates, and what is not there."""
    parts = [_requests(side), *(_engine(name, engine) for name, engine in side.engines.items())]
    found = [part for part in parts if part is not None]
    if not found:
        found = [
            tag(
                "p",
                "No server evidence on record: queue, prefill and delivery can't be told apart. Response timings, response"
                " headers, a metrics page (--server-metrics) or spans (--otlp-listen) would tell.",
            )
        ]
    return Markup("".join(found) + "".join(tag("p", str(note), class_="note") for note in side.notes))


def _requests(side: ServerSide) -> Markup | None:
    values: dict[str, list[float]] = {}
    sample: dict[str, dict[str, Any]] = {}
    for key in {*side.values, *side.instants}:
        for part in strip(side.values.get(key, ()), side.instants.get(key, ())):
            values.setdefault(part["kind"], []).append(part["ms"])
            sample.setdefault(part["kind"], part)
    if not values:
        return None
    rows = []
    for kind in NAMES:
        if kind not in values:
            continue
        told, part = np.array(values[kind]), sample[kind]
        cells = [
            figure(number(v), f"server {part['name']} {label} = {number(v)} ms, n = {len(told)}: {part['what']} (source: {part['source']})")
            for label, v in (("mean", float(told.mean())), *((f"p{q}", float(np.percentile(told, q))) for q in (50, 95, 99)))
        ]  # fmt: skip
        rows.append([[swatch(kind), part["name"]], str(len(told)), *cells, part["what"], part["source"]])
    head = ["phase", "n", "mean, ms", "p50", "p95", "p99", "what it spans", "source"]
    return table(
        head,
        rows,
        "Durations that the server gave request by request: measured, successful requests that this page reads",
        "words",
    )


def _engine(name: str, engine: Mapping[str, Any]) -> Markup | None:
    rows = list(_blocks(engine))[:MOST_ROWS]
    if not rows:
        return None
    head = ["quantity", "n", "mean", "p50", "p95", "p99", "definition", "source, clock"]
    return tag("div", tag("h3", name), table(head, rows, f"{name}: aggregates of the window", "words"))


def _blocks(engine: Mapping[str, Any]) -> Iterator[list[Any]]:
    for key, block in engine.items():
        if not isinstance(block, Mapping) or block.get("status") not in ("present", None) or "source" not in block:
            continue
        unit = block.get("unit") or ""
        factor, word = (1e3, "ms") if unit == "s" else (1.0, unit)
        mean = block.get("mean", block.get("value"))
        told = f"{key} = {number(mean * factor) if isinstance(mean, int | float) else DASH} {word}: {block.get('definition')}"
        cells = [_bounds((block.get("quantiles") or {}).get(label), factor) for label in ("p50", "p95", "p99")]
        shown = figure(f"{number(mean * factor)} {word}".strip(), told) if isinstance(mean, int | float) else DASH
        where = " · ".join(str(block[k]) for k in ("source", "clock") if block.get(k))
        yield [
            key,
            str(block.get("n") if block.get("n") is not None else ""),
            shown,
            *cells,
            block.get("definition") or "",
            where,
        ]


def _bounds(bounds: Mapping[str, Any] | None, factor: float) -> str:
    if not bounds:
        return DASH
    low, high = bounds.get("low"), bounds.get("high")
    if low == high and low is not None:
        return number(low * factor)
    return f"{DASH if low is None else number(low * factor)} … {'∞' if high is None else number(high * factor)}"
