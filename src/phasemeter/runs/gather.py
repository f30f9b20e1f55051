"""Server evidence gathered beside a run: a scrape before, some during, one after, and spans as they come.

Lives here: when to scrape, and where it is kept (RUN/evidence). Must not live here: what it means (server/, server_view.py).
A failed scrape never fails a run: it is said, and the evidence is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from phasemeter.errors import FileError, PhasemeterError
from phasemeter.io.otlp_receiver import OtlpReceiver, otlp_receiver
from phasemeter.io.scrape import Scrape, save, scrape, scrape_when
from phasemeter.server.exposition import parse_page
from phasemeter.server.prometheus import read_pages
from phasemeter.server.windows import is_idle

EVERY_S = 1.0
MOST_SCRAPES = 600  # then one in two is left out: an hour's run keeps its span


class Gathering(msgspec.Struct, kw_only=True):
    """What was gathered, and what went wrong meanwhile. `receiver` is None when no spans are listened for."""

    scrapes: int = 0
    receiver: OtlpReceiver | None = None
    warnings: list[str] = msgspec.field(default_factory=list)


def idle(page: Scrape) -> bool:
    """Whether the page shows an idle server; a page that doesn't tell counts as idle (there is nothing to wait for)."""
    try:
        readings = read_pages([parse_page(page.body, page.url)])
    except FileError:
        return True
    return all(is_idle(reading) is not False for reading in readings.values())


def _edge(gathering: Gathering, url: str, evidence: Path, name: str) -> None:
    """One scrape at an edge of the window, when the server is idle: else other people's requests are in it."""
    try:
        page, was_idle = scrape_when(url, idle)
        save(page, evidence, name)
        gathering.scrapes += 1
        if not was_idle:
            gathering.warnings.append(
                f"not_idle: {name}: the server still had requests, so the window may hold others'"
            )
    except PhasemeterError as fault:
        gathering.warnings.append(f"no_scrape: {name}: {fault}")


def _meanwhile(gathering: Gathering, url: str, evidence: Path, stop: threading.Event) -> None:
    every, number = EVERY_S, 0
    while not stop.wait(every):
        number += 1
        try:
            save(scrape(url), evidence, f"metrics-during-{number:05}")
            gathering.scrapes += 1
        except PhasemeterError as fault:
            if number == 1:
                gathering.warnings.append(f"no_scrape: during the run: {fault}")
        if number % MOST_SCRAPES == 0:
            every *= 2


@contextmanager
def gathering(run: Path, metrics_url: str | None = None, otlp_listen: str | None = None) -> Iterator[Gathering]:
    """Gathers while the block runs: the first scrape stands before it, the last after it, both idle where possible.

    Raises UserError when `otlp_listen` can't be listened on: that is known before anything is sent.
    """
    evidence, found, stop = run / "evidence", Gathering(), threading.Event()
    with ExitStack() as stack:
        if otlp_listen is not None:
            found.receiver = stack.enter_context(otlp_receiver(otlp_listen, evidence))
        if metrics_url is None:
            yield found
            return
        _edge(found, metrics_url, evidence, "metrics-before")
        thread = threading.Thread(target=_meanwhile, args=(found, metrics_url, evidence, stop), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join(timeout=10)
            _edge(found, metrics_url, evidence, "metrics-after")
