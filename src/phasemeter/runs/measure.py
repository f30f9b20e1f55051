"""One measured run, whole: settings → probe → run directory → load → analysis.

Lives here: the order of things, and what becomes of a run that was cut short. Must not live here: how any step is done, or an
import that would make the first request wait (what reads a run is loaded when the load is over).
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from phasemeter.errors import ClientResourceError, PhasemeterError
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import NATURAL_ENDS, WARMUP, RunDirectory
from phasemeter.io.target import Tls
from phasemeter.io.workers import Load, LoadOutcome, Progress, run_load
from phasemeter.lazy import load
from phasemeter.records.manifest import Manifest
from phasemeter.records.request import PlannedRequest
from phasemeter.records.result import Result
from phasemeter.runs import conversation_turns, privacy, session_turns
from phasemeter.runs.asked import Asked
from phasemeter.runs.manifest import manifest_of
from phasemeter.runs.prepare import RUNS, Prepared, expected_open, prepare
from phasemeter.runs.trace_replay import sessions_in, trace_of, trace_rows
from phasemeter.runs.traced import named, tag_of, traced
from phasemeter.workload.plan import WorkloadSpec, plan_measured, plan_warmup
from phasemeter.workload.sessions import later_turns

__all__ = ["RUNS", "Measured", "Watchers", "bench"]

OPEN_PREWARM = 8

OnProgress = Callable[[str, Progress], None]  # (phase, counters)
OnNote = Callable[[str], None]
ShouldStop = Callable[[], bool]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was made: where it is, what it says, and whether it came to its own end."""

    path: Path
    result: Result
    interrupted: bool

    @property
    def exit_code(self) -> int:
        """130 cut short by a signal, 1 nothing succeeded, else 0."""
        if self.interrupted:
            return 130
        return 0 if self.result.outcomes.ok else 1


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a run that begins: what was asked, and the capture's folder, where there is one. `judged`: it counts."""

    phase: str
    capture: Path | None = None
    rate_per_s: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    contract: Any = None
    judged: bool = False


class Watchers(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to know while a run goes on: `note` gets a line, `progress` the counters a few times a second, `begun` each part."""

    note: OnNote = lambda words: None
    progress: OnProgress = lambda phase, progress: None
    begun: Callable[[Going], None] = lambda going: None


def bench(url: str, asked: Asked, watchers: Watchers | None = None) -> Measured:
    """Measure the service at `url` once.

    Raises UserError, NetworkError or ServerError (exit 2) for what is found before the first request of the run; then no run
    directory is left. Afterwards whatever happens is a saved run.
    """
    watch = watchers or Watchers()
    watch.begun(Going(phase="asking the server what it is, and how long its prompts become"))
    ready = prepare(url, asked, watch.note)
    made = [folder for folder in ready.output.parents if not folder.exists()]
    directory = RunDirectory.create(ready.output)
    try:
        return _measured(directory, ready, watch)
    except OSError as failed:
        words = f"{failed.filename or directory.path}: {failed.strerror or failed}"
        if forget(directory, made, sent=directory.capture):
            raise ClientResourceError(f"{words}: nothing was sent") from failed
        raise PhasemeterError(f"{words}: what was captured is in {directory.path}") from failed
    except PhasemeterError:
        forget(directory, made, sent=directory.capture)
        raise
    except KeyboardInterrupt:
        if not forget(directory, made, sent=directory.path):
            watch.note(f"what was captured is in {directory.path}: `phasemeter report` reads it")
        raise


def forget(directory: RunDirectory, made: list[Path], sent: Path) -> bool:
    """Leave nothing behind of a run that has no capture in `sent`, nor the folders made for it; whether that was so."""
    if any(sent.rglob("worker-*.capture")):
        return False
    shutil.rmtree(directory.path, ignore_errors=True)
    for folder in made:
        with suppress(OSError):  # another run has come to live there
            folder.rmdir()
    return True


def _measured(directory: RunDirectory, ready: Prepared, watch: Watchers) -> Measured:
    started_utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    manifest = manifest_of(ready, directory.path.name, started_utc)
    directory.write_manifest(manifest)
    with privacy.live(directory.path), stop_requested() as should_stop:
        outcome = _sent(_Run(directory, ready, watch, should_stop), directory, ready, watch.note)
        watch.begun(Going(phase="reading what came"))
        result = concluded(directory, manifest, outcome, ready, watch.note)
    return Measured(path=directory.path, result=result, interrupted=outcome.interrupted)


def _sent(run: _Run, directory: RunDirectory, ready: Prepared, note: OnNote) -> LoadOutcome:
    """Warm-up and load, with the server's evidence gathered beside them: from when the warm-up is over to when all is over."""
    gather, asked = load("phasemeter.runs.gather"), ready.settings.asked
    with gather.gathering(directory.path, page_beside(ready), asked.otlp_listen) as found:
        outcome = run.warm_up()
        if outcome is None or not outcome.interrupted:
            found.begin(0 if outcome is None else outcome.progress.done)
            outcome = run.load()
            found.end(outcome.progress.done, interrupted=outcome.interrupted)
    for words in found.warnings:
        note(words)
    return outcome


def concluded(
    directory: RunDirectory, manifest: Manifest, outcome: LoadOutcome, ready: Prepared, note: OnNote
) -> Result:
    """The run's result, read from its capture, its tables written; where the disk takes no more, the result alone."""
    analysis = load("phasemeter.runs.analysis")
    secrets = privacy.secrets_of(ready.settings)
    try:
        privacy.forget_secrets(directory.path, secrets)
        finish(directory, manifest, outcome)
        if ready.settings.contract_file is not None:  # kept beside the run: its goodput is counted whenever it is read
            shutil.copyfile(ready.settings.contract_file, directory.path / analysis.CONTRACT)
        result: Result = analysis.derive(directory.path)
        if manifest.text:
            privacy.drop_text(directory.path)
    except OSError as full:
        note(
            f"{directory.path}: {full.strerror or full}: the capture is kept, its tables are not: make room and `report` it"
        )
        result = analysis.analyse(directory.path)
    return result


def finish(directory: RunDirectory, manifest: Manifest, outcome: LoadOutcome) -> None:
    """Put on record what only the end tells: whose stamps they were, and why a worker left early."""
    odd = tuple(f"worker {n}: {reason}" for n, reason in enumerate(outcome.reasons) if reason not in NATURAL_ENDS)
    if outcome.schedule_error is not None:
        odd = (*odd, f"the schedule was not written to its end: {outcome.schedule_error}")
    directory.write_manifest(msgspec.structs.replace(manifest, stamps=directory.stamps, notes=(*manifest.notes, *odd)))


# ---- the load


class _Run:
    """What both phases of a run need; each is one call."""

    def __init__(self, directory: RunDirectory, ready: Prepared, watch: Watchers, should_stop: ShouldStop) -> None:
        self._directory = directory
        self._settings, self._source = ready.settings, ready.source
        self._sessions = sessions_in(ready.settings.asked, ready.settings.spec)
        self._tag = tag_of(directory.path.name, ready.source.options.salt, ready.settings.header_names)
        self._watch = watch
        self._should_stop = should_stop

    def _spooled(self, planned: Iterator[PlannedRequest]) -> Iterator[tuple[PlannedRequest, bytes]]:
        for request in self._source.asked(planned):
            if request.turn == 0:  # later turns follow their answers, in the worker
                yield named(request, self._tag), self._source.serialised(request)

    def _warming(self, spec: WorkloadSpec) -> Iterator[PlannedRequest]:
        """The warm-up requests; those of a trace are as long as its first rows, and share nothing with them."""
        rows = trace_rows(self._settings.asked)
        for request in plan_warmup(spec):
            row = next(rows, None)
            lengths = {} if row is None else {"input_tokens": row.input_tokens, "output_tokens": row.output_tokens}
            yield msgspec.structs.replace(request, **{name: told for name, told in lengths.items() if told is not None})

    def warm_up(self) -> LoadOutcome | None:
        """An open loop's warm-up requests, in a closed loop and a capture of their own; None where there are none."""
        spec = self._settings.spec
        if spec.arrivals.kind == "closed" or not spec.warmup_requests:
            return None
        slots = min(spec.concurrency or 1, spec.warmup_requests)
        options = LoadOptions(
            mode="closed", concurrency=slots, drain_s=self._settings.drain_s, prewarm=slots, expected_open=slots
        )
        single = msgspec.structs.replace(spec, turns=1)
        apart = RunDirectory.create(self._directory.path / WARMUP)
        self._watch.begun(
            Going(phase="warm-up", capture=apart.capture, concurrency=slots, requests=spec.warmup_requests)
        )
        return run_load(
            apart,
            Load(requests=self._spooled(self._warming(single)), target=self._settings.target, options=options),
            on_progress=lambda progress: self._watch.progress("warm-up", progress),
            should_stop=self._should_stop,
        )

    def load(self) -> LoadOutcome:
        """The measured requests (in a closed loop the warm-up first, in the same slots)."""
        settings, run_id = self._settings, self._directory.path.name
        rows = trace_rows(settings.asked, self._sessions) if settings.asked.trace else None
        planned = plan_measured(settings.spec, rows)
        own = (traced(request, run_id) for request in planned)
        before = self._warming(settings.spec) if settings.spec.arrivals.kind == "closed" else iter(())
        self._watch.begun(self._going())
        return run_load(
            self._directory,
            Load(requests=self._spooled(chain(before, own)), target=settings.target, options=self._options()),
            on_progress=lambda progress: self._watch.progress("measured", progress),
            should_stop=self._should_stop,
        )

    def _going(self) -> Going:
        spec = self._settings.spec
        first = spec.warmup_requests if spec.arrivals.kind == "closed" else 0
        return Going(
            phase="measured", capture=self._directory.capture, rate_per_s=spec.arrivals.rate_per_s,
            concurrency=spec.concurrency, requests=None if spec.requests is None else spec.requests + first,
            duration_s=spec.duration_s, contract=self._settings.contract, judged=True,
        )  # fmt: skip

    def _worker(self) -> tuple[str, bytes]:
        """The module that sends, and what it is told: who makes next turns needs more than a sender."""
        spec, asked, trace = self._settings.spec, self._settings.asked, trace_of(self._settings.asked)
        if spec.turns == 1 and not self._sessions:
            return "phasemeter.io.worker_main", b""
        talk = conversation_turns.talk_of(self._directory.path.name, self._tag, spec, self._source, asked.tokenizer)
        if trace is None or not self._sessions:
            return conversation_turns.__name__, msgspec.msgpack.encode(talk)
        told = session_turns.SessionTalk(talk=talk, sessions=later_turns(trace, self._sessions))
        return session_turns.__name__, msgspec.msgpack.encode(told)

    def _options(self) -> LoadOptions:
        spec, asked = self._settings.spec, self._settings.asked
        closed = spec.arrivals.kind == "closed"
        module, told = self._worker()
        return LoadOptions(
            mode="closed" if closed else "open", concurrency=spec.concurrency, processes=asked.processes,
            drain_s=self._settings.drain_s, duration_s=spec.duration_s if closed else None,
            real_time=asked.real_time,
            prewarm=min(spec.concurrency or OPEN_PREWARM, 256), expected_open=expected_open(spec) or None,
            worker_module=module, worker_options=told,
        )  # fmt: skip


# ---- around it


def page_beside(ready: Prepared) -> Any:
    """The metrics page that was asked for, else the one beside the API where that has one; behind a proxy none is looked for.

    An engine whose `/metrics` is something else, emptied by whoever reads it, is asked for its own page. A page of the server
    that is measured gets its key too; no other server does.
    """
    settings, asked, told = ready.settings, ready.settings.asked, ready.probed.identity
    endpoint = settings.endpoint
    host = f"{endpoint.scheme}://{endpoint.authority}"
    silent = None if told.silent is None else host + told.silent
    page = load("phasemeter.runs.gather").Page
    if asked.server_metrics is not None:
        named = asked.server_metrics.strip()
        own = (named if "://" in named else f"http://{named}").startswith((f"{host}/", f"{host}?")) or named == host
        none = named.lower() == "none"
        return None if none else page(url=named, access=_access(ready, own=own), silent=named == silent)
    if settings.target.proxy is not None:
        return None
    url = host + endpoint.root + METRICS_PAGES.get(told.fields.get("engine", ""), "/metrics")
    return page(url=url, asked=False, access=_access(ready, own=True), silent=url == silent)


def _access(ready: Prepared, *, own: bool) -> Any:
    asked, secret = ready.settings.asked, ready.settings.target.secret_headers if own else ()
    tls = Tls(insecure=asked.insecure, ca_file=asked.ca_file)
    return load("phasemeter.io.scrape").Access(tls=tls, secret_headers=secret)


METRICS_PAGES = {"tensorrt-llm": "/prometheus/metrics"}


@contextmanager
def stop_requested() -> Iterator[ShouldStop]:
    """SIGTERM asks for a stop as Ctrl-C does: what came is kept."""
    asked = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    try:
        before = signal.signal(signal.SIGTERM, note)
    except ValueError:  # not the main thread: whoever called us answers signals
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before)
