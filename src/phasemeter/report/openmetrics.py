"""A result as OpenMetrics text, for what scrapes or pushes metrics.

Lives here: names, labels, escaping. Must not live here: any computing.
Source: the OpenMetrics 1.0 specification (units in names, `# EOF` at the end).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from phasemeter.records.result import Metric, Result

PREFIX = "phasemeter"


def text(result: Result) -> str:
    """The whole result: gauges, for it is one finished run; percentiles as a label, with their intervals beside them."""
    labels = {key: str(result.run[key]) for key in ("run_id", "model", "engine", "definitions") if result.run.get(key)}
    lines = [
        *_latencies(result, labels),
        *_outcomes(result, labels),
        *_throughput(result, labels),
        *_goodput(result, labels),
    ]
    lines += _family("run_valid", "", "1 where the run's checks found nothing wrong.", [
        ({**labels, "verdict": result.validity.verdict}, float(result.validity.verdict == "valid"))])  # fmt: skip
    return "\n".join([*lines, "# EOF"]) + "\n"


def _latencies(result: Result, labels: dict[str, str]) -> Iterator[str]:
    for name, metric in result.metrics.items():
        if not metric.n:
            continue
        unit = "seconds" if metric.unit == "s" else metric.unit.replace("/", "_per_")
        yield from _family(f"{name}", unit, f"{metric.definition}.", list(_statistics(metric, labels)))


def _statistics(metric: Metric, labels: dict[str, str]) -> Iterator[tuple[dict[str, str], float | None]]:
    for name, value in (("mean", metric.mean), ("min", metric.min), ("max", metric.max)):
        yield {**labels, "statistic": name}, value
    for name, percentile in metric.percentiles.items():
        yield {**labels, "statistic": name}, percentile.value
        for side, bound in zip(("low", "high"), percentile.ci95, strict=True):
            yield {**labels, "statistic": name, "ci95": side}, bound


def _outcomes(result: Result, labels: dict[str, str]) -> Iterator[str]:
    seen = result.outcomes
    counts = [("ok", "", seen.ok), ("cancelled", "", seen.cancelled), ("unsent", "", seen.unsent)]
    counts += [("failed", kind, count) for kind, count in seen.failed.items()]
    samples = [
        ({**labels, "outcome": outcome, **({"kind": kind} if kind else {})}, float(n)) for outcome, kind, n in counts
    ]
    yield from _family("requests", "", "Requests by what became of them.", samples)


def _throughput(result: Result, labels: dict[str, str]) -> Iterator[str]:
    for name, value in result.throughput.items():
        if name.endswith("_per_s") and isinstance(value, int | float):
            yield from _family(
                name.removesuffix("_per_s"), "per_second", "In the steady window.", [(labels, float(value))]
            )


def _goodput(result: Result, labels: dict[str, str]) -> Iterator[str]:
    told: dict[str, Any] | None = result.goodput
    if told is None:
        return
    yield from _family("goodput", "per_second", "Requests that break no objective.", [(labels, told["per_s"])])
    yield from _family(
        "attainment", "ratio", "Share of requests that break no objective.", [(labels, told["attainment"]["value"])]
    )


def _family(name: str, unit: str, words: str, samples: Sequence[tuple[dict[str, str], float | None]]) -> Iterator[str]:
    full = f"{PREFIX}_{name}" + (f"_{unit}" if unit else "")
    known = [(labels, value) for labels, value in samples if value is not None and math.isfinite(value)]
    if not known:
        return
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {_escaped(words)}"
    for labels, value in known:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{full}{{{told}}} {value!r}" if told else f"{full} {value!r}"


def _escaped(words: str) -> str:
    return words.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
