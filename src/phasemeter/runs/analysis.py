"""From a run directory to rows and to a result: the capture is read once, in bounded memory, as often as one likes.

Lives here: the way from RUN/ to rows and results. Must not live here: formulas (metrics/), the bytes' meaning (wire/).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.contract.goodput import Meter, promise_of, summed
from phasemeter.contract.model import Contract, parse
from phasemeter.errors import FileError
from phasemeter.io.run_directory import NATURAL_ENDS, WARMUP, RunDirectory
from phasemeter.metrics.analyse import retold
from phasemeter.metrics.boundaries import row_and_exchange
from phasemeter.metrics.dialects import dialect
from phasemeter.metrics.dialects.reading import Reading
from phasemeter.metrics.document import dumps
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.metrics.summary import Summary
from phasemeter.metrics.tokens import Tokenizer
from phasemeter.metrics.validity import RunFacts
from phasemeter.records.evidence import Told
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result
from phasemeter.runs import privacy
from phasemeter.runs.echoes import Echoes
from phasemeter.runs.open_talks import OpenTalks
from phasemeter.runs.prompt_source import GENERATED
from phasemeter.runs.run_budget import SERVER_COLUMNS, RunBudget, duration_columns, instants_by_boundary
from phasemeter.runs.server_evidence import Seen, ServerEvidence, cache_counters, simulated_columns
from phasemeter.runs.tables import EVENTS, REQUESTS, TableWriter, read_rows
from phasemeter.runs.tokenizer import load_tokenizer
from phasemeter.wire.exchange import Exchange

RESULT = "result.json"
CONTRACT = "contract.yaml"  # a copy of the contract that the run was measured under


class Rows:
    """Iterates a run's rows (warm-up first) and remembers what the clocks and workers told on the way.

    A run whose text was still to be dropped when its measurer was killed is finished first, unless `settle` is False.
    """

    def __init__(self, path: Path | str, *, settle: bool = True) -> None:
        self.directory = RunDirectory.open(path)
        if settle:
            _settle(self.directory)
        self.manifest = self.directory.read_manifest() if self.has_manifest else Manifest()
        self.facts = RunFacts(stamps=self.manifest.stamps)
        self.tokenizer = self._tokenizer()

    @property
    def has_manifest(self) -> bool:
        return (self.directory.path / "manifest.json").exists()

    @property
    def captured(self) -> bool:
        return any(self.directory.capture.glob("*.schedule")) or (self.directory.path / WARMUP / "capture").is_dir()

    @property
    def _tables_know_more(self) -> bool:
        """Where an answer's text was dropped, what was counted in it stands in the tables alone."""
        return self.manifest.text == privacy.DROPPED and has_tables(self.directory.path)

    def _tokenizer(self) -> Tokenizer | None:
        named = self.manifest.tokenizer
        return load_tokenizer(Path(named)) if named and Path(named).exists() else None

    def __iter__(self) -> Iterator[RequestRow]:
        for row, _ in self.with_exchanges():
            yield row

    def with_exchanges(self) -> Iterator[tuple[RequestRow, Exchange | None]]:
        """Each row with the exchange it was read from; None where only tables are there (a simulated run)."""
        for seen in self.seen():
            yield seen.row, seen.exchange

    def seen(self) -> Iterator[Seen]:
        """Each request with all that its server's evidence is joined by."""
        if not self.captured:
            if not (self.directory.path / REQUESTS).exists():
                raise FileError(f"{self.directory.path}: holds neither a capture nor {REQUESTS}: nothing was measured")
            for row, simulated in zip_longest(read_rows(self.directory.path), simulated_columns(self.directory.path)):
                yield Seen(row, simulated=simulated)
            return
        if self._tables_know_more:
            for told, seen in zip(read_rows(self.directory.path), self._captured_rows(), strict=True):
                yield msgspec.structs.replace(seen, row=told)
        else:
            yield from self._captured_rows()

    def evidence(self) -> ServerEvidence:
        """What the server told, ready to be asked for each request of `seen`."""
        parents = (planned.traceparent for planned in self.directory.planned()) if self.captured else ()
        return ServerEvidence(self.directory.path, parents)

    def _captured_rows(self) -> Iterator[Seen]:
        before = RunDirectory(self.directory.path / WARMUP)
        if before.capture.is_dir():
            yield from self._read(before, in_window=False)
        yield from self._read(self.directory, in_window=True)

    def _read(self, directory: RunDirectory, *, in_window: bool) -> Iterator[Seen]:
        clock = ReceiveClock(list(directory.clock_pairs()))
        echoes = Echoes(directory, self.manifest)
        ended_ns = 0
        open_talks = OpenTalks()
        for planned, capture in directory.exchanges():
            ended_ns = max(ended_ns, capture.closed_ns or 0)
            open_talks.see(planned, capture)
            row, exchange = row_and_exchange(planned, capture, clock, self.tokenizer, echoes.of(planned))
            yield Seen(row, exchange, planned.traceparent, in_window)
        for planned, capture in open_talks.never_sent(directory):
            row, exchange = row_and_exchange(planned, capture, clock, self.tokenizer)
            yield Seen(row, exchange, planned.traceparent, in_window)
        ends = [directory.end_of(reader.header.worker) for reader in directory.readers() if reader.header]
        ends = ends or [None]  # cut off before a worker began
        lost = sum(end is None or end.startswith("worker_lost") for end in ends)
        steps = [abs(step.step_ns) / 1e9 for step in clock.steps]
        known = self.facts
        self.facts = msgspec.structs.replace(
            known,
            planned_requests=self._planned_requests(),
            partial=known.partial or any(end not in NATURAL_ENDS for end in ends),
            lost_workers=known.lost_workers + lost,
            clock_step_s=max([known.clock_step_s or 0.0, *steps]),
            stamps=known.stamps or directory.stamps,
            started_ns=directory.start_ns if known.started_ns is None else known.started_ns,
            ended_ns=ended_ns or known.ended_ns,
            unique_prompts=self._unique_prompts(),
            history=self._turns > 1,
        )

    def _planned_requests(self) -> int | None:
        """How many requests the plan has, where it is a plain number: what a run that was cut off never came to spool is unsent."""
        told = self.manifest
        return told.requests if told.duration_s is None and self._turns == 1 else None

    def _unique_prompts(self) -> bool | None:
        """Shared prefixes and a conversation's history are shared text that was asked for."""
        told = self.manifest.body or {}
        prompts, shared = told.get("prompts"), told.get("prefix") or self._turns > 1
        return None if prompts is None else prompts == GENERATED and not shared

    @property
    def _turns(self) -> int:
        return (self.manifest.body or {}).get("turns") or 1


def _settle(directory: RunDirectory) -> None:
    """Drop the text of a run that asked for it and was killed before it came to that. Raises OSError when the disk is full."""
    if not (directory.path / "manifest.json").exists() or directory.read_manifest().text != privacy.DROPPING:
        return
    if not privacy.is_live(directory.path):
        if not (directory.path / RESULT).exists():
            derive(directory.path)
        privacy.drop_text(directory.path)


def rows(run: Path | str) -> Iterator[RequestRow]:
    """Every scheduled request of a run, warm-up included, in the order in which they closed.

    Raises FileError when there is no run, or its files are damaged beyond a torn tail.
    """
    return iter(Rows(run))


def rows_with_server(run: Path | str) -> Iterator[tuple[RequestRow, Told]]:
    """The same rows, each with what its server told."""
    found = Rows(run)
    evidence = found.evidence()
    for seen in found.seen():
        yield seen.row, evidence.of(seen)


def analyse(run: Path | str, tool: str | None = None, contract: Contract | None = None) -> Result:
    """A run's result under the house definitions, or as `tool` would print it (`vllm`, `aiperf@0.13`, ...).

    `contract`: whose goodput is counted; None: the one that the run was measured under, if any.
    """
    if tool is not None:
        return _as_tool(Rows(run), tool)
    return _told(Rows(run), contract=contract)


def contract_in(path: Path) -> Contract | None:
    """The contract that a run was measured under. Raises FileError where what stands there is none."""
    file = path / CONTRACT
    return parse(file.read_text(encoding="utf-8"), str(file)) if file.exists() else None


def _told(found: Rows, tables: TableWriter | None = None, contract: Contract | None = None) -> Result:
    """One reading of a run: its metrics, its goodput and where its time went; its rows go into `tables`."""
    summary, budget, evidence = Summary(), RunBudget(), found.evidence()
    contract = contract or contract_in(found.directory.path)
    promise = None if contract is None else promise_of(contract)
    meter = None if promise is None else Meter(promise)
    for seen in found.seen():
        told = evidence.of(seen)
        budget.add(seen, told)
        row = privacy.without_words(seen.row) if found.manifest.text and tables is not None else seen.row
        summary.add(row)
        if meter is not None:
            meter.add(row)
        if tables is not None:
            tables.add(row, instants_by_boundary(told), duration_columns(told))
    result = summary.result(found.manifest, _facts(found, evidence))
    counted = None if meter is None or contract is None else summed(meter.judged(), contract.confidence).document()
    return msgspec.structs.replace(result, budget=budget.document(evidence), goodput=counted)


def _as_tool(found: Rows, tool: str) -> Result:
    reading, summary = Reading(dialect(tool)), Summary()
    for row in found:
        reading.add(row)
        summary.add(row)
    return retold(summary.result(found.manifest, _facts(found, found.evidence())), reading.dialect, reading.printed())


def _facts(found: Rows, evidence: ServerEvidence) -> RunFacts:
    """What the clocks, the workers and the server's own counters told of the run, once its rows were seen."""
    return msgspec.structs.replace(found.facts, cache_counters=cache_counters(evidence.engines()))


def derive(run: Path | str) -> Result:
    """Read the capture once; write requests.parquet, events.parquet and result.json; the result."""
    found = Rows(run, settle=False)
    path = found.directory.path
    tables = TableWriter(path, extra_columns=SERVER_COLUMNS)
    result = _told(found, tables)
    tables.close()
    write_result(path, result)
    return result


def write_result(path: Path, result: Result) -> None:
    """result.json, whole or not at all."""
    _replace(path, dumps(result).encode())


def keep_verdict(path: Path, verdict: dict[str, Any]) -> None:
    """Put a contract's verdict (the form of `check --json`) into a run's result.json, as `contract`."""
    told = msgspec.json.decode((path / RESULT).read_bytes())
    _replace(path, msgspec.json.encode(told | {"contract": verdict}))


def _replace(path: Path, document: bytes) -> None:
    beside = path / f".{RESULT}.new"
    beside.write_bytes(msgspec.json.format(document, indent=1) + b"\n")
    beside.rename(path / RESULT)


def has_tables(path: Path) -> bool:
    return (path / REQUESTS).exists() and (path / EVENTS).exists()
