"""From a run directory to a diagnosis, with the single requests that it may need.

Lives here: gathering. Must not live here: rules (phases/causes.py).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.contract.goodput import Promise, judge, promise_of, state
from phasemeter.contract.model import parse
from phasemeter.errors import FileError, UserError
from phasemeter.phases.budget import budgets_document
from phasemeter.phases.diagnosis import diagnose
from phasemeter.phases.features import Features, features_of
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.analysis import Rows
from phasemeter.runs.asked import Asked
from phasemeter.runs.bounded_view import BoundedView, bounded_view
from phasemeter.runs.many import complete
from phasemeter.runs.measure import Watchers, bench
from phasemeter.runs.server_view import server_window

PROBE = "probe"  # RUN/probe/LENGTH: a run of single requests at that input length
SINGLE = 5  # requests at each of the three lengths


def diagnosis_of(
    run: Path | str, *, contract: Path | None = None, probe: str | None = None, asked: Asked | None = None
) -> dict[str, Any]:
    """`{"steps": [...], "causes": [...], "missing": [...], "budget", "features", "warnings"}`, strict JSON.

    `probe`: the service's URL, to send it single requests at three input lengths of the run (kept in RUN/probe, and read from
    there the next time); `asked`: key, headers and model for that. Raises UserError and FileError as reading and sending do.
    """
    promise = None if contract is None else _promise(contract)
    view = bounded_view(run)
    if probe is not None:
        measure_alone(Path(run), view.rows, probe, asked or Asked())
    view = with_alone(view, Path(run))
    return document_of(view, promise)


def _promise(file: Path) -> Promise:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as trouble:
        raise UserError(f"{file}: can't be read ({trouble}): name a contract") from trouble
    found = promise_of(parse(text, file.name))
    if found is None:
        raise UserError(f"{file}: promises no latency of a request: write `latency_slo` or `capacity.objectives`")
    return found


def measure_alone(run: Path, rows: list[RequestRow], url: str, asked: Asked) -> None:
    """Single requests, one at a time, at a short, a usual and a long input of the run; lengths that were measured before are kept.

    Raises KeyboardInterrupt when one of them was interrupted.
    """
    measured = [row for row in rows if row.phase == "measured" and row.outcome == "ok"]
    inputs = sorted(length for row in measured if (length := row.asked_input_tokens or row.input_tokens))
    outputs = sorted(tokens for row in measured if (tokens := row.output_tokens))
    if not inputs or not outputs:
        raise UserError(f"{run}: no request with known lengths succeeded: nothing to compare single requests with")
    lengths = sorted({inputs[len(inputs) // 20], inputs[len(inputs) // 2], inputs[-1 - len(inputs) // 20]})
    if len(lengths) < 3:
        lengths = sorted({max(1, lengths[0] // 4), *lengths, lengths[-1] * 2})[:3]
    manifest = Rows(run).manifest
    for length in lengths:
        folder = run / PROBE / str(length)
        if complete(folder) is not None:
            continue
        single = msgspec.structs.replace(
            asked, concurrency="1", requests=str(SINGLE), warmup="1", input_tokens=str(length),
            output_tokens=str(max(2, outputs[len(outputs) // 2])), output=str(folder), model=asked.model or manifest.model,
            api=asked.api or manifest.api, server_metrics="none",
        )  # fmt: skip
        if bench(url, single, Watchers()).interrupted:
            raise KeyboardInterrupt


def with_alone(view: BoundedView, run: Path) -> BoundedView:
    """The view with the single requests of RUN/probe among its rows, as phase `probe`."""
    rows, budgets = list(view.rows), dict(view.budgets)
    for folder in sorted((run / PROBE).glob("*/")):
        try:
            alone = bounded_view(folder)
        except FileError:
            continue
        for row in alone.rows:
            if row.phase == "measured":
                name = f"{PROBE}-{folder.name}-{row.request_id}"
                rows.append(msgspec.structs.replace(row, request_id=name, phase="probe"))
                if row.request_id in alone.budgets:
                    budgets[name] = msgspec.structs.replace(alone.budgets[row.request_id], request_id=name)
    return msgspec.structs.replace(view, rows=rows, budgets=budgets)


def document_of(view: BoundedView, promise: Promise | None = None) -> dict[str, Any]:
    """The same from a view already read."""
    budgets = view.budgets
    features = features_of(view.rows, budgets, server_window(view))
    if promise is not None:
        features = judged(features, view.rows, promise)
    document: dict[str, Any] = {"phasemeter": 1} | msgspec.to_builtins(diagnose(features))
    measured = [
        budgets[r.request_id]
        for r in view.rows
        if r.phase == "measured" and r.outcome == "ok" and r.request_id in budgets
    ]
    document |= {"budget": budgets_document(measured), "features": msgspec.to_builtins(features)}
    document["warnings"] = list(view.warnings)
    return document


def judged(features: Features, rows: list[RequestRow], promise: Promise) -> Features:
    """With how many requests keep the promise, and which limit they break."""
    measured = [row for row in rows if row.phase == "measured"]
    verdicts = Counter(judge(row, promise.of(row)) for row in measured)
    said = verdicts["good"] + verdicts["bad"]
    broken = Counter(
        metric for row in measured for metric, limit in promise.of(row).items() if state(metric, limit, row) is False
    )
    return msgspec.structs.replace(
        features, attainment=verdicts["good"] / said if said else None, attainment_wanted=promise.attainment,
        breaches={metric: count / len(measured) for metric, count in broken.items()},
    )  # fmt: skip
