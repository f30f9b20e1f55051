"""Whether two results can be compared at all, and which of their metrics are the same quantity.

Lives here: manifests field by field, definitions row by row, soundness; what is refused and why. Must not live here: the
difference (difference.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from phasemeter.comparison.difference import ks_p_value
from phasemeter.errors import UserError
from phasemeter.metrics.definitions import DIALECT, HOUSE, Definition
from phasemeter.metrics.dialects import written_by
from phasemeter.stats.quantiles import Floats

# what two runs must share (DESIGN section 8); what `--varying` names is under test
FIELDS = (
    "model", "model_revision", "weights_hash", "engine", "engine_version", "accelerator", "accelerator_count", "topology",
    "dtype", "quantisation", "tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "batching",
    "scheduling", "kv_policy", "prefix_cache", "attention_backend", "speculative_decoding", "api", "input_tokens",
    "output_tokens", "arrivals", "rate_per_s", "concurrency", "prompt_set_hash", "sampling", "streaming", "body",
    "network_path", "protocol", "measurement_point", "warmup",
)  # fmt: skip
SOFT = ("stamps", "version", "proxy", "processes", "tokenizer")  # a difference is worth knowing, no refusal
REALISED_P = 0.001  # realised lengths differ when chance would show such a gap less often than this
# boundaries that are one instant unless a reply holds what only one tool stamps
ALIKE = {"first_token_or_empty": "first_token", "last_token_or_empty": "last_token"}

# rows that our capture can only approach by another: what the tool itself printed is a quantity of its own
OWN_KIND = {"inference-perf:inter_token_latency": "gap per token of its own re-tokenised chunks"}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured or imported run. `document` is its result as JSON; `values`: metric: one value a request, in due order.

    `lengths`: input_tokens, output_tokens of successful requests, where known.
    """

    name: str
    document: Mapping[str, Any]
    values: Mapping[str, Floats] = {}
    lengths: Mapping[str, Floats] = {}
    phases: Mapping[str, Floats] = {}  # server evidence: one value a request

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.document.get("run") or {}


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a result with what it means: `signature` is its row, equal rows are equal quantities."""

    name: str
    word: str
    line: str
    signature: tuple[str | None, ...]
    loose: bool = False  # its row holds a boundary of ALIKE
    tokens: str | None = None  # where the divisor's token count comes from
    inverse: bool = False

    def formula(self, whose: str) -> str:
        return f"{whose} {self.name} = {self.line}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`pairs`: (metric of A, metric of B) that are one quantity. Refusals of the runs as a whole stand in `refusals`."""

    refusals: tuple[str, ...]
    refused_metrics: tuple[str, ...]
    warnings: tuple[str, ...]
    pairs: tuple[tuple[Named, Named], ...]

    @property
    def comparable(self) -> bool:
        return not self.refusals and bool(self.pairs)


def signature(row: Definition, weight: str | None = None) -> tuple[str | None, ...]:
    """What a row computes, without its name, words and source."""
    special = None if row.special == "tpot_per_choice" else row.special  # one choice: the plain quotient
    start, end = (ALIKE.get(side or "", side) for side in (row.start, row.end))
    if special is not None:
        start = end = None
    return row.kind, start, end, row.divisor, special, weight


def named_metrics(run: Run) -> list[Named]:
    """The metrics that a result holds (its own, or re-read from its rows), with their rows; unknown ones are left out."""
    names = [*run.document.get("metrics", {}), *run.values]
    definitions = str(run.document.get("definitions", DIALECT))
    bare, tool = definitions.partition("@")[0], written_by(definitions)
    own = {} if tool is None else {row.key: row for row in tool.rows}
    found = []
    for name in dict.fromkeys(names):
        if name in own:
            row = own[name]
            shape = signature(
                row.definition, f"{row.weight}{'^-1' if row.inverse else ''}" if row.inverse else row.weight
            )
            if f"{bare}:{name}" in OWN_KIND:
                shape = (OWN_KIND[f"{bare}:{name}"], *shape[1:])
            line = row.definition.line() + (f", weighted by {row.weight}" if row.weight else "")
            loose = not ALIKE.keys().isdisjoint((row.definition.start, row.definition.end))
            tokens = _tokens(run) if row.definition.divisor else None
            found.append(
                Named(
                    name=name,
                    word=row.word,
                    line=line,
                    signature=shape,
                    loose=loose,
                    tokens=tokens,
                    inverse=row.inverse,
                )
            )
        elif not own and name in HOUSE:
            tokens = _tokens(run) if HOUSE[name].divisor else None
            found.append(
                Named(name=name, word=name, line=HOUSE[name].line(), signature=signature(HOUSE[name]), tokens=tokens)
            )
    return found


def _tokens(run: Run) -> str:
    """What counted the tokens: as the run shows it; our own runs take the server's usage first."""
    return str(run.manifest.get("token_source") or "server usage")


def compare_fields(a: Run, b: Run, varying: Sequence[str]) -> tuple[list[str], list[str]]:
    """(refusals, warnings) of two manifests. A difference is a refusal naming the field, an unrecorded field a warning."""
    refusals, warnings, unrecorded = [], [], []
    seeds_differ = a.manifest.get("seed") != b.manifest.get("seed")
    for field in FIELDS:
        if field in varying:
            continue
        ours, theirs = a.manifest.get(field), b.manifest.get(field)
        if ours is None and theirs is None:
            unrecorded.append(field)
        elif ours is None or theirs is None:
            lacking, known, value = (a, b, theirs) if ours is None else (b, a, ours)
            warnings.append(f"{field}: unrecorded in {lacking.name}, {value!r} in {known.name}")
        elif ours != theirs:
            text = f"{field} differs: {_short(ours)} in {a.name}, {_short(theirs)} in {b.name}"
            if field == "prompt_set_hash" and seeds_differ:
                warnings.append(f"{text}: other seeds, so other prompts of the same kind")
            elif field == "prompt_set_hash" and "input_tokens" in varying:
                warnings.append(f"{text}: input_tokens is under test, so prompts differ")
            else:
                refusals.append(f"{text} (under test? --varying {field})")
    for field in SOFT:
        ours, theirs = a.manifest.get(field), b.manifest.get(field)
        if field not in varying and ours is not None and theirs is not None and ours != theirs:
            warnings.append(f"{field} differs: {_short(ours)} in {a.name}, {_short(theirs)} in {b.name}")
    if unrecorded:
        warnings.append(f"unrecorded on both sides: {', '.join(unrecorded)}")
    return refusals, warnings


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def field_of(name: str) -> str:
    """The manifest field that `--varying` names: `engine.version` and `engine_version` are one. Raises UserError."""
    field = name.strip().replace(".", "_").replace("-", "_")
    if field not in (*FIELDS, *SOFT, "kind", "definitions"):
        raise UserError(f"--varying {name}: is no field of a manifest: write one of {', '.join(FIELDS)}")
    return field


def realised(a: Run, b: Run, varying: Sequence[str]) -> tuple[list[str], list[str]]:
    """(refusals, warnings) of the lengths that were realised: other inputs are another workload, other outputs a finding."""
    refusals, warnings = [], []
    same_counting = a.document.get("definitions") == b.document.get("definitions")
    for name in ("input_tokens", "output_tokens"):
        ours, theirs = a.lengths.get(name), b.lengths.get(name)
        if name in varying or ours is None or theirs is None or not len(ours) or not len(theirs):
            continue
        if ks_p_value(ours, theirs) >= REALISED_P:
            continue
        text = f"{name} as realised differ: median {float(np.median(ours)):g} in {a.name}, {float(np.median(theirs)):g} in {b.name}"
        if name == "input_tokens" and same_counting:
            refusals.append(f"{text}: another workload (under test? --varying input_tokens)")
        else:
            warnings.append(f"{text}{'' if same_counting else ' (counted by different tools)'}")
    return refusals, warnings


def soundness(run: Run) -> tuple[list[str], list[str]]:
    """(refusals, warnings) of one run's own validity."""
    validity = run.document.get("validity") or {}
    bad = [check["id"] for check in validity.get("checks", ()) if check.get("verdict") == "invalid"]
    if validity.get("verdict") == "invalid":
        return [f"{run.name} is no valid run: {', '.join(bad) or 'see its checks'}"], []
    suspect = [check["id"] for check in validity.get("checks", ()) if check.get("verdict") == "suspect"]
    warnings = [f"{run.name} is suspect: {', '.join(suspect)}"] if suspect else []
    if run.document.get("partial"):
        warnings.append(f"{run.name} is partial: it was interrupted")
    if (run.manifest.get("kind") or "") == "imported":
        warnings.append(f"{run.name} is another tool's file: its soundness can't be checked")
    return [], warnings


def pair(
    a: Run, b: Run, asked: tuple[str, str] | None = None
) -> tuple[list[tuple[Named, Named]], list[str], list[str]]:
    """(pairs that are one quantity, refusals of equal words with unequal rows, warnings).

    `asked`: only these two names. Names are equal only with equal rows and equal token source.
    """
    ours, theirs = named_metrics(a), named_metrics(b)
    if asked is not None:
        ours = [metric for metric in ours if metric.name == asked[0]]
        theirs = [metric for metric in theirs if metric.name == asked[1]]
        for name, found, run in ((asked[0], ours, a), (asked[1], theirs, b)):
            if not found:
                known = ", ".join(metric.name for metric in named_metrics(run))
                raise UserError(f"{run.name} has no metric `{name}`: it has {known}")
    pairs, refusals, warnings = [], [], []
    for mine in ours:
        equal = [other for other in theirs if other.signature == mine.signature]
        equal.sort(key=lambda other: (other.name != mine.name, other.word != mine.word))
        if equal:
            why_not = _treatment(mine, equal[0], a, b)
            if why_not:
                refusals.append(why_not)
            else:
                pairs.append((mine, equal[0]))
                warnings += _looseness(mine, equal[0])
        called = [o for o in theirs if o.signature != mine.signature and _same_name(mine, o, asked)]
        refusals += [
            f"{mine.name} of {a.name} is not {other.name} of {b.name}: {mine.formula('A:')}; {other.formula('B:')}"
            for other in called
        ]
    return pairs, refusals, warnings


def _same_name(mine: Named, other: Named, asked: tuple[str, str] | None) -> bool:
    """Whether people would take the two for one: an equal word, or names that mean inter-token latency to their users."""
    if asked is None and (mine.inverse or other.inverse):
        return False
    if asked is not None or mine.word == other.word or mine.name == other.name:
        return True
    return {_plain(mine.name), _plain(other.name)} == {"itl"}


def _plain(name: str) -> str:
    text = name.lower().removesuffix("_ms").removesuffix(" (ms)")
    return "itl" if text in ("itl", "inter_token_latency") else text


def _treatment(mine: Named, other: Named, a: Run, b: Run) -> str | None:
    """Why equal rows are not one quantity: another token count, or reasoning that only one of them sees."""
    if mine.tokens is not None and mine.tokens != other.tokens:
        return (
            f"{mine.name} of {a.name} and {other.name} of {b.name} have one formula ({mine.line}) and two token counts:"
            f" {mine.tokens}; {other.tokens}"
        )
    reasoned = a.manifest.get("reasoned") or b.manifest.get("reasoned")
    if reasoned and mine.loose != other.loose:
        return (
            f"{mine.name} of {a.name} and {other.name} of {b.name} treat reasoning differently: {mine.formula('A:')};"
            f" {other.formula('B:')}"
        )
    return None


def _looseness(mine: Named, other: Named) -> list[str]:
    if mine.loose == other.loose:
        return []
    return [
        f"{mine.name} and {other.name} are one quantity where replies hold no empty chunks and no reasoning under a field that"
        " only one tool reads"
    ]


def compared(
    a: Sequence[Run], b: Sequence[Run], varying: Sequence[str] = (), asked: tuple[str, str] | None = None
) -> Answer:
    """Whether the runs of side A can be compared with those of side B, and in which metrics."""
    fields = [field_of(name) for name in varying]
    refusals: list[str] = []
    warnings: list[str] = []
    for run in (*a, *b):
        bad, soft = soundness(run)
        refusals += bad
        warnings += soft
    for other, free in (*((run, ()) for run in a[1:]), *((run, fields) for run in b)):
        bad, soft = compare_fields(a[0], other, free)
        more_bad, more_soft = realised(a[0], other, free)
        refusals += bad + more_bad
        warnings += soft + more_soft
    pairs, refused, soft = pair(a[0], b[0], asked)
    warnings += soft
    if len(a) < 3 or len(b) < 3:
        warnings.append("fewer than 3 runs a side: how much runs differ by themselves isn't seen, so nothing is ranked")
    if not pairs and not refusals:
        refusals += refused or ["no metric of the two is the same quantity"]
    if refusals:
        refused = [text for text in refused if text not in refusals]
    return Answer(
        refusals=tuple(dict.fromkeys(refusals)), refused_metrics=tuple(dict.fromkeys(refused)),
        warnings=tuple(dict.fromkeys(warnings)), pairs=tuple(pairs),
    )  # fmt: skip
