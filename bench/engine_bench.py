"""How far the client's times lie from the embedded engine's own, over sequential requests.

The engine (llama.cpp) tells its prompt time and its decode time in the final chunk. Printed: TTFT − prompt_ms (sending, queueing
and delivery: never below 0) and TPOT against predicted_ms / (predicted_n − 1), in milliseconds and as a ratio.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from phasemeter.io.embedded_engine import embedded_engine
from phasemeter.metrics.definitions import PER_REQUEST
from phasemeter.runs.analysis import Rows
from phasemeter.runs.asked import Asked
from phasemeter.runs.measure import bench
from phasemeter.stats.quantiles import quantile


def distances(run: Path) -> tuple[list[float], list[float], list[float]]:
    """(TTFT − prompt_ms, TPOT − the engine's cadence, TPOT over it) of each measured request; ms, ms, ratio."""
    first, cadence, ratio = [], [], []
    for row, exchange in Rows(run).with_exchanges():
        if row.phase != "measured" or row.outcome != "ok" or exchange is None:
            continue
        timings = exchange.timings["timings"]
        own_ms = timings["predicted_ms"] / (timings["predicted_n"] - 1)
        tpot_ms = PER_REQUEST["tpot"](row) * 1e3
        first.append(PER_REQUEST["ttft"](row) * 1e3 - timings["prompt_ms"])
        cadence.append(tpot_ms - own_ms)
        ratio.append(tpot_ms / own_ms)
    return first, cadence, ratio


def line(name: str, values: list[float], unit: str, digits: int) -> str:
    shown = "  ".join(
        f"{label} {quantile(values, q):8.{digits}f}"
        for label, q in (("min", 0), ("p50", 0.5), ("p99", 0.99), ("max", 1))
    )
    return f"{name:<28} {shown} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50)
    given = parser.parse_args()
    with embedded_engine() as engine, tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        asked = Asked(
            requests=str(given.requests),
            concurrency="1",
            input_tokens="uniform:24:96",
            output_tokens="24",
            output=str(run),
        )
        bench(engine.url, asked)
        first, cadence, ratio = distances(run)
    print(f"{len(first)} sequential requests, client against the engine's own timings")
    print(line("TTFT − prompt_ms", first, "ms   target: never below 0", 2))
    print(line("TPOT − the engine's cadence", cadence, "ms", 3))
    print(line("TPOT / the engine's cadence", ratio, "     target: within 5 % at the median", 4))


if __name__ == "__main__":
    main()
