"""The `workload` of a plan: distributions as in a contract, classes, conversations, a trace's rows.

Lives here: its keys and one clear line for each mistake. Must not live here: files (the caller hands over a trace's lines), the
drawing of requests (demand.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.demand import Demand, SharedPrefix
from phasemeter.units import count, duration_s
from phasemeter.workload.arrivals import Arrivals, arrivals_of_contract
from phasemeter.workload.lengths import Lengths, lengths_of_contract
from phasemeter.workload.plan import TraceRow, WorkloadClass
from phasemeter.workload.think_time import parse_think_time
from phasemeter.workload.traces import Trace, TraceOptions, load_trace

Read = Callable[[str], Iterable[str]]  # a file's lines by its name in the plan


class ClassSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of request in a mix. Lengths left out are the workload's own."""

    name: str
    weight: float = 1.0
    input_tokens: Any = None
    output_tokens: Any = None


class TraceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace and what to do with it, as `phasemeter trace` takes it."""

    file: str
    rate_scale: float = 1.0
    slice: str | None = None
    sample: str | None = None
    max_idle: str | None = None
    spread_same_second: bool = False
    keep_zero_output: bool = False
    lenient: bool = False
    columns: str | None = None
    block_size: int | None = None  # tokens in a block of hash_ids


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As a contract's `workload`, plus how many requests to simulate. With a `trace`, what is left out comes from its rows."""

    input_tokens: Any = None
    output_tokens: Any = None
    arrivals: Any = None
    trace: str | TraceSpec | None = None
    classes: list[ClassSpec] = []
    turns: int = 1  # requests of a conversation, each with what was said before in its prompt
    think_time: str | None = None  # before each further turn
    requests: int | None = None
    duration: str | None = None
    warmup: int | None = None  # requests; None: cut by MSER-5
    shared_prefix: SharedPrefix | None = None
    api: str = "openai.chat"
    kind: str | None = None
    objective: str | None = None


def at(path: str, read: Any, value: Any) -> Any:
    """`read(value)`, its error led by the path."""
    try:
        return read(value)
    except UserError as error:
        raise UserError(f"`{path}`: {error}") from error


def trace_of(spec: WorkloadSpec) -> TraceSpec | None:
    """The trace that the workload names, in its own key or in the contract's form `{trace: FILE}`.

    Raises UserError for two different ones.
    """
    named = (
        [] if spec.trace is None else [spec.trace if isinstance(spec.trace, TraceSpec) else TraceSpec(file=spec.trace)]
    )
    for name in ("arrivals", "input_tokens", "output_tokens"):
        given = getattr(spec, name)
        if isinstance(given, Mapping) and isinstance(given.get("trace"), str):
            named.append(TraceSpec(file=given["trace"]))
    if len({one.file for one in named}) > 1:
        raise UserError(f"`workload`: two traces are named, {named[0].file} and {named[1].file}: a run replays one")
    return named[0] if named else None


def read_trace(spec: WorkloadSpec, read: Read | None) -> Trace | None:
    """The named trace; None where there is none.

    Raises UserError or FileError for one that can't be read, or whose rows are in doubt.
    """
    trace = trace_of(spec)
    if trace is None:
        return None
    if read is None:
        raise UserError(f"`workload.trace`: {trace.file}: this plan came without a folder to read files from")
    options = TraceOptions(
        slice=trace.slice,
        rate_scale=trace.rate_scale,
        sample=trace.sample,
        max_idle_s=None if trace.max_idle is None else at("workload.trace.max_idle", duration_s, trace.max_idle),
        spread_same_second=trace.spread_same_second,
        keep_zero_output=trace.keep_zero_output,
        lenient=trace.lenient,
        columns=trace.columns,
        block_tokens=trace.block_size,
    )
    found = load_trace(read(trace.file), trace.file, options)
    if not found.accepted:
        where = f":{found.errors[0].line}: {found.errors[0].message}" if found.errors else ": no row is left"
        raise UserError(f"`workload.trace`: {trace.file}{where}: see `phasemeter trace`, or write lenient: true")
    return found


def demand(spec: WorkloadSpec, rows: tuple[TraceRow, ...] | None, *, block_size: int, named: bool) -> Demand:
    """The workload, checked. `named`: something downstream asks for the names of blocks.

    Raises UserError with the path.
    """
    arrivals = _arrivals(spec, rows)
    concurrency = None
    if not arrivals.open_loop:
        given = spec.arrivals.get("concurrency", spec.arrivals.get("closed"))
        if isinstance(given, dict):
            given = given.get("clients", given.get("concurrency"))
        concurrency = at("workload.arrivals.concurrency", count, given)
    classes = tuple(_class(one, number) for number, one in enumerate(spec.classes))
    inputs = _lengths(spec, "input_tokens", rows, classes)
    outputs = _lengths(spec, "output_tokens", rows, classes)
    for name, least in (("requests", 1), ("warmup", 0), ("turns", 1)):
        value = getattr(spec, name)
        if value is not None and value < least:
            raise UserError(f"`workload.{name}`: {value} is too few: write {least} or more")
    if spec.warmup is not None and spec.requests is not None and spec.warmup >= spec.requests:
        raise UserError(f"`workload.warmup`: {spec.warmup} of {spec.requests} requests leave none to measure")
    if spec.turns > 1 and rows is not None:
        raise UserError("`workload.turns`: a trace's rows are requests of their own: leave one of the two out")
    prefix = spec.shared_prefix
    if prefix is not None and (prefix.tokens < 1 or prefix.groups < 1):
        raise UserError("`workload.shared_prefix`: tokens and groups have to be 1 or more")
    if spec.think_time is not None:
        arrivals = msgspec.structs.replace(arrivals, think=at("workload.think_time", parse_think_time, spec.think_time))
    duration = at("workload.duration", duration_s, spec.duration) if spec.duration is not None else None
    if duration is not None and duration <= 0:
        raise UserError(f"`workload.duration`: {spec.duration} has to be longer than 0")
    return Demand(
        arrivals=arrivals,
        input_tokens=inputs,
        output_tokens=outputs,
        requests=spec.requests,
        duration_s=duration,
        concurrency=concurrency,
        prefix=prefix,
        block_size=block_size,
        classes=classes,
        turns=spec.turns,
        rows=rows,
        named=named or prefix is not None,
    )


def _arrivals(spec: WorkloadSpec, rows: tuple[TraceRow, ...] | None) -> Arrivals:
    if spec.arrivals is None and rows is None:
        raise UserError("`workload.arrivals`: missing: write {poisson: 4 req/s} or {concurrency: 8}")
    if spec.arrivals is not None and not isinstance(spec.arrivals, str | Mapping):
        raise UserError(f"`workload.arrivals`: {spec.arrivals!r}: write {{poisson: 4 req/s}} or {{concurrency: 8}}")
    arrivals = Arrivals(kind="trace") if spec.arrivals is None else arrivals_of_contract(spec.arrivals)
    if arrivals.kind == "trace":
        if rows is None:
            raise UserError("`workload.arrivals`: which trace? write {trace: FILE}")
        if any(row.offset_ns is None for row in rows):
            raise UserError(
                "`workload.arrivals`: this trace has no time stamps: give arrivals of their own, its lengths are kept"
            )
    return arrivals


def _class(spec: ClassSpec, number: int) -> WorkloadClass:
    path = f"workload.classes[{number}]"
    if not 0 < spec.weight < float("inf"):
        raise UserError(f"`{path}.weight`: {spec.weight:g} has to be above 0")
    lengths: dict[str, Lengths | None] = {}
    for name in ("input_tokens", "output_tokens"):
        given = getattr(spec, name)
        lengths[name] = None if given is None else lengths_of_contract(given, f"{path}.{name}")
        if (found := lengths[name]) is not None and found.kind == "trace":
            raise UserError(f"`{path}.{name}`: a trace's lengths belong to its rows, not to a class")
    return WorkloadClass(
        name=spec.name, weight=spec.weight, input_tokens=lengths["input_tokens"], output_tokens=lengths["output_tokens"]
    )


def _lengths(
    spec: WorkloadSpec, name: str, rows: tuple[TraceRow, ...] | None, classes: tuple[WorkloadClass, ...]
) -> Lengths | None:
    """The distribution, where rows or classes don't tell every request's length."""
    path, given = f"workload.{name}", getattr(spec, name)
    found = None if given is None else lengths_of_contract(given, path)
    if found is not None and found.kind == "trace":
        if rows is None:
            raise UserError(f"`{path}`: which trace? write {{trace: FILE}}")
        found = None
    told = bool(rows) and all(getattr(row, name) is not None for row in rows or ())
    told = told or (bool(classes) and all(getattr(one, name) is not None for one in classes))
    if found is None and not told:
        what = "its trace doesn't tell it for every row" if rows else "missing"
        raise UserError(
            f"`{path}`: {what}: write a length, like {{fixed: 128}} or {{lognormal: {{median: 512, p95: 2048}}}}"
        )
    return found
