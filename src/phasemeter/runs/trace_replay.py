"""A request trace as rows of a plan: every row once, in order, unless a slice or sample was asked for.

Lives here: from a file and the options of `bench` to plan rows. Must not live here: the rules of a trace (workload/traces).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from phasemeter import units
from phasemeter.errors import UserError
from phasemeter.lazy import load
from phasemeter.runs.asked import Asked
from phasemeter.workload.plan import TraceRow, WorkloadSpec
from phasemeter.workload.sessions import Sessions, sessions_of, with_sessions
from phasemeter.workload.traces import Trace, TraceOptions


def options_of(asked: Asked) -> TraceOptions:
    """The trace options among those of `bench`. Raises UserError for a scale that is no number above 0."""
    try:
        scale = float(asked.rate_scale) if asked.rate_scale else 1.0
    except ValueError:
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise UserError(f"--rate-scale {asked.rate_scale}: write a number above 0; 2 plays the trace twice as fast")
    return TraceOptions(
        slice=asked.trace_slice,
        rate_scale=scale,
        sample=asked.trace_sample,
        max_idle_s=units.duration_s(asked.max_idle) if asked.max_idle else None,
        lenient=asked.lenient,
        columns=asked.trace_columns,
        spread_same_second=asked.spread_same_second,
        keep_zero_output=asked.keep_zero_output,
        block_tokens=asked.block_size,
        seed=asked.seed,
    )


@cache
def _loaded(path: str, options: TraceOptions) -> Trace:
    found: Trace = load("phasemeter.runs.trace_files").load_for_replay(path, options)
    return found


def trace_of(asked: Asked) -> Trace | None:
    """The trace, read once; None where none was asked for. Raises FileError with the first faulty line."""
    return _loaded(asked.trace, options_of(asked)) if asked.trace else None


def sessions_in(asked: Asked, spec: WorkloadSpec) -> dict[str, tuple[int, ...]]:
    """The trace's sessions of several rows, where they are to be replayed as conversations."""
    trace = trace_of(asked) if asked.sessions else None
    return {} if trace is None else sessions_of(trace, spec)


def trace_rows(asked: Asked, sessions: Sessions | None = None) -> Iterator[TraceRow]:
    """Plan rows in the trace's order; a row keeps what the file says and leaves the rest to the run."""
    trace = trace_of(asked)
    if trace is None:
        return
    rows = _rows(trace)
    yield from with_sessions(rows, sessions) if sessions else rows


def _rows(trace: Trace) -> Iterator[TraceRow]:
    offsets, inputs, outputs = trace.offsets_ns, trace.input_tokens, trace.output_tokens
    for row in range(len(trace.lines)):
        yield TraceRow(
            offset_ns=offsets[row] if offsets is not None else None,
            input_tokens=inputs[row] if inputs is not None else None,
            output_tokens=outputs[row] if outputs is not None else None,
            hash_ids=trace.ids_of(row),
            block_tokens=trace.block_tokens,
        )
