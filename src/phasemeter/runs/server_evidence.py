"""What a run's server told of each request: inline timings, headers, spans of RUN/evidence, a simulator's own columns.

Lives here: finding the evidence and joining it, a request at a time. Must not live here: its meaning (server/), budgets
(phases/). Scrapes are named `metrics-before`, `metrics-during-*`, `metrics-after`, spans `spans-*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars

from phasemeter.errors import FileError
from phasemeter.records.evidence import EvidenceInstant, EvidenceValue, Told
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.evidence_files import page_of
from phasemeter.runs.tables import REQUESTS, SERVER_INSTANTS
from phasemeter.server.exposition import Page
from phasemeter.server.headers import timings_in_headers
from phasemeter.server.joins import Identity, SpanIndex, without_copies
from phasemeter.server.otlp import MAX_SPANS, Span, decode, engine_of, timings_of
from phasemeter.server.prometheus import EngineReading, read_pages
from phasemeter.server.timings import Timings, found_in
from phasemeter.server.windows import Room, window_mismatches
from phasemeter.wire.exchange import Exchange

EVIDENCE = "evidence"
STEPS_CHECKED = 20  # scrapes between the first and the last that are held against each other
_ORDER = {"metrics-before": 0, "metrics-after": 2}
# a simulated run's table: column: (phase, start, end)
SIMULATED = {
    "queue_s": ("queue", "queue_enter", "prefill_start"),
    "prefill_s": ("prefill", "prefill_start", "prefill_end"),
    "decode_s": ("decode", "first_token", "decode_end"),
}


class Seen(msgspec.Struct, frozen=True):
    """One request of a run, on its way through: `in_window` is False for what was sent before the scrapes' window."""

    row: RequestRow
    exchange: Exchange | None = None
    traceparent: str | None = None
    in_window: bool = True
    simulated: Mapping[str, Any] | None = None


def inline(exchange: Exchange | None) -> list[Timings]:
    """What one response itself told: body fields and headers."""
    if exchange is None:
        return []
    found = found_in(exchange.timings) if exchange.timings else []
    return found + timings_in_headers(exchange.headers)


class ServerEvidence:
    """Reads RUN/evidence once; then `of` each request in turn. `warnings` and counts grow on the way."""

    def __init__(self, run: Path, traceparents: Iterable[str | None] = ()) -> None:
        directory = run / EVIDENCE
        self.warnings: list[str] = notes_of(directory)
        self.pages = list(pages_of(scrapes_in(directory, STEPS_CHECKED), self.warnings))
        spans = spans_of(directory, self.warnings)
        self.index = SpanIndex(spans, traceparents) if spans else None
        self.joined = self.ambiguous = 0
        self.ok_in_window = self.window_tokens = self.choices_apart = 0
        self.tokens_known = True
        self.room = Room()

    def of(self, seen: Seen) -> Told:
        """Everything told of this request."""
        row, told = seen.row, inline(seen.exchange)
        if seen.in_window:
            self._count(row)
        if self.index is not None:
            identity = Identity(
                request_id=row.request_id,
                traceparent=seen.traceparent,
                response_id=row.response_id,
                sent_id=row.sent_id,
            )
            _, spans, clash = self.index.of(identity)
            self.ambiguous += clash
            self.choices_apart += clash and row.n > 1
            self.joined += bool(spans) and row.phase == "measured"
            told = told + [timing for span in spans if (timing := timings_of(span))]
        values = tuple(value for timing in told for value in timing.values) + _simulated(seen)
        instants = tuple(at for timing in told for at in timing.instants) + _simulated_instants(seen)
        return Told(values=values, instants=instants)

    def _count(self, row: RequestRow) -> None:
        """What the server's counters should have grown by, and by how much more they may have."""
        if row.outcome == "ok":
            self.ok_in_window += 1
            self.tokens_known &= row.server_output_tokens is not None
            self.window_tokens += row.server_output_tokens or 0
            self.room = Room(requests=self.room.requests + row.n - 1, tokens=self.room.tokens)
        elif row.send_start_ns is not None:
            most = None if row.asked_output_tokens is None else row.asked_output_tokens * row.n
            tokens = None if most is None or self.room.tokens is None else self.room.tokens + most
            self.room = Room(requests=self.room.requests + row.n, tokens=tokens)

    def engines(self) -> dict[str, EngineReading]:
        """The window from the first scrape to the last, by engine; nothing with fewer than two."""
        return read_pages(self.pages) if len(self.pages) > 1 else {}

    def closing_warnings(self, engines: Mapping[str, EngineReading]) -> list[str]:
        """Once every request was seen: what doesn't fit."""
        found = list(self.warnings)
        unclear = self.ambiguous - self.choices_apart
        if unclear:
            found.append(f"ambiguous_spans: {unclear} requests are claimed by several spans, and joined to none")
        if self.choices_apart:
            found.append(
                f"choices_apart: {self.choices_apart} requests have a span for each of their choices, and none of their own"
            )
        tokens = self.window_tokens if self.tokens_known else None
        for reading in engines.values():
            found += window_mismatches(reading, self.ok_in_window, tokens, self.room)
        return found


def cache_counters(engines: Mapping[str, EngineReading]) -> tuple[float, float] | None:
    """Tokens (found in the prefix cache, looked up in it) over a window, of all engines that count both; None: none does."""
    found = []
    for engine in engines.values():
        hits, queries = (engine.readings.get(name) for name in ("prefix_cache_hits", "prefix_cache_queries"))
        if hits is None or queries is None or hits.status != "present" or queries.status != "present":
            continue
        if hits.value is not None and queries.value is not None:
            found.append((hits.value, queries.value))
    return (sum(hits for hits, _ in found), sum(queries for _, queries in found)) if found else None


def simulated_columns(run: Path) -> Iterator[dict[str, Any]]:
    """A simulated run's own phases and instants, a row a request, in the table's order; nothing where it has none."""
    table = polars.scan_parquet(run / REQUESTS, glob=False)
    names = [name for name in table.collect_schema().names() if name in SIMULATED]
    if names:
        names += [name for column, _ in SERVER_INSTANTS for name in (column, f"{column}_clock")]
        yield from table.select(names).collect().iter_rows(named=True)


def _simulated(seen: Seen) -> tuple[EvidenceValue, ...]:
    return tuple(
        EvidenceValue(
            phase=phase, value_s=value, start=start, end=end, source=f"simulator: {column}", clock="engine_monotonic",
            definition="virtual time", request_id=seen.row.request_id,
        )
        for column, (phase, start, end) in SIMULATED.items()
        if (value := (seen.simulated or {}).get(column)) is not None
    )  # fmt: skip


def spans_of(directory: Path, warnings: list[str]) -> list[Span]:
    """The request spans of all bodies received, MAX_SPANS at most; a damaged body costs itself, and is named."""
    spans: list[Span] = []
    known: dict[tuple[str, str], Span] = {}  # a flood of copies must not keep later spans out
    for path in sorted(directory.glob("spans-*")):
        try:
            told = [span for span in decode(path.read_bytes(), str(path)) if engine_of(span)]
            spans += without_copies(told, known)
        except FileError as damaged:
            warnings.append(f"damaged_spans: {damaged}")
        if len(spans) > MAX_SPANS:
            warnings.append(f"too_many_spans: only the first {MAX_SPANS} spans are joined")
            return spans[:MAX_SPANS]
    return spans


def _simulated_instants(seen: Seen) -> tuple[EvidenceInstant, ...]:
    told = seen.simulated or {}
    return tuple(
        EvidenceInstant(boundary=boundary, at_ns=at_ns, source=f"simulator: {column}", clock=told[f"{column}_clock"])
        for column, boundary in SERVER_INSTANTS
        if (at_ns := told.get(column)) is not None
    )


def notes_of(directory: Path) -> list[str]:
    """What went wrong while it was gathered."""
    try:
        told = msgspec.json.decode((directory / "gather.json").read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return []
    return [str(words) for words in told.get("warnings", ())] if isinstance(told, dict) else []


def scrapes_in(directory: Path, most: int) -> list[Path]:
    """Scrapes in order of time: the first, the last, and of those between at most `most`, evenly chosen."""
    paths = sorted(directory.glob("metrics-*.http"), key=lambda path: (_ORDER.get(path.stem, 1), path.name))
    if len(paths) <= most + 2:
        return paths
    step = (len(paths) - 2) / most
    return [paths[0], *(paths[1 + int(number * step)] for number in range(most)), paths[-1]]


def pages_of(paths: Iterable[Path], warnings: list[str]) -> Iterator[Page]:
    """Each page; a damaged one costs itself, and is named."""
    for path in paths:
        try:
            yield page_of(path)
        except FileError as damaged:
            warnings.append(f"damaged_scrape: {damaged}")
