"""The report of one run: what is read, what each section holds.

Lives here: the order of things. Must not live here: layout of a section, formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasemeter.report.html import besides, charts, evidence, latency, segments, standing, timeline
from phasemeter.report.html.markup import Markup, chart, data, section, tag, words
from phasemeter.report.html.measures import Measures, measures_of
from phasemeter.report.html.page import banner, page
from phasemeter.report.html.run_tables import RunTables, open_tables, result_document
from phasemeter.report.html.server_side import ServerSide, budget, budget_numbers, mean_strip, server_side

Section = tuple[str, str, Markup]


def run_page(run: Path, document: Mapping[str, Any] | None = None) -> str:
    """The page of the run in `run`. `document`: its result, where it was read already (or under another tool's definitions).

    Raises FileError when there is no run, or its files can't be read.
    """
    told = result_document(run) if document is None else document
    with open_tables(run) as tables:
        measures = measures_of(tables)
        bits = timeline.chosen(tables, measures)
        numbers = [] if told.get("budget") else budget_numbers(measures)
        side = server_side(run, tables, [*bits, *numbers])
        rows = tables.rows_at([*bits, *numbers])
        drawn = timeline.document(rows, bits, tables, side, measures.origin_ns) | {"run": run.resolve().name}
        ids = tables.requests["request_id"]
        evenly = [*numbers, *(number for number, bit in bits.items() if bit & timeline.EVERY)]
        alike = side.of(ids.gather(measures.numbers.tolist()), ids.gather(evenly))
        spent = told.get("budget") or budget((rows[i] for i in numbers), side, len(measures.numbers))
        sections = [
            _verdict(told),
            _latency(told),
            _budget(spent, told),
            _timeline(drawn, bits, tables, measures, alike),
            _distributions(measures, tables, told),
            ("evidence", "Server evidence", section("evidence", "Server evidence", evidence.section(alike))),
            *filter(None, [besides.simulation(told)]),
            _validity(told),
            ("definitions", "Definitions", section("definitions", "Definitions used", latency.definitions(told))),
        ]
    name = standing.title_of(told.get("run") or {})
    head = banner("phasemeter report", name, standing.headline(told), tag("p", standing.facts_of(told), class_="facts"))
    return page(f"{name}: phasemeter report", head, sections, ("timeline.js",))


def _verdict(told: Mapping[str, Any]) -> Section:
    kept = standing.contract(told)
    bad = [c for c in (told.get("validity") or {}).get("checks") or () if c["verdict"] in ("suspect", "invalid")]
    doubts = [
        tag(
            "li",
            tag("strong", check["id"]),
            ": ",
            words(check.get("evidence")),
            [" → ", words(check["remedy"])] if check.get("remedy") else "",
        )
        for check in bad
    ]
    none = tag(
        "p",
        words("No contract was held against this run: `phasemeter check RUN --contract c.yaml` does."),
        class_="note",
    )
    return ("verdict", "Verdict", section(
        "verdict", "Verdict",
        latency.cards(told),
        kept if kept is not None else none,
        tag("h3", "Doubts about the run itself") if doubts else None,
        tag("ul", doubts) if doubts else tag("p", "The run's own checks raise no doubt."),
        latency.goodput(told),
        besides.errors(told),
    ))  # fmt: skip


def _latency(told: Mapping[str, Any]) -> Section:
    names = latency.shown(told)
    others = [name for name in told["metrics"] if name not in names]
    every = tag(
        "details",
        tag("summary", f"All other metrics ({len(others)})"),
        latency.latency_table(told, others, "The other metrics"),
        class_="print",
    )
    return ("latency", "Latency", section(
        "latency", "Latency and throughput",
        latency.latency_table(told, names, "Latencies of measured, successful requests"),
        latency.notes(told, names),
        every if others else None,
        latency.throughput(told),
        latency.workload(told),
        besides.facts(told),
        besides.as_tool(told),
    ))  # fmt: skip


def _budget(spent: Mapping[str, Any] | None, told: Mapping[str, Any]) -> Section:
    if not spent:
        body: list[Markup | None] = [tag("p", "No finished request had output, so there is no budget.")]
    else:
        with_evidence = (
            f"{spent.get('with_server_evidence', 0):,} of {spent.get('requests', 0):,} requests carry server evidence."
        )
        negative = spent.get("negative_remainders")
        first = ("ttft_from_due", "e2e_from_due") if latency.mode_of(told) == "open" else ("ttft", "e2e")
        rest = [segments.bars(spent, metric) for metric in segments.METRICS if metric not in first]
        body = [
            tag("p", "Where a request's time goes, segment by segment. Means add up; percentiles don't, so a tail is the mean budget"
                " of the requests near that percentile of the metric.", class_="note"),
            tag("p", with_evidence, f" Made of {spent['sample']}." if spent.get("sample") else "",
                f" Why none: {spent['reason']}." if spent.get("reason") else ""),
            tag("ul", [tag("li", words(text)) for text in spent["warnings"]]) if spent.get("warnings") else None,
            tag("p", f"! {negative} requests have a negative remainder: the server's parts exceed the client's wait, a mismatch of"
                " definitions or a clock fault. It is shown as it is.") if negative else None,
            tag("div", [segments.bars(spent, metric) for metric in first]),
            tag("details", tag("summary", "The other two, with and without our own lateness"), rest, class_="print"),
            tag("h3", "What the segments are, and what is lumped"),
            segments.legend(spent),
            tag("ul", segments.beyond(spent)),
            segments.aggregates(spent),
        ]  # fmt: skip
    return ("budget", "Budget", section("budget", "Budget", *body))


def _timeline(
    drawn: dict[str, Any], bits: timeline.Groups, tables: RunTables, measures: Measures, side: ServerSide
) -> Section:
    return ("timeline", "Time line", section(
        "timeline", "Requests on the time line",
        strips(measures, side),
        tag("p", timeline.note(bits, len(tables.requests)), " Press a row for its details; + and − or Ctrl and the wheel zoom.",
            class_="note"),
        tag("div", id="timeline-here"),
        tag("noscript", "The time line is drawn by a script of this page."),
        data("timeline-data", drawn),
    ))  # fmt: skip


def strips(measures: Measures, side: ServerSide) -> Markup:
    """The mean request twice: as its consumer lived it, and as the server spent it. Never on one axis."""
    client = []
    ttft, whole = measures.of("ttft"), measures.of("e2e")
    if len(ttft) and len(whole):
        client = [
            {"kind": "wait", "name": "request → first output", "ms": float(ttft.mean() * 1e3), "what": "mean ttft, client clock"},
            {"kind": "decode", "name": "first → final output", "ms": float((whole.mean() - ttft.mean()) * 1e3),
             "what": "mean e2e − mean ttft, client clock"},
        ]  # fmt: skip
    server = mean_strip(side)
    return tag(
        "div",
        _strip("CLIENT: what did the consumer live?", "", client),
        _strip(
            "SERVER: where did the system spend it?",
            "Means of the server's own durations. The two strips have clocks of their own and are never subtracted."
            if server
            else "No server evidence: only the client's side is known.",
            server,
        ),
        class_="two",
    )


def _strip(title: str, note: str, parts: list[dict[str, Any]]) -> Markup:
    seconds = {part["kind"]: part["ms"] / 1e3 for part in parts}
    total = sum(max(value, 0.0) for value in seconds.values())
    bar = [
        tag("span", class_=f"s-{part['kind']}", style=f"width:{100 * max(part['ms'], 0) / 1e3 / total:.3f}%") for part in parts
    ] if total else []  # fmt: skip
    items = [
        tag(
            "li",
            segments.swatch(part["kind"]),
            f"{part['name']} ",
            segments.copied(part["name"], part["ms"], part["what"]),
        )
        for part in parts
    ]
    return tag(
        "div",
        tag("h3", title),
        tag("p", note, class_="note") if note else None,
        tag("div", bar, class_="bar", aria_hidden="true") if bar else None,
        tag("ul", items) if items else None,
        class_="strip",
    )


def _distributions(measures: Measures, tables: RunTables, told: Mapping[str, Any]) -> Section:
    gaps = charts.gap_frame(tables)
    specs = {
        "ecdf-wait": charts.waits(measures, from_due=latency.mode_of(told) == "open"),
        "ecdf-cadence": charts.cadence(measures, gaps["gap_s"].to_numpy()),
        "ttft-length": charts.by_input_length(measures),
        "ttft-time": charts.over_the_run(measures, tables),
        "gaps-time": charts.gaps_over_time(gaps),
        "in-flight": charts.in_flight(tables),
    }
    drawn = [chart(identifier, spec) for identifier, spec in specs.items() if spec is not None]
    body = tag("div", drawn, class_="two") if drawn else tag("p", "Too few finished requests to draw.")
    return ("distributions", "Distributions", section("distributions", "Distributions", body))


def _validity(told: Mapping[str, Any]) -> Section:
    return ("validity", "Validity", section(
        "validity", "Validity and manifest",
        standing.validity(told),
        tag("h3", "Manifest"),
        standing.manifest(told.get("run") or {}),
    ))  # fmt: skip
