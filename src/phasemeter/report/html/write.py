"""From a run directory to a file.

Lives here: which page a directory gets, and writing it whole or not at all. Must not live here: what a page says.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phasemeter.errors import UserError
from phasemeter.metrics.document import document
from phasemeter.report.html.run_page import run_page
from phasemeter.report.html.run_tables import result_document
from phasemeter.report.html.series_page import is_series, series_page
from phasemeter.runs import analysis


def write_html(run_dir: Path, out: Path) -> None:
    """Write the report of a run directory (or of a folder that an index makes a series of runs) to `out`.

    Raises FileError when there is no run, or its files can't be read; UserError when `out` can't be written.
    """
    write_report(run_dir, out)


def write_report(run_dir: Path, out: Path, tool: str | None = None) -> bool:
    """`write_html`, under another tool's definitions where one is named; whether any request succeeded.

    Raises as `write_html`, and UserError for a tool that isn't known, or a series read as a tool.
    """
    if is_series(run_dir):
        if tool is not None:
            raise UserError(f"{run_dir}: holds a series of runs: --as reads one run: name one of its folders")
        write_page(series_page(run_dir), out)
        return True
    told: Mapping[str, Any] = (
        result_document(run_dir) if tool is None else document(analysis.analyse(run_dir, tool=tool))
    )
    write_page(run_page(run_dir, told), out)
    return bool(told["outcomes"]["ok"])


def write_page(text: str, out: Path) -> None:
    """`text` as a file, whole or not at all. Raises UserError when `out` can't be written."""
    beside = out.with_name(f".{out.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    except OSError as trouble:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise UserError(f"{out}: can't be written: {trouble.strerror}") from trouble
