"""How late we send, judged on `send_start`, beside what this machine allows a bare loop in the same minute.

Constant rates, a Poisson schedule, and the replay of a trace (its stamps, gaps divided by the speed). In each round the bare loop
(lateness_floor.py) runs the same schedule first: what it is late by is the machine's doing, so the ratio and not the figure is
ours. A round counts towards "k of n" when all three targets are met.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path

from capture_bench import HERE, capture, quantile, truth_server

from phasemeter.io.load_options import LoadOptions
from phasemeter.records.request import PlannedRequest

TRACE = HERE.parent.parent / "shared" / "traces" / "azure_llm_2023_code.csv"
BODY = b'{"model":"truth","stream":true,"max_tokens":4,"messages":[{"role":"user","content":"hi"}]}'
Offsets = list[int]
Late = list[float]


def constant(rate: float, seconds: float) -> Offsets:
    return [round(i * 1e9 / rate) for i in range(round(rate * seconds))]


def poisson(rate: float, seconds: float) -> Offsets:
    rng = random.Random(7)
    return [round(t * 1e9) for t in accumulate(rng.expovariate(rate) for _ in range(round(rate * seconds)))]


def replay(path: Path, speed: float, seconds: float) -> Offsets:
    """The trace's gaps divided by `speed`, as many rows as fit into `seconds`."""
    with path.open(newline="") as file:
        stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(file)]
    scaled = [(stamp - stamps[0]) / speed for stamp in sorted(stamps)]
    return [round(at * 1e9) for at in scaled if at < seconds]


def floor(port: int, offsets: Offsets) -> Late:
    """Lateness of the bare loop in ns."""
    told = "\n".join(map(str, offsets))
    script = [sys.executable, str(HERE / "lateness_floor.py"), str(port)]
    return [
        float(v) for v in subprocess.run(script, input=told, capture_output=True, text=True, check=True).stdout.split()
    ]


def ours(folder: Path, port: int, offsets: Offsets) -> Late:
    """Lateness of each request in ns, in order of due. Raises RuntimeError when one of them was not sent."""
    requests: Iterator[tuple[PlannedRequest, bytes]] = (
        (PlannedRequest(request_id=f"r{i}", index=i, due_offset_ns=offset), BODY) for i, offset in enumerate(offsets)
    )
    directory = capture(folder, port, requests, LoadOptions(prewarm=32))
    found = sorted((c.due_ns, c.send_start_ns) for c in directory.captures())
    sent = [float(start - due) for due, start in found if start is not None]
    if len(sent) != len(offsets):
        raise RuntimeError(f"{len(sent)} of {len(offsets)} requests were sent")
    return sent


def variation(offsets: Offsets, late: Late) -> float:
    """The coefficient of variation of the gaps between sends, for a constant rate."""
    gaps = [b - a for a, b in pairwise(sorted(o + v for o, v in zip(offsets, late, strict=True)))]
    return statistics.pstdev(gaps) / statistics.mean(gaps)


def row(name: str, offsets: Offsets, late: Late, steady: bool) -> tuple[float, float, float]:
    """Print one client's line; its (p50 ms, p99 ms, CV)."""
    p50, p99, cv = quantile(late, 0.5) / 1e6, quantile(late, 0.99) / 1e6, variation(offsets, late)
    shown = f"CV {cv:.3f}" if steady else ""
    print(f"    {name:10} p50 {p50:7.3f}  p99 {p99:7.3f}  max {max(late) / 1e6:8.3f} ms  {shown}")
    return p50, p99, cv


def case(folder: Path, name: str, offsets: Offsets, rounds: int, steady: bool, p99_ms: float) -> None:
    aim = f"p50 < 0.15, p99 < {p99_ms:g} ms" + (", CV < 0.05 in 4 of 5 rounds" if steady else "")
    print(f"{name}: {len(offsets)} requests in {offsets[-1] / 1e9:.0f} s, all of them sent (target {aim})")
    ratios, met, floor_met = [], 0, 0
    for at in range(rounds):
        log = folder / "truth.log"
        with truth_server(log, ttft_ms=20, gap_ms=5) as port:
            bare = row("bare loop", offsets, floor(port, offsets), steady)
            own = row(
                "phasemeter", offsets, ours(folder / f"{name.split()[0]}-{at}-{len(offsets)}", port, offsets), steady
            )
        ratios.append(own[1] / bare[1] if bare[1] else float("inf"))
        met += own[0] < 0.15 and own[1] < p99_ms and (not steady or own[2] < 0.05)
        floor_met += bare[0] < 0.15 and bare[1] < p99_ms and (not steady or bare[2] < 0.05)
    print(
        f"  targets met in {met} of {rounds} rounds (the bare loop: {floor_met}); "
        f"p99 over the bare loop's: median {statistics.median(ratios):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--trace", type=Path, default=TRACE, help="a trace with a TIMESTAMP column, as Azure publishes them"
    )
    parser.add_argument("--speed", type=float, default=50.0)
    parser.add_argument(
        "--trace-seconds", type=float, default=15.0, help="how much of the replay (70 is all of that trace)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for rate in (200.0, 500.0):
            case(folder, f"constant {rate:g}/s", constant(rate, options.seconds), options.rounds, True, 0.5)
        case(folder, "poisson 300/s", poisson(300, options.seconds), 3, False, 0.5)
        if options.trace.exists():
            offsets = replay(options.trace, options.speed, options.trace_seconds)
            case(folder, f"replay of {options.trace.name} x{options.speed:g}", offsets, 1, False, 2.0)
        else:
            print(f"replay: {options.trace} is not here: give one with --trace")


if __name__ == "__main__":
    main()
