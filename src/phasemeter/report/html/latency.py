"""A result's numbers for reading: headline cards, the latency table, throughput, goodput, definitions.

Lives here: layout of what the result document says. Must not live here: computing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phasemeter.metrics.definitions import HOUSE
from phasemeter.report.define import BOUNDARY_WORDS
from phasemeter.report.html.markup import Markup, figure, table, tag, words
from phasemeter.report.words import COLUMNS, DASH, number

Document = Mapping[str, Any]
OPEN = ("ttft_from_due", "ttft", "ttfo", "tpot", "itl", "inter_chunk", "e2e_from_due", "e2e", "client_queue", "stall")
CLOSED = ("ttft", "ttfo", "tpot", "itl", "inter_chunk", "e2e", "client_queue", "stall")


def mode_of(document: Document) -> str | None:
    """open, closed, inf, or None where it isn't on record."""
    mode: str | None = ((document.get("workload") or {}).get("load") or {}).get("mode")
    return mode


def shown(document: Document) -> list[str]:
    """The metrics of the headline table, in order; all of them where they are another tool's."""
    metrics = document["metrics"]
    if not (metrics.keys() & {"ttft", "e2e"}) or "inter_chunk" not in metrics:
        return list(metrics)
    names = []
    for name in OPEN if mode_of(document) == "open" else CLOSED:
        metric = metrics.get(name) or {}
        if name == "ttfo" and _same(metric, metrics.get("ttft")):
            continue
        if name == "inter_chunk" and _same(metric, metrics.get("itl")):
            continue
        if metric.get("n") or name in ("ttft", "tpot", "e2e"):
            names.append(name)
    if not (metrics.get("tpot") or {}).get("n") and (metrics.get("visible_tpot") or {}).get("n"):
        names.append("visible_tpot")
    return names


def _same(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return bool(other) and all(one.get(key) == (other or {}).get(key) for key in ("n", "mean", "max"))


def unit_of(metric: Mapping[str, Any]) -> tuple[float, str]:
    """(factor, unit) a person reads the metric in: ms for seconds whose p99 is below 10."""
    if metric.get("unit") != "s":
        return 1.0, str(metric.get("unit") or "")
    largest = (metric.get("p99") or {}).get("value") or metric.get("max") or 0.0
    return (1.0, "s") if largest >= 10 else (1e3, "ms")


def cell(document: Document, name: str, label: str, *, unit_too: bool = False) -> Markup:
    """One percentile (or the mean) with its interval, to be copied with its definition."""
    metric = document["metrics"][name]
    factor, unit = unit_of(metric)
    if label == "mean":
        value, bounds, flag = metric.get("mean"), [None, None], None
    else:
        found = metric.get(label) or {}
        value, bounds, flag = found.get("value"), found.get("ci95") or [None, None], found.get("flag")
    if value is None:
        return tag("span", DASH, title=str(metric.get("reason") or "not given"))
    text = number(value * factor)
    interval = ""
    if bounds != [None, None]:
        low, high = (DASH if bound is None else number(bound * factor) for bound in bounds)
        interval = f"[{low}, {high}]"
    told = f"{name} {label} = {text} {unit}".rstrip()
    told += f", 95 % interval {interval} {unit}".rstrip() if interval else ""
    told += f", n = {metric['n']}: {metric['definition']} ({document.get('definitions')})"
    star = tag("span", "*", title="too few samples for this percentile") if flag == "few_samples" else None
    return Markup(
        figure(f"{text} {unit}" if unit_too else text, told)
        + (star or "")
        + (tag("span", interval, class_="ci") if interval else "")
    )


def latency_table(document: Document, names: list[str], caption: str) -> Markup:
    """n, mean and percentiles with 95 % intervals below."""
    rows: list[list[Any]] = []
    for name in names:
        metric = document["metrics"][name]
        if not metric.get("n"):
            why = tag("span", f"undefined: {metric.get('reason')}", class_="note")
            rows.append([name, "", "0", why, *[DASH] * len(COLUMNS)])
            continue
        rows.append(
            [name, unit_of(metric)[1], str(metric["n"]), *(cell(document, name, label) for label in ("mean", *COLUMNS))]
        )
    return table(["metric", "unit", "n", "mean", *COLUMNS], rows, caption, "numbers")


def notes(document: Document, names: list[str]) -> Markup:
    """What the marks in the table mean; who was left out."""
    metrics = [document["metrics"][name] for name in names]
    flags = {percent.get("flag") for metric in metrics for percent in metric.values() if isinstance(percent, dict)}
    lines = ["[low, high]: 95 % interval; – : a bound that so few samples can't give."]
    lines += ["* : too few samples for this percentile."] if "few_samples" in flags else []
    lines += (
        ["Where consecutive requests are correlated, intervals come from batch means."] if "correlated" in flags else []
    )
    lines += ["Press a number to copy it with its definition; arrow keys walk the table."]
    left = [
        f"{name}: {', '.join(f'{count} {reason}' for reason, count in metric['excluded'].items())}"
        for name, metric in zip(names, metrics, strict=True)
        if metric.get("n") and metric.get("excluded")
    ]
    return tag("p", " ".join(lines), f" Left out: {'; '.join(left)}." if left else "", class_="note")


def card(name: str, big: Markup | str, more: Any = "") -> Markup:
    return tag("div", tag("div", name, class_="name"), tag("div", big), tag("div", more, class_="more"), class_="card")


def cards(document: Document) -> Markup:
    """The few numbers one looks for first."""
    metrics = document["metrics"]
    found = []
    wait = "ttft_from_due" if mode_of(document) == "open" and (metrics.get("ttft_from_due") or {}).get("n") else "ttft"
    for name, label in ((wait, "p50"), (wait, "p95"), ("tpot", "p50"), ("tpot", "p95"), ("e2e", "p95")):
        metric = metrics.get(name)
        if metric and metric.get("n"):
            big = cell(document, name, label)
            found.append(card(f"{name} {label}, {unit_of(metric)[1]}", big))
    throughput = document.get("throughput") or {}
    for key, name in (("requests_per_s", "requests/s"), ("output_tokens_per_s", "output tokens/s")):
        value = throughput.get(key)
        if isinstance(value, int | float):
            told = (
                f"{name} = {number(value)} in the window: {(throughput.get('window') or {}).get('rule') or 'whole run'}"
            )
            found.append(card(name, figure(number(value), told), (throughput.get("window") or {}).get("kind") or ""))
    goodput = document.get("goodput") or {}
    if isinstance(goodput.get("per_s"), int | float):
        found.append(
            card("goodput, req/s", figure(number(goodput["per_s"]), f"goodput = {number(goodput['per_s'])} req/s"))
        )
    return tag("div", found, class_="cards") if found else Markup("")


def throughput(document: Document) -> Markup | None:
    """What came a second, with the window it came in and the workload it came of."""
    told = document.get("throughput") or {}
    rows = []
    for window in ("steady", "whole_run"):
        found = told.get(window) or {}
        rates = [
            figure(
                number(found.get(key)),
                f"{key} = {number(found.get(key))}, {(found.get('window') or {}).get('rule') or window}",
            )
            if isinstance(found.get(key), int | float)
            else tag("span", DASH, title=str(found.get("reason") or "not given"))
            for key in ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
        ]
        if found:
            rule = found.get("window") or {}
            length = f"{number(rule['length_s'])} s: " if rule.get("length_s") is not None else ""
            rows.append([window.replace("_", " "), *rates, f"{length}{rule.get('rule') or found.get('reason') or ''}"])
    if not rows:
        plain = [[key, number(value)] for key, value in told.items() if isinstance(value, int | float)]
        return table(["rate", "value"], plain, "Throughput as that tool gives it") if plain else None
    return table(
        ["window", "requests/s", "output tokens/s", "total tokens/s", "which stretch"], rows, "Throughput", "words"
    )


def workload(document: Document) -> Markup | None:
    """Asked and realised lengths."""
    load = document.get("workload") or {}
    asked, real = load.get("asked") or {}, load.get("realised") or {}
    rows = []
    for key in ("input_tokens", "output_tokens"):
        wanted, got = asked.get(key) or {}, real.get(key) or {}
        if not isinstance(got, dict) or not isinstance(wanted, dict):
            continue
        rows.append([key.replace("_", " "), *(number(wanted.get("mean")) if i == 0 else number(got.get(stat))
                     for i, stat in enumerate(("asked", "mean", "min", "p50", "max")))])  # fmt: skip
    sources = ", ".join(f"{source} {count}" for source, count in (load.get("output_tokens_sources") or {}).items())
    head = ["tokens a request", "asked, mean", "mean", "min", "p50", "max"]
    return (
        table(head, rows, f"Lengths as realised{f'; counted by {sources}' if sources else ''}", "numbers")
        if rows
        else None
    )


def goodput(document: Document) -> Markup | None:
    """Which requests kept every objective."""
    told = document.get("goodput")
    if not told or "good" not in told:
        return None
    reach = told.get("attainment") or {}
    share = reach.get("value")
    line = f"{told['good']} good, {told['bad']} bad, {told.get('not_evaluable', 0)} not evaluable, {told.get('unsent', 0)} unsent."
    if share is not None:
        line += f" Joint attainment {100 * share:.4g} %."
    rows = [
        [
            name,
            f"{number(limit * 1e3)} ms",
            f"{100 * kept['value']:.4g} %" if kept.get("value") is not None else DASH,
            str(kept["n"]),
        ]
        for name, limit in (told.get("objectives_s") or {}).items()
        if (kept := (told.get("marginal") or {}).get(name)) is not None
    ]
    line += f" Most bad requests break {told['binding']}." if told.get("binding") else ""
    rate, bounds = told.get("per_s"), told.get("ci95") or [None, None]
    if isinstance(rate, int | float):
        between = ", ".join(DASH if bound is None else number(bound) for bound in bounds)
        line = f"{number(rate)} good requests a second, 95 % interval [{between}]. {line}"
    elif told.get("reason"):
        line += f" No rate: {str(told['reason']).replace('_', ' ')}."
    scaled = ", ".join(
        f"× {scale}: {100 * share:.4g} %"
        for scale, share in (told.get("sensitivity") or {}).items()
        if share is not None
    )
    return tag(
        "div",
        tag("h3", "Goodput"),
        tag("p", line),
        tag("p", f"Joint attainment with all limits scaled: {scaled}.", class_="note") if scaled else None,
        table(["objective", "limit", "kept by", "of"], rows, "Each objective alone") if rows else None,
    )


def definitions(document: Document) -> Markup:
    """Each metric used, its arithmetic, what it leaves out; then the boundaries it names."""
    rows = []
    for name, metric in document["metrics"].items():
        own = HOUSE.get(name) if document.get("definitions") == "phasemeter/1" else None
        copied = f"{name}: {metric['definition']} ({document.get('definitions')})"
        rows.append([
            name, figure(metric["definition"], copied), own.words if own and own.words != metric["definition"] else "",
            ", ".join(own.excluded) if own else "",
        ])  # fmt: skip
    return Markup(
        table(
            ["metric", "definition", "in words", "leaves out"],
            rows,
            f"Definitions {document.get('definitions')}",
            "words stack",
        )
        + tag("h3", "Boundaries")
        + tag(
            "dl",
            [[tag("dt", tag("code", name)), tag("dd", meaning)] for name, meaning in BOUNDARY_WORDS.items()],
            class_="pairs",
        )
        + tag("p", words("`phasemeter define METRIC` sets every tool's meaning of a word side by side."), class_="note")
    )
