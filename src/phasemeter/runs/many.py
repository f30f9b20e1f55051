"""Several runs of one service: a sweep over rates or concurrencies, repetitions, each a run directory, and an index of them.

Lives here: which runs, where, and their spread. Must not live here: one run (measure.py).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from phasemeter import units
from phasemeter.errors import FileError, NetworkError, ServerError, UserError
from phasemeter.lazy import load
from phasemeter.records.result import Result
from phasemeter.runs.asked import Asked
from phasemeter.runs.measure import RUNS, Measured, Watchers, bench
from phasemeter.runs.prepare import check
from phasemeter.runs.settings import told
from phasemeter.workload.plan import parse_concurrency

INDEX = "index.json"
SPREAD_OF = ("ttft", "ttft_from_due", "tpot", "e2e")


class Many(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, in order. `index`: the file that lists several runs."""

    measured: tuple[Measured, ...]
    index: Path | None = None
    spread: dict[str, Any] = {}
    ended_early: bool = False  # the service was gone before a later run

    @property
    def last(self) -> Measured:
        return self.measured[-1]

    @property
    def exit_code(self) -> int:
        """The first run's code that is not 0, an interruption before anything else."""
        codes = [*(one.exit_code for one in self.measured), int(self.ended_early)]
        return 130 if 130 in codes else next((code for code in codes if code), 0)


def points(asked: Asked) -> list[tuple[str, Asked]]:
    """(name, options) of each run asked for: rates or concurrencies times repetitions.

    Raises UserError for a list in both, or an empty or faulty member.
    """
    rates = _members(asked.rate, "rate", units.rate_per_s)
    slots = _members(asked.concurrency, "concurrency", parse_concurrency)
    if len(rates) > 1 and len(slots) > 1:
        raise UserError("a sweep goes over rates or over concurrencies: give a list to one of them")
    if asked.repeat < 1:
        raise UserError(f"--repeat {asked.repeat}: has to be 1 or more")
    found = []
    no_limit: list[str | None] = [None]
    for rate in rates or no_limit:
        for slot in slots or no_limit:
            for repetition in range(asked.repeat):
                parts = [f"rate-{_plain(rate)}"] if len(rates) > 1 and rate else []
                parts += [f"concurrency-{_plain(slot)}"] if len(slots) > 1 and slot else []
                parts += [f"repeat-{repetition + 1}"] if asked.repeat > 1 else []
                own = msgspec.structs.replace(asked, rate=rate, concurrency=slot, seed=asked.seed + repetition)
                found.append(("-".join(parts), own))
    return found


def _members(text: str | None, what: str, check: Any) -> list[str]:
    if text is None:
        return []
    members = [part.strip() for part in text.split(",")]
    values = set()
    for member in members:
        if not member:
            raise UserError(f"--{what} {text}: a list holds an empty member: write it like 1,2,4")
        values.add(told(what, member, check))
    if len(values) < len(members):  # however it is written: 60/min is 1/s
        raise UserError(f"--{what} {text}: a member stands there twice: use --repeat to measure it again")
    return members


def _plain(text: str) -> str:
    """Fit for a folder's name: `4/s` is 4, `4/min` is 4min."""
    number, _, unit = text.partition("/")
    return "".join(letter for letter in number + unit.strip().removesuffix("s") if letter.isalnum() or letter in "._")


def bench_all(url: str, asked: Asked, watchers: Watchers | None = None) -> Many:
    """Every run asked for, one after another. An interruption ends the series; what was measured is kept and indexed.

    Raises as `bench` does, for the first run; a later run that can't begin ends the series with a note and counts as one that
    did not succeed.
    """
    watch = watchers or Watchers()
    wanted = points(asked)
    if len(wanted) == 1:
        kept = complete(Path(asked.output)) if asked.resume and asked.output else None
        return Many(measured=(kept or bench(url, wanted[0][1], watch),))
    folder = Path(asked.output) if asked.output else RUNS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-sweep"
    if folder.exists() and not asked.resume:
        raise UserError(f"{folder} exists already: --resume skips what is complete there, or give another -o/--output")
    for _, own in wanted:
        check(url, own)
    many = Many(measured=(), index=folder / INDEX)
    for number, (name, own) in enumerate(wanted):
        watch.note(f"run {number + 1} of {len(wanted)}: {name}")
        kept = complete(folder / name) if asked.resume else None
        try:
            one = kept or bench(url, msgspec.structs.replace(own, output=str(folder / name)), watch)
        except (NetworkError, ServerError) as gone:
            if not many.measured:
                raise
            watch.note(f"{name}: {gone}: the series ends here")
            many = msgspec.structs.replace(many, ended_early=True)
            break
        many = msgspec.structs.replace(many, measured=(*many.measured, one))
        many = msgspec.structs.replace(many, spread=spread_of([one.result for one in many.measured], asked.repeat))
        _write_index(many, wanted)
        if one.interrupted:
            break
    return many


def complete(path: Path) -> Measured | None:
    """A run that came to its own end; what did not is set aside, so that it is measured again and nothing is lost."""
    if not path.exists():
        return None
    try:
        result: Result | None = load("phasemeter.runs.analysis").analyse(path)
    except FileError:
        result = None
    if result is not None and not result.partial:
        return Measured(path=path, result=result, interrupted=False)
    number = 1
    while (aside := path.with_name(f"{path.name}.partial-{number}")).exists():
        number += 1
    path.rename(aside)
    return None


def spread_of(results: list[Result], repeat: int) -> dict[str, Any]:
    """Each metric's p50 and p99 over repetitions: mean, standard deviation, how many; by point where there are several.

    `results` are in the order of `points`: the repetitions of a point follow one another.
    """
    if repeat < 2:
        return {}
    by_point = [results[at : at + repeat] for at in range(0, len(results), repeat)]
    return (
        {f"point-{number + 1}": _spread(same) for number, same in enumerate(by_point)}
        if len(by_point) > 1
        else _spread(results)
    )


def _spread(results: list[Result]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SPREAD_OF:
        for percentile in ("p50", "p99"):
            values = list(_values(results, name, percentile))
            if values:
                deviation = statistics.stdev(values) if len(values) > 1 else None
                found[f"{name}.{percentile}"] = {"mean": statistics.mean(values), "std": deviation, "n": len(values)}
    return found


def _values(results: list[Result], name: str, percentile: str) -> Iterator[float]:
    for result in results:
        metric = result.metrics.get(name)
        entry = metric.percentiles.get(percentile) if metric else None
        if entry is not None and entry.value is not None:
            yield entry.value


def _write_index(many: Many, wanted: list[tuple[str, Asked]]) -> None:
    """index.json, anew after each run and whole or not at all: which runs there are, and what each came to."""
    rows = [
        {
            "run": name, "rate": own.rate, "concurrency": own.concurrency, "seed": own.seed, "partial": one.result.partial,
            "validity": one.result.validity.verdict, "outcomes": msgspec.to_builtins(one.result.outcomes),
            "throughput": one.result.throughput.get("requests_per_s"),
            **{f"{metric}.p50_s": next(iter(_values([one.result], metric, "p50")), None) for metric in SPREAD_OF},
        }
        for one, (name, own) in zip(many.measured, wanted, strict=False)
    ]  # fmt: skip
    document = msgspec.json.encode({"phasemeter": 1, "runs": rows, "planned": len(wanted), "spread": many.spread})
    path = many.index or Path(INDEX)
    beside = path.with_name(f".{INDEX}.new")
    beside.write_bytes(msgspec.json.format(document, indent=1) + b"\n")
    beside.rename(path)
