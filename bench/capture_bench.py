"""How far our stamps are from the truth, and what capturing costs: `make bench` or `python bench/capture_bench.py`.

Figures are quantiles of error against a server that logs its own writes on the same clock, and ratios of CPU against a
frozen bare loop and an aiohttp client, interleaved. Absolute times depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.target import target_of
from phasemeter.io.workers import Load, run_load
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest

HERE = Path(__file__).parent
Truth = dict[int, list[list[int]]]
PEAK_KB: list[int] = []


@contextmanager
def truth_server(log: Path, ttft_ms: float = 200, gap_ms: float = 20, spread: bool = False) -> Iterator[int]:
    arguments = ["--log", str(log), "--ttft-ms", str(ttft_ms), "--gap-ms", str(gap_ms), *["--spread"] * spread]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "truth_server.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def truth(log: Path) -> Truth:
    """By client port: the instants of each request on that connection, arrival first."""
    found: Truth = {}
    for line in log.read_text().splitlines():
        port, *instants = map(int, line.split())
        found.setdefault(port, []).append(instants)
    return found


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def spread(name: str, values_ns: list[float], target: str) -> None:
    ms = [v / 1e6 for v in values_ns]
    print(
        f"  {name:34} p50 {quantile(ms, 0.5):8.3f}  p99 {quantile(ms, 0.99):8.3f}  max {max(ms):8.3f} ms   (target {target})"
    )


def plan(count: int, gap_ms: float, tokens: int, closed: bool = False) -> Iterator[tuple[PlannedRequest, bytes]]:
    body = b'{"model":"truth","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}' % tokens
    for i in range(count):
        due = None if closed else round(i * gap_ms * 1e6)
        yield PlannedRequest(request_id=f"r{i}", index=i, due_offset_ns=due), body


def capture(
    folder: Path, port: int, requests: Iterator[tuple[PlannedRequest, bytes]], options: LoadOptions
) -> RunDirectory:
    directory = RunDirectory.create(folder)
    target = target_of(f"http://127.0.0.1:{port}/v1/chat/completions")
    run_load(directory, Load(requests=requests, target=target, options=options), lambda _: note_peak(directory))
    return directory


def note_peak(directory: RunDirectory) -> None:
    """Remember the most memory that a worker of ours has held, while it still runs (Linux)."""
    for reader in directory.readers():
        status = Path(f"/proc/{reader.header.pid if reader.header else 0}/status")
        if status.exists():
            held = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
            PEAK_KB.extend(int(line.split()[1]) for line in held)


def offset_ns(directory: RunDirectory) -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC: the median of the run's pairs (no step is expected within a bench)."""
    return round(statistics.median(pair.realtime_ns - pair.monotonic_ns for pair in directory.clock_pairs()))


def events(one: Capture, offset: int) -> list[tuple[int, int]]:
    """(number of the last event in it, instant by the kernel's stamp) of each read: its stamp is that of its last byte."""
    found, so_far = [], 0
    for read in one.reads:
        count = read.data.count(b"data: {")
        so_far += count
        if count:
            stamp = read.user_ns if read.kernel_realtime_ns is None else read.kernel_realtime_ns - offset
            found.append((so_far - 1, stamp))
    return found


def stamps(folder: Path, streams: int, tokens: int, gap_ms: float) -> None:
    with truth_server(folder / "truth.log", gap_ms=gap_ms) as port:
        options = LoadOptions(mode="closed", concurrency=streams, prewarm=streams)
        directory = capture(folder / "run", port, plan(streams, 0, tokens, closed=True), options)
    known, offset = truth(folder / "truth.log"), offset_ns(directory)
    stamp, gap, first, lag, merged, total = [], [], [], [], 0, 0
    for one in directory.captures():
        arrival, *written = known[one.local_port or 0].pop(0)
        seen = events(one, offset)
        merged += len(written) - len(seen)
        total += len(written)
        if not seen or one.send_start_ns is None:
            continue
        stamp += [float(abs(at - written[number])) for number, at in seen]
        gap += [float(abs((y - x) - (written[j] - written[i]))) for (i, x), (j, y) in pairwise(seen)]
        first.append(float((seen[0][1] - one.send_start_ns) - (written[0] - arrival)))
        lag += [float(r.user_ns - (r.kernel_realtime_ns - offset)) for r in one.reads if r.kernel_realtime_ns]
    print(f"truth at {streams} streams × {1000 / gap_ms:g} tok/s, {tokens} tokens, one capture process")
    spread("stamp − write", stamp, "p99 < 0.1")
    spread("gap error", gap, "p99 < 0.05")
    spread("TTFT − server's own", first, "p50 < 3, p99 < 15")
    spread("observer lag (user − kernel)", lag, "none: it is on record")
    print(f"  events that a later one in the same read hides: {merged} of {total}")


def child_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def other(script: str, *arguments: str) -> float:
    told = subprocess.run([sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, check=True)
    return float(told.stdout.split()[0])


def cost(folder: Path, streams: int, tokens: int, rounds: int) -> None:
    """CPU seconds of the client process alone; the server's own process is started and ended around all rounds.

    Who wakes up for each event pays more than who finds thirty waiting, so all see the same: ours runs under the same
    scheduling as the others, and the server's writes are paced whether a client sent its requests within 3 ms or 15.
    """
    took: dict[str, list[float]] = {"ours": [], "bare": [], "aiohttp": []}
    with truth_server(folder / "cost.log", spread=True) as port:
        for at in range(rounds):
            before = child_cpu_s()
            options = LoadOptions(mode="closed", concurrency=streams, prewarm=streams, real_time=False)
            capture(folder / f"cost-{at}", port, plan(streams, 0, tokens, closed=True), options)
            took["ours"].append(child_cpu_s() - before)
            took["bare"].append(other("bare_loop.py", str(port), str(streams), str(tokens), str(folder / "bare.log")))
            took["aiohttp"].append(other("aiohttp_client.py", str(port), str(streams), str(tokens)))
    middle = {name: statistics.median(values) for name, values in took.items()}
    per_1k = {name: 1000 * value / (streams * tokens / 1000) for name, value in middle.items()}
    print(
        f"cost, median of {rounds} interleaved: "
        + ", ".join(f"{n} {v:.1f} ms CPU/1k events" for n, v in per_1k.items())
    )
    print(f"  ours / bare loop {middle['ours'] / middle['bare']:.2f} (target ≤ 1.25)")
    print(f"  aiohttp / ours   {middle['aiohttp'] / middle['ours']:.2f} (target ≥ 2)")
    print(f"  memory of our capture process {max(PEAK_KB, default=0) / 1024:.0f} MB (target ≤ 120)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["truth", "cost"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.only in (None, "truth"):
            stamps(folder, options.streams, options.tokens, options.gap_ms)
        if options.only in (None, "cost"):
            cost(folder, options.streams, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
