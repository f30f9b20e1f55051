"""What every importer shares: numbers with unit and definition, and a result made of a tool's own rows.

Lives here: flattening a document into numbers, reading a dialect's statistics out of a flat table. Must not live here: any
tool's field names (one file each) or reading files (cli/).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from phasemeter.metrics.dialects import dialect
from phasemeter.metrics.dialects.model import Dialect, Row
from phasemeter.records.manifest import Manifest
from phasemeter.records.result import Metric, Outcomes, Percentile, Result, Validity, ValidityCheck
from phasemeter.stats.quantiles import quantile

Value = float | int | list[Any] | None
Rules = Sequence[tuple[str, str, str]]  # (pattern of the path, unit, what it is)
UNSTATED = ("1", "the file states no unit: a count, a switch or a setting")
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the file as it stands there, with the unit and the definition that it has there.

    A list: an array of numbers of one unit. None where the file holds NaN or an infinity (JSON has neither).
    """

    value: Value
    unit: str
    definition: str


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """One result of another tool. `numbers`: path in the file: number, for every number that the file holds.

    `values`: metric: one value a request, in the metric's own unit here (seconds for times), where the file has them.
    """

    tool: str
    result: Result
    numbers: dict[str, Number]
    values: dict[str, list[float]] = {}


def walk(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every number, and of every array of numbers (nested ones too) as one value."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from walk(value, f"{path}.{key}" if path else str(key))
    elif isinstance(document, list):
        if document and _numeric(document):
            yield path, document
        else:
            for i, value in enumerate(document):
                yield from walk(value, f"{path}[{i}]")
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield path, document


def _numeric(items: list[Any]) -> bool:
    return all(
        (isinstance(item, list) and _numeric(item)) or (isinstance(item, int | float) and not isinstance(item, bool))
        for item in items
    )


def finite(value: Any) -> Any:
    """The value with None for what JSON can't hold."""
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def numbers_of(document: Any, rules: Rules, tool: str, where: str = "") -> dict[str, Number]:
    """Every number of a document with the unit and meaning of the first rule whose pattern its path holds.

    A path that no rule names gets unit "1" and says that the file states none: nothing is guessed.
    """
    compiled = [(re.compile(pattern), unit, words) for pattern, unit, words in rules]
    known: dict[str, tuple[str, str]] = {}
    found = {}
    for path, value in walk(document):
        general = re.sub(r"\[\d+\]", "[]", path)
        if general not in known:
            match = next(((unit, words) for pattern, unit, words in compiled if pattern.search(general)), UNSTATED)
            known[general] = match
        unit, words = known[general]
        unit = unit or "1"
        definition = f"{tool}:{general}" + (f" ({words})" if words else "")
        found[where + path] = Number(value=finite(value), unit=unit, definition=definition)
    return found


def metric_of(
    dialect: Dialect,
    row: Row,
    statistic: Callable[[str], Any],
    n: int | None = None,
    unit: str | None = None,
) -> Metric | None:
    """The row as a metric: `statistic(label)` is what the file holds under the tool's label ("avg", "p99"), or None.

    Times become seconds. None where the file has no statistic of this row, or nothing but zeros for a time.
    """
    labels = dict(dialect.statistics)
    own_unit = unit or row.unit
    factor = SECONDS.get(own_unit, 1.0)

    def value(label: str | None) -> float | None:
        read = None if label is None else statistic(label)
        if not isinstance(read, int | float) or isinstance(read, bool) or not math.isfinite(read):
            return None
        return read * factor

    percentiles = {f"p{100 * q:g}": value(label) for label, q in dialect.percentiles}
    if percentiles.get("p50") is None and "median" in labels:
        percentiles["p50"] = value(labels["median"])
    there = {name: Percentile(value=v) for name, v in percentiles.items() if v is not None}
    mean = value(labels.get("mean"))
    if mean is None and not there:
        return None
    if own_unit in SECONDS and not any((mean, *(percentile.value for percentile in there.values()))):
        return None  # vLLM and SGLang write 0 for what no request gave: no latency is 0 in all its statistics
    counted = statistic(labels["count"]) if "count" in labels else None
    return Metric(
        definition=f"{dialect.id}:{row.key}",
        unit="s" if own_unit in SECONDS else own_unit,
        n=int(counted) if isinstance(counted, int | float) else (n or 0),
        mean=mean,
        min=value(labels.get("min")),
        max=value(labels.get("max")),
        std=value(labels.get("std")),
        percentiles=there,
    )


def from_printed(dialect: Dialect, table: Mapping[str, Any], n: int | None = None) -> dict[str, Metric]:
    """Every row of a dialect whose printed keys stand in a flat `table` (dotted paths for nested ones)."""
    found = {}
    for row in dialect.rows:
        metric = metric_of(dialect, row, lambda label, row=row: look(table, row.printed.format(stat=label)), n)  # type: ignore[misc]
        if metric is not None:
            found[row.key] = metric
    return found


def look(table: Any, path: str) -> Any:
    """What stands at a dotted path; the whole path as one key first. None where nothing does."""
    if isinstance(table, Mapping) and path in table:
        return table[path]
    for i, letter in enumerate(path):
        if letter == "." and isinstance(table, Mapping) and path[:i] in table:
            inner = look(table[path[:i]], path[i + 1 :])
            if inner is not None:
                return inner
    return None


def counted(metrics: dict[str, Metric], **numbers: int | None) -> dict[str, Metric]:
    """The metrics with how many values stand behind those named here, where that is known to be another number than the requests'."""
    known = {key: n for key, n in numbers.items() if n and key in metrics}
    return metrics | {key: msgspec.structs.replace(metrics[key], n=n) for key, n in known.items()}


def gaps_of(document: Mapping[str, Any]) -> int:
    """How many gaps the detailed arrays of vLLM and SGLang hold, of the requests that succeeded; 0 where there are none."""
    itls, errors = document.get("itls") or [], document.get("errors") or []
    return sum(len(gaps) for i, gaps in enumerate(itls) if not (i < len(errors) and errors[i]))


def throughput_of(dialect: Dialect, table: Any) -> dict[str, Any]:
    """The tool's own rates and duration under its own labels, with the window that it takes."""
    rates = {label: finite(look(table, label)) for _, label in dialect.throughput if look(table, label) is not None}
    named = {what: rates[label] for what, label in dialect.throughput if label in rates}
    return {
        "window": {"kind": dialect.window, "rule": dialect.window_words},
        "requests_per_s": named.get("requests"),
        "output_tokens_per_s": named.get("output"),
        "total_tokens_per_s": named.get("total"),
        "duration_s": named.get("duration"),
        "as_printed": rates,
    }


USAGE = "server usage"
LOCAL = "a local tokenizer"


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """Which token count divides, as far as a file shows it, and whether its model reasoned first (None: not shown)."""

    tokens: str | None = None  # None: as the dialect's default says
    reasoned: bool | None = None


def token_source(dialect: Dialect) -> str:
    """A dialect's default count: the server's usage where that comes first."""
    return USAGE if dialect.tokens.startswith("server usage") else LOCAL


def result_of(
    metrics: dict[str, Metric],
    manifest: Manifest,
    outcomes: Outcomes,
    rates: dict[str, Any],
    counting: Counting | None = None,
) -> Result:
    """A result that says what it is: imported, under the tool's own definitions, its soundness not known."""
    dialect = dialect_named(manifest.definitions)
    check = ValidityCheck(
        id="imported", verdict="unknown", evidence=f"{dialect.title} doesn't record what our checks need",
        remedy="measure with `phasemeter bench` to have its soundness checked",
    )  # fmt: skip
    run = msgspec.to_builtins(manifest)
    counting = counting or Counting()
    run["token_source"] = counting.tokens or token_source(dialect)
    run["reasoned"] = counting.reasoned
    run["dialect"] = {"tokens": dialect.tokens, "first_token": dialect.first_token, "counted": dialect.counted,
                      "goodput": dialect.goodput, "distortions": list(dialect.distortions)}  # fmt: skip
    return Result(
        run=run,
        validity=Validity(verdict="suspect", checks=(check,)),
        outcomes=outcomes,
        definitions=dialect.id,
        metrics=metrics,
        throughput=rates,
    )


# how tools write the interface that they spoke: our name for it
APIS = {
    "chat": "openai.chat", "openai-chat": "openai.chat", "sglang-oai-chat": "openai.chat", "vllm-chat": "openai.chat",
    "/v1/chat/completions": "openai.chat", "v1/chat/completions": "openai.chat", "openai": "openai.completions",
    "completions": "openai.completions", "vllm": "openai.completions", "sglang-oai": "openai.completions",
    "/v1/completions": "openai.completions", "v1/completions": "openai.completions", "responses": "openai.responses",
    "openai-responses": "openai.responses", "/v1/responses": "openai.responses",
}  # fmt: skip


def manifest_of(dialect: Dialect, tool_version: str | None, **fields: Any) -> Manifest:
    """A manifest of what the file records; all else stays unrecorded, what is of another type than the field among it."""
    version = "" if tool_version is None else f" (written by {tool_version})"
    known = {name: finite(value) for name, value in fields.items() if value is not None}
    known = {name: value for name, value in known.items() if _fits(name, value)}
    if "api" in known:
        known["api"] = APIS.get(known["api"], known["api"])
    sources = dict.fromkeys(known, f"{dialect.title} result file")
    return Manifest(
        kind="imported", definitions=dialect.id, sources=sources, notes=(f"{dialect.title}{version}",), **known
    )


_TYPES = {field.name: field.type for field in msgspec.structs.fields(Manifest)}


def _fits(name: str, value: Any) -> bool:
    """Whether a field of the manifest can hold that value."""
    try:
        msgspec.convert(value, _TYPES[name])
    except msgspec.ValidationError:
        return False
    return True


def rate_of(value: Any) -> float | str | None:
    """A request rate as files write it: a number, "inf", or infinity."""
    if value is None or value == -1:
        return None
    if isinstance(value, str):
        return value if value == "inf" else None
    return "inf" if value == math.inf else float(value)


def outcomes_of(ok: int, failed: int, cancelled: int = 0) -> Outcomes:
    """What came of the requests, as far as a file says it: a kind of failure is not known."""
    ok, failed, cancelled = int(ok), int(failed), int(cancelled)
    kinds = {"unspecified": failed} if failed else {}
    return Outcomes(scheduled=ok + failed + cancelled, ok=ok, failed=kinds, cancelled=cancelled, unsent=0)


def dialect_named(name: str) -> Dialect:
    return dialect(name)


def recomputed(dialect: Dialect, key: str, unit: str, values: Sequence[float]) -> Metric:
    """A metric from a file's own values, one a request (or gap): percentiles linear on n − 1, with no intervals."""
    data = np.asarray(values, dtype=np.float64)
    percentiles = {f"p{100 * q:g}": Percentile(value=quantile(data, q)) for _, q in dialect.percentiles}
    return Metric(
        definition=f"{dialect.id}:{key}", unit=unit, n=int(data.size), mean=float(data.mean()), min=float(data.min()),
        max=float(data.max()), std=float(data.std()), percentiles=percentiles,
    )  # fmt: skip
