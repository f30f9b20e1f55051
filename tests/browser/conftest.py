"""A headless Chromium for pages on disk. Without one (or without its driver for Python) these tests skip, saying so."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from phasemeter.comparison.report import compare as compared
from phasemeter.lazy import load
from phasemeter.report.explore import explore_page
from phasemeter.report.html.compare_page import compare_page
from phasemeter.report.html.run_page import run_page
from phasemeter.report.html.series_page import series_page
from tests.browser.browser import Browser
from tests.browser.pages import measured_hostile, searched, series, sides, simulated
from tests.report.html_runs import HOSTILE, hostile_run, rows, write_run

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    binary = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    for there, what in (
        (binary, "Chromium"),
        (driver, "chromedriver"),
        (importlib.util.find_spec("selenium"), "selenium"),
    ):
        if not there:
            pytest.skip(
                f"{what} is not here: the Debian packages chromium and chromium-driver and the extra `dev` bring it"
            )
    running = Browser(str(binary), str(driver))
    yield running
    running.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of page, by name."""
    folder = tmp_path_factory.mktemp("pages")
    small = write_run(folder / "small", rows(80))
    sweep = series(folder / "sweep")
    a, b = sides(folder)
    answer = compared(a, b, load("numpy").random.default_rng(0), ["rate_per_s"])
    bad = [[msgspec.structs.replace(run, name=f"{run.name}{HOSTILE[2]}") for run in side] for side in (a, b)]
    texts = {
        "run": run_page(small),
        "simulated": run_page(simulated(folder / "simulated")),
        "large": run_page(write_run(folder / "large", rows(3000, events=6, rate=200.0))),
        "hostile": run_page(hostile_run(folder / HOSTILE[2])),
        "hostile-measured": measured_hostile(folder / "measured").read_text(encoding="utf-8"),
        "hostile-comparison": compare_page(compared(*bad, load("numpy").random.default_rng(0), ["rate_per_s"]), *bad),
        "hostile-explore": explore_page(folder / HOSTILE[2]),
        "search": series_page(searched(folder / "search")),
        "series": series_page(sweep),
        "comparison": compare_page(answer, a, b),
        "explore": explore_page(),
        "explore-run": explore_page(small),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}
