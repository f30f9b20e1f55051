"""Numbers and names as a person reads them: "203 ms", "19.97 ms [19.9, 20.1]".

Lives here: formatting shared by terminal and markdown. Must not live here: computing.
"""

from __future__ import annotations

from phasemeter.records.result import Metric, Percentile

DASH = "–"
COLUMNS = ("p50", "p90", "p95", "p99")


def number(value: float | None, digits: int = 4) -> str:
    """At most `digits` significant digits, no exponent; a dash for what is undefined."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    whole = f"{value:.{digits}g}"
    if "e" in whole:
        whole = f"{value:.0f}" if abs(value) >= 1 else f"{value:.9f}".rstrip("0").rstrip(".")
    return whole


def scale_of(metric: Metric) -> tuple[float, str]:
    """(factor, unit) that a person reads the metric in: milliseconds for seconds below 10 s."""
    if metric.unit != "s":
        return 1.0, metric.unit
    largest = metric.percentiles["p99"].value if "p99" in metric.percentiles else metric.max
    return (1.0, "s") if largest is not None and largest >= 10 else (1e3, "ms")


def percentile(value: Percentile | None, factor: float) -> str:
    """The value; an asterisk where few samples stand behind it."""
    if value is None or value.value is None:
        return DASH
    return number(value.value * factor) + ("*" if value.flag == "few_samples" else "")


def interval(value: Percentile | None, factor: float) -> str:
    """ "[low, high]", a dash for a bound that the samples can't give; empty where neither can be given."""
    if value is None or value.value is None or value.ci95 == (None, None):
        return ""
    low, high = (DASH if bound is None else number(bound * factor) for bound in value.ci95)
    return f"[{low}, {high}]"
