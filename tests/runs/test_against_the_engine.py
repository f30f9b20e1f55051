"""The embedded engine says itself how long prefill and decode took: our clock, at the other end of the wire, agrees."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from phasemeter.io.embedded_engine import EmbeddedEngine
from phasemeter.metrics.definitions import PER_REQUEST
from phasemeter.runs.analysis import Rows
from phasemeter.runs.asked import Asked
from phasemeter.runs.measure import bench

REQUESTS = 50


@pytest.mark.engine
def test_ttft_is_never_below_prefill_and_tpot_is_the_engines_cadence(engine: EmbeddedEngine, tmp_path: Path) -> None:
    asked = Asked(
        requests=str(REQUESTS), concurrency="1", input_tokens="uniform:24:64", output_tokens="16", output=str(tmp_path / "run"),
    )  # fmt: skip
    bench(engine.url, asked)
    ratios, seen = [], 0
    for row, exchange in Rows(tmp_path / "run").with_exchanges():
        if row.phase != "measured" or exchange is None:
            continue
        timings = exchange.timings["timings"]
        seen += 1
        assert row.outcome == "ok" and row.output_tokens == timings["predicted_n"]
        assert PER_REQUEST["ttft"](row) * 1e3 >= timings["prompt_ms"]
        cadence_ms = timings["predicted_ms"] / (timings["predicted_n"] - 1)
        ratios.append(PER_REQUEST["tpot"](row) * 1e3 / cadence_ms)
    assert seen == REQUESTS
    assert statistics.median(ratios) == pytest.approx(1, abs=0.05)
