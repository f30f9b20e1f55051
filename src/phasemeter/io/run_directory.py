"""RUN/: what a run leaves on disk, and the way back from it.

Lives here: the folder's layout, and the join of what was planned with what was captured, in which every scheduled request is
accounted for. Must not live here: what the captured bytes mean.

    RUN/manifest.json
    RUN/capture/shared.schedule, shared.bodies       what was planned (the parent wrote it)
    RUN/capture/worker-N.capture                     what a worker sent and saw
    RUN/capture/worker-N.schedule, worker-N.bodies   later turns of conversations (the worker wrote them)
    RUN/capture/worker-N.end                         why it ended; blank: it never said
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from phasemeter.errors import FileError, UserError
from phasemeter.io import schedule_file
from phasemeter.io.capture_file import Started
from phasemeter.io.capture_reader import CaptureReader
from phasemeter.io.schedule_file import Row
from phasemeter.records.capture import Capture, ClockPair
from phasemeter.records.manifest import Manifest
from phasemeter.records.request import PlannedRequest

SHARED = "shared"
WARMUP = "warmup"  # RUN/warmup: an open loop's warm-up has a capture of its own
NEVER_NS = 1 << 62
NATURAL_ENDS = {"done", "duration"}


class WorkerLost(msgspec.Struct, frozen=True, kw_only=True):
    worker: int
    exit_status: int


class RunDirectory:
    """Make one with `create`, read one with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.capture = path / "capture"
        self._bodies: dict[str, tuple[str, Row]] | None = None

    @classmethod
    def create(cls, path: Path | str) -> RunDirectory:
        """A new, empty run. Raises UserError when something is already there or it can't be made."""
        path = Path(path)
        try:
            path.mkdir(parents=True)
            (path / "capture").mkdir()
        except FileExistsError as there:
            raise UserError(f"{path} exists already: give another -o/--output, or remove it") from there
        except OSError as failed:
            raise UserError(f"{path}: {failed.strerror}: give another -o/--output") from failed
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """Raises FileError when there is no run."""
        path = Path(path)
        if not (path / "manifest.json").exists() and not (path / "capture").is_dir():
            within = sorted(str(one.parent) for depth in ("*", "*/*") for one in path.glob(f"{depth}/manifest.json"))
            if within:
                raise FileError(f"{path}: holds {len(within)} runs: name one, like {within[0]}")
            raise FileError(f"{path}: not a run directory (no manifest.json and no capture/ in it)")
        return cls(path)

    # ── manifest ─────────────────────────────────────────────────────────────────────────────────────────────────

    def write_manifest(self, manifest: Manifest) -> None:
        """All of it or nothing: a reader never sees half a manifest."""
        beside = self.path / "manifest.json.new"
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        os.replace(beside, self.path / "manifest.json")

    def read_manifest(self) -> Manifest:
        """Raises FileError when it is missing or not one."""
        path = self.path / "manifest.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError as missing:
            raise FileError(f"{path}: missing") from missing
        except msgspec.MsgspecError as wrong:
            raise FileError(f"{path}: {wrong}") from wrong

    # ── what was planned ─────────────────────────────────────────────────────────────────────────────────────────

    def _schedules(self) -> list[str]:
        names = sorted(p.stem for p in self.capture.glob("worker-*.schedule"))
        return [SHARED, *names]

    def planned(self) -> Iterator[PlannedRequest]:
        """Every request that was scheduled: the plan in its order, then later turns of conversations by worker."""
        for name in self._schedules():
            for row in schedule_file.rows(self.capture, name):
                yield row.planned

    def request_body(self, request_id: str) -> bytes | None:
        """The body as it was sent; None where bodies were dropped or there is no such request."""
        if self._bodies is None:
            self._bodies = {
                row.planned.request_id: (name, row)
                for name in self._schedules()
                for row in schedule_file.rows(self.capture, name)
            }
        found = self._bodies.get(request_id)
        return schedule_file.body(self.capture, *found) if found else None

    def bodies(self) -> Iterator[tuple[PlannedRequest, bytes | None]]:
        """Each planned request with its body, streaming."""
        for name in self._schedules():
            for row in schedule_file.rows(self.capture, name):
                yield row.planned, schedule_file.body(self.capture, name, row)

    def drop_bodies(self) -> None:
        """Forget what was asked (`--no-text`); the plan stays."""
        for path in self.capture.glob("*.bodies"):
            path.unlink()
        self._bodies = None

    # ── what was seen ────────────────────────────────────────────────────────────────────────────────────────────

    def readers(self) -> list[CaptureReader]:
        """One a worker, by worker number."""
        paths = sorted(self.capture.glob("worker-*.capture"), key=lambda p: int(p.stem.partition("-")[2]))
        return [CaptureReader(path) for path in paths]

    def end_of(self, worker: int) -> str | None:
        """Why a worker ended, in its words; None: it never said (killed)."""
        path = self.capture / f"worker-{worker}.end"
        text = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
        return text or None

    def note_lost(self, lost: WorkerLost) -> None:
        """Say for a worker that could not say it itself."""
        path = self.capture / f"worker-{lost.worker}.end"
        path.write_text(f"worker_lost: ended with {lost.exit_status}\n", encoding="utf-8")

    @property
    def stamps(self) -> str | None:
        """Whose receive stamps the reads carry: kernel or user; None: nothing was captured."""
        found = {reader.header.stamps for reader in self.readers() if reader.header}
        return "user" if "user" in found else "kernel" if found else None

    @property
    def start_ns(self) -> int | None:
        """The monotonic instant of offset 0; None: nothing was captured."""
        return next((reader.header.start_ns for reader in self.readers() if reader.header), None)

    def clock_pairs(self) -> Iterator[ClockPair]:
        """Both clocks every 100 ms, by worker; each worker's pairs are in order."""
        for reader in self.readers():
            yield from reader.clock_pairs()

    def captures(self) -> Iterator[Capture]:
        """Every scheduled request, as `exchanges` gives them."""
        for _, capture in self.exchanges():
            yield capture

    def exchanges(self) -> Iterator[tuple[PlannedRequest, Capture]]:
        """Every scheduled request with what was seen of it, in the order in which they closed over all workers.

        Memory is bounded by the requests in flight. At the end come those that never closed (`closed_ns` None: the worker
        was lost) and those that were never sent (`close` is "unsent", `error` says why).
        """
        readers = self.readers()
        seen = {r.header.worker: r for r in readers if r.header}
        processes = max((r.header.processes for r in readers if r.header), default=1)
        shares = [self._share(worker, processes, seen.get(worker)) for worker in range(processes)]
        yield from heapq.merge(*shares, key=_closing)

    def _share(
        self, worker: int, processes: int, reader: CaptureReader | None
    ) -> Iterator[tuple[PlannedRequest, Capture]]:
        shared = (r for r in schedule_file.rows(self.capture, SHARED) if r.row % processes == worker)
        own = schedule_file.rows(self.capture, f"worker-{worker}")
        plans = {False: _Plan(shared), True: _Plan(own)}
        for started, capture in reader.requests() if reader else ():
            planned = plans[started.own].take(started)
            if capture.closed_ns is None:
                capture = msgspec.structs.replace(
                    capture, error=self.end_of(worker) or "worker_lost: it never said why"
                )
            yield planned, capture
        start_ns = self.start_ns or 0
        reason = self.end_of(worker) or "worker_lost: it never said why"
        for plan in plans.values():
            for planned in plan.rest():
                if reason == "duration" and planned.due_offset_ns is None:
                    continue  # a closed loop's time was over before a slot took it: it was never due
                yield planned, unsent(planned, worker, start_ns, reason)


class _Plan:
    """A schedule's rows, read no further ahead than the captures ask."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._open: dict[int, PlannedRequest] = {}

    def take(self, started: Started) -> PlannedRequest:
        """Raises FileError when the capture tells of a request that the schedule doesn't hold."""
        while started.row not in self._open:
            row = next(self._rows, None)
            if row is None:
                raise FileError(f"request {started.request_id} was captured but is not in the schedule")
            self._open[row.row] = row.planned
        return self._open.pop(started.row)

    def rest(self) -> Iterator[PlannedRequest]:
        yield from self._open.values()
        for row in self._rows:
            yield row.planned


def unsent(planned: PlannedRequest, worker: int, start_ns: int, reason: str) -> Capture:
    """A request of which there is no record. `error` is None only where nothing is known against it."""
    return Capture(
        request_id=planned.request_id, worker=worker, due_ns=start_ns + (planned.due_offset_ns or 0), close="unsent",
        error=None if reason in NATURAL_ENDS else reason,
    )  # fmt: skip


def _closing(pair: tuple[PlannedRequest, Capture]) -> int:
    closed_ns = pair[1].closed_ns
    return NEVER_NS if closed_ns is None else closed_ns
