"""The report of several runs: load against latency, run by run.

Lives here: sweeps (an index of runs) and goodput searches (a document of probes). Must not live here: the search (studies/).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import FileError
from phasemeter.report.html import latency, standing
from phasemeter.report.html.markup import Markup, chart, figure, section, table, tag, words
from phasemeter.report.html.page import banner, page
from phasemeter.report.html.run_tables import result_document
from phasemeter.report.words import DASH, number

INDEX, SEARCH = "index.json", "goodput.json"
PERCENTILES = ("p50", "p95", "p99")

Point = tuple[str, Mapping[str, Any]]  # (run, its result)


def is_series(folder: Path) -> bool:
    """Whether `folder` holds a series of runs and not one run."""
    return not (folder / "manifest.json").exists() and ((folder / INDEX).exists() or (folder / SEARCH).exists())


def series_page(folder: Path) -> str:
    """The page of a sweep or goodput search. Raises FileError for a folder without readable runs."""
    points = list(_points(folder))
    search = _json(folder / SEARCH) if (folder / SEARCH).exists() else None
    if not points and search is None:
        raise FileError(f"{folder}: its index names no run that is there")
    name = standing.title_of(points[0][1].get("run") or {}) if points else folder.name
    head = banner("phasemeter series of runs", name, tag("p", f"{len(points)} runs in {folder.name}", class_="facts"))
    sections = [("load", "Load", section("load", "Load against latency", *load(points, search)))]
    if points:
        sections.append(("runs", "Runs", section("runs", "Run by run", runs(points))))
        sections.append(
            (
                "definitions",
                "Definitions",
                section("definitions", "Definitions used", latency.definitions(points[0][1])),
            )
        )
    return page(f"{name}: phasemeter series", head, sections)


def _json(file: Path) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as wrong:
        raise FileError(f"{file}: no JSON ({wrong})") from wrong


def _points(folder: Path) -> Iterator[Point]:
    for name in _names(folder):
        if (folder / name / "manifest.json").exists():
            yield name, result_document(folder / name)


def _names(folder: Path) -> Iterator[str]:
    """The runs of a sweep's index; of a goodput search the last look at each rate: it is as long as all before it."""
    if (folder / INDEX).exists():
        yield from (str(entry.get("run")) for entry in _json(folder / INDEX).get("runs") or ())
        return
    for probe in _json(folder / SEARCH).get("probes") or ():
        parts = Path(str(probe.get("run") or "")).parts[-2:]  # rate-4/look-1, wherever the search was written from
        if parts:
            yield str(Path(*parts))


def offered(result: Mapping[str, Any]) -> tuple[float | None, str]:
    """(what drove the load, its unit): requests a second on a schedule, else how many at a time."""
    load_of = (result.get("workload") or {}).get("load") or {}
    if load_of.get("mode") == "open" and isinstance(load_of.get("rate_per_s"), int | float):
        return float(load_of["rate_per_s"]), "req/s offered"
    if load_of.get("mode") == "closed" and load_of.get("concurrency") is not None:
        return float(load_of["concurrency"]), "at a time"
    return None, ""


def load(points: Sequence[Point], search: Mapping[str, Any] | None) -> list[Markup | None]:
    """Latency percentiles, throughput and attainment against the load."""
    placed = sorted(((*offered(result), result) for _, result in points if offered(result)[0] is not None),
                    key=lambda one: one[0] or 0.0)  # fmt: skip
    parts: list[Markup | None] = [] if search is None else searched(search)
    if placed:
        unit = placed[0][1]
        same = [(at, result) for at, own, result in placed if own == unit and at is not None]
        wait = "ttft_from_due" if unit.startswith("req/s") else "ttft"
        charts = [chart(f"load-{name}", percentiles(same, name, unit)) for name in (wait, "tpot", "e2e")]
        charts.append(chart("load-throughput", achieved(same, unit)))
        parts.append(tag("div", charts, class_="two"))
    else:
        parts.append(tag("p", "No run of this series says how its load was driven."))
    return parts


def percentiles(points: Sequence[tuple[float, Mapping[str, Any]]], name: str, unit: str) -> dict[str, Any] | None:
    """One metric's percentiles with their intervals against the load; None where no run has it."""
    series = []
    for i, label in enumerate(PERCENTILES):
        found = [(at, ((result["metrics"].get(name) or {}).get(label) or {})) for at, result in points]
        there = [(at, one) for at, one in found if one.get("value") is not None]
        if there:
            bounds = [one.get("ci95") or [None, None] for _, one in there]
            series.append({
                "name": label, "kind": "errors", "tone": i, "dash": i, "x": [at for at, _ in there],
                "y": [one["value"] * 1e3 for _, one in there],
                "lo": [None if low is None else low * 1e3 for low, _ in bounds],
                "hi": [None if high is None else high * 1e3 for _, high in bounds],
            })  # fmt: skip
    if not series:
        return None
    return {
        "title": f"{name} against load", "summary": f"{len(points)} runs.",
        "note": "Bars are 95 % intervals; a bound that the samples can't give is not drawn.",
        "x": {"label": "load", "unit": unit, "loggable": True}, "y": {"label": name, "unit": "ms", "zero": True}, "series": series,
    }  # fmt: skip


def achieved(points: Sequence[tuple[float, Mapping[str, Any]]], unit: str) -> dict[str, Any] | None:
    """What was served a second against what was offered."""
    found = [(at, (result.get("throughput") or {}).get("requests_per_s")) for at, result in points]
    there = [(at, value) for at, value in found if isinstance(value, int | float)]
    if not there:
        return None
    series: list[dict[str, Any]] = [
        {"name": "completed", "kind": "errors", "x": [at for at, _ in there], "y": [value for _, value in there]}
    ]
    if unit.startswith("req/s"):
        ends = [there[0][0], there[-1][0]]
        series.append({"name": "as offered", "kind": "line", "tone": 7, "dash": 2, "x": ends, "y": ends})
    return {
        "title": "Served against offered", "summary": f"{len(there)} runs.", "note": "Requests a second of the stated window.",
        "x": {"label": "load", "unit": unit}, "y": {"label": "requests", "unit": "1/s", "zero": True}, "series": series,
    }  # fmt: skip


def searched(search: Mapping[str, Any]) -> list[Markup | None]:
    """A goodput search: its answer and its probes, in the form of `goodput --json`."""
    answer = search.get("goodput_per_s") or {}
    value, bounds = answer.get("value"), answer.get("ci95") or [None, None]
    interval = f"[{', '.join(DASH if bound is None else number(bound) for bound in bounds)}]"
    told = f"max goodput = {number(value)} req/s, 95 % {interval}: the highest offered rate whose joint attainment reaches the target"
    probes = search.get("probes") or []
    rows = [
        [number(one["rate_per_s"]), f"{100 * one['attainment']['value']:.4g} %", str(one["attainment"].get("n") or ""),
         {True: "stable", False: "unstable", None: "can't be said"}[one.get("stable")],
         str(one.get("standing") or ""), str(one.get("why") or ""), str(one.get("run") or "")]
        for one in probes
    ]  # fmt: skip
    why = str(search.get("reason") or "").replace("_", " ")
    return [
        tag("h3", "Goodput"),
        tag("p", "Highest rate that keeps the contract: ", figure(f"{number(value)} req/s", told), f" {interval}",
            f"; binding: {search['binding']}" if search.get("binding") else "", f"; the search ended: {why}" if why else "",
            class_="answer"),
        chart("attainment", _attainment(search)) if probes else None,
        table(["rate, req/s", "attainment", "n", "load", "standing", "", "run"], rows, "Probes", "words"),
        tag("ul", [tag("li", words(line)) for line in _beside(search)]),
        *(tag("p", words(f"! {text}"), class_="note") for text in search.get("warnings") or ()),
    ]  # fmt: skip


def _attainment(search: Mapping[str, Any]) -> dict[str, Any]:
    """Joint attainment against the rate offered, with the curve that was fitted to it and the target."""
    probes = search.get("probes") or []
    value = (search.get("goodput_per_s") or {}).get("value")
    series: list[dict[str, Any]] = [{
        "name": "joint attainment", "kind": "errors", "x": [one["rate_per_s"] for one in probes],
        "y": [one["attainment"]["value"] for one in probes],
        "lo": [(one["attainment"].get("ci95") or [None, None])[0] for one in probes],
        "hi": [(one["attainment"].get("ci95") or [None, None])[1] for one in probes],
    }]  # fmt: skip
    curve = search.get("curve")
    if curve and len(probes) > 1:
        low, high = (pick(one["rate_per_s"] for one in probes) for pick in (min, max))
        x = [low * (high / low) ** (i / 60) for i in range(61)]
        y = [1 / (1 + math.exp(-(curve["a"] + curve["b"] * math.log(rate / curve["centre_per_s"])))) for rate in x]
        series.append({"name": "fitted", "kind": "line", "tone": 7, "dash": 1, "x": x, "y": y})
    marks = [{"axis": "x", "at": value, "label": f"goodput {number(value)}"}] if value is not None else []
    if search.get("attainment_target") is not None:
        marks.append({"axis": "y", "at": search["attainment_target"], "label": "target"})
    return {
        "title": "Attainment against rate", "summary": f"{len(probes)} probes.", "note": "Each point a probe; bars are 95 % intervals.",
        "x": {"label": "offered", "unit": "req/s"}, "y": {"label": "share of requests that keep every objective", "max": 1, "zero": True},
        "series": series, "marks": marks,
    }  # fmt: skip


def _beside(search: Mapping[str, Any]) -> list[str]:
    """What each limit alone would carry, and what other limits would."""
    alone = [f"{name} {number(rate)}" for name, rate in (search.get("single") or {}).items() if rate is not None]
    scaled = [
        f"× {scale}: {number(rate)}" for scale, rate in (search.get("sensitivity") or {}).items() if rate is not None
    ]
    limits = [f"{name} ≤ {number(limit * 1e3)} ms" for name, limit in (search.get("objectives_s") or {}).items()]
    return [
        *([f"A request is good that keeps {', '.join(limits)}."] if limits else []),
        *([f"Each objective alone would carry, in req/s: {', '.join(alone)}."] if alone else []),
        *([f"With all limits scaled, in req/s: {', '.join(scaled)}."] if scaled else []),
    ]


def runs(points: Sequence[Point]) -> Markup:
    """A line a run: load, verdict, balance, headline latencies."""
    on_schedule = any(offered(result)[1].startswith("req/s") for _, result in points)
    names = ("ttft_from_due" if on_schedule else "ttft", "tpot", "e2e")
    used = [name for name in names if any((result["metrics"].get(name) or {}).get("n") for _, result in points)]
    rows = []
    for name, result in points:
        at, unit = offered(result)
        verdict = (result.get("validity") or {}).get("verdict") or "unknown"
        kept = standing.contract_of(result)
        cells = [
            latency.cell(result, metric, label) if metric in result["metrics"] else DASH
            for metric in used
            for label in ("p50", "p95")
        ]
        rows.append([
            name, f"{number(at)} {unit}" if at is not None else "",
            [standing.pill(verdict, verdict), standing.pill(kept["verdict"], kept["verdict"]) if kept else None],
            tag("span", f"{result['outcomes']['ok']:,} of {result['outcomes']['scheduled']:,} ok", title=standing.balance(result)), *cells,
        ])  # fmt: skip
    head = ["run", "load", "verdict", "requests", *(f"{metric} {label}" for metric in used for label in ("p50", "p95"))]
    return table(head, rows, "Every run of the series; latencies in ms (s from 10 s on)", "words")
