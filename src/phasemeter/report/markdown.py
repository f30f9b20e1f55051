"""A result as Markdown, to paste into an issue or a pull request.

Lives here: layout. Must not live here: computing.
"""

from __future__ import annotations

from collections.abc import Iterator

from phasemeter.records.result import Result
from phasemeter.report import terminal
from phasemeter.report.plain import plain
from phasemeter.report.words import COLUMNS, DASH, interval, number, percentile, scale_of


def text(result: Result) -> str:
    """The whole document, ending in a newline."""
    return plain("\n".join(_lines(result)) + "\n")


def _lines(result: Result) -> Iterator[str]:
    yield f"### {terminal.title(result).plain}"
    yield ""
    yield terminal.outcomes(result).plain
    yield ""
    yield "| metric | unit | n | mean | " + " | ".join(COLUMNS) + " |"
    yield "|---|---|--:|--:|" + "--:|" * len(COLUMNS)
    for name, metric in terminal.shown(result).items():
        factor, unit = scale_of(metric)
        if terminal.undefined(metric):
            yield f"| {name} | | 0 | {DASH} {metric.reason or ''} |" + " |" * len(COLUMNS)
            continue
        cells = []
        for label in COLUMNS:
            found = metric.percentiles.get(label)
            cells.append(f"{percentile(found, factor)} {interval(found, factor)}".replace("*", "\\*").strip())
        mean = DASH if metric.mean is None else number(metric.mean * factor)
        yield f"| {name} | {unit} | {terminal.count(metric)} | {mean} | " + " | ".join(cells) + " |"
    yield ""
    for name, metric in terminal.shown(result).items():
        yield f"- `{name}`: {metric.definition}"
    yield ""
    for part in (*terminal.throughput(result), *terminal.workload(result)):
        yield str(part).strip() + "  "
    yield ""
    yield f"Validity: **{result.validity.verdict}**"
    for check in result.validity.checks:
        if check.verdict in ("suspect", "invalid"):
            yield f"- {check.id}: {check.evidence}" + (f" → {check.remedy}" if check.remedy else "")
    if result.warnings:
        yield ""
        yield "Warnings: " + ", ".join(f"{name} {count}" for name, count in sorted(result.warnings.items()))
