"""A run directory that `import` wrote: another tool's result, with no request of it to read.

Lives here: telling one, and its result. Must not live here: what the tools' files hold (comparison/foreign/).
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from phasemeter.errors import FileError
from phasemeter.io.run_directory import RunDirectory
from phasemeter.metrics.document import result_in
from phasemeter.records.result import Result

RESULT = "result.json"


def imported_result(path: Path | str) -> Result | None:
    """The result in a directory that `import` wrote, None for any other run. Raises FileError where it can't be read."""
    if not (Path(path) / "manifest.json").exists():
        return None
    run = RunDirectory.open(path)
    if run.read_manifest().kind != "imported":
        return None
    file = run.path / RESULT
    try:
        return result_in(json.loads(file.read_bytes()))
    except OSError as trouble:
        raise FileError(f"{file}: {trouble.strerror}: import the tool's file again") from trouble
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError) as trouble:
        raise FileError(f"{file}: no result: {trouble}: import the tool's file again") from trouble
