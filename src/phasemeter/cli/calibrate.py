"""`phasemeter calibrate`: a step time from runs, with its error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.errors import UserError


def calibrate(
    *runs: Path,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="write the step time here, for plans")
    ] = None,
    hold_out: Annotated[
        list[Path] | None, Parameter(negative="", help="a run to predict but not to fit (repeatable)")
    ] = None,
    plan: Annotated[
        str | None, Parameter(help="a plan that knows the scheduler, memory and limits; else as the runs show them")
    ] = None,
    even_invalid: Annotated[bool, Parameter(negative="", help="fit runs that were judged invalid too")] = False,
    json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False,
) -> int:
    """Fit the simulator to an engine: the constants of its step time, from runs on record.

    Reads which requests were in each step off the arrivals of their tokens, and the server's own times where it told any. Says for each
    constant what identifies it, or what measurement would; then simulates the runs again with the fit, and says how far off it
    is: fitted on all, fitted on the first half of each run and held against the second, and on --hold-out runs.
    Ends with 0, or 3 where the runs don't tell a whole step time (nothing is written then).

    Parameters
    ----------
    runs
        run directories of one engine, from `bench` (or `simulate`); several loads tell more than one

    Examples:
        phasemeter calibrate runs/alone runs/loaded -o model.yaml
        phasemeter calibrate runs/alone runs/loaded --hold-out runs/fresh --plan plan.yaml
        phasemeter calibrate runs/loaded --json > calibration.json
        phasemeter simulate plan.yaml     (with `step_time: {file: model.yaml}` in it)
    """
    if not runs:
        raise UserError("calibrate needs a run directory: `phasemeter bench URL -o runs/one` writes one")
    if output is not None:
        must_be_writable(output)
    read = None if plan is None else lazy.load("phasemeter.cli.simulate").read_plan(plan)
    study, report = lazy.load("phasemeter.runs.calibrate").study, lazy.load("phasemeter.report.calibration")
    document = study(list(runs), hold_out or (), read, even_invalid=even_invalid)
    written = output is not None and document["linear"] is not None
    if output is not None and written:
        write(output, report.model_yaml(document))
    if json:
        print(report.dumps(document))
        for text in report.warnings(document):
            print(f"warning: {text}", file=sys.stderr)
    else:
        width = lazy.load("shutil").get_terminal_size((100, 24)).columns
        print(lazy.load("phasemeter.report.plain").plain("\n".join(report.words(document, width))))
    if written:
        print(f"written to {output}: a plan takes it as `step_time: {{file: {output}}}`", file=sys.stderr)
    return int(report.exit_code(document))


def must_be_writable(output: Path) -> None:
    """Raises UserError for a folder, or a place in no folder, before anything is computed."""
    if output.is_dir():
        raise UserError(f"{output}: is a folder: name the file to write, like model.yaml")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}: make it, or name another one")


def write(output: Path, text: str) -> Any:
    """Raises UserError where the file can't be written."""
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as trouble:
        raise UserError(f"{output}: can't be written ({trouble.strerror}): name another place") from trouble
