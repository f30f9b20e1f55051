"""Server evidence gathered beside a run: a scrape when the warm-up is over, some during, one after, and spans as they come.

Lives here: when to scrape, how long to wait, where it is kept (RUN/evidence). Must not live here: what it means (server/).
Evidence never fails a run: what went wrong is said, kept beside it, and the evidence is missing. Every wait has an end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import FileError, PhasemeterError
from phasemeter.io.scrape import PLAIN, Access, LateError, Scrape, save, scrape, scrape_when
from phasemeter.lazy import load
from phasemeter.server.exposition import parse_page
from phasemeter.server.prometheus import EngineReading, read_pages
from phasemeter.server.windows import baseline_index, is_idle

EVERY_S = 1.0
MOST_SCRAPES = 200  # after each so many the pause doubles: an hour's run keeps its span in some hundred pages
LOOK_S = 3.0  # for the first page, while nothing loads the server: what keeps silent then is left out of the run
SCRAPE_S, SHORT_S = 5.0, 1.0  # for each other page; for one after a page that did not come in time
EDGE_PATIENCE_S = 10.0  # for a server to fall idle
WARM_PATIENCE_S = 3.0  # for a warm-up's requests to be counted
NOTES = "gather.json"
LEFT_OUT = "the page is left out of this run"
QUEUE_WORDS = (
    "a queue of iterations that each reader takes from, left alone from here on: "
    "TensorRT-LLM's metrics page is /prometheus/metrics, with return_perf_metrics"
)
COUNTS = ("requests_finished", "ttft", "e2e")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A metrics page to gather from. `asked`: a person named it, so that its absence is said. `silent`: it was asked already,
    and never answered."""

    url: str
    asked: bool = True
    access: Access = PLAIN
    silent: bool = False


class Gathering:
    """What is gathered, and what went wrong meanwhile. `receiver` is None when no spans are listened for."""

    def __init__(self, run: Path, page: Page | None) -> None:
        self.evidence = run / "evidence"
        self.page = page
        self.receiver: Any = None  # an OtlpReceiver: what it needs is slow to load, and rarely needed
        self.scrapes = 0
        self.warmups = 0  # their spans come too, and must not be taken for the run's
        self.warnings: list[str] = []
        self._silent = self._silence_said = False  # the last page did not come in time
        self._first: dict[str, float | None] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """The first page, before any request of the run: is there one, and where do its counts stand?"""
        if self.page is None:
            return
        if self.page.silent:
            self._leave(f"no_scrape: {self.page.url}: no answer to the probe: {LEFT_OUT}")
            return
        try:
            found = scrape(self.page.url, timeout_s=LOOK_S, access=self.page.access)
            readings = readings_of(found)
        except LateError as silent:
            self._leave(f"no_scrape: before the run: {silent}: {LEFT_OUT}")
            return
        except (PhasemeterError, OSError) as missing:
            if self.page.asked:
                self.warnings.append(f"no_scrape: before the run: {missing}")
                return
            readings = {}
        if not readings and not self.page.asked:
            self._leave()
        elif not readings and is_queue(found):
            self._leave(f"no_metrics: {self.page.url}: {QUEUE_WORDS}")
        elif not readings:
            self.warnings.append(f"no_metrics: {why_none(found)}")
        self._first = counts_of(readings)

    def _leave(self, *words: str) -> None:
        """No further scrape in this run."""
        self.page = None
        self.warnings += words

    def begin(self, warmup_requests: int = 0) -> None:
        """The window opens: once the server is idle and has counted every request of the warm-up, or patience ends."""
        self.warmups = warmup_requests
        if self.page is None:
            return
        self._edge("metrics-before", warmup_requests)
        self._thread = threading.Thread(target=self._meanwhile, name="scrapes", daemon=True)
        self._thread.start()

    def end(self, requests: int, *, interrupted: bool = False) -> None:
        """The window closes: once the server is idle; then spans of up to `requests` requests are waited for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
            self._edge("metrics-after", patience_s=1.0 if interrupted else EDGE_PATIENCE_S)
        if self.receiver is not None and requests and not interrupted:
            spans = load("phasemeter.runs.spans")
            self.warnings += spans.awaited(self.receiver, requests, spans.traces_of(self.evidence.parent), self.warmups)

    def _fetched(self, page: Page) -> Scrape:
        """The page now; one that kept silent is waited for no longer than SHORT_S the next time."""
        try:
            found = scrape(page.url, timeout_s=SHORT_S if self._silent else SCRAPE_S, access=page.access)
        except LateError:
            self._silent = True
            raise
        self._silent = False
        return found

    def _missed(self, when: str, fault: Exception) -> None:
        """A page that did not come is said; that the endpoint keeps silent is said once."""
        if isinstance(fault, LateError):
            if self._silence_said:
                return
            self._silence_said = True
        self.warnings.append(f"no_scrape: {when}: {fault}")

    def _edge(self, name: str, warmup_requests: int = 0, patience_s: float = EDGE_PATIENCE_S) -> None:
        """One scrape at an edge of the window, when the server is idle: else other people's requests are in it."""
        page, warm_by = self.page, time.monotonic() + WARM_PATIENCE_S
        if page is None:
            return

        def ready(found: Scrape) -> bool:
            return idle(found) and (self._warm(found, warmup_requests) or time.monotonic() > warm_by)

        try:
            found, was_ready = scrape_when(lambda: self._fetched(page), ready, patience_s=patience_s)
            save(found, self.evidence, name)
        except (PhasemeterError, OSError) as fault:
            self._missed(name, fault)
            return
        self.scrapes += 1
        if not was_ready:
            self.warnings.append(f"not_idle: {name}: the server still had requests: the window may hold others'")
        elif not self._warm(found, warmup_requests):
            self.warnings.append(
                f"late_warm_up: {name}: the server's counts had not reached the {warmup_requests} warm-up requests"
            )

    def _warm(self, found: Scrape, warmup_requests: int) -> bool:
        if not warmup_requests or not self._first:
            return True
        grown = {
            key: None if count is None else count - (self._first.get(key) or 0.0)
            for key, count in counts_of(readings_of(found)).items()
        }
        return baseline_index([grown], warmup_requests) == 0

    def _meanwhile(self) -> None:
        page, every, number, lost = self.page, EVERY_S, 0, 0
        while page is not None and not self._stop.wait(every):
            number += 1
            try:
                save(self._fetched(page), self.evidence, f"metrics-during-{number:05}")
                self.scrapes += 1
            except (PhasemeterError, OSError) as fault:
                lost += 1
                if lost == 1:
                    self._missed("during the run", fault)
            if number % MOST_SCRAPES == 0:
                every *= 2

    def write_notes(self) -> None:
        """What went wrong, beside the evidence."""
        if self.warnings and self.evidence.parent.is_dir():
            self.evidence.mkdir(exist_ok=True)
            notes = msgspec.json.encode({"warnings": self.warnings})
            (self.evidence / NOTES).write_bytes(notes)


def readings_of(page: Scrape) -> dict[str, EngineReading]:
    """The known engines of a page; none on a page that is none."""
    try:
        return read_pages([parse_page(page.body, page.url)])
    except FileError:
        return {}


def is_queue(page: Scrape) -> bool:
    """Whether this is trtllm-serve's `/metrics`: a JSON list, emptied by whoever reads it (openai_server.py, get_iteration_stats)."""
    return page.body.lstrip()[:1] == b"["


def why_none(page: Scrape) -> str:
    """Why a page that was asked for tells nothing."""
    try:
        parse_page(page.body, page.url)
    except FileError as none:
        return str(none)
    return f"{page.url}: no engine that I know is on this page: the scrapes are kept, and say nothing"


def counts_of(readings: Mapping[str, EngineReading]) -> dict[str, float | None]:
    """How many requests each count stands at, by engine; a count that isn't exported is left out."""
    found: dict[str, float | None] = {}
    for engine, reading in readings.items():
        for key in COUNTS:
            seen = reading.readings.get(key)
            if seen is not None and seen.status in {"present", "empty"}:
                found[f"{engine}.{key}"] = seen.value if seen.row.kind == "counter" else seen.n
    return found


def idle(page: Scrape) -> bool:
    """Whether the page shows an idle server; a page that doesn't tell counts as idle (there is nothing to wait for)."""
    return all(is_idle(reading) is not False for reading in readings_of(page).values())


@contextmanager
def gathering(run: Path, page: Page | None = None, otlp_listen: str | None = None) -> Iterator[Gathering]:
    """Spans are received while the block runs; its caller says when the window of scrapes begins and ends.

    Raises UserError when `otlp_listen` can't be listened on: that is known before anything is sent.
    """
    found = Gathering(run, page)
    with ExitStack() as stack:
        if otlp_listen is not None:
            found.receiver = stack.enter_context(load("phasemeter.runs.spans").listening(otlp_listen, found.evidence))
        found.look()
        try:
            yield found
        finally:
            found._stop.set()
            found.write_notes()
