"""From a run directory to rows and to a result: the capture is read once, in bounded memory, as often as one likes.

Lives here: the way from RUN/ to rows and results. Must not live here: formulas (metrics/), the bytes' meaning (wire/).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from phasemeter.errors import FileError
from phasemeter.io.run_directory import NATURAL_ENDS, RunDirectory
from phasemeter.metrics.analyse import retold
from phasemeter.metrics.boundaries import row_and_exchange
from phasemeter.metrics.dialects import dialect
from phasemeter.metrics.dialects.reading import Reading
from phasemeter.metrics.document import dumps
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.metrics.summary import Summary
from phasemeter.metrics.tokens import Tokenizer
from phasemeter.metrics.validity import RunFacts
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result
from phasemeter.runs.tables import EVENTS, REQUESTS, TableWriter, read_rows
from phasemeter.runs.tokenizer import load_tokenizer
from phasemeter.wire.exchange import Exchange

WARMUP = "warmup"  # RUN/warmup: an open loop's warm-up has a capture of its own
RESULT = "result.json"


class Rows:
    """Iterates a run's rows (warm-up first) and remembers what the clocks and workers told on the way."""

    def __init__(self, path: Path | str) -> None:
        self.directory = RunDirectory.open(path)
        self.manifest = self.directory.read_manifest() if self.has_manifest else Manifest()
        self.facts = RunFacts(stamps=self.manifest.stamps)
        self.tokenizer = self._tokenizer()

    @property
    def has_manifest(self) -> bool:
        return (self.directory.path / "manifest.json").exists()

    @property
    def captured(self) -> bool:
        return any(self.directory.capture.glob("*.schedule"))

    def _tokenizer(self) -> Tokenizer | None:
        named = self.manifest.tokenizer
        return load_tokenizer(Path(named)) if named and Path(named).exists() else None

    def __iter__(self) -> Iterator[RequestRow]:
        for row, _ in self.with_exchanges():
            yield row

    def with_exchanges(self) -> Iterator[tuple[RequestRow, Exchange | None]]:
        """Each row with the exchange it was read from; None where only tables are there (a simulated run)."""
        if not self.captured:
            if not (self.directory.path / REQUESTS).exists():
                raise FileError(f"{self.directory.path}: holds neither a capture nor {REQUESTS}: nothing was measured")
            for row in read_rows(self.directory.path):
                yield row, None
            return
        before = RunDirectory(self.directory.path / WARMUP)
        if before.capture.is_dir():
            yield from self._read(before)
        yield from self._read(self.directory)

    def _read(self, directory: RunDirectory) -> Iterator[tuple[RequestRow, Exchange]]:
        clock = ReceiveClock(list(directory.clock_pairs()))
        ended_ns = 0
        for planned, capture in directory.exchanges():
            ended_ns = max(ended_ns, capture.closed_ns or 0)
            yield row_and_exchange(planned, capture, clock, self.tokenizer)
        ends = [directory.end_of(reader.header.worker) for reader in directory.readers() if reader.header]
        lost = sum(end is None or end.startswith("worker_lost") for end in ends)
        steps = [abs(step.step_ns) / 1e9 for step in clock.steps]
        known = self.facts
        self.facts = msgspec.structs.replace(
            known,
            partial=known.partial or any(end not in NATURAL_ENDS for end in ends),
            lost_workers=known.lost_workers + lost,
            clock_step_s=max([known.clock_step_s or 0.0, *steps]),
            stamps=known.stamps or directory.stamps,
            started_ns=directory.start_ns if known.started_ns is None else known.started_ns,
            ended_ns=ended_ns or known.ended_ns,
            unique_prompts=self._unique_prompts(),
        )

    def _unique_prompts(self) -> bool | None:
        prompts = (self.manifest.body or {}).get("prompts")
        return None if prompts is None else prompts == "generated, unique"


def rows(run: Path | str) -> Iterator[RequestRow]:
    """Every scheduled request of a run, warm-up included, in the order in which they closed.

    Raises FileError when there is no run, or its files are damaged beyond a torn tail.
    """
    return iter(Rows(run))


def analyse(run: Path | str, tool: str | None = None) -> Result:
    """A run's result under the house definitions, or as `tool` would print it (`vllm`, `aiperf@0.13`, ...)."""
    if tool is not None:
        return _as_tool(Rows(run), tool)
    found = Rows(run)
    summary = Summary()
    for row in found:
        summary.add(row)
    return summary.result(found.manifest, found.facts)


def _as_tool(found: Rows, tool: str) -> Result:
    reading, summary = Reading(dialect(tool)), Summary()
    for row in found:
        reading.add(row)
        summary.add(row)
    return retold(summary.result(found.manifest, found.facts), reading.dialect, reading.printed())


def derive(run: Path | str) -> Result:
    """Read the capture once; write requests.parquet, events.parquet and result.json; the result."""
    found = Rows(run)
    path = found.directory.path
    summary, tables = Summary(), TableWriter(path)
    for row in found:
        summary.add(row)
        tables.add(row)
    tables.close()
    result = summary.result(found.manifest, found.facts)
    write_result(path, result)
    return result


def write_result(path: Path, result: Result) -> None:
    """result.json, whole or not at all."""
    beside = path / f".{RESULT}.new"
    beside.write_bytes(msgspec.json.format(dumps(result).encode(), indent=1) + b"\n")
    beside.rename(path / RESULT)


def has_tables(path: Path) -> bool:
    return (path / REQUESTS).exists() and (path / EVENTS).exists()
