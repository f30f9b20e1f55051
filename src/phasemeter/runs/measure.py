"""One measured run, whole: settings → probe → run directory → load → analysis.

Lives here: the order of things, and what becomes of a run that was cut short. Must not live here: how any step is done.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from types import FrameType

import msgspec

from phasemeter.errors import PhasemeterError
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.workers import Load, LoadOutcome, Progress, run_load
from phasemeter.records.manifest import Manifest
from phasemeter.records.request import PlannedRequest
from phasemeter.records.result import Result
from phasemeter.runs import analysis, conversation_turns
from phasemeter.runs.asked import Asked
from phasemeter.runs.manifest import manifest_of
from phasemeter.runs.probe import Probed, probe
from phasemeter.runs.prompt_source import PromptSource, read_prompt_file
from phasemeter.runs.settings import Settings, settings_of
from phasemeter.runs.tokenizer import load_tokenizer
from phasemeter.runs.trace_replay import trace_rows
from phasemeter.workload.plan import WorkloadSpec, plan_measured, plan_warmup
from phasemeter.workload.prompts import PromptOptions
from phasemeter.workload.streams import stable_hash

RUNS = Path("runs")
OPEN_PREWARM = 8

OnProgress = Callable[[str, Progress], None]  # (phase, counters)
OnNote = Callable[[str], None]


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


class Watchers(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to know while a run goes on: `note` gets a line, `progress` the counters a few times a second."""

    note: OnNote = lambda words: None
    progress: OnProgress = lambda phase, progress: None


def bench(url: str, asked: Asked, watchers: Watchers | None = None) -> Measured:
    """Measure the service at `url` once.

    Raises UserError, NetworkError or ServerError (exit 2) for what is found before the first measured request; then no run
    directory is left. Afterwards whatever happens is a saved run.
    """
    watch = watchers or Watchers()
    settings = settings_of(url, asked)
    rows = read_prompt_file(asked.prompts) if asked.prompts else []
    if rows and asked.requests is None and asked.duration is None and asked.trace is None:
        spec = msgspec.structs.replace(settings.spec, requests=len(rows) * settings.spec.turns)
        settings = msgspec.structs.replace(settings, spec=spec)
    for note in settings.notes:
        watch.note(note)
    probed = probe(settings)
    for note in probed.notes:
        watch.note(note)
    settings = with_probed(settings, probed)
    source = PromptSource(
        options=PromptOptions(seed=settings.spec.seed, salt=f"{time.time_ns():x}", token_ids=asked.token_ids),
        body_options=msgspec.structs.replace(
            probed.body, model=settings.spec.models[0][0] if settings.spec.models else None
        ),
        lengths=probed.lengths,
        tokenizer=load_tokenizer(Path(asked.tokenizer)) if asked.tokenizer else None,
        rows=rows,
    )
    directory = RunDirectory.create(Path(asked.output) if asked.output else default_output(settings))
    try:
        return _measured(directory, settings, probed, source, watch)
    except PhasemeterError:
        if not any(directory.capture.glob("worker-*.capture")):  # nothing was sent: leave nothing behind
            rmtree(directory.path)
        raise


def _measured(
    directory: RunDirectory, settings: Settings, probed: Probed, source: PromptSource, watch: Watchers
) -> Measured:
    started_utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    manifest = manifest_of(settings, probed, directory.path.name, started_utc, source.words())
    directory.write_manifest(manifest)
    with stop_requested() as should_stop:
        warm = _warm_up(directory, settings, source, watch, should_stop)
        outcome = warm if warm is not None and warm.interrupted else None
        if outcome is None:
            outcome = _load(directory, settings, source, watch, should_stop)
    finish(directory, manifest, outcome)
    result = analysis.derive(directory.path)
    if settings.asked.no_text:
        directory.drop_bodies()
    return Measured(path=directory.path, result=result, interrupted=outcome.interrupted)


def with_probed(settings: Settings, probed: Probed) -> Settings:
    """The settings with what the probe settled: model, ignore_eos."""
    spec = msgspec.structs.replace(settings.spec, models=probed.models, ignore_eos=probed.ignore_eos)
    return msgspec.structs.replace(settings, spec=spec)


def finish(directory: RunDirectory, manifest: Manifest, outcome: LoadOutcome) -> None:
    """Put on record what only the end tells: whose stamps they were, and why a worker left early."""
    odd = tuple(
        f"worker {n}: {reason}" for n, reason in enumerate(outcome.reasons) if reason not in {"done", "duration"}
    )
    stamps = directory.stamps
    directory.write_manifest(msgspec.structs.replace(manifest, stamps=stamps, notes=(*manifest.notes, *odd)))


# ---- the load


def _options(settings: Settings, source: PromptSource) -> LoadOptions:
    spec = settings.spec
    closed = spec.arrivals.kind == "closed"
    talking = spec.turns > 1
    expected = spec.concurrency or (spec.requests if spec.arrivals.kind == "inf" else None)
    return LoadOptions(
        mode="closed" if closed else "open",
        concurrency=spec.concurrency,
        processes=settings.asked.processes,
        drain_s=settings.drain_s,
        duration_s=spec.duration_s if closed else None,
        prewarm=min(spec.concurrency or OPEN_PREWARM, 256),
        expected_open=expected,
        worker_module=conversation_turns.__name__ if talking else "phasemeter.io.worker_main",
        worker_options=conversation_turns.told(settings, source) if talking else b"",
    )


def _spooled(
    planned: Iterator[PlannedRequest], source: PromptSource, spec: WorkloadSpec
) -> Iterator[tuple[PlannedRequest, bytes]]:
    for request in source.asked(planned):
        if request.turn == 0 or spec.turns == 1:  # later turns follow their answers, in the worker
            yield request, source.serialised(request)


def _load(
    directory: RunDirectory, settings: Settings, source: PromptSource, watch: Watchers, should_stop: Callable[[], bool]
) -> LoadOutcome:
    spec = settings.spec
    planned = plan_measured(spec, trace_rows(settings.asked) if settings.asked.trace else None)
    if spec.arrivals.kind == "closed":
        planned = _chained(plan_warmup(spec), planned)
    planned = (traced(request, directory.path.name) for request in planned)
    return run_load(
        directory,
        Load(requests=_spooled(planned, source, spec), target=settings.target, options=_options(settings, source)),
        on_progress=lambda progress: watch.progress("measured", progress),
        should_stop=should_stop,
    )


def _chained(first: Iterator[PlannedRequest], then: Iterator[PlannedRequest]) -> Iterator[PlannedRequest]:
    yield from first
    yield from then


def _warm_up(
    directory: RunDirectory, settings: Settings, source: PromptSource, watch: Watchers, should_stop: Callable[[], bool]
) -> LoadOutcome | None:
    """An open loop's warm-up requests, in a closed loop and a capture of their own; None where there are none."""
    spec = settings.spec
    if spec.arrivals.kind == "closed" or not spec.warmup_requests:
        return None
    slots = spec.concurrency or 1
    options = msgspec.structs.replace(
        _options(settings, source), mode="closed", concurrency=slots, processes=1, prewarm=slots, expected_open=slots,
        worker_module="phasemeter.io.worker_main", worker_options=b"",
    )  # fmt: skip
    single = msgspec.structs.replace(spec, turns=1)
    return run_load(
        RunDirectory.create(directory.path / analysis.WARMUP),
        Load(requests=_spooled(plan_warmup(single), source, single), target=settings.target, options=options),
        on_progress=lambda progress: watch.progress("warm-up", progress),
        should_stop=should_stop,
    )


def traced(planned: PlannedRequest, run_id: str) -> PlannedRequest:
    """With a W3C traceparent of its own, so that a server's spans join by identity."""
    trace = stable_hash(run_id, "trace", planned.request_id), stable_hash(run_id, "trace-low", planned.request_id)
    span = stable_hash(run_id, "span", planned.request_id)
    parent = f"00-{trace[0] & 2**64 - 1:016x}{trace[1] & 2**64 - 1:016x}-{span & 2**64 - 1:016x}-01"
    return msgspec.structs.replace(planned, traceparent=parent)


# ---- around it


def default_output(settings: Settings) -> Path:
    """runs/<utc>-<model>, with a number where that is taken."""
    model = settings.spec.models[0][0] if settings.spec.models else settings.spec.api
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model.rpartition("/")[2])
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{plain[:60] or 'run'}"
    path, number = RUNS / name, 2
    while path.exists():
        path, number = RUNS / f"{name}-{number}", number + 1
    return path


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
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
