"""The derived tables of a run: requests.parquet (a row a request) and events.parquet (a row an output event).

Lives here: their columns, writing them in bounded memory, reading rows back (a simulated run has nothing else). Must not
live here: any metric's formula.
"""

from __future__ import annotations

import errno
import typing
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars
from polars.io.plugins import register_io_source

from phasemeter.errors import FileError
from phasemeter.records.request_row import ChoiceTimes, RequestRow

REQUESTS, EVENTS = "requests.parquet", "events.parquet"
EVENTS_A_PART = 1_000_000  # 24 MB
REQUESTS_A_PART = 5_000  # 25 MB

Ints = npt.NDArray[np.int64]
Told = dict[str, tuple[int, str]] | None  # a server's instants by boundary: (ns, clock domain)
Extra = dict[str, float | None] | None  # further columns

_UNTOLD = -1  # tokens of an event, inside these columns only
_LISTS = ("silent_times_ns", "bare_times_ns")
_NESTED = {"choices", "warnings", *_LISTS}


def _kind(annotation: Any) -> Any:
    """The column type of a RequestRow field: its annotation without None."""
    members = (
        set(typing.get_args(annotation)) - {type(None)} if typing.get_origin(annotation) is UnionType else {annotation}
    )
    for python, column in ((bool, polars.Boolean), (int, polars.Int64), (float, polars.Float64)):
        if members == {python}:
            return column
    return polars.String  # text and Literals of text


_KINDS = {field.name: _kind(field.type) for field in msgspec.structs.fields(RequestRow) if field.name not in _NESTED}
_SCALARS = tuple(_KINDS)

# DESIGN section 6: instants with their clock domain beside them, empty where the evidence gives only a duration
SERVER_INSTANTS = (
    ("request_arrival_ts", "arrival"), ("queue_enter_ts", "queue_enter"), ("prefill_start_ts", "prefill_start"),
    ("prefill_end_ts", "prefill_end"), ("decode_end_ts", "decode_end"),
)  # fmt: skip


def _schema(extra: dict[str, Any]) -> dict[str, Any]:
    kinds: dict[str, Any] = dict(_KINDS)
    kinds |= {"warnings": polars.List(polars.String), "choices": polars.String}
    kinds |= dict.fromkeys(_LISTS, polars.List(polars.Int64))
    for column, _ in SERVER_INSTANTS:
        kinds |= {column: polars.Int64, column + "_clock": polars.String}
    kinds |= {
        "first_output_received_ts": polars.Int64, "first_output_received_ts_clock": polars.String,
        "first_output_received_class": polars.String,
        "request_complete_ts": polars.Int64, "request_complete_ts_clock": polars.String,
    }  # fmt: skip
    return kinds | extra


class _ChoiceHead(msgspec.Struct, frozen=True, array_like=True):
    """A choice without its events: those are rows of events.parquet."""

    index: int
    events: int
    tokens_known: bool
    reasoning_events: int
    finish_reason: str | None
    output_tokens: int | None


class TableWriter:
    """Collects rows and writes both tables, a part at a time, so that a run larger than memory fits.

    `add` takes the row, the server's instants by boundary name as (ns, clock domain), and further columns by name.
    """

    def __init__(self, directory: Path, extra_columns: tuple[str, ...] = ()) -> None:
        self._directory = directory
        self._extra = dict.fromkeys(extra_columns, polars.Float64)
        self._rows: list[dict[str, Any]] = []
        self._requests = 0
        self._events = {name: array("q") for name in ("t_ns", "read", "tokens")}
        # per choice: what its events have in common is written out a part at a time, at once
        self._choices = {name: array("q") for name in ("request", "choice", "events", "reasoning_events")}
        self._parts: dict[str, list[Path]] = {REQUESTS: [], EVENTS: []}

    def add(self, row: RequestRow, instants: Told = None, extra: Extra = None) -> None:
        self._rows.append(_record(row, self._take_events(row, self._requests), instants or {}) | (extra or {}))
        self._requests += 1
        if len(self._events["t_ns"]) >= EVENTS_A_PART:
            self._flush_events()
        if len(self._rows) >= REQUESTS_A_PART:
            self._flush_requests()

    def _take_events(self, row: RequestRow, number: int) -> list[_ChoiceHead]:
        """Of the `number`-th request."""
        heads = []
        for choice in row.choices:
            count = len(choice.times_ns)
            told = np.full(count, _UNTOLD) if choice.tokens is None else choice.tokens
            for column, values in zip(self._events.values(), (choice.times_ns, choice.reads, told), strict=True):
                column.frombytes(np.array(values, dtype=np.int64).tobytes())  # twice as quick as `extend`
            common = (number, choice.index, count, choice.reasoning_events)
            for column, value in zip(self._choices.values(), common, strict=True):
                column.append(value)
            known = choice.tokens is not None
            heads.append(
                _ChoiceHead(
                    choice.index, count, known, choice.reasoning_events, choice.finish_reason, choice.output_tokens
                )
            )
        return heads

    def add_frames(self, frames: Iterator[polars.DataFrame]) -> None:
        """Requests in the table's own columns (`frame`), written as they come: one frame at a time is held."""
        self._flush_requests()

        def source(*_asked: object) -> Iterator[polars.DataFrame]:
            return frames

        _write(register_io_source(source, schema=_schema(self._extra)), self._part(REQUESTS))

    def frame(
        self,
        example: RequestRow | None,
        columns: Mapping[str, Any],
        *,
        instants: Told = None,
        extra: Extra = None,
        others: Mapping[int, RequestRow],
    ) -> polars.DataFrame:
        """The next requests: many as `example` but for `columns` (equally long, by the table's names), and `others`.

        `others`: rows of another kind without events, by their place in the frame; the columns leave them out. `example` None:
        there are only others.
        """
        kinds = _schema(self._extra)
        frame = polars.DataFrame(schema=kinds)
        if example is not None:
            record = _record(example, [], instants or {}) | (extra or {})
            own = {name: polars.Series(name, values, kinds[name]) for name, values in columns.items()}
            same = [polars.lit(value, kinds[name]).alias(name) for name, value in record.items() if name not in columns]
            frame = polars.DataFrame(own).with_columns(same).select(list(kinds))
        if others:
            whole = len(frame) + len(others)
            places = [place for place in range(whole) if place not in others] + list(others)
            odd = polars.DataFrame([_record(row, [], {}) for row in others.values()], schema=kinds)
            frame = polars.concat([frame, odd]).with_columns(_place=polars.Series(places)).sort("_place").drop("_place")
        self._requests += len(frame)
        return frame

    def one_token_events(self, places: Ints, counts: Ints, times_ns: Ints, finish_reason: str | None) -> list[str]:
        """The column `choices` of requests of the next frame, at `places` in it: one choice each, of `counts` events (0: none told).

        Each event holds one token and came in a read of its own; `times_ns` has the instants of all, one request's after another's.
        """
        event = np.arange(len(times_ns)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._events["t_ns"].frombytes(times_ns.tobytes())
        self._events["read"].frombytes(event.tobytes())
        self._events["tokens"].frombytes(np.ones_like(event).tobytes())
        told = np.flatnonzero(counts)
        self._choices["request"].frombytes((self._requests + places[told]).tobytes())
        self._choices["events"].frombytes(counts[told].tobytes())
        for column in ("choice", "reasoning_events"):
            self._choices[column].frombytes(np.zeros_like(told).tobytes())
        if len(self._events["t_ns"]) >= EVENTS_A_PART:
            self._flush_events()
        heads = ([_ChoiceHead(0, many, True, 0, finish_reason, many)] if many else [] for many in counts.tolist())
        return [msgspec.json.encode(head).decode() for head in heads]

    def _part(self, table: str) -> Path:
        path = self._directory / f".{table}.{len(self._parts[table])}.part"
        self._parts[table].append(path)
        return path

    def _flush_events(self) -> None:
        request, choice, counts, leading = (np.array(column) for column in self._choices.values())
        first = np.cumsum(counts) - counts
        event = np.arange(counts.sum()) - np.repeat(first, counts)
        t_ns, read, tokens = (np.array(column) for column in self._events.values())
        frame = polars.DataFrame(
            {
                "request": np.repeat(request.astype(np.uint32), counts),
                "choice": np.repeat(choice.astype(np.int32), counts),
                "event": event.astype(np.int32),
                "t_ns": t_ns,
                "read": read.astype(np.int32),
                "tokens": polars.Series(tokens.astype(np.int32)).set(polars.Series(tokens < 0), None),
                "reasoning": event < np.repeat(leading, counts),
            }
        )
        _write(frame.lazy(), self._part(EVENTS))
        for column in (*self._events.values(), *self._choices.values()):
            del column[:]

    def _flush_requests(self, *, last: bool = False) -> None:
        if not self._rows and not last:
            return
        _write(polars.DataFrame(self._rows, schema=_schema(self._extra)).lazy(), self._part(REQUESTS))
        self._rows.clear()

    def close(self) -> None:
        """Write what is left and put the parts together; the tables appear whole or not at all."""
        self._flush_events()
        self._flush_requests(last=not self._parts[REQUESTS])
        for table, parts in self._parts.items():
            whole = self._directory / f".{table}.whole"
            if len(parts) == 1:
                parts[0].rename(whole)
            else:
                _write(polars.scan_parquet(parts, glob=False), whole)
            whole.rename(self._directory / table)
            for part in parts:
                part.unlink(missing_ok=True)


def _write(frame: polars.LazyFrame, path: Path) -> None:
    """Raises OSError where the disk takes no more: polars tells some of its refusals as errors of its own."""
    try:
        frame.sink_parquet(path)
    except polars.exceptions.PolarsError as failed:
        words = str(failed).partition("\n")[0]
        if "(os error " not in words:
            raise
        raise OSError(errno.EIO, words.rpartition(": ")[2], str(path)) from failed


def _record(row: RequestRow, heads: list[_ChoiceHead], instants: dict[str, tuple[int, str]]) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(row, name) for name in _SCALARS}
    record["warnings"] = list(row.warnings)
    record |= {name: list(getattr(row, name)) for name in _LISTS}
    record["choices"] = msgspec.json.encode(heads).decode()
    return record | _design_columns(row, instants)


def _design_columns(row: RequestRow, instants: dict[str, tuple[int, str]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for column, boundary in SERVER_INSTANTS:
        at_ns, clock = instants.get(boundary, (None, None))
        record |= {column: at_ns, column + "_clock": clock}
    first = row.first_token_ns
    kind = None
    if first is not None:
        kind = "output" if row.first_output_ns == first else "reasoning"
    record |= {
        "first_output_received_ts": first,
        "first_output_received_ts_clock": None if first is None else "client_monotonic",
        "first_output_received_class": kind,
        "request_complete_ts": row.stream_end_ns,
        "request_complete_ts_clock": None if row.stream_end_ns is None else "client_monotonic",
    }
    return record


def write_tables(directory: Path, rows: Iterable[RequestRow]) -> None:
    """Both tables from rows alone (a simulated or imported run)."""
    writer = TableWriter(directory)
    for row in rows:
        writer.add(row)
    writer.close()


def read_rows(directory: Path) -> Iterator[RequestRow]:
    """Rows back from the two tables, in their order.

    Raises FileError when a table is missing or has other columns.
    """
    try:
        requests = polars.read_parquet(directory / REQUESTS, glob=False)
        events = polars.scan_parquet(directory / EVENTS, glob=False).collect()
        columns = [events[name].to_list() for name in ("t_ns", "read", "tokens")]
        at = 0
        for record in requests.select([*_SCALARS, "warnings", "choices", *_LISTS]).iter_rows(named=True):
            choices = []
            for head in msgspec.json.decode(record.pop("choices"), type=list[_ChoiceHead]):
                times, reads, tokens = (tuple(column[at : at + head.events]) for column in columns)
                at += head.events
                choices.append(
                    ChoiceTimes(
                        head.index, times, reads, tokens if head.tokens_known else None,
                        head.reasoning_events, head.finish_reason, head.output_tokens,
                    )
                )  # fmt: skip
            nested = {name: tuple(record[name]) for name in ("warnings", *_LISTS)}
            yield RequestRow(**{**record, **nested, "choices": tuple(choices)})
    except (FileNotFoundError, polars.exceptions.PolarsError) as wrong:
        first_line = str(wrong).splitlines()[0] if str(wrong) else type(wrong).__name__
        raise FileError(
            f"{directory}: its tables can't be read ({first_line}): rebuild them from the capture"
        ) from wrong
