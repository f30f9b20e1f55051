"""`phasemeter export-exchange`: one request of a run as a file for a bug report.

Lives here: the verb. Must not live here: the format (runs/exchange_file), what is blanked (runs/blank).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phasemeter.cli.completed import FileName
from phasemeter.errors import FileError
from phasemeter.lazy import load


def export_exchange(
    target: FileName,
    *,
    with_text: Annotated[bool, Parameter(negative="")] = False,
    output: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write one exchange in the recorded-exchange format, its text replaced by filler of the same length.

    Parameters
    ----------
    target
        RUN#REQUEST (its id, or its number in the plan), or a recording.
    with_text
        Keep the text that the model wrote.
    output
        The file to write (default: standard output).
    json
        The format is JSON already: accepted for symmetry with the other verbs.

    Examples:
        phasemeter export-exchange runs/20260101-smollm2#17 --output slow.json
        phasemeter inspect slow.json
    """
    document = load("phasemeter.runs.export_exchange").export(target, with_text)
    text = load("msgspec").json.format(load("msgspec").json.encode(document), indent=1).decode() + "\n"
    if output is None or json:
        sys.stdout.write(text)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FileError(f"{output}: {error.strerror or error}") from error
    return 0
