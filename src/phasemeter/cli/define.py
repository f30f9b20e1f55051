"""`phasemeter define`: what a word means to each tool."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.completed import FileName, Word
from phasemeter.errors import UserError


def define(
    word: Annotated[Word | None, Parameter(show_choices=False)] = None,
    *,
    for_run: Annotated[
        FileName | None,
        Parameter(name="--for", help="a run directory: how much the choice of definition changes its number"),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False,
) -> int:
    """Show what a metric means: each tool's start, end, divisor and exclusions, side by side.

    The table is printed from the same rows that compute the metrics.

    Parameters
    ----------
    word
        a metric (ttft, ttfo, tpot, itl, e2e, ...), a tool's own name for one, goodput or throughput

    Examples:
        phasemeter define
        phasemeter define ttft
        phasemeter define tpot --for runs/20261129-smollm2
        phasemeter define itl --json
    """
    sheet = lazy.load("phasemeter.report.define")
    wanted = None if word is None else word.strip().lower()
    if for_run is not None:
        if wanted is None:
            raise UserError("--for needs a word: `phasemeter define tpot --for RUN`")
        answers = sheet.moved(wanted, lazy.load("phasemeter.runs.analysis").rows(for_run))
        told = {"phasemeter": 1, "word": wanted, "run": for_run, "values": answers}
        _print(json, told, sheet.moved_lines(wanted, answers, lazy.load("phasemeter.report.fold").columns()))
    elif wanted is None:
        every = lazy.load("phasemeter.metrics.definitions").HOUSE
        _print(json, {"phasemeter": 1, "words": {name: row.line() for name, row in every.items()}}, sheet.all_words())
    else:
        _print(json, sheet.document(wanted), sheet.lines(wanted, lazy.load("phasemeter.report.fold").columns()))
    return 0


def _print(json: bool, document: object, lines: Iterable[str]) -> None:
    if json:
        print(json_module.dumps(document, ensure_ascii=False, allow_nan=False))
        return
    lazy.load("phasemeter.report.fold").show(lines)
