"""Sessions of a trace, replayed as conversations.

The rule: a session's first row goes out at its own instant; a later one at its own instant too, or when the answer before it has
come and the think time that was asked for is over, whichever is later. (A trace of arrivals does not tell how much of a gap was
waiting for that answer.) A row's input length counts its whole prompt: what the history does not fill is what the user says
next; a row no longer than its history, or one that says its blocks (hash_ids), is a prompt of its own, without history.

Lives here: which rows belong together, and how long a user's next message is. Must not live here: an answer, a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from phasemeter.records.request import PlannedRequest
from phasemeter.workload.arrivals import think_ns
from phasemeter.workload.plan import TraceRow, WorkloadSpec, request_of_row
from phasemeter.workload.traces import Trace

Sessions = Mapping[str, tuple[int, ...]]  # the rows of each session that has several, in order


class LaterTurn(msgspec.Struct, frozen=True, array_like=True):
    """A session's row after the first, as a worker needs it."""

    index: int
    offset_ns: int
    input_tokens: int | None
    output_tokens: int | None
    hash_ids: tuple[int, ...] = ()


def sessions_of(trace: Trace, spec: WorkloadSpec) -> dict[str, tuple[int, ...]]:
    """Sessions with more than one row among those that the run takes (its requests, its duration)."""
    if trace.sessions is None or trace.offsets_ns is None or spec.arrivals.kind != "trace":
        return {}
    end_ns = None if spec.duration_s is None else round(spec.duration_s * 1e9)
    found: dict[str, list[int]] = {}
    for index, name in enumerate(trace.sessions[: spec.requests]):
        if end_ns is not None and trace.offsets_ns[index] >= end_ns:
            break
        if name:
            found.setdefault(name, []).append(index)
    return {f"session:{name}": tuple(rows) for name, rows in found.items() if len(rows) > 1}


def with_sessions(rows: Iterator[TraceRow], sessions: Sessions) -> Iterator[TraceRow]:
    """Rows that know their place in their conversation."""
    places = {row: (name, turn) for name, own in sessions.items() for turn, row in enumerate(own)}
    for index, row in enumerate(rows):
        place = places.get(index)
        if place is None:
            yield row
            continue
        name, turn = place
        own = sessions[name]
        yield msgspec.structs.replace(row, conversation=name, turn=turn, first=own[0], later=own[turn + 1 :])


def later_turns(trace: Trace, sessions: Sessions) -> dict[str, tuple[LaterTurn, ...]]:
    """What a worker has to know of each session beyond its first row."""
    offsets, inputs, outputs = trace.offsets_ns or (), trace.input_tokens, trace.output_tokens
    return {
        name: tuple(
            LaterTurn(
                row, offsets[row], inputs[row] if inputs is not None else None,
                outputs[row] if outputs is not None else None, trace.ids_of(row),
            )
            for row in rows[1:]
        )
        for name, rows in sessions.items()
    }  # fmt: skip


def next_in_session(spec: WorkloadSpec, planned: PlannedRequest, later: Sequence[LaterTurn]) -> PlannedRequest | None:
    """The plan's row after `planned` in its session; None after the last."""
    if planned.turn >= len(later):
        return None
    turn = later[planned.turn]
    row = TraceRow(
        offset_ns=turn.offset_ns, input_tokens=turn.input_tokens, output_tokens=turn.output_tokens, hash_ids=turn.hash_ids,
        conversation=planned.conversation, turn=planned.turn + 1, later=planned.later[1:],
    )  # fmt: skip
    following = request_of_row(spec, turn.index, row)
    return msgspec.structs.replace(
        following, model=planned.model, think_ns=think_ns(spec.arrivals, spec.seed, turn.index)
    )


def next_message_tokens(planned: PlannedRequest, history_tokens: int) -> int | None:
    """How long the user's next message is; None where the row is a prompt of its own."""
    if planned.hash_ids or planned.input_tokens is None or planned.input_tokens <= history_tokens:
        return None
    return planned.input_tokens - history_tokens
