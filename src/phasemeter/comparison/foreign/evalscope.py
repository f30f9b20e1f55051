"""evalscope perf: `benchmark_percentile.json` and `benchmark_summary.json`; each name carries its unit in brackets."""

from __future__ import annotations

import re
from typing import Any

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported, Number

_UNIT = re.compile(r"\(([^()]+)\)")
_PLAIN = {"tokens": "tokens", "Tokens": "tokens", "Requests": "requests", "Concurrency": "requests"}


# what tells its files: summary, throughput over time, the timeline, the arguments of the run
_FILES = (
    {"Test Duration (s)"},
    {"n_samples", "wall_time_s", "warmup_frac", "rows"},
    {"wall_start", "points"},
    {"parallel", "number", "sla_auto_tune", "max_prompt_length"},
)  # fmt: skip
_UNITS = (("tok/s", "tokens/s"), ("_tokens", "tokens"), ("cum_", "tokens"), ("_timeout", "s"), ("_s", "s"),
          ("interval", "s"), ("duration", "s"), ("rate", "requests/s"), ("prompt_length", "tokens"),
          ("wall_start", "s"), ("n_samples", "requests"), ("parallel", "requests"), ("number", "requests"))  # fmt: skip


def detect(document: Any) -> bool:
    """Whether this is its percentile table or its summary."""
    if isinstance(document, list):
        return bool(document) and isinstance(document[0], dict) and "Percentiles" in document[0]
    return isinstance(document, dict) and any(keys <= set(document) for keys in _FILES)


def read(document: Any) -> Imported:
    """The percentile table (a list) or the summary (a mapping); together they are one run."""
    dialect = model.dialect_named("evalscope")
    if isinstance(document, list):
        table = {f"{name} {row['Percentiles']}": value for row in document for name, value in row.items()}
        manifest = model.manifest_of(dialect, None)
        outcomes, summary = model.outcomes_of(0, 0), {}
    elif "Test Duration (s)" not in document:
        return _beside(document)
    else:
        summary = document
        # its summary prints averages alone, as "Avg TTFT (ms)"
        table = {f"{name[4:]} Avg": value for name, value in document.items() if name.startswith("Avg ")}
        manifest = model.manifest_of(
            dialect, None, concurrency=document.get("Concurrency"), requests=document.get("Total Requests"),
            rate_per_s=model.rate_of(document.get("Request Rate (req/s)")), duration_s=document["Test Duration (s)"],
        )  # fmt: skip
        outcomes = model.outcomes_of(document.get("Success Requests", 0), document.get("Failed Requests", 0))
    result = model.result_of(
        model.from_printed(dialect, table, outcomes.ok),
        manifest,
        outcomes,
        model.throughput_of(dialect, summary),
    )
    return Imported(tool="evalscope", result=result, numbers=_numbers(document, dialect.id))


def _beside(document: dict[str, Any]) -> Imported:
    """The files beside the summary: settings, rates over time. They hold no latency."""
    dialect = model.dialect_named("evalscope")
    fields = {"model": document.get("model"), "concurrency": document.get("parallel"), "requests": document.get("number"),
              "rate_per_s": model.rate_of(document.get("rate")), "duration_s": document.get("wall_time_s")}  # fmt: skip
    rates = {row["metric"]: row["overall"] for row in document.get("rows", ()) if "metric" in row}
    result = model.result_of({}, model.manifest_of(dialect, None, **fields), model.outcomes_of(document.get("n_samples", 0), 0),
        {"as_printed": rates},
    )  # fmt: skip
    numbers = {}
    for path, value in model.walk(document):
        row = re.match(r"rows\[(\d+)\]", path)
        name = document["rows"][int(row[1])]["metric"] if row else path
        unit = next((unit for part, unit in _UNITS if part in name), "s" if path.endswith("].t") else "1")
        numbers[path] = Number(value=model.finite(value), unit=unit, definition=f"{dialect.id}:{name}")
    return Imported(tool="evalscope", result=result, numbers=numbers)


def _numbers(document: Any, tool: str) -> dict[str, Number]:
    found = {}
    for path, value in model.walk(document):
        name = path.rpartition("].")[2]
        bracket = _UNIT.search(name)
        unit = bracket[1] if bracket else next((u for word, u in _PLAIN.items() if word in name), "")
        found[path] = Number(value=model.finite(value), unit=unit, definition=f"{tool}:{name}")
    return found
