"""A run's tables by column, and rows of chosen requests: what a page of 100,000 requests can afford to read.

Lives here: reading. Must not live here: any formula (metrics/), any choice of what is drawn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import polars

from phasemeter.errors import FileError
from phasemeter.metrics.document import document
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.runs import analysis
from phasemeter.runs.tables import EVENTS, REQUESTS, SERVER_INSTANTS, write_tables

FIELDS = tuple(field.name for field in msgspec.structs.fields(RequestRow) if field.name != "choices")
# what a simulated run's tables hold of its server: the column, and the boundaries the duration spans
SIMULATED = {
    "queue_s": ("queue", "queue_enter", "prefill_start"),
    "prefill_s": ("prefill", "prefill_start", "first_token"),
    "decode_s": ("decode", "first_token", "decode_end"),
}
# the same of a measured run's tables, whatever its server told them by
MEASURED = {
    "server_ingress_s": ("ingress", "arrival", "queue_enter"),
    "server_queue_s": ("queue", "queue_enter", "prefill_start"),
    "server_prefill_s": ("prefill", "prefill_start", "prefill_end"),
    "server_first_token_s": ("first_token", "prefill_end", "first_token"),
    "server_decode_s": ("decode", "first_token", "decode_end"),
}


class RunTables:
    """`requests`: a row a request, `number` its place; `events`: a row an output event, `request` that number."""

    def __init__(self, requests: polars.DataFrame, events: polars.DataFrame) -> None:
        self.requests = requests.with_row_index("number")
        self.events = events
        known = (
            *SIMULATED,
            *MEASURED,
            *(name for column, _ in SERVER_INSTANTS for name in (column, f"{column}_clock")),
        )
        self._server = requests.select("request_id", *(name for name in known if name in requests.columns))

    def rows(self, frame: polars.DataFrame | None = None) -> Iterator[RequestRow]:
        """Requests without their events: enough for every metric of a reply with one choice."""
        chosen = self.requests if frame is None else frame
        there = [name for name in FIELDS if name in chosen.columns]  # an older run lacks what was added since
        lists = [name for name in there if isinstance(chosen.schema[name], polars.List)]
        for record in chosen.select(there).iter_rows(named=True):
            yield RequestRow(**{**record, **{name: tuple(record[name] or ()) for name in lists}})

    def rows_at(self, numbers: Sequence[int]) -> dict[int, RequestRow]:
        """The requests of these numbers with their events, by number."""
        wanted = sorted(set(numbers))
        frame = self.requests.filter(polars.col("number").is_in(wanted))
        events = self.events.filter(polars.col("request").is_in(wanted))
        columns = [events[name].to_list() for name in ("t_ns", "read", "tokens")]
        found: dict[int, RequestRow] = {}
        at = 0
        heads = frame["choices"].to_list()
        for number, row, head in zip(frame["number"].to_list(), self.rows(frame), heads, strict=True):
            choices = []
            for index, count, known, reasoning, finish, tokens in msgspec.json.decode(head or "[]"):
                times, reads, held = (tuple(column[at : at + count]) for column in columns)
                at += count
                choices.append(ChoiceTimes(index, times, reads, held if known else None, reasoning, finish, tokens))
            found[number] = msgspec.structs.replace(row, choices=tuple(choices))
        return found

    def server_instants(self, number: int) -> list[tuple[str, int, str]]:
        """(boundary, ns, clock domain) of one request, as far as the table has them."""
        record = self._server.row(number, named=True)
        return [
            (boundary, record[column], record[f"{column}_clock"] or "unknown")
            for column, boundary in SERVER_INSTANTS
            if record.get(column) is not None
        ]

    def server_values(self, number: int) -> tuple[EvidenceValue, ...]:
        """One request's durations by its server's columns: a simulation's truth in virtual time, or what a server told."""
        record = self._server.row(number, named=True)
        return tuple(
            EvidenceValue(
                phase=phase, value_s=record[column], start=start, end=end,
                source=f"simulator: {column}" if column in SIMULATED else f"requests.parquet: {column}",
                clock="engine_monotonic" if column in SIMULATED else "duration_only",
                definition="in virtual time" if column in SIMULATED else "as the server told it",
                request_id=record["request_id"],
            )
            for column, (phase, start, end) in (SIMULATED | MEASURED).items()
            if record.get(column) is not None
        )  # fmt: skip


@contextmanager
def open_tables(run: Path) -> Iterator[RunTables]:
    """A run's tables; read from the capture into a temporary folder where the run has none.

    Raises FileError when there is no run, or its tables can't be read.
    """
    if (run / REQUESTS).exists() and (run / EVENTS).exists():
        yield _read(run)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder), analysis.rows(run))
        yield _read(Path(folder))


def _read(folder: Path) -> RunTables:
    try:
        return RunTables(
            polars.read_parquet(folder / REQUESTS, glob=False), polars.read_parquet(folder / EVENTS, glob=False)
        )
    except polars.exceptions.PolarsError as wrong:
        first = (str(wrong).splitlines() or [type(wrong).__name__])[0]
        raise FileError(f"{folder}: its tables can't be read ({first}): rebuild them from the capture") from wrong


def result_document(run: Path) -> dict[str, Any]:
    """A run's result: result.json, or computed anew where there is none. Raises FileError for a damaged one."""
    file = run / analysis.RESULT
    if not file.exists():
        return document(analysis.analyse(run))
    try:
        found = msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as wrong:
        raise FileError(f"{file}: no JSON ({wrong}): delete it, and it is computed anew") from wrong
    if not isinstance(found, dict) or "metrics" not in found:
        raise FileError(f"{file}: holds no result: delete it, and it is computed anew")
    return found
