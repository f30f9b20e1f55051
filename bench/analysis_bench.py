"""A run's whole analysis (capture file to result.json) as a ratio to `json.loads` alone over the same payloads.

Writes runs as the sender's workers would (their own writers, no server): so many streams at a time, one event a read, chunked
HTTP. Then `derive` and `analyse` against `json.loads`, in turns on this process's CPU clock; the median of the rounds' ratios
counts. The limit is 1.0 for `analyse`, from capture to metrics; `derive` writes the tables besides.
A second table shows which stage takes what share; a third how far memory grows from a run
to one ten times as large, of long answers and of short ones (a process each).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from pathlib import Path

from reading_bench import SECOND, SHAPES, payloads

from phasemeter.io.capture_file import CaptureWriter, Closed, Header, Started, encoded
from phasemeter.io.framing import append, block
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.schedule_file import ScheduleWriter
from phasemeter.metrics.boundaries import row_and_exchange
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.metrics.summary import Summary
from phasemeter.records.manifest import Manifest
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.analysis import Rows, analyse, derive
from phasemeter.runs.run_budget import SERVER_COLUMNS, RunBudget, duration_columns, instants_by_boundary
from phasemeter.runs.server_evidence import Seen
from phasemeter.runs.tables import TableWriter
from phasemeter.wire.exchange import Asked, Received, read_exchange

AT_ONCE = 64
GAP_NS = 20_000_000
REALTIME = 1_795_962_369 * SECOND
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
COLUMNS, END = 2, 3


def reads_of(documents: list[bytes]) -> list[bytes]:
    """What each read of one answer returns: the head, then a chunk an event."""
    bodies = [b"data: " + document + b"\n\n" for document in [*documents, b"[DONE]"]]
    chunks = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
    chunks[-1] += b"0\r\n\r\n"
    return [HEAD, *chunks]


def in_time(requests: int, reads: int) -> Iterator[tuple[int, int, int]]:
    """(ns, request, read) in order: AT_ONCE streams at a time, a read every GAP_NS each, with some unevenness."""
    flying = [(SECOND + n * 311_000, n, 0) for n in range(min(AT_ONCE, requests))]
    heapify(flying)
    coming = len(flying)
    while flying:
        at, request, read = flying[0]
        yield at, request, read
        if read + 1 < reads:
            heapreplace(flying, (at + GAP_NS + (request * 7919 + read * 104_729) % 1_000_000, request, read + 1))
        elif coming < requests:
            heapreplace(flying, (at + 500_000, coming, 0))
            coming += 1
        else:
            heappop(flying)


def write_run(path: Path, requests: int, tokens: int, shape: str) -> None:
    """A run of one worker, kernel stamps and clock pairs included."""
    directory = RunDirectory.create(path)
    directory.write_manifest(Manifest(concurrency=AT_ONCE, requests=requests, stamps="kernel"))
    schedule = ScheduleWriter(directory.capture, "shared")
    for number in range(requests):
        schedule.add(PlannedRequest(request_id=f"r{number}", index=number, output_tokens=tokens), b"{}")
    schedule.finish()
    schedule.close()
    data = reads_of(payloads(tokens, shape))
    header = Header(worker=0, processes=1, start_ns=SECOND, stamps="kernel", pid=1)
    capture = CaptureWriter(directory.capture / "worker-0.capture", header)
    capture._clocks.clear()  # this run has a clock of its own
    paired = 0
    for at, request, read in in_time(requests, len(data)):
        while paired <= at + SECOND:
            capture._clocks.append((paired, paired + REALTIME))
            paired += SECOND // 10
        if read == 0:
            capture.starts.append(started(request, at))
        capture.numbers.append(request)
        capture.reads.append((at + 40_000, at + REALTIME, data[read]))
        if read + 1 == len(data):
            capture.closes.append(Closed(request, at + 50_000, "complete", None, None))
        if len(capture.reads) >= 1000:
            capture.flush()
    capture.flush()
    append(capture._fd, block(END, encoded({"ended_ns": paired, "reason": "done"})))
    capture.abandon()
    (directory.capture / "worker-0.end").write_text("done\n")


def started(request: int, at: int) -> Started:
    return Started(
        number=request, request_id=f"r{request}", row=request, own=False, due_ns=at - 300_000, dns_start_ns=None,
        dns_done_ns=None, connect_start_ns=None, tcp_connected_ns=None, connected_ns=None, send_start_ns=at - 200_000,
        sent_ns=at - 150_000, reused=True, resent=False, local_port=40000, peer="127.0.0.1:8000", request_bytes=2,
    )  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def ratios(path: Path, requests: int, tokens: int, shape: str, rounds: int) -> None:
    """Print both ratios."""
    documents = payloads(tokens, shape)

    def loads() -> None:
        for _ in range(requests):
            for document in documents:
                json.loads(document)

    result = derive(path)
    assert result.outcomes.ok == requests, result.outcomes
    assert result.metrics["itl"].n == requests * (tokens - 1), result.metrics["itl"]
    found: dict[str, list[float]] = {"derive": [], "analyse": []}
    alone = []
    for _ in range(rounds):
        alone.append(timed(loads))
        found["derive"].append(timed(lambda: derive(path)) / alone[-1])
        found["analyse"].append(timed(lambda: analyse(path)) / alone[-1])
    each = statistics.median(alone) / (requests * len(documents)) * 1e6
    for name, values in found.items():
        middle = statistics.median(values)
        limit = " (limit 1.0)" if name == "analyse" else ""
        print(
            f"{name:8} {shape:28} {middle:.2f}x json.loads{limit}  [{middle * each:.2f} µs against {each:.2f} µs an event]"
        )


def stages(path: Path) -> None:
    """Print each stage's share of one analysis."""
    spent = dict.fromkeys(("capture", "clock", "wire", "boundaries", "budget", "metrics", "tables"), 0.0)
    found = Rows(path, settle=False)
    summary, budget, evidence = Summary(), RunBudget(), found.evidence()
    tables = TableWriter(path, extra_columns=SERVER_COLUMNS)
    now = time.process_time
    twice = 0.0  # clock and wire are run once more than an analysis does, to be seen apart from the boundaries
    begun = at = now()
    clock, other = ReceiveClock(list(found.directory.clock_pairs())), ReceiveClock(list(found.directory.clock_pairs()))
    for planned, capture in found.directory.exchanges():
        read = now()
        times = other.times(capture.reads, capture.send_start_ns).times_ns
        mapped = now()
        received = Received(
            reads=[one.data for one in capture.reads], times_ns=times, close=capture.close, closed_ns=capture.closed_ns
        )
        read_exchange(Asked(max_tokens=planned.output_tokens), received)
        parsed = now()
        row, exchange = row_and_exchange(planned, capture, clock)
        joined = now()
        seen = Seen(row, exchange)
        told = evidence.of(seen)
        budget.add(seen, told)
        laid = now()
        summary.add(row)
        summed = now()
        tables.add(row, instants_by_boundary(told), duration_columns(told))
        spent["capture"] += read - at
        spent["clock"] += mapped - read
        spent["wire"] += parsed - mapped
        spent["boundaries"] += (joined - parsed) - (parsed - read)
        spent["budget"] += laid - joined
        spent["metrics"] += summed - laid
        twice += parsed - read
        at = now()
        spent["tables"] += at - summed
    spent["capture"] += now() - at
    spent["metrics"] += timed(lambda: summary.result(found.manifest, found.facts))
    spent["budget"] += timed(lambda: budget.document(evidence))
    spent["tables"] += timed(tables.close)
    whole = now() - begun - twice
    print("stages   " + ", ".join(f"{name} {share / whole:.0%}" for name, share in spent.items()))


def peak_bytes(work: str, path: Path) -> int:
    """The peak memory of a process that does that to that run and nothing else."""
    done = subprocess.run(
        [sys.executable, __file__, f"--{work}", str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024


def memory(scratch: Path, requests: int, tokens: int) -> None:
    """Print what a run and one ten times as large take at most."""
    runs = {many: scratch / f"{many}-of-{tokens}" for many in (requests // 10, requests)}
    for many, path in runs.items():
        write_run(path, many, tokens, "vllm")
    size = sum(file.stat().st_size for file in (runs[requests] / "capture").iterdir())
    for work in ("analyse", "derive"):
        small, large = (peak_bytes(work, path) for path in runs.values())
        more = (large - small) / (requests - requests // 10)
        print(
            f"memory   {work:8} {requests} requests of {tokens} tokens (capture: {size / 2**20:.0f} MiB): {large / 2**20:.0f} MiB,"
            f" a tenth of them {small / 2**20:.0f} MiB: {more:.0f} bytes a request, {more / tokens:.0f} an event"
        )
    for path in runs.values():
        shutil.rmtree(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=["vllm", "llamacpp"], choices=list(SHAPES))
    parser.add_argument(
        "--memory-requests", type=int, default=2000, help="8000: two million events; 0: leave memory out"
    )
    for work in ("analyse", "derive"):
        parser.add_argument(f"--{work}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.derive or options.analyse:
        derive(options.derive) if options.derive else analyse(options.analyse)
        print(
            Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
        )  # ru_maxrss would count the parent's too
        return
    with tempfile.TemporaryDirectory() as scratch:
        for shape in options.shapes:
            path = Path(scratch) / shape
            write_run(path, options.requests, options.tokens, shape)
            ratios(path, options.requests, options.tokens, shape, options.rounds)
            stages(path)
        if options.memory_requests:
            memory(Path(scratch), options.memory_requests, options.tokens)
            memory(Path(scratch), 4 * options.memory_requests, 4)


if __name__ == "__main__":
    main()
