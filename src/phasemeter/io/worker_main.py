"""A worker process: told what to do over its standard input, leaves a capture file.

Lives here: its life from configuration to the end of its file. Must not live here: anything that is slow to import, for the
first request has to leave within a second of the command's start.

Standard input carries a length-prefixed configuration (with the secrets: arguments and environment can be read by others),
then, when every worker is ready, the common start instant. Its end means that the parent is gone.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from phasemeter.errors import PhasemeterError
from phasemeter.io import descriptor_limit
from phasemeter.io import load_options as counters
from phasemeter.io.addresses import answering_first, resolve
from phasemeter.io.capture_file import CaptureWriter, Header
from phasemeter.io.connection import route_to, stamps_available
from phasemeter.io.due import Due
from phasemeter.io.load import Sender
from phasemeter.io.load_options import LoadOptions, NextRequest, WorkerConfig
from phasemeter.io.precedence import NORMAL, REAL_TIME, Precedence
from phasemeter.io.schedule_file import ScheduleFollower, ScheduleWriter
from phasemeter.records.request import PlannedRequest

LENGTH = struct.Struct("<I")
INSTANT = struct.Struct("<q")
PREWARM_NS = 400_000_000
WORST_FINE_SLEEP = "1"  # ns of timer slack

NextRequestFactory = Callable[[bytes], NextRequest]


def read_exactly(fd: int, count: int) -> bytes:
    """Raises EOFError when the parent left before it had said all."""
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def shared_counters(fd: int, worker: int) -> memoryview:
    """This worker's row of the shared counters, as 64-bit integers."""
    whole = memoryview(mmap.mmap(fd, 0))
    return whole[worker * counters.COUNTER_BYTES : (worker + 1) * counters.COUNTER_BYTES].cast("q")


def share_of(options: LoadOptions, worker: int) -> int | None:
    """This worker's static share of the slots (or of the cap); shares differ by at most one and add up to the whole."""
    if options.concurrency is None:
        return None
    return (options.concurrency + options.processes - 1 - worker) // options.processes


def end_file(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.end"


def reserve_end(path: Path) -> None:
    """Room on disk for the last word, taken beforehand: a full disk must not keep a run from saying that it is full."""
    path.write_bytes(b" " * 512)


def write_end(path: Path, reason: str) -> None:
    text = reason.encode()[:511].ljust(511) + b"\n"
    with path.open("r+b") as file:
        file.write(text)


def own_turns(folder: Path, worker: int) -> tuple[Callable[[PlannedRequest, bytes], int], Callable[[], None]]:
    """How a next turn is recorded: in a schedule file of the worker's own, made when the first one comes."""
    made: list[ScheduleWriter] = []

    def record(planned: PlannedRequest, body: bytes) -> int:
        if not made:
            made.append(ScheduleWriter(folder, f"worker-{worker}"))
        row = made[0].add(planned, body)
        made[0].flush()
        return row

    def close() -> None:
        for writer in made:
            writer.close()

    return record, close


def work(config: WorkerConfig, next_request: NextRequest | None) -> str:
    """One worker's whole run; the reason of its end. Raises PhasemeterError before the start."""
    folder, options = Path(config.folder), config.load
    shown = shared_counters(config.counters_fd, config.worker)
    stamping = stamps_available()
    target = config.target
    where = (target.proxy.host, target.proxy.port) if target.proxy else (target.host, target.port)
    resolved = answering_first(resolve(*where), target.limits.connect_s)
    descriptor_limit.spread_table(-(-(options.expected_open or options.concurrency or 0) // options.processes))
    precedence = Precedence(options.processes, options.real_time)
    sender = Sender(route_to(target, resolved, stamping is not None), options, shown, 0, precedence)
    sender.next_request = next_request
    sender.prewarm(time.monotonic_ns() + PREWARM_NS, max(1, -(-options.prewarm // options.processes)))
    reserve_end(end_file(folder, config.worker))
    shown[counters.STATE] = counters.READY
    (start_ns,) = INSTANT.unpack(read_exactly(0, INSTANT.size))
    header = Header(
        worker=config.worker, processes=options.processes, start_ns=start_ns,
        stamps="kernel" if stamping else "user", pid=os.getpid(), scheduling=REAL_TIME if precedence.taken else NORMAL,
    )  # fmt: skip
    follower = ScheduleFollower(folder, "shared", config.worker, options.processes)
    record, close_turns = own_turns(folder, config.worker)
    due = Due(follower, options, share_of(options, config.worker), start_ns, record)
    due.prefetch(time.monotonic_ns())
    signal.signal(signal.SIGTERM, lambda *_: shown.__setitem__(counters.STOP, 1))
    shown[counters.STATE] = counters.RUNNING
    writer = None
    try:
        writer = CaptureWriter(folder / f"worker-{config.worker}.capture", header)
        reason = sender.run(writer, due, config.worker)
        writer.close(reason)
    except OSError as full:
        reason = f"the capture can't be written: {full.strerror or full}"
        if writer is not None:
            writer.abandon()
    close_turns()
    write_end(end_file(folder, config.worker), reason)
    shown[counters.STATE] = counters.ENDED
    return reason


def main(factory: NextRequestFactory | None = None) -> int:
    """The process's entry. `factory` makes the callback for next turns from the options that the parent sent along."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    finer_timer()
    try:
        (length,) = LENGTH.unpack(read_exactly(0, LENGTH.size))
        config = msgspec.msgpack.decode(read_exactly(0, length), type=WorkerConfig)
        gc.freeze()
        gc.set_threshold(
            100_000, 50, 1000
        )  # the loop makes no circles; a full collection would stop it for milliseconds
        work(config, factory(config.load.worker_options) if factory else None)
    except EOFError:
        return 1
    except PhasemeterError as wrong:
        sys.stderr.write(f"{wrong}\n")
        return wrong.exit_code
    return 0


def finer_timer() -> None:
    """Ask for waits that end within a microsecond of their instant instead of the usual 50; not every system can."""
    try:
        with open("/proc/self/timerslack_ns", "w", encoding="ascii") as file:
            file.write(WORST_FINE_SLEEP)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
