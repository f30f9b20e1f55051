"""A whole comparison: comparable or not, the differences, and what may be said of their cause.

Lives here: putting the parts together and the words of attribution. Must not live here: reading files or printing (cli/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from phasemeter.comparison import difference
from phasemeter.comparison.comparable import Answer, Run, compared
from phasemeter.comparison.difference import Difference
from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import PER_REQUEST, compute
from phasemeter.metrics.dialects import dialect as dialect_named
from phasemeter.records.request_row import RequestRow
from phasemeter.stats.intervals import Generator
from phasemeter.stats.quantiles import Floats

# what is tested between two of our own runs: few, for each more test costs all others power (Holm)
HEADLINES = ("ttft", "ttft_from_due", "ttfo", "tpot", "e2e", "jitter")
CANDIDATES = "queue, prefix cache, prompt, network or batching"
PHASE_TESTS = ("queue", "prefill", "decode")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `compare`. `causes`: sentences that the evidence carries."""

    answer: Answer
    differences: tuple[Difference, ...]
    phases: tuple[Difference, ...] = ()
    causes: tuple[str, ...] = ()


def values_of(rows: Iterable[RequestRow], dialect: str | None = None) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """(metric: one value a successful measured request, in due order; lengths), read under the house's rows or a dialect's."""
    readers: Mapping[str, Callable[[RequestRow], float]]
    if dialect is None:
        readers = {name: PER_REQUEST[name] for name in HEADLINES}
    else:
        rows_of = [row for row in dialect_named(dialect).rows if row.definition.kind == "request" and not row.inverse]
        readers = {row.key: partial(compute, row.definition) for row in rows_of if row.weight is None}
    values: dict[str, list[float]] = {name: [] for name in readers}
    lengths: dict[str, list[float]] = {"input_tokens": [], "output_tokens": []}
    for row in sorted((r for r in rows if r.phase == "measured" and r.outcome == "ok"), key=lambda r: r.due_ns):
        for name, reader in readers.items():
            try:
                values[name].append(reader(row))
            except Undefined:
                continue
        for name, got in (("input_tokens", row.input_tokens), ("output_tokens", row.output_tokens)):
            if got is not None:
                lengths[name].append(got)
    found = {name: np.array(got, dtype=np.float64) for name, got in values.items() if got}
    if dialect is None and "ttfo" in found and np.array_equal(found["ttfo"], found.get("ttft", np.zeros(0))):
        del found["ttfo"]  # no reasoning: the same numbers a second time
    return found, {name: np.array(got, dtype=np.float64) for name, got in lengths.items() if got}


def compare(
    a: Sequence[Run],
    b: Sequence[Run],
    generator: Generator,
    varying: Sequence[str] = (),
    asked: tuple[str, str] | None = None,
) -> Report:
    """Side B against side A, each one or more runs of one kind."""
    answer = compared(a, b, varying, asked)
    if not answer.comparable:
        return Report(answer=answer, differences=())
    found: list[Difference] = []
    for mine, other in answer.pairs:
        label = mine.name if mine.name == other.name else f"{mine.name} = {other.name}"
        ours = [run.values[mine.name] for run in a if mine.name in run.values]
        theirs = [run.values[other.name] for run in b if other.name in run.values]
        unit = str((a[0].document.get("metrics", {}).get(mine.name) or {}).get("unit", "s"))
        if len(ours) == len(a) and len(theirs) == len(b):
            found += difference.between(label, ours, theirs, generator, unit)
        elif (
            _summarised(a[0], mine.name)
            and _summarised(b[0], other.name)
            and (mine.signature[0] == "gap" or _foreign(a, b))
        ):
            summaries = (a[0].document["metrics"][mine.name], b[0].document["metrics"][other.name])
            found += difference.from_summary(label, *summaries, gaps=mine.signature[0] == "gap")
    phases: list[Difference] = []
    for phase in PHASE_TESTS:
        ours = [run.phases[phase] for run in a if phase in run.phases]
        theirs = [run.phases[phase] for run in b if phase in run.phases]
        if len(ours) == len(a) and len(theirs) == len(b):
            phases += difference.between(phase, ours, theirs, generator)
    corrected = difference.holm([*found, *phases])
    differences, moved = tuple(corrected[: len(found)]), tuple(corrected[len(found) :])
    return Report(answer=answer, differences=differences, phases=moved, causes=tuple(causes(differences, moved)))


def _summarised(run: Run, metric: str) -> bool:
    return bool(run.document.get("metrics", {}).get(metric))


def _foreign(a: Sequence[Run], b: Sequence[Run]) -> bool:
    return any(run.manifest.get("kind") == "imported" for run in (*a, *b))


def causes(differences: Sequence[Difference], phases: Sequence[Difference]) -> list[str]:
    """What may be said of why: a change of TTFT is called prefill's only where the server's own evidence moved with it."""
    moved = [
        d for d in differences if d.significant and d.metric.split(" = ")[0].startswith(("ttft", "time_to_first_token"))
    ]
    if not moved:
        return []
    fell = (moved[0].difference or 0.0) < 0
    word = "fell" if fell else "rose"
    shown = [
        d for d in phases if d.significant and d.statistic in ("mean", "p50") and ((d.difference or 0.0) < 0) == fell
    ]
    named = {d.metric for d in shown}
    if "prefill" in named:
        other = " (queueing moved with it)" if "queue" in named else ""
        return [f"TTFT {word}: {'faster' if fell else 'slower'} prefill, by the server's own evidence{other}"]
    if "queue" in named:
        return [
            f"TTFT {word}: {'less' if fell else 'more'} queueing, by the server's own evidence; prefill didn't move"
        ]
    if phases:
        return [
            f"TTFT {word}, and neither queue nor prefill moved by the server's own evidence: look at network and delivery"
        ]
    return [f"TTFT {word}: without server evidence the cause can't be named: prefill, {CANDIDATES}"]
