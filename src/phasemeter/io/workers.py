"""One run from the parent's side: the schedule is spooled ahead of the clock, workers send it, nothing else passes.

Lives here: starting, watching and ending worker processes. Must not live here: what is sent (an iterator gives it) or what
the answers mean.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from phasemeter.errors import NetworkError, PhasemeterError, UserError
from phasemeter.io import descriptor_limit
from phasemeter.io import load_options as counters
from phasemeter.io.load_options import LoadOptions, WorkerConfig
from phasemeter.io.run_directory import RunDirectory, WorkerLost
from phasemeter.io.schedule_file import ScheduleWriter
from phasemeter.io.target import Target
from phasemeter.io.worker_main import INSTANT, LENGTH
from phasemeter.records.request import PlannedRequest

POLL_S = 0.1
SPOOL_AHEAD_BYTES = 64 << 20
SPOOL_AHEAD_ROWS = 20_000
FIRST_SPOOL_S = 0.3
COMFORTABLE_ROWS = 2000
READY_WITHIN_S = 30.0
LEAVE_WITHIN_S = 15.0

Planned = Iterable[tuple[PlannedRequest, bytes]]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the workers a few times a second; nothing but counts, bytes and the sender's own lateness."""

    elapsed_s: float
    spooled: int
    sent: int
    in_flight: int
    waiting: int
    done: int
    failed: int
    cancelled: int
    received_bytes: int
    late_ns: int
    late_max_ns: int
    observer_lag_ns: int
    open_connections: int


class LoadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How sending ended. `reasons`: one a worker ("done", "duration", what stopped it, "lost: ...")."""

    start_ns: int  # CLOCK_MONOTONIC of offset 0
    start_realtime_ns: int
    scheduled: int  # rows of the schedule that were written
    reasons: tuple[str, ...]
    interrupted: bool
    progress: Progress
    schedule_error: str | None = None  # why the schedule was not written to its end, though workers took rows

    @property
    def whole(self) -> bool:
        """Whether every worker came to its natural end, with all of the schedule."""
        return (
            self.schedule_error is None
            and not self.interrupted
            and all(reason in {"done", "duration"} for reason in self.reasons)
        )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to send and how. `requests` is consumed ahead of the clock, in order of due."""

    requests: Planned
    target: Target
    options: LoadOptions


def run_load(
    directory: RunDirectory,
    load: Load,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> LoadOutcome:
    """Send all of `load` and capture into `directory`. Ctrl-C and `should_stop` end the sending and keep what came.

    Raises UserError or NetworkError for what is found before the first request (limits, names, CA file).
    """
    options = load.options
    if options.concurrency is not None and options.processes > options.concurrency:
        options = msgspec.structs.replace(options, processes=options.concurrency)
    descriptor_limit.require(-(-(options.expected_open or options.concurrency or 0) // options.processes))
    spool = Spool(directory, load.requests)
    try:
        crew = Crew(directory.capture, load.target, options)
        try:
            spool.begin(time.monotonic() + FIRST_SPOOL_S)  # while they come to life
            crew.await_ready()
            start_ns = crew.start(options.start_delay_s)
            interrupted = _watch(crew, spool, on_progress, should_stop)
        finally:
            crew.end()
    finally:
        spool.close()
    return LoadOutcome(
        start_ns=start_ns, start_realtime_ns=time.time_ns() - (time.monotonic_ns() - start_ns), scheduled=spool.rows,
        reasons=tuple(crew.reasons(directory)), interrupted=interrupted, progress=crew.progress(spool.rows),
        schedule_error=spool.failure,
    )  # fmt: skip


def _watch(crew: Crew, spool: Spool, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> bool:
    """Until every worker has left; whether it was asked to stop before."""
    interrupted = False
    while True:
        try:
            shown = crew.progress(spool.rows)
            on_progress(shown)
            if not interrupted and should_stop():
                interrupted = True
                crew.stop()
            if interrupted or crew.none_left():
                spool.stop()
            else:
                spool.ahead(*crew.taken(), time.monotonic() + spool.patience_s(crew.taken()[0]))
            if spool.failure is not None:
                crew.no_more_rows()
            if crew.all_left(POLL_S if spool.finished else POLL_S / 4):
                return interrupted
        except KeyboardInterrupt:
            if interrupted:
                crew.kill()
            interrupted = True
            crew.stop()


class Spool:
    """Writes the schedule as far ahead of the workers as 64 MB of bodies or 20,000 rows."""

    def __init__(self, directory: RunDirectory, requests: Planned) -> None:
        self._writer = ScheduleWriter(directory.capture, "shared")
        self._requests: Iterator[tuple[PlannedRequest, bytes]] = iter(requests)
        self.finished = False
        self.failure: str | None = None

    @property
    def rows(self) -> int:
        return self._writer.rows_on_disk

    def begin(self, until_s: float) -> None:
        """Write the beginning. Raises what goes wrong: nothing has been sent yet."""
        self._ahead(0, 0, until_s)

    def ahead(self, rows_taken: int, bytes_taken: int, until_s: float) -> None:
        """Write until far enough ahead or `until_s`. A full disk, or a file of prompts that can't be read on, ends it: what is
        on disk is still sent, `failure` says why there is no more."""
        try:
            self._ahead(rows_taken, bytes_taken, until_s)
        except OSError as error:
            self.failure = f"the schedule can't be written on: {error.strerror or error}"
        except PhasemeterError as error:
            self.failure = f"the schedule ends early: {error}"
        if self.failure is not None:
            self.finished = True
            with contextlib.suppress(OSError):  # rows that find no room are not scheduled
                self._writer.flush()

    def _ahead(self, rows_taken: int, bytes_taken: int, until_s: float) -> None:
        while not self.finished and time.monotonic() < until_s:
            if self._writer.rows - rows_taken > SPOOL_AHEAD_ROWS:
                break
            if self._writer.body_bytes - bytes_taken > SPOOL_AHEAD_BYTES:
                break
            following = next(self._requests, None)
            if following is None:
                self._writer.finish()
                self.finished = True
                return
            self._writer.add(*following)
        if not self.finished:
            self._writer.flush()

    def patience_s(self, rows_taken: int) -> float:
        """How long to write at a time: the more is ready, the less, for workers share the machine and wake up late beside us."""
        return POLL_S / 2 if self.rows - rows_taken < COMFORTABLE_ROWS else POLL_S / 50

    def stop(self) -> None:
        self.finished = True

    def close(self) -> None:
        self._writer.close()


class Crew:
    """The worker processes and their counters."""

    def __init__(self, folder: Path, target: Target, options: LoadOptions) -> None:
        self._options = options
        self._shared = _shared_file(options.processes * counters.COUNTER_BYTES)
        self._map = mmap.mmap(self._shared, 0)
        self._shown = memoryview(self._map).cast("q")
        self._began = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._last_words: dict[int, str] = {}
        try:
            for worker in range(options.processes):
                config = WorkerConfig(
                    folder=str(folder), worker=worker, target=target, load=options, counters_fd=self._shared
                )
                self._processes.append(self._spawn(config))
        except OSError:
            self.end()
            raise
        finally:
            os.close(self._shared)  # the map and the workers have descriptors of their own

    def _spawn(self, config: WorkerConfig) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", self._options.worker_module],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(self._shared,),
        )  # fmt: skip
        told = msgspec.msgpack.encode(config)
        if process.stdin is not None:
            process.stdin.write(LENGTH.pack(len(told)) + told)
            process.stdin.flush()
        return process

    def _counter(self, worker: int, which: int) -> int:
        return int(self._shown[worker * len(counters.COUNTERS) + which])

    def _sum(self, which: int) -> int:
        return sum(self._counter(worker, which) for worker in range(len(self._processes)))

    def _largest(self, which: int) -> int:
        return max(self._counter(worker, which) for worker in range(len(self._processes)))

    def await_ready(self) -> None:
        """Raises UserError or NetworkError with a worker's own words when it left instead."""
        deadline = time.monotonic() + READY_WITHIN_S
        while any(self._counter(w, counters.STATE) == counters.STARTING for w in range(len(self._processes))):
            for process in self._processes:
                if process.poll() is not None and process.stderr is not None:
                    words = process.stderr.read().decode(errors="replace").strip().splitlines()
                    said = words[-1] if words else f"a worker process ended with {process.returncode} before it began"
                    raise UserError(said) if process.returncode == 2 else NetworkError(said)
            if time.monotonic() > deadline:
                raise UserError(
                    f"the worker processes were not ready within {READY_WITHIN_S:g} s: use fewer --processes"
                )
            time.sleep(0.002)

    def start(self, delay_s: float) -> int:
        """Tell all workers the instant of offset 0."""
        start_ns = time.monotonic_ns() + round(delay_s * 1e9)
        for process in self._processes:
            self._tell(process, INSTANT.pack(start_ns))
        self._began = time.monotonic() + delay_s
        return start_ns

    def _tell(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        try:
            if process.stdin is not None:
                process.stdin.write(data)
                process.stdin.flush()
        except BrokenPipeError:
            return  # it is gone: `reasons` will say so

    def stop(self) -> None:
        for worker in range(len(self._processes)):
            self._shown[worker * len(counters.COUNTERS) + counters.STOP] = 1

    def no_more_rows(self) -> None:
        for worker in range(len(self._processes)):
            self._shown[worker * len(counters.COUNTERS) + counters.NO_MORE_ROWS] = 1

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def taken(self) -> tuple[int, int]:
        return self._sum(counters.ROWS), self._sum(counters.BODIES)

    def none_left(self) -> bool:
        """Whether every worker is gone: there is no use in writing more of the schedule."""
        return all(process.poll() is not None for process in self._processes)

    def all_left(self, wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        for process in self._processes:
            try:
                process.wait(max(0.001, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return True

    def end(self) -> None:
        """Close what is open; a worker that does not leave by itself is killed."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it may have left before it had read all
                    process.stdin.close()
        for worker, process in enumerate(self._processes):
            try:
                process.wait(LEAVE_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stderr is not None:
                words = [] if process.stderr.closed else process.stderr.read().decode(errors="replace").split("\n")
                self._last_words[worker] = next((line.strip() for line in reversed(words) if line.strip()), "")
                process.stderr.close()

    def reasons(self, directory: RunDirectory) -> Iterator[str]:
        for worker, process in enumerate(self._processes):
            said = directory.end_of(worker)
            if said is None:
                words = self._last_words.get(worker)
                said = f"lost: worker {worker} ended with {process.returncode}" + (f": {words}" if words else "")
                directory.note_lost(WorkerLost(worker=worker, exit_status=process.returncode))
            yield said

    def progress(self, spooled: int) -> Progress:
        return Progress(
            elapsed_s=time.monotonic() - self._began, spooled=spooled, sent=self._sum(counters.SENT),
            in_flight=self._sum(counters.IN_FLIGHT), waiting=self._sum(counters.WAITING), done=self._sum(counters.DONE),
            failed=self._sum(counters.FAILED), cancelled=self._sum(counters.CANCELLED),
            received_bytes=self._sum(counters.BYTES), late_ns=self._largest(counters.LATE),
            late_max_ns=self._largest(counters.LATE_MAX), observer_lag_ns=self._largest(counters.LAG),
            open_connections=self._sum(counters.CONNS),
        )  # fmt: skip


def _shared_file(size: int) -> int:
    """A descriptor of `size` bytes that workers inherit and map."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("phasemeter-counters")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
