"""One exchange looked into: from a file, or a request of a run, to a row, its text and a document of milliseconds.

Lives here: finding and reading it, and the document that `inspect --json` prints. Must not live here: formulas (metrics/),
layout for people (cli/).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import FileError, Undefined, UserError
from phasemeter.io.run_directory import WARMUP, RunDirectory
from phasemeter.metrics.boundaries import row_and_exchange, row_of_exchange
from phasemeter.metrics.definitions import GAPS, PER_REQUEST
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.metrics.tokens import TokenCounts, Tokenizer, count_tokens
from phasemeter.records.capture import Capture
from phasemeter.records.manifest import Manifest
from phasemeter.records.request import PlannedRequest
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.runs.echoes import Echoes
from phasemeter.runs.exchange_file import read_file
from phasemeter.wire.events import CONTENT, REASONING, REFUSAL, TOOL
from phasemeter.wire.exchange import Exchange, read_exchange


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange in all its forms. `origin_ns`: the send, from which people count."""

    row: RequestRow
    exchange: Exchange
    counts: TokenCounts
    origin_ns: int


def inspect(target: str, tokenizer: Tokenizer | None = None) -> Inspected:
    """What `target` holds: a file (recorded exchange, `NAME.recv.jsonl`), or `RUN#REQUEST` by id or number.

    Raises FileError for a file or run that holds no such thing.
    """
    path = Path(target)
    if "#" in target and not path.is_file():
        found = request_of_run(target)
        planned, capture = found.planned, found.capture
        row, exchange = row_and_exchange(planned, capture, found.clock, tokenizer, found.echo_prompt)
        origin = capture.send_start_ns if capture.send_start_ns is not None else capture.due_ns
        return Inspected(row=row, exchange=exchange, counts=count_tokens(exchange, tokenizer), origin_ns=origin)
    if path.is_dir():
        raise FileError(f"{target}: a folder: to look into one request of a run write {target}#REQUEST")
    asked, received = read_file(path)
    try:
        exchange = read_exchange(asked, received)
    except UserError as error:
        raise FileError(f"{path}: request.api: {error}") from error
    counts = count_tokens(exchange, tokenizer)
    return Inspected(row=row_of_exchange(exchange, counts, path.stem, 0), exchange=exchange, counts=counts, origin_ns=0)


class OfRun(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a run. `echo_prompt`: what its answer begins with, where that was asked for."""

    planned: PlannedRequest
    capture: Capture
    clock: ReceiveClock
    echo_prompt: str | None


def request_of_run(target: str) -> OfRun:
    """The request that `RUN#REQUEST` names, by its id or its number in the plan. Raises FileError."""
    folder, _, name = target.rpartition("#")
    run = RunDirectory.open(folder)
    for part in (run, RunDirectory(run.path / WARMUP)):
        for planned, capture in part.exchanges() if part.capture.is_dir() else ():
            if name in (planned.request_id, str(planned.index)):
                manifest = run.read_manifest() if (run.path / "manifest.json").exists() else Manifest()
                return OfRun(
                    planned=planned,
                    capture=capture,
                    clock=ReceiveClock(list(part.clock_pairs())),
                    echo_prompt=Echoes(part, manifest).of(planned),
                )
    raise FileError(f"{folder}: no request `{name}`: give a request's id or its number in the plan")


def milliseconds(t_ns: int | None, origin_ns: int = 0) -> float | None:
    """ns since the origin as ms, whole ones as whole numbers."""
    return None if t_ns is None else plain((t_ns - origin_ns) / 1e6)


def plain(value: float) -> float:
    """Whole numbers without their `.0`: 370 rather than 370.0."""
    return int(value) if value == int(value) else value


def _in_milliseconds(row: RequestRow) -> RequestRow:
    """The row with every instant a thousandfold: its "seconds" are milliseconds, each rounded once."""
    fields = [name for name in RequestRow.__struct_fields__ if name.endswith("_ns")]
    changed: dict[str, Any] = {name: getattr(row, name) * 1000 for name in fields if getattr(row, name) is not None}
    choices = tuple(
        msgspec.structs.replace(choice, times_ns=tuple(time * 1000 for time in choice.times_ns))
        for choice in row.choices
    )
    return msgspec.structs.replace(row, choices=choices, **changed)


def _value(compute: Callable[[], float]) -> tuple[float | None, str | None]:
    try:
        return plain(compute()), None
    except Undefined as absent:
        return None, absent.reason


def _gaps(name: str, row: RequestRow) -> list[float] | None:
    try:
        return [plain(float(gap)) for gap in GAPS[name](row)]
    except Undefined:
        return None


def json_document(found: Inspected) -> dict[str, Any]:
    """What `inspect --json` prints: the key names of the recorded-exchange format, times in ms since the send."""
    row, exchange, origin = found.row, found.exchange, found.origin_ns
    scaled = _in_milliseconds(row)
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for key, name in (("ttft_ms", "ttft"), ("ttfo_ms", "ttfo"), ("tpot_ms", "tpot"), ("visible_tpot_ms", "visible_tpot"),
                      ("decode_ms_per_token", "decode_per_token")):  # fmt: skip
        values[key], reason = _value(lambda name=name: PER_REQUEST[name](scaled))  # type: ignore[misc]
        if reason is not None:
            reasons[key] = reason
    times = sorted(time for choice in row.choices for time in choice.times_ns)
    return {
        "api": row.api,
        "stream": row.stream,
        "outcome": row.outcome,
        "failure": row.failure,
        "failure_text": row.failure_text,
        "http_status": row.http_status,
        **{key: values[key] for key in ("ttft_ms", "ttfo_ms")},
        "headers_ms": milliseconds(row.headers_ns, origin),
        "first_chunk_ms": milliseconds(row.first_chunk_ns, origin),
        "last_output_ms": milliseconds(row.last_token_ns, origin),
        "stream_end_ms": milliseconds(row.stream_end_ns, origin),
        "output_chunk_times_ms": [milliseconds(time, origin) for time in times],
        "inter_chunk_ms": _gaps("inter_chunk", scaled) or [],
        "token_itl_ms": _gaps("itl_spread", scaled),
        "coalesced_gaps": sum(_coalesced(choice) for choice in row.choices),
        "tpot_ms": values["tpot_ms"],
        "tpot_null_reason": reasons.get("tpot_ms"),
        "visible_tpot_ms": values["visible_tpot_ms"],
        "all_token_tpot_ms": _over_all_tokens(scaled),
        "per_choice_tpot_ms": _one_tpot(scaled),
        "decode_ms_per_token": values["decode_ms_per_token"],
        **_tokens(found),
        "choices": {
            str(choice.index): _choice(found, scaled, number) for number, choice in enumerate(exchange.choices)
        },
        "finish_reason": row.finish_reason,
        "response_id": row.response_id,
        "model": exchange.model,
        "timings": exchange.timings or None,
        "warnings": list(row.warnings),
        "reasons": reasons,
    }


def _tokens(found: Inspected) -> dict[str, Any]:
    """Counts with who says so, and the text they are of."""
    row, exchange, counts = found.row, found.exchange, found.counts
    held = counts.per_event[0] if len(counts.per_event) == 1 else None
    return {
        "first_chunk_tokens": held[0] if held else None,
        "tokens_per_chunk": list(held) if held else None,
        "first_token_by_usage_ms": milliseconds(row.first_token_by_usage_ns, found.origin_ns),
        "output_tokens": counts.server if counts.server is not None else counts.output_tokens,
        "output_tokens_source": "usage" if counts.server is not None else counts.source,
        "trusted_output_tokens": counts.output_tokens,
        "server_output_tokens": counts.server,
        "local_output_tokens": counts.local,
        "reasoning_tokens": counts.reasoning,
        "visible_tokens": counts.visible,
        "prompt_tokens": row.input_tokens,
        "cached_tokens": row.cached_tokens,
        "content": exchange.content,
        "reasoning": exchange.reasoning,
        "refusal": exchange.refusal,
        "tool": exchange.tool,
    }


def _coalesced(choice: ChoiceTimes) -> int:
    """Gaps of 0 that are no gap: two events that one read brought."""
    return sum(1 for now, then in zip(choice.reads[1:], choice.reads, strict=False) if now == then)


def _over_all_tokens(scaled: RequestRow) -> float | None:
    """TPOT with hidden reasoning tokens in its divisor: no speed of decoding, but what other tools print."""
    if not scaled.hidden_reasoning:
        return None
    visible = msgspec.structs.replace(scaled, hidden_reasoning=False)
    return _value(lambda: PER_REQUEST["tpot"](visible))[0]


def _one_tpot(scaled: RequestRow) -> float | None:
    """The TPOT per choice, where there are several."""
    return _value(lambda: PER_REQUEST["tpot"](scaled))[0] if len(scaled.choices) > 1 else None


def _choice(found: Inspected, scaled: RequestRow, number: int) -> dict[str, Any]:
    choice = found.exchange.choices[number]
    times = found.exchange.times_of(choice)
    own = next((times_of for times_of in scaled.choices if times_of.index == choice.index), None)
    tokens = found.counts.per_choice[number]
    alone = None
    if own is not None:
        alone = msgspec.structs.replace(
            scaled,
            n=1,
            choices=(own,),
            first_token_ns=own.times_ns[0],
            last_token_ns=own.times_ns[-1],
            output_tokens=tokens,
            single_arrival=own.reads[0] == own.reads[-1],
        )
    return {
        "ttft_ms": milliseconds(times[0], found.origin_ns) if times else None,
        "last_output_ms": milliseconds(times[-1], found.origin_ns) if times else None,
        "output_chunk_times_ms": [milliseconds(time, found.origin_ns) for time in times],
        "inter_chunk_ms": [milliseconds(now, then) for now, then in zip(times[1:], times, strict=False)],
        "tpot_ms": _value(lambda: PER_REQUEST["tpot"](alone))[0] if alone is not None else None,
        "output_tokens": tokens,
        "content": choice.text_of(CONTENT),
        "reasoning": choice.text_of(REASONING),
        "refusal": choice.text_of(REFUSAL),
        "tool": choice.text_of(TOOL),
        "finish_reason": choice.finish_reason,
    }
