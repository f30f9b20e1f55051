"""The comparison of two sides: comparable or not on top, then what differs, by how much, and how sure that is.

Lives here: layout of a comparison's answer. Must not live here: the answer (comparison/).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phasemeter.comparison.comparable import FIELDS, SOFT, Run
from phasemeter.comparison.difference import Difference
from phasemeter.comparison.report import Report
from phasemeter.report.html import charts, latency, segments, standing
from phasemeter.report.html.markup import Markup, chart, figure, section, table, tag, words
from phasemeter.report.html.page import banner, page
from phasemeter.report.words import DASH, number

WIDE = 170  # px of an interval's picture
CURVES_AT_MOST = 8  # of both sides in one chart


def compare_page(report: Report, a: Sequence[Run], b: Sequence[Run]) -> str:
    """The page of B against A, each one or more runs."""
    answer = report.answer
    verdict = standing.pill(
        "met" if answer.comparable else "missed", "comparable" if answer.comparable else "not comparable"
    )
    name = f"{_names(b)} against {_names(a)}"
    head = banner("phasemeter comparison", name, tag("p", verdict),
                  tag("p", f"A: {', '.join(run.name for run in a)} · B: {', '.join(run.name for run in b)}", class_="facts"))  # fmt: skip
    sections = [("comparable", "Comparable?", section("comparable", "Can they be compared?", *_answer(report)))]
    if answer.comparable:
        sections.append(("differences", "Differences", section("differences", "What differs", *_differences(report))))
    sections.append(("side", "Side by side", section("side", "Side by side", *_side_by_side([*a, *b]))))
    sections.append(("budgets", "Budgets", section("budgets", "Where the time goes", *_budgets(a, b))))
    drawn = [chart(f"compare-{metric}", spec) for metric, spec in _curves(a, b)]
    if drawn:
        sections.append(
            (
                "distributions",
                "Distributions",
                section("distributions", "Distributions", tag("div", drawn, class_="two")),
            )
        )
    sections.append(("manifests", "Manifests", section("manifests", "Manifests, field by field", _manifests([*a, *b]))))
    return page(f"{name}: phasemeter comparison", head, sections)


def _names(side: Sequence[Run]) -> str:
    return side[0].name if len(side) == 1 else f"{side[0].name} and {len(side) - 1} more"


def _answer(report: Report) -> list[Markup]:
    answer = report.answer
    parts = [
        tag("p", "Equal definitions, manifests that differ only in what was named as varying, sound runs."
            if answer.comparable else "What stands below has to be settled first: a difference would be of two things at once."),
    ]  # fmt: skip
    for title, lines in (
        ("Refused", answer.refusals),
        ("Metrics not compared", answer.refused_metrics),
        ("Warnings", answer.warnings),
    ):
        if lines:
            parts += [tag("h3", title), tag("ul", [tag("li", words(line)) for line in lines])]
    return parts


def _differences(report: Report) -> list[Markup | None]:
    every = sorted((*report.differences, *report.phases), key=lambda one: not one.significant)
    found = [one for one in every if one.reason is None]
    untested = [one for one in every if one.reason is not None]
    moved = list(dict.fromkeys(one.metric for one in found if one.significant))
    told = f"Differences that chance doesn't explain (5 %, all tests together): {', '.join(moved) or 'none'}."
    reach = max((abs(bound) for one in found for bound in _relative(one) if bound is not None), default=0.0)
    head = ["metric", "statistic", "A", "B", "B − A", "95 % interval", "relative", "p, adjusted"]
    return [
        tag("p", told, class_="answer"),
        tag("div", [tag("p", text) for text in report.causes]),
        table(head, [_row(one, reach) for one in found], "B against A, the ones that moved first", "words") if found
        else tag("p", "No metric could be tested."),
        tag("details", tag("summary", f"Not tested ({len(untested)})"),
            table(head, [_row(one, reach) for one in untested], "What couldn't be tested, and why", "words"), class_="print")
        if untested else None,
    ]  # fmt: skip


def _relative(one: Difference) -> tuple[float | None, float | None]:
    """The interval of B − A as a share of A."""
    if not one.a or one.unit != "s":
        return None, None
    low, high = one.ci95
    return (None if low is None else low / one.a), (None if high is None else high / one.a)


def _row(one: Difference, reach: float) -> list[Any]:
    factor, unit = (1e3, "ms") if one.unit == "s" else (1.0, one.unit)
    name = [tag("strong", one.metric), tag("span", " moved", class_="pill undecided") if one.significant else None]
    adjusted = "" if one.p_adjusted is None else f"{one.p_adjusted:.3g}"
    if one.statistic == "distribution":
        gap = DASH if one.difference is None else f"largest gap of shares {one.difference:.3f}"
        return [name, "whole distribution", "", "", gap, "", "", adjusted]
    a, b = (DASH if v is None else f"{number(v * factor)} {unit}" for v in (one.a, one.b))
    if one.difference is None or None in one.ci95:
        return [name, one.statistic, a, b, one.reason or DASH, "", "", adjusted]
    low, high = (number(bound * factor) for bound in one.ci95 if bound is not None)
    by = f"{one.difference * factor:+.4g} {unit}"
    relative = "" if one.relative is None else f"{100 * one.relative:+.1f} %"
    told = f"{one.metric} {one.statistic}: B − A = {by} ({relative}), 95 % interval [{low}, {high}], n = {one.n_a} and {one.n_b}"
    return [
        name,
        one.statistic,
        a,
        b,
        figure(by, told),
        f"[{low}, {high}]",
        [relative, _interval(one, reach)],
        adjusted,
    ]


def _interval(one: Difference, reach: float) -> Markup | None:
    """The interval as a bar around 0; left is faster."""
    low, high = _relative(one)
    if low is None or high is None or one.relative is None or not reach:
        return None

    def x(value: float) -> float:
        return round(WIDE / 2 + value / reach * (WIDE / 2 - 6), 1)

    tone = "c1" if one.significant else "c7"
    return tag(
        "svg",
        tag("line", x1=WIDE / 2, x2=WIDE / 2, y1=0, y2=18, class_="grid"),
        tag("path", d=f"M{x(low)} 9H{x(high)}M{x(low)} 5v8M{x(high)} 5v8", class_=f"line {tone}"),
        tag("circle", cx=x(one.relative), cy=9, r=4, class_=f"dots {tone}"),
        width=WIDE, height=18, viewBox=f"0 0 {WIDE} 18", aria_hidden="true", style="display:block",
    )  # fmt: skip


def _side_by_side(runs: Sequence[Run]) -> list[Markup]:
    names = [name for run in runs[:1] for name in latency.shown(run.document)] if runs else []
    names += [name for run in runs[1:] for name in latency.shown(run.document) if name not in names]
    rows = []
    for name in dict.fromkeys(names):
        for label in ("p50", "p95", "p99"):
            cells = [
                latency.cell(run.document, name, label, unit_too=True)
                if (run.document["metrics"].get(name) or {}).get("n")
                else DASH
                for run in runs
            ]
            if any(cell != DASH for cell in cells):
                rows.append([f"{name} {label}", *cells])
    verdicts = [
        tag("li", tag("strong", run.name), ": ", standing.pill(verdict, verdict), _balance(run))
        for run in runs
        for verdict in ((run.document.get("validity") or {}).get("verdict") or "unknown",)
    ]
    return [
        tag("ul", verdicts),
        table(["", *(run.name for run in runs)], rows, "Every run's own percentiles, with 95 % intervals"),
    ]


def _budgets(a: Sequence[Run], b: Sequence[Run]) -> list[Markup | None]:
    """Every run's mean budget on one scale."""
    named = [(f"{letter}: {run.name}", run.document) for letter, side in (("A", a), ("B", b)) for run in side]
    found = {name: told["budget"] for name, told in named if (told.get("budget") or {}).get("mean")}
    without = [name for name, _ in named if name not in found]
    missing = tag("p", f"Without a budget: {', '.join(without)}.", class_="note") if without else None
    if len(found) < 2:
        return [tag("p", "Fewer than two of these results hold a budget."), missing]
    due = all(latency.mode_of(told) == "open" for _, told in named)
    drawn = [
        segments.side_by_side(found, name) for name in (("ttft_from_due", "e2e_from_due") if due else ("ttft", "e2e"))
    ]
    words_of = {f"{name}: {why}" for told in found.values() for name, why in (told.get("lumps") or {}).items()}
    return [
        tag("p", "Means add up, so the bars do. A segment without evidence on one side stands in that side's lump: compare sums there.",
            class_="note"),
        *drawn, tag("ul", [tag("li", text) for text in sorted(words_of)]), missing,
    ]  # fmt: skip


def _balance(run: Run) -> str:
    return standing.balance(run.document) if run.document.get("outcomes") else ""


def _curves(a: Sequence[Run], b: Sequence[Run]) -> Iterable[tuple[str, dict[str, Any]]]:
    """For each metric of both sides the runs' distributions in one picture."""
    shared = [name for name in a[0].values if all(name in run.values for run in (*a, *b))]
    for metric in shared:
        lines = []
        for tone, (letter, side) in enumerate((("A", a), ("B", b))):
            for run in side[: CURVES_AT_MOST // 2]:
                if len(run.values[metric]):
                    line = charts.ecdf_line(f"{letter}: {run.name}", run.values[metric])
                    lines.append(line | {"tone": tone, "dash": tone})
        spec = charts.ecdf(f"{metric} of both sides", lines, charts.BAND_NOTE)
        if spec is not None:
            yield metric, spec


def _manifests(runs: Sequence[Run]) -> Markup:
    rows = []
    for field in (*FIELDS, *SOFT):
        values = [run.manifest.get(field) for run in runs]
        if all(value is None for value in values):
            continue
        differs = any(value != values[0] for value in values)
        rows.append([
            [field, tag("span", " differs", class_="pill undecided") if differs else None],
            *("unrecorded" if value is None else str(value)[:200] for value in values),
        ])  # fmt: skip
    return table(["field", *(run.name for run in runs)], rows, "What two runs must share to be compared", "words")
