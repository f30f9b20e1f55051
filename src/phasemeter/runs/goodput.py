"""The search for the highest rate that keeps a contract, on a service or on a simulator.

Lives here: one probe as a run directory, what a probe's requests say, resuming, the answer's document. Must not live here: the
search (studies/), how a request is judged (contract/).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from phasemeter import units
from phasemeter.contract.goodput import SCALES, Meter, Promise, promise_of
from phasemeter.contract.model import Contract, Workload
from phasemeter.errors import FileError, UserError
from phasemeter.io.run_directory import RunDirectory
from phasemeter.metrics.document import document as plain_result
from phasemeter.metrics.document import strict
from phasemeter.records.request_row import RequestRow
from phasemeter.runs import analysis, simulate
from phasemeter.runs.asked import Asked
from phasemeter.runs.many import complete
from phasemeter.runs.measure import RUNS, Watchers, bench
from phasemeter.runs.settings import settings_of
from phasemeter.serving.demand import Demand
from phasemeter.serving.plan import Plan, demand_of
from phasemeter.serving.plan_workload import ClassSpec
from phasemeter.studies.looks import SHARED, Bools, Measure, Probe, Seen
from phasemeter.studies.sequential import Clock, Found, Search, Searcher
from phasemeter.studies.steady import steady
from phasemeter.workload.streams import stable_hash

ANSWER = "goodput.json"
NEEDS_EVENTS = {"jitter", "decode_per_token"}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a search. `most_s`: seconds for all of it; None: none. `first_look`: requests; None: by the target."""

    most_s: float | None = None
    precision: float = 0.05
    first_look: int | None = None
    resume: bool = False


def promised(contract: Contract, file: str) -> Promise:
    """The per-request promise of a contract. Raises FileError where it makes none."""
    found = promise_of(contract)
    if found is None:
        raise FileError(f"{file}: promises no latency to a request: add latency_slo, or capacity.objectives")
    return found


def seen_in(rows: Iterable[RequestRow], promise: Promise, run: Path | None = None) -> Seen:
    """What a probe's measured requests say: warm-up cut, each judged, whether the load was carried."""
    ordered = sorted((row for row in rows if row.phase == "measured"), key=lambda row: row.due_ns)
    found = steady(ordered)
    meter = Meter(promise)
    for row in ordered[found.cut :]:
        meter.add(row)
    judged = meter.judged()
    good, said = judged.good()
    single: dict[str, Bools] = {}
    for column, name in enumerate(judged.names):
        kept, known = judged.single(column)
        single[name] = kept[known]
    parts = {name: good[said & judged.of_class(name)] for name in promise.shares}
    scaled = {f"{scale:g}": judged.good(scale)[0][judged.good(scale)[1]] for scale in SCALES if scale != 1}
    return Seen(
        good=good[said], requests=len(ordered), strain=judged.strain()[said], stable=found.stable, stability=found.evidence,
        settled=found.settled, scaled=scaled, single=single, parts=parts, run=None if run is None else str(run),
    )  # fmt: skip


def name_of(rate: float, look: int) -> str:
    """A probe's directory below the search's."""
    return f"rate-{rate:.6g}/look-{look + 1}"


def look_seed(seed: int, look: int, rate: float) -> int:
    """The seed of a look: first looks share their draws over the rates, later ones have their own."""
    return seed if look == SHARED else stable_hash(seed, "look", look, f"{rate:.6g}") % 2**31


def service(url: str, asked: Asked, promise: Promise, folder: Path, watch: Watchers) -> Measure:
    """Asks a service: each look is a measured run in a directory of its own; complete ones are taken as they are."""

    def measure(rate: float, requests: int, look: int) -> Seen:
        path = folder / name_of(rate, look)
        kept = complete(path)
        if kept is None:
            own = msgspec.structs.replace(
                asked, rate=f"{rate!r}/s", concurrency=None, requests=str(requests), duration=None, output=str(path),
                seed=look_seed(asked.seed, look, rate), repeat=1,
            )  # fmt: skip
            kept = bench(url, own, watch)
            if kept.interrupted:
                raise KeyboardInterrupt
        return seen_in(analysis.rows(path), promise, path)

    return measure


def simulator(plan: Plan, promise: Promise, folder: Path | None) -> Measure:
    """Asks the simulator, in virtual time; with a folder each look is a run directory too."""
    base = demand_of(plan)
    tokens = bool(NEEDS_EVENTS & {metric for _, metric in promise.columns()})

    def measure(rate: float, requests: int, look: int) -> Seen:
        demand = msgspec.structs.replace(base.at_rate(rate), requests=requests, duration_s=None)
        path = None if folder is None else folder / name_of(rate, look)
        seed = look_seed(plan.seed, look, rate)
        if path is not None and (path / analysis.RESULT).exists():
            return seen_in(_as_measured(analysis.rows(path)), promise, path)
        outcome = simulate.replicate(plan, demand, seed, tokens=tokens)
        if path is not None:
            _write_probe(plan, demand, seed, outcome, path)
        return seen_in(_as_measured(outcome.rows()), promise, path)

    return measure


def _write_probe(plan: Plan, demand: Demand, seed: int, outcome: simulate.Outcome, path: Path) -> None:
    manifest = simulate.manifest_of(plan, demand, seed, 1)
    result = plain_result(simulate.result_of(plan, outcome, manifest))
    simulate.write(RunDirectory.create(path), manifest, result, outcome)


def _as_measured(rows: Iterable[RequestRow]) -> Iterator[RequestRow]:
    """The warm-up is cut here for both kinds alike."""
    return (msgspec.structs.replace(row, phase="measured") for row in rows)


def workload_of(plan: Plan, contract: Contract) -> Plan:
    """The plan's deployment under the contract's workload, as far as it declares one.

    A contract's classes are the plan's mix, by their shares.
    """
    own = contract.workload
    arrivals = own.arrivals if own.arrivals not in (None, "measured") and "concurrency" not in own.arrivals else None
    changes = {
        name: value
        for name, value in (
            ("input_tokens", own.input_tokens),
            ("output_tokens", own.output_tokens),
            ("arrivals", arrivals),
            ("classes", [_mixed(one) for one in contract.classes] or None),
        )
        if value is not None
    }
    workload = msgspec.structs.replace(plan.workload, **changes)
    if demand_of(msgspec.structs.replace(plan, workload=workload)).arrivals.rate_per_s is None:
        workload = msgspec.structs.replace(workload, arrivals={"poisson": "1/s"})  # a search offers rates, not slots
    return msgspec.structs.replace(plan, workload=workload)


def _mixed(one: Workload) -> ClassSpec:
    return ClassSpec(
        name=one.name or "", weight=one.share, input_tokens=one.input_tokens, output_tokens=one.output_tokens
    )


def search_service(
    url: str, asked: Asked, contract: Contract, limits: Limits, watch: Watchers
) -> tuple[Found, Promise, Path]:
    """Search on a service. Raises as `bench` does; Ctrl-C leaves the probes, `--resume` takes them up."""
    promise = promised(contract, asked.contract or "contract")
    settings = settings_of(url, asked)
    rate = settings.spec.arrivals.rate_per_s
    folder = Path(asked.output) if asked.output else RUNS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-goodput"
    prepare(folder, limits.resume)
    search = Search(
        target=promise.attainment, parts=promise.shares, start_per_s=rate or 1.0, precision=limits.precision, first_look=limits.first_look,
        most_s=limits.most_s,
    )  # fmt: skip

    def lasts_s(per_s: float, requests: int) -> float:
        return requests / per_s

    clock = Clock(now_s=time.monotonic, lasts_s=lasts_s)
    found = Searcher(service(url, asked, promise, folder, watch), search, clock, watch.note).run()
    return found, promise, folder


def search_plan(
    plan: Plan, contract: Contract, limits: Limits, output: Path | None, tell: Callable[[str], None]
) -> tuple[Found, Promise]:
    """Search on the simulator."""
    promise = promised(contract, "contract")
    own = workload_of(plan, contract)
    rate = demand_of(own).arrivals.rate_per_s or 1.0
    if output is not None:
        prepare(output, limits.resume)
    search = Search(
        target=promise.attainment, parts=promise.shares, start_per_s=rate, precision=limits.precision, first_look=limits.first_look,
        most_s=limits.most_s,
    )  # fmt: skip
    return Searcher(simulator(own, promise, output), search, Clock(now_s=time.monotonic), tell).run(), promise


def prepare(folder: Path, resume: bool) -> None:
    """Raises UserError for a directory that holds something already, unless its probes are to be taken up."""
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UserError(f"{folder} exists already: --resume takes its complete probes up, or give another -o/--output")
    folder.mkdir(parents=True, exist_ok=True)


def document(found: Found, promise: Promise) -> dict[str, Any]:
    """The answer as `goodput --json` prints it."""
    curve = None
    if found.curve is not None:
        curve = {"a": found.curve.a, "b": found.curve.b, "centre_per_s": found.curve.centre_per_s,
                 "form": "logit(attainment) = a + b · ln(rate / centre)"}  # fmt: skip
    plain = {
        "phasemeter": 1,
        "goodput_per_s": {"value": found.value, "ci95": list(found.interval)},
        "binding": found.binding,
        "reason": found.reason,
        "attainment_target": promise.attainment,
        "class_targets": dict(promise.shares),
        "objectives_s": {
            name if who is None else f"{who}.{name}": limit for (who, name), limit in promise.columns().items()
        },
        "requests": found.requests,
        "probes": [_probe(one, promise) for one in found.probes],
        "beyond": None if found.beyond is None else _probe(found.beyond, promise),
        "curve": curve,
        "sensitivity": dict(found.sensitivity),
        "single": dict(found.single),
        "warnings": list(found.warnings),
    }
    answer: dict[str, Any] = strict(plain)
    return answer


def _probe(one: Probe, promise: Promise) -> Mapping[str, Any]:
    classes = {name: {"value": one.part(name), "n": one.judged(name)} for name in promise.shares}
    return {
        "rate_per_s": one.rate_per_s,
        "attainment": {"value": one.attainment, "ci95": list(one.interval), "n": int(one.good.size)},
        "classes": classes, "stable": one.stable, "standing": one.standing, "why": one.why or None, "requests": one.requests,
        "run": one.looks[-1].run, "runs": [look.run for look in one.looks if look.run is not None],
    }  # fmt: skip


def write(folder: Path, answer: dict[str, Any]) -> None:
    """goodput.json beside the probes."""
    (folder / ANSWER).write_text(
        json.dumps(answer, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8"
    )


def read_duration(text: str | None) -> float | None:
    """--max-time in seconds. Raises UserError."""
    if text is None:
        return None
    seconds = units.duration_s(text)
    if not seconds > 0:
        raise UserError(f"--max-time {text}: has to be longer than 0")
    return seconds
