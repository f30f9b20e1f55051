"""`import phasemeter`: a measurement and its reading from Python, by the same code as the command line.

Lives here: names for people in scripts and notebooks. Must not live here: any measuring or computing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.lazy import load
from phasemeter.records.manifest import Manifest
from phasemeter.records.result import Metric, Result
from phasemeter.runs.asked import Asked

SHOWN = ("ttft_from_due", "ttft", "ttfo", "tpot", "itl", "inter_chunk", "e2e")
PERCENTILES = ("p50", "p95", "p99")
RATES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
}


class Run:
    """A run directory, read when asked. `result`: the house metrics; `requests()` and `events()`: polars tables."""

    def __init__(self, path: Path | str, result: Result | None = None) -> None:
        self.path = Path(path)
        self._result = result

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """The run at `path`. Raises FileError when there is none."""
        load("phasemeter.io.run_directory").RunDirectory.open(path)
        return cls(path)

    @property
    def result(self) -> Result:
        """Metrics, outcomes, validity, throughput: read from the capture once."""
        if self._result is None:
            self._result = load("phasemeter.runs.analysis").analyse(self.path)
        return self._result

    @property
    def manifest(self) -> Manifest:
        """What was asked, and what the server told of itself. Raises FileError when there is none."""
        found: Manifest = load("phasemeter.io.run_directory").RunDirectory.open(self.path).read_manifest()
        return found

    def metrics(self, as_: str | None = None) -> Metrics:
        """Each metric under its definition, or as a tool would print it (`"vllm"`, `"aiperf"`, ...). Raises UserError."""
        result = self.result if as_ is None else load("phasemeter.runs.analysis").analyse(self.path, tool=as_)
        return Metrics(result.metrics)

    def document(self) -> dict[str, Any]:
        """The result as `--json` prints it: plain data, every number finite or None."""
        found: dict[str, Any] = load("phasemeter.metrics.document").document(self.result)
        return found

    def requests(self) -> Any:
        """A polars DataFrame, a row a request (`.to_pandas()` where pandas is at home). Times in ns."""
        return self._table("requests.parquet")

    def events(self) -> Any:
        """A polars DataFrame, a row an output event. Times in ns."""
        return self._table("events.parquet")

    def _table(self, name: str) -> Any:
        if not (self.path / name).exists():
            load("phasemeter.runs.analysis").derive(self.path)
        return load("polars").read_parquet(self.path / name, glob=False)

    def __repr__(self) -> str:
        told = self.result.outcomes
        return f"Run({str(self.path)!r}: {told.ok} of {told.scheduled} ok, {self.result.validity.verdict})"

    def report(self, out: Path | str) -> Path:
        """Write the run's page, one HTML file, to `out`; where it lies. Raises UserError when it can't be written."""
        load("phasemeter.report.html.write").write_html(self.path, Path(out))
        return Path(out)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, the latencies, what came per second, and what to doubt."""
        told = self.result
        rates = [
            f"{_rate(told.throughput[key])} {words}"
            for key, words in RATES.items()
            if told.throughput.get(key) is not None
        ]
        doubts = [
            f"<li><b>{escape(check.id)}</b>: {escape(check.evidence)}</li>"
            for check in told.validity.checks
            if check.verdict in ("suspect", "invalid")
        ]
        return (
            f"<p>{escape(repr(self))}</p>{table({name: told.metrics[name] for name in SHOWN if name in told.metrics})}"
            f"<p>{escape(' · '.join(rates))}</p>" + (f"<ul>{''.join(doubts)}</ul>" if doubts else "")
        )


class Metrics(dict[str, Metric]):
    """Metrics by name. In a notebook a table, each with its unit and its definition."""

    def _repr_html_(self) -> str:
        return table(self)


def table(metrics: Mapping[str, Metric]) -> str:
    """Metrics as an HTML table: n, mean, percentiles; the definition is shown when pointed at."""
    head = "".join(f"<th>{name}</th>" for name in ("", "unit", "n", "mean", *PERCENTILES))
    rows = "".join(_html_row(name, metric) for name, metric in metrics.items())
    return f"<table><tr>{head}</tr>{rows}</table>"


def _html_row(name: str, metric: Metric) -> str:
    start = f'<tr><td title="{escape(metric.definition, quote=True)}">{escape(name)}</td>'
    if metric.mean is None:
        return f"{start}<td></td><td>0</td><td colspan={1 + len(PERCENTILES)}>{escape(metric.reason or '')}</td></tr>"
    factor, unit = (1e3, "ms") if metric.unit == "s" else (1.0, metric.unit)
    values = [metric.mean, *(_value(metric, name) for name in PERCENTILES)]
    cells = "".join("<td>–</td>" if value is None else f"<td>{factor * value:.4g}</td>" for value in values)
    return f"{start}<td>{escape(unit)}</td><td>{metric.n}</td>{cells}</tr>"


def _rate(value: float) -> str:
    return f"{value:.4g}"


def _value(metric: Metric, percentile: str) -> float | None:
    found = metric.percentiles.get(percentile)
    return None if found is None else found.value


def bench(
    url: str,
    *,
    note: Callable[[str], None] | None = None,
    progress: Callable[[str, Any], None] | None = None,
    **options: Any,
) -> Run:
    """Measure the service at `url`; `options` are those of `phasemeter bench`, with underscores (`rate="4/s"`, `requests=100`).

    `note` gets a line for each thing a person should know; `progress` the part of the run and its counters (`elapsed_s`, `sent`,
    `in_flight`, `done`, `failed`, ...) a few times a second. A list in `rate` or `concurrency`, and `repeat`, belong to the
    command line. Raises UserError, NetworkError or ServerError for what is found before the first request.
    """
    unknown = sorted(set(options) - set(Asked.__struct_fields__))
    if unknown:
        raise UserError(f"bench has no option {', '.join(unknown)}: see `phasemeter bench --help`")
    asked = Asked(**{name: _as_typed(name, value) for name, value in options.items()})
    if asked.repeat != 1:
        raise UserError("repeat: call bench once for each repetition")
    measure = load("phasemeter.runs.measure")
    watch = measure.Watchers(note=note or (lambda words: None), progress=progress or (lambda phase, counters: None))
    done = measure.bench(url, asked, watch)
    return Run(done.path, done.result)


TEXTS = {
    field.name for field in msgspec.structs.fields(Asked) if "str" in str(field.type) and "list" not in str(field.type)
}


def _as_typed(name: str, value: Any) -> Any:
    """Numbers and paths as a person would type them."""
    return str(value) if name in TEXTS and isinstance(value, int | float | Path) else value
