"""The schedule: which request is due when, how long it is, whom it belongs to.

Lives here: from a workload's description to a stream of planned requests, one by one, so that the first can leave
before the last is made.
Must not live here: prompt text (prompts.py), bodies (bodies.py), or anything learnt from an answer.

Every value of request i is drawn from (seed, name, i): planning a part, in another order, or for more workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count as from_zero
from itertools import repeat

import msgspec

from phasemeter.errors import UserError
from phasemeter.records.request import Phase, PlannedRequest
from phasemeter.workload import arrivals as arrival
from phasemeter.workload.arrivals import Arrivals
from phasemeter.workload.lengths import Lengths, sample
from phasemeter.workload.streams import Stream, stable_hash


class WorkloadClass(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request in a mix: its share is `weight` over the sum of weights."""

    name: str
    weight: float = 1.0
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    model: str | None = None


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says about one request; None where it says nothing."""

    offset_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = 512  # of prompt, that one of them stands for
    conversation: str | None = None
    turn: int = 0  # of a session that has several rows
    first: int | None = None  # the index of its first one
    later: tuple[int, ...] = ()  # and of those after this one


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as asked. `concurrency` is the number of slots of a closed loop, the cap of an open one; None: unlimited.

    `requests` and `duration_s` end the measured phase, whichever comes first; a trace ends it by itself. `models` and
    `classes` are mixes by weight.
    """

    api: str = "openai.chat"
    stream: bool = True
    arrivals: Arrivals
    concurrency: int | None = None
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    requests: int | None = None
    duration_s: float | None = None
    warmup_requests: int = 0
    warmup_s: float | None = None  # open loop: the same arrivals for this long, kept apart
    seed: int = 0
    ignore_eos: bool = False
    n: int = 1
    models: tuple[tuple[str, float], ...] = ()
    classes: tuple[WorkloadClass, ...] = ()
    prefix_groups: int = 0
    prefix_tokens: int = 0  # shared by a group's requests, before `input_tokens` of their own
    prefix_share: float = 1.0  # how many of the requests belong to a group at all
    turns: int = 1


def parse_concurrency(text: str | int | None) -> int | None:
    """Slots: a whole number of 1 or more; None and "unlimited" are no limit.

    Raises UserError for 0 and below: "no limit" has its own spelling (vllm-project/vllm#21095).
    """
    if text is None or (isinstance(text, str) and text.strip().lower() in {"unlimited", "none"}):
        return None
    try:
        value = int(str(text).strip().replace("_", "").encode("ascii"))
    except ValueError:  # UnicodeEncodeError is one
        raise UserError(f'concurrency {text!r}: write a whole number, or "unlimited"') from None
    if value < 1:
        raise UserError(f'concurrency {value}: has to be 1 or more ("unlimited" is the spelling of no limit)')
    return value


def parse_models(text: str | None) -> tuple[tuple[str, float], ...]:
    """A model, or a mix by weight: `a`, `a=3,b=1` (LoRA adapters are models by name).

    Raises UserError for a weight that is no number above 0.
    """
    if not text:
        return ()
    if "=" not in text:
        return ((text, 1.0),)
    mix: list[tuple[str, float]] = []
    for part in text.split(","):
        name, _, weight = part.strip().rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = 0.0
        if not name or not 0 < value < float("inf"):
            raise UserError(f"model mix {text!r}: write name=weight,name=weight with weights above 0")
        mix.append((name, value))
    return tuple(mix)


def parse_prefix(text: str | None) -> tuple[int, int]:
    """`GROUPS:TOKENS` as (groups, tokens); (0, 0) for none.

    Raises UserError.
    """
    if text is None:
        return 0, 0
    groups, _, tokens = text.partition(":")
    if not (text.isascii() and groups.isdigit() and tokens.isdigit() and int(groups) >= 1 and int(tokens) >= 1):
        raise UserError(f"prefix {text!r}: write GROUPS:TOKENS, like 4:512")
    return int(groups), int(tokens)


def check(spec: WorkloadSpec, *, bounded: bool = False) -> None:
    """Refuse what can't be a workload, before anything is sent (`bounded`: rows of a file end it). Raises UserError."""
    if spec.concurrency is not None and spec.concurrency < 1:
        raise UserError(
            f'concurrency {spec.concurrency}: has to be 1 or more ("unlimited" is the spelling of no limit)'
        )
    if spec.arrivals.kind == "closed" and spec.concurrency is None:
        raise UserError("a closed loop needs --concurrency N: how many requests are in flight")
    if spec.requests is not None and spec.requests < 1:
        raise UserError(f"requests {spec.requests}: has to be 1 or more")
    if spec.duration_s is not None and not spec.duration_s > 0:
        raise UserError(f"duration {spec.duration_s:g} s: has to be longer than 0")
    if (
        not bounded
        and spec.requests is None
        and spec.arrivals.kind != "trace"
        and (spec.duration_s is None or spec.arrivals.kind == "inf")
    ):
        raise UserError("how much? give --requests N or --duration, like 60s (rate inf needs --requests)")
    if spec.turns < 1 or spec.n < 1 or spec.warmup_requests < 0:
        raise UserError("turns and n have to be 1 or more, warm-up requests 0 or more")
    if not 0 <= spec.prefix_share <= 1:
        raise UserError(f"prefix share {spec.prefix_share:g}: has to be between 0 and 1")


def plan(spec: WorkloadSpec, rows: Iterable[TraceRow] | None = None) -> Iterator[PlannedRequest]:
    """Warm-up, then the measured phase, lazily.

    Warm-up requests by count have no due instant (each is due when one of the slots is free); warm-up by time is the
    head of the same arrivals.
    Raises UserError as `check` does, when first asked for a request.
    """
    check(spec, bounded=rows is not None)
    yield from plan_warmup(spec)
    yield from plan_measured(spec, rows)


def plan_warmup(spec: WorkloadSpec) -> Iterator[PlannedRequest]:
    """The warm-up requests asked for by count: the same mix, in a closed loop of the run's own concurrency (or one at a time)."""
    slots = spec.concurrency or 1
    for index in range(spec.warmup_requests):
        yield _request(spec, index, "warmup", TraceRow(), None, slot=index % slots)


def plan_measured(spec: WorkloadSpec, rows: Iterable[TraceRow] | None = None) -> Iterator[PlannedRequest]:
    """The measured phase (and a warm-up by time, marked as such). Its draws don't depend on how many warm-up requests there are.

    `rows` under another pattern than `trace` (a file without stamps) give lengths in file order, each row once, and end the phase.

    A closed loop by duration has no end of its own: whoever sends stops asking.
    """
    if spec.arrivals.kind == "trace":
        yield from _replay(spec, rows or ())
    elif spec.turns > 1:
        yield from _conversations(spec)
    elif spec.arrivals.kind == "closed":
        for index, row in zip(from_zero(), rows if rows is not None else repeat(TraceRow()), strict=False):
            if spec.requests is not None and index >= spec.requests:
                return
            yield _request(spec, index, "measured", row, None)
    else:
        yield from _scheduled(spec, rows)


def _due_ns(spec: WorkloadSpec) -> Iterator[int]:
    span = spec.duration_s
    if span is not None and spec.warmup_s:
        span += spec.warmup_s
    if span is None and spec.requests is not None:
        span = arrival.span_of_requests_s(spec.arrivals, spec.requests)
    return arrival.offsets_ns(spec.arrivals, spec.seed, span)


def _scheduled(spec: WorkloadSpec, rows: Iterable[TraceRow] | None) -> Iterator[PlannedRequest]:
    warm_ns = round((spec.warmup_s or 0.0) * 1e9)
    end_ns = None if spec.duration_s is None else warm_ns + round(spec.duration_s * 1e9)
    measured = 0
    given = iter(rows) if rows is not None else repeat(TraceRow())
    for index, (due_ns, row) in enumerate(zip(_due_ns(spec), given, strict=False)):
        if (end_ns is not None and due_ns >= end_ns) or (spec.requests is not None and measured >= spec.requests):
            return
        phase: Phase = "warmup" if due_ns < warm_ns else "measured"
        measured += phase == "measured"
        yield _request(spec, index, phase, row, due_ns)


def _replay(spec: WorkloadSpec, rows: Iterable[TraceRow]) -> Iterator[PlannedRequest]:
    """Every row once, in order. Rows carry offsets that are rebased, squeezed and scaled already (traces.py)."""
    end_ns = None if spec.duration_s is None else round(spec.duration_s * 1e9)
    for index, row in enumerate(rows):
        if row.offset_ns is None:
            raise UserError(
                "this trace has no time stamps: give --rate or --concurrency, its lengths are kept in order"
            )
        if (spec.requests is not None and index >= spec.requests) or (end_ns is not None and row.offset_ns >= end_ns):
            return
        yield request_of_row(spec, index, row)


def request_of_row(spec: WorkloadSpec, index: int, row: TraceRow) -> PlannedRequest:
    """A trace's row as a request, with its place in its session (sessions.py)."""
    if row.conversation is None:
        return _request(spec, index, "measured", row, row.offset_ns)
    place = {"turn": row.turn, "turns": row.turn + 1 + len(row.later)}
    planned = _request(spec, index, "measured", row, row.offset_ns, **place)
    return msgspec.structs.replace(planned, later=row.later)


def _conversations(spec: WorkloadSpec) -> Iterator[PlannedRequest]:
    """Conversation by conversation, its turns in order. Only the first turn has a due instant (open loop); later ones
    follow their answer."""
    total = None if spec.requests is None else -(-spec.requests // spec.turns)
    dues = iter(_due_ns(spec)) if spec.arrivals.open_loop else None
    end_ns = None if spec.duration_s is None else round(spec.duration_s * 1e9)
    for number in range(total) if total is not None else from_zero():
        due_ns = next(dues, None) if dues is not None else None
        if dues is not None and (due_ns is None or (end_ns is not None and due_ns >= end_ns)):
            return
        slot = number % spec.concurrency if spec.concurrency is not None else None
        row = TraceRow(conversation=f"c{number}")
        for turn in range(spec.turns):
            index = number * spec.turns + turn
            if spec.requests is not None and index >= spec.requests:
                return
            due = due_ns if turn == 0 else None
            left = spec.turns if spec.requests is None else spec.requests - number * spec.turns
            place = {"slot": slot, "turn": turn, "turns": min(spec.turns, left)}
            yield _request(spec, index, "measured", row, due, **place)


def following_turn(spec: WorkloadSpec, planned: PlannedRequest) -> PlannedRequest | None:
    """The row after `planned` in its conversation, as `plan_measured` gives it; None after the last turn."""
    if planned.turn + 1 >= planned.turns:
        return None
    place = {"slot": planned.slot, "turn": planned.turn + 1, "turns": planned.turns}
    row = TraceRow(conversation=planned.conversation)
    return _request(spec, planned.index + 1, planned.phase, row, None, **place)


def _request(
    spec: WorkloadSpec, index: int, phase: Phase, row: TraceRow, due_ns: int | None, **place: int | None
) -> PlannedRequest:
    kind = "warmup-" if phase == "warmup" and due_ns is None else ""
    turn = place.get("turn") or 0
    # a conversation keeps its class and its model, and says its shared prefix once
    first = index - turn if row.first is None else row.first
    chosen = _class_of(spec, kind, first)
    inputs = (chosen.input_tokens if chosen else None) or spec.input_tokens
    outputs = (chosen.output_tokens if chosen else None) or spec.output_tokens
    own = _length(row.input_tokens, inputs, Stream(spec.seed, kind + "input", index))
    grouped = (
        spec.prefix_groups > 0 and not turn and Stream(spec.seed, kind + "grouped", index).random() < spec.prefix_share
    )
    prefix = spec.prefix_tokens if grouped and own is not None else 0
    return PlannedRequest(
        request_id=f"w{index}" if kind else f"r{index}",
        index=index,
        api=spec.api,
        stream=spec.stream,
        phase=phase,
        due_offset_ns=due_ns,
        think_ns=arrival.think_ns(spec.arrivals, spec.seed, index) if due_ns is None and not kind else 0,
        slot=place.get("slot"),
        input_tokens=None if own is None else own + prefix,
        output_tokens=_length(row.output_tokens, outputs, Stream(spec.seed, kind + "output", index)),
        ignore_eos=spec.ignore_eos,
        n=spec.n,
        model=(chosen.model if chosen else None) or _model_of(spec, kind, first),
        workload_class=chosen.name if chosen else None,
        conversation=row.conversation,
        turn=turn,
        turns=place.get("turns") or 1,
        prefix_group=f"g{Stream(spec.seed, kind + 'group', index).below(spec.prefix_groups)}" if prefix else None,
        prefix_tokens=prefix,
        hash_ids=row.hash_ids,
    )


def _length(of_row: int | None, lengths: Lengths | None, stream: Stream) -> int | None:
    if of_row is not None:
        return of_row
    return None if lengths is None or lengths.kind == "trace" else sample(lengths, stream)


def _weighted(weights: list[float], stream: Stream) -> int:
    at = stream.random() * sum(weights)
    for number, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return number
    return len(weights) - 1


def _class_of(spec: WorkloadSpec, kind: str, index: int) -> WorkloadClass | None:
    if not spec.classes:
        return None
    return spec.classes[_weighted([c.weight for c in spec.classes], Stream(spec.seed, kind + "class", index))]


def _model_of(spec: WorkloadSpec, kind: str, index: int) -> str | None:
    if not spec.models:
        return None
    if len(spec.models) == 1:
        return spec.models[0][0]
    weights = [weight for _, weight in spec.models]
    return spec.models[_weighted(weights, Stream(spec.seed, kind + "model", index))][0]


def share_of(planned: Iterable[PlannedRequest], worker: int, workers: int) -> Iterator[PlannedRequest]:
    """One worker's part: every `workers`-th request, a conversation whole. The union over all workers is the plan."""
    for request in planned:
        key = request.index if request.conversation is None else stable_hash(request.conversation)
        if key % workers == worker:
            yield request
