"""What the charts of one run show, thinned to what a person can see: at most a few thousand marks, and the note says so.

Lives here: points, lines and bands from columns. Must not live here: drawing (assets/chart.js) or definitions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars

from phasemeter.report.html.measures import Floats, Ints, Measures
from phasemeter.report.html.run_tables import RunTables

GRID = 240  # points of an ECDF
POINTS = 1500  # of a scatter
BINS = 120  # of a line over time
MS = 1e3


def _rounded(values: Floats, digits: int = 5) -> list[float | None]:
    """Values with `digits` significant digits: enough for a screen, and small."""
    return [None if not math.isfinite(v) else float(f"{v:.{digits}g}") for v in values.tolist()]


def _levels(n: int) -> Floats:
    """The shares at which an ECDF of n values is drawn: even, and closer together in the upper tail."""
    if n <= GRID:
        return np.arange(1, n + 1) / n
    tail = 1 - np.logspace(-2, -math.log10(n), 40) if n > 100 else np.empty(0)
    return np.unique(np.concatenate([np.linspace(0, 1, GRID), tail, [1.0]]))


def ecdf_line(name: str, values: Floats, *, band: bool = True) -> dict[str, Any]:
    """One empirical distribution in ms, with the 95 % band of Dvoretzky, Kiefer and Wolfowitz (Massart's constant, 1990)."""
    ordered = np.sort(values)
    n = len(ordered)
    levels = _levels(n)
    at = ordered[np.clip(np.ceil(levels * n - 1e-9).astype(int) - 1, 0, n - 1)]
    line: dict[str, Any] = {"name": f"{name} (n {n})", "kind": "step", "x": _rounded(at * MS), "y": _rounded(levels)}
    if band:
        half = math.sqrt(math.log(2 / 0.05) / (2 * n))
        line |= {
            "lo": _rounded(np.maximum(levels - half, 0)),
            "hi": _rounded(np.minimum(levels + half, 1)),
            "interval": "95 % band",
        }
    return line


def ecdf(title: str, lines: list[dict[str, Any]], note: str) -> dict[str, Any] | None:
    """A chart of distributions; None without any."""
    if not lines:
        return None
    highest = max((x for line in lines for x in line["x"] if x is not None), default=1.0)
    lowest = min((x for line in lines for x in line["x"] if x), default=1.0)
    return {
        "title": title, "summary": f"{len(lines)} distributions, share of values at or below a time.", "note": note,
        "x": {"label": "time", "unit": "ms", "loggable": True, "log": lowest > 0 and highest / lowest > 12},
        "y": {"label": "share at or below", "min": 0, "max": 1},
        "series": lines,
    }  # fmt: skip


def waits(measures: Measures, *, from_due: bool) -> dict[str, Any] | None:
    """ECDFs of TTFT (from due, where the schedule drove), TTFO where it differs, and e2e."""
    names = ["ttft_from_due", "ttft"] if from_due else ["ttft"]
    if not np.array_equal(measures.values["ttfo"], measures.values["ttft"], equal_nan=True):
        names.append("ttfo")
    lines = [ecdf_line(name, measures.of(name)) for name in (*names, "e2e") if len(measures.of(name))]
    return ecdf("How long until the first output, and until the last", lines, BAND_NOTE)


def cadence(measures: Measures, gaps: Floats) -> dict[str, Any] | None:
    """ECDFs of TPOT and of the gaps between output events."""
    lines = [ecdf_line("tpot", measures.of("tpot"))] if len(measures.of("tpot")) else []
    if len(gaps):
        lines.append(ecdf_line("inter_chunk", gaps, band=False))
    note = f"{BAND_NOTE} Gaps of one request belong together, so inter_chunk has no band of this kind."
    return ecdf("At what cadence it goes on", lines, note)


BAND_NOTE = (
    "The band holds the whole curve with 95 % where requests are exchangeable (Dvoretzky–Kiefer–Wolfowitz); at most"
    f" {GRID + 40} points a curve."
)


def usable(tables: RunTables) -> polars.DataFrame:
    """The measured, successful, streamed requests' numbers: those that enter gap statistics."""
    requests = tables.requests
    return requests.filter(
        (polars.col("outcome") == "ok") & (polars.col("phase") == "measured") & polars.col("stream")
        & ~polars.col("single_arrival")
    ).select(polars.col("number").alias("request"))  # fmt: skip


def gap_frame(tables: RunTables) -> polars.DataFrame:
    """`at_s` (from the first due) and `gap_s` of every gap between two output events of one choice (`inter_chunk`)."""
    events = tables.events.join(usable(tables), on="request", how="semi", maintain_order="left")
    same = (polars.col("request") == polars.col("request").shift(1)) & (
        polars.col("choice") == polars.col("choice").shift(1)
    )
    origin = tables.requests["due_ns"].min()
    return (
        events.with_columns(gap_s=(polars.col("t_ns") - polars.col("t_ns").shift(1)) / 1e9, same=same)
        .filter("same")
        .select(((polars.col("t_ns") - origin) / 1e9).alias("at_s"), "gap_s")
    )


def gaps_over_time(gaps: polars.DataFrame) -> dict[str, Any] | None:
    """Median, p99 and largest gap in equal stretches of the run."""
    if len(gaps) < 2:
        return None
    low, high = float(gaps["at_s"].min()), float(gaps["at_s"].max())  # type: ignore[arg-type]
    width = max((high - low) / BINS, 1e-9)
    binned = (
        gaps.group_by(((polars.col("at_s") - low) / width).floor().clip(0, BINS - 1).alias("bin"))
        .agg(
            polars.col("gap_s").median().alias("p50"),
            polars.col("gap_s").quantile(0.99, "linear").alias("p99"),
            polars.col("gap_s").max().alias("largest"),
        )
        .sort("bin")
    )
    at = _rounded(low + (binned["bin"].to_numpy() + 0.5) * width)
    names = {"p50": "median gap", "p99": "p99 gap", "largest": "largest gap"}
    return {
        "title": "Gaps over the run", "summary": "Gaps between output events against the time of the run.",
        "note": f"{len(gaps):,} gaps (inter_chunk) in {len(binned)} equal stretches of {width:.3g} s.",
        "x": {"label": "time of the run", "unit": "s"}, "y": {"label": "gap", "unit": "ms", "zero": True, "loggable": True},
        "series": [
            {"name": words, "kind": "line", "x": at, "y": _rounded(binned[key].to_numpy() * MS), "dash": i}
            for i, (key, words) in enumerate(names.items())
        ],
    }  # fmt: skip


def thinned(values: Floats, most: int = POINTS) -> Ints:
    """Which of `values` to draw: all, or the largest and smallest 100 and evenly spaced others."""
    n = len(values)
    if n <= most:
        return np.arange(n)
    order = np.argsort(values)
    even = np.linspace(0, n - 1, most - 200).astype(np.int64)
    return np.unique(np.concatenate([order[:100], order[-100:], even]))


def _thin_note(drawn: int, n: int) -> str:
    return "" if drawn == n else f"{drawn:,} of {n:,} requests drawn: the extremes and evenly spaced others."


def by_input_length(measures: Measures) -> dict[str, Any] | None:
    """TTFT against input tokens, with the median and p95 of requests of like length."""
    ttft, length = measures.values["ttft"], measures.input_tokens
    there = ~np.isnan(ttft) & ~np.isnan(length)
    ttft, length = ttft[there], length[there]
    if len(ttft) < 3:
        return None
    drawn = thinned(ttft)
    series: list[dict[str, Any]] = [
        {"name": "requests", "kind": "points", "tone": 7, "x": _rounded(length[drawn]), "y": _rounded(ttft[drawn] * MS)}
    ]
    order = np.argsort(length, kind="stable")
    groups = [part for part in np.array_split(order, min(20, max(1, len(order) // 25))) if len(part)]
    if len(groups) > 2 and len(np.unique(length)) > 2:
        middle = np.array([np.median(length[part]) for part in groups])
        for name, q, dash in (("median of like lengths", 0.5, 0), ("p95 of like lengths", 0.95, 1)):
            y = np.array([np.quantile(ttft[part], q) for part in groups])
            series.append(
                {"name": name, "kind": "line", "tone": dash, "dash": dash, "x": _rounded(middle), "y": _rounded(y * MS)}
            )
    return {
        "title": "TTFT against input length", "summary": f"{len(ttft)} requests.",
        "note": " ".join([_thin_note(len(drawn), len(ttft)), "TTFT isn't prefill time: queue and delivery are inside."]).strip(),
        "x": {"label": "input tokens", "loggable": True}, "y": {"label": "ttft", "unit": "ms", "zero": True},
        "series": series,
    }  # fmt: skip


def over_the_run(measures: Measures, tables: RunTables) -> dict[str, Any] | None:
    """TTFT of each request when it was due, with failures marked."""
    ttft = measures.values["ttft"]
    there = ~np.isnan(ttft)
    if there.sum() < 2:
        return None
    due, ttft = measures.due_s[there], ttft[there]
    drawn = thinned(ttft)
    series: list[dict[str, Any]] = [
        {"name": "ttft", "kind": "points", "x": _rounded(due[drawn]), "y": _rounded(ttft[drawn] * MS)}
    ]
    failed = tables.requests.filter(polars.col("outcome") == "failed")["due_ns"].to_numpy()
    shown = failed[np.linspace(0, len(failed) - 1, min(len(failed), 300)).astype(int)] if len(failed) else failed
    if len(shown):
        x = _rounded((shown - measures.origin_ns) / 1e9)
        few = "" if len(shown) == len(failed) else f", {len(shown)} drawn"
        series.append(
            {
                "name": f"failed ({len(failed)}{few}), at 0",
                "kind": "points",
                "shape": 3,
                "tone": 4,
                "x": x,
                "y": [0.0] * len(x),
            }
        )
    return {
        "title": "TTFT over the run", "summary": "Each request's TTFT at the instant it was due.",
        "note": _thin_note(len(drawn), len(ttft)), "x": {"label": "due, time of the run", "unit": "s"},
        "y": {"label": "ttft", "unit": "ms", "zero": True}, "series": series,
    }  # fmt: skip


def in_flight(tables: RunTables) -> dict[str, Any] | None:
    """How many requests were out at once, the highest of each stretch of the run."""
    ended = polars.coalesce("stream_end_ns", "last_token_ns", "first_read_ns", "headers_ns", "sent_ns", "send_start_ns")
    sent = tables.requests.filter(polars.col("send_start_ns").is_not_null()).select("send_start_ns", ended.alias("end"))
    if len(sent) < 2:
        return None
    times = np.concatenate([sent["send_start_ns"].to_numpy(), sent["end"].to_numpy()])
    change = np.concatenate([np.ones(len(sent)), -np.ones(len(sent))])
    order = np.lexsort((change, times))
    origin = int(tables.requests["due_ns"].min())  # type: ignore[arg-type]
    at, out = (times[order] - origin) / 1e9, np.cumsum(change[order])
    edges = np.linspace(at[0], at[-1], 401)
    which = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, 399)
    highest = np.full(400, np.nan)
    np.fmax.at(highest, which, out)
    for i in np.flatnonzero(np.isnan(highest)):  # nothing changed there: as it was
        highest[i] = out[max(0, int(np.searchsorted(at, edges[i], side="right")) - 1)]
    return {
        "title": "Requests in flight", "summary": "How many requests were sent and not over.",
        "note": "The highest number of each of 400 equal stretches, warm-up included.",
        "x": {"label": "time of the run", "unit": "s"}, "y": {"label": "in flight", "zero": True},
        "series": [{"name": "in flight", "kind": "step", "x": _rounded(edges[:-1]), "y": _rounded(highest)}],
    }  # fmt: skip
