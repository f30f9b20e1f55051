"""The whole study: from runs to constants, and from constants back to the runs.

Lives here: its order. Must not live here: files, words for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.stats.intervals import quantile_interval
from phasemeter.studies.calibrate.answers import answer_rows
from phasemeter.studies.calibrate.constants import Interval, Model, model_of, with_one_constant
from phasemeter.studies.calibrate.fit import STILL, fit
from phasemeter.studies.calibrate.observed import Floats, Run
from phasemeter.studies.calibrate.replay import Error, Serving, errors, replayed
from phasemeter.studies.calibrate.residuals import Bend, bends
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, Rows, decode_rows, in_blocks, met_nobody, rows_of
from phasemeter.studies.calibrate.scheduling import Seen, engine_of, seen_in
from phasemeter.studies.calibrate.steps import Steps, prefill_starts, steps_of

STRETCHES = 40
FEWEST_TOLD = 5  # requests whose server told its part, before what is outside is taken from them
Build = Callable[[LinearCoefficients], Serving]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How far a model is off on one run. `fitted_on`: "all of it", "its first half", "other runs". `seen`: the scheduler as seen."""

    run: str
    fitted_on: str
    errors: dict[str, Error]
    seen: Seen
    reason: str | None = None  # why there are none


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found. `rows`: how many of each kind; `left_out`: of them, how many stand too far off; `longest_left_out_s`."""

    model: Model
    predictions: tuple[Prediction, ...]
    rows: dict[str, int]
    spread: dict[str, float]
    by_answers: tuple[str, ...]  # runs whose steps could not be seen
    left_out: int
    longest_left_out_s: float | None
    bends: tuple[Bend, ...]


def equations(run: Run, steps: Steps | None) -> Rows:
    """A run's rows: of its steps where they can be seen, else of its answers. Where the server doesn't tell when prompts were computed,
    steps are held against what they take without any."""
    if steps is None:
        return answer_rows(run)
    usual = None
    if any(one.prefill_s is None for one in run.requests):
        decoding = decode_rows(steps)
        usual = _usual(decoding, steps) if len(decoding.y) else None
    return rows_of(run, steps, prefill_starts(run, steps, usual))


def _usual(decoding: Rows, steps: Steps) -> Floats:
    values = fit(in_blocks([decoding], STRETCHES)).values
    decode, contexts, sequences = (values[COLUMNS.index(name)] for name in ("decode", "contexts", "sequences"))
    return np.asarray(decode * steps.depth + contexts * steps.contexts + sequences * steps.decodes)


def outside_of(runs: Sequence[Run]) -> tuple[float, Interval, str] | None:
    """What first tokens took beyond the server's queue and prefill: (median, interval, by what); None without its word.

    Where it tells no queue, of the requests that met an idle engine.
    """
    found: list[float] = []
    for run in runs:
        for one, lonely in zip(run.requests, met_nobody(run), strict=True):
            if one.prefill_s is not None and (one.queue_s is not None or lonely):
                found.append(one.ttft_s - one.prefill_s - (one.queue_s or 0.0))
    if len(found) < FEWEST_TOLD:
        return None
    by = f"{len(found)} first tokens, less the server's own queue and prefill"
    low, high = quantile_interval(found, 0.5)
    return _whole_ns(float(np.median(found))), (_whole_ns(low), _whole_ns(high)), by


def _whole_ns(seconds: float | None) -> Any:
    """A difference of instants in ns that were added up in seconds."""
    return None if seconds is None else round(seconds, 9)


def calibrate(runs: Sequence[Run], held_out: Sequence[Run], build: Build | None = None) -> Calibration | str:
    """The fit of `runs`, its errors on each of them and on `held_out`; or why there is none. `build`: a fresh engine of a plan's
    deployment with that step time (None: as the runs show it)."""
    steps = {id(run): steps_of(run) for run in (*runs, *held_out)}
    rows = [equations(run, steps[id(run)]) for run in runs]
    if not any(len(one.y) for one in rows):
        return "no token came after another one: nothing tells how long a step takes"
    whole = in_blocks(rows, STRETCHES)
    model = _model(whole, runs)
    halves = _first_halves(runs, rows)
    early = _model(halves, [_until_half(run) for run in runs]) if halves is not None else None
    predictions = [
        *(_predicted(run, steps[id(run)], model, "all of it", build) for run in runs),
        *(_predicted(run, steps[id(run)], early, "its first half", build) for run in runs),
        *(_predicted(run, steps[id(run)], model, "other runs", build) for run in held_out),
    ]
    still = model.fit.weights <= STILL
    return Calibration(
        model=model,
        predictions=tuple(predictions),
        rows={kind: len(whole.of(kind)) for kind in KINDS},
        spread={kind: float(model.fit.spread[at]) for at, kind in enumerate(KINDS)},
        by_answers=tuple(run.name for run in runs if steps[id(run)] is None),
        left_out=int(still.sum()),
        longest_left_out_s=float(whole.y[still].max()) if still.any() else None,
        bends=tuple(bends(whole, model.fit)),
    )


def _model(rows: Rows, runs: Sequence[Run]) -> Model:
    found = fit(rows)
    if (shared := with_one_constant(rows, found)) is not None:
        rows, found = shared, fit(shared)
    return model_of(rows, found, outside_of(runs))


def half_s(run: Run) -> float:
    """When half of its requests were sent."""
    return run.requests[len(run.requests) // 2].sent_s


def _until_half(run: Run) -> Run:
    return msgspec.structs.replace(run, requests=tuple(one for one in run.requests if one.last_s < half_s(run)))


def _first_halves(runs: Sequence[Run], rows: Sequence[Rows]) -> Rows | None:
    parts = [one.part(one.at_s < half_s(run)) for run, one in zip(runs, rows, strict=True)]
    return in_blocks(parts, STRETCHES) if any(len(one.y) for one in parts) else None


def _predicted(run: Run, steps: Steps | None, model: Model | None, fitted_on: str, build: Build | None) -> Prediction:
    seen = seen_in(run, steps)
    if model is None or model.linear is None:
        return Prediction(
            run=run.name,
            fitted_on=fitted_on,
            errors={},
            seen=seen,
            reason="what it is fitted on tells no whole step time",
        )
    serving = engine_of(seen, model.linear, run.budget) if build is None else build(model.linear)
    truths = replayed(run, serving, model.outside_s)
    since = half_s(run) if fitted_on == "its first half" else -np.inf
    found = errors(run, truths, model.outside_s, since)
    reason = None if found["ttft"].n else "no request of it could be predicted"
    return Prediction(run=run.name, fitted_on=fitted_on, errors=found, seen=seen, reason=reason)
