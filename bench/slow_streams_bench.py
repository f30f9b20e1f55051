"""Ten thousand streams of one token a second from one process: nothing may fail for a reason of our own.

Streams begin over a ramp (open loop), so that all are open together in the end. Printed: outcomes, how many were open at once, what a
stream costs in memory and an event in CPU, how late sends were, how long connects took. What is needed is said first.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

from capture_bench import capture, child_cpu_s, plan, quantile, truth_server

from phasemeter.errors import ClientResourceError
from phasemeter.io import descriptor_limit
from phasemeter.io.load_options import LoadOptions
from phasemeter.records.capture import Capture

PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def needs(streams: int) -> str | None:
    """What this machine lacks for `streams` connections to one address; None: nothing."""
    try:
        descriptor_limit.require(streams)
    except ClientResourceError as low:
        return str(low)
    if PORTS.exists():
        first, last = map(int, PORTS.read_text().split())
        if last - first < streams:
            return f"{streams} connections to one address need as many local ports and {PORTS} allows {last - first}"
    return None


def peak(captures: list[Capture]) -> int:
    """How many requests were open at once, at most."""
    turns = sorted([(c.send_start_ns or 0, 1) for c in captures] + [(c.closed_ns or 0, -1) for c in captures])
    most = now = 0
    for _, step in turns:
        now += step
        most = max(most, now)
    return most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--ramp-s", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--gap-ms", type=float, default=1000.0)
    options = parser.parse_args()
    print(
        f"{options.streams} streams: {options.streams + descriptor_limit.MARGIN} descriptors and as many local ports are needed"
    )
    if lacking := needs(options.streams):
        print(f"  not run: {lacking}")
        return 0
    with tempfile.TemporaryDirectory() as scratch, truth_server(Path(scratch) / "log", 200, options.gap_ms) as port:
        requests = plan(options.streams, 1000 * options.ramp_s / options.streams, options.tokens)
        load = LoadOptions(prewarm=64, expected_open=options.streams)
        directory = capture(Path(scratch) / "run", port, requests, load)
        cpu_s = child_cpu_s()
        peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        captures = list(directory.captures())
    late = [(c.send_start_ns - c.due_ns) / 1e6 for c in captures if c.send_start_ns is not None]
    connects = [(c.connected_ns - c.connect_start_ns) / 1e6 for c in captures if c.connected_ns and c.connect_start_ns]
    print(f"  outcomes: {dict(Counter(c.close for c in captures))} (target: all complete)")
    print(f"  open at once: {peak(captures)} (target {options.streams})")
    print(f"  errors: {dict(Counter(c.error for c in captures if c.error))} (target: none)")
    print(f"  memory of the capture process: {peak_kb / 1024:.0f} MB, {peak_kb / options.streams:.1f} KB a stream")
    print(f"  CPU: {cpu_s:.1f} s, {1e6 * cpu_s / options.streams / options.tokens:.1f} ms/1k events, connects included")
    print(f"  send_start − due: p50 {quantile(late, 0.5):.3f}  p99 {quantile(late, 0.99):.3f}  max {max(late):.3f} ms")
    if connects:
        print(
            f"  connects: {len(connects)}, median {statistics.median(connects):.3f} p99 {quantile(connects, 0.99):.3f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
