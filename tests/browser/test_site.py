"""The documentation as a site: built whole, opened from disk, at a desk and on a phone, light and dark.

mkdocs is the extra `docs`: without it these tests skip. `mkdocs.yml` is strict: a broken link fails the build.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.browser import DESK, PHONE, Browser

REPOSITORY = Path(__file__).parents[2]
# one of each make: prose, tables, long output, other tools' flags
LOOKED_AT = ("index", "tour", "ttft-and-tpot", "coming-from/guidellm", "definitions")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs is not here: the extra `docs` brings it")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)], cwd=REPOSITORY, capture_output=True, text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_the_documents_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(REPOSITORY / "docs").with_suffix(".html") for path in (REPOSITORY / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}
    left_out = pages - {Path(line) for line in nav()}
    assert all(path.parts[0] == "decisions" for path in left_out), f"in no menu: {left_out}"


def nav() -> list[str]:
    lines = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1].splitlines()
    return [line.split(" ")[-1].removesuffix(".md") + ".html" for line in lines if line.endswith(".md")]


@pytest.mark.parametrize("page", LOOKED_AT)
@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)], ids=["desk-light", "phone-dark"])
def test_a_page_of_the_site_fits_its_window_and_can_be_read(
    browser: Browser, site: Path, page: str, size: tuple[int, int], dark: bool
) -> None:
    browser.open(site / f"{page}.html", size, dark=dark)
    browser.ask("localStorage.clear()")  # a light page before this one leaves its choice
    browser.open(site / f"{page}.html", size, dark=dark)
    browser.settle()
    assert browser.complaints() == []
    assert browser.ask("return document.documentElement.scrollWidth") <= size[0]
    assert browser.ask("return document.body.getAttribute('data-md-color-scheme')") == ("slate" if dark else "default")
    assert browser.serious() == []
