"""From run directories to a fitted step time, its errors, and the file that a plan names.

Lives here: reading runs, refusing what can't be fitted, the document. Must not live here: the fit (studies/calibrate), words for
people (report/calibration.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from phasemeter.errors import FileError, UserError
from phasemeter.metrics.document import strict
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.analysis import RESULT, Rows, analyse
from phasemeter.serving.deploy import build
from phasemeter.serving.plan import Plan, StepTimeSpec
from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.studies.calibrate.measures import Load, measure
from phasemeter.studies.calibrate.observed import Observed, Run, in_order, observed
from phasemeter.studies.calibrate.study import Build, Calibration, calibrate

# what makes two runs those of one engine; a field that one of them doesn't record tells nothing
SAME = (
    "model", "model_revision", "engine", "engine_version", "accelerator", "accelerator_count", "dtype", "quantisation",
    "tensor_parallel", "attention_backend",
)  # fmt: skip


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A run, read: `run` for the fit, what its manifest says, how many of its requests the server's word is on record for."""

    path: str
    run: Run
    manifest: Manifest
    told: int


def read_run(path: Path, *, even_invalid: bool = False, budget: int | None = None) -> Measured:
    """A run as a fit takes it. Raises UserError or FileError: one line, for what can't be fitted."""
    if not path.is_dir():
        raise FileError(f"{path}: no run directory: name one that `phasemeter bench` or `simulate` wrote")
    source = Rows(path)
    manifest = source.manifest
    _must_be_one_engine(path, manifest)
    evidence, rows, requests = source.evidence(), [], list[Observed]()
    origin_ns: int | None = None
    for seen in source.seen():
        row, told = seen.row, evidence.of(seen)
        rows.append(_without_times(row))
        if row.send_start_ns is not None and origin_ns is None:
            origin_ns = row.send_start_ns
        if (one := observed(row, told.values, origin_ns or 0)) is not None:
            requests.append(one)
    _must_tell(path, rows, requests)
    if not even_invalid and _verdict(path) == "invalid":
        raise UserError(
            f"{path}: the run is invalid (`phasemeter report` says why): what it says of the engine can't be trusted;"
            " --even-invalid fits it all the same"
        )
    run = Run(name=str(path), requests=in_order(requests), concurrency=manifest.concurrency, budget=budget)
    return Measured(path=str(path), run=run, manifest=manifest, told=sum(one.prefill_s is not None for one in requests))


def _without_times(row: RequestRow) -> RequestRow:
    return msgspec.structs.replace(row, choices=())


def _must_be_one_engine(path: Path, manifest: Manifest) -> None:
    for name in ("data_parallel", "pipeline_parallel"):
        if (getattr(manifest, name) or 1) > 1:
            raise UserError(
                f"{path}: {getattr(manifest, name)} engines share its requests (`{name}`), and no run tells which one took what:"
                " measure one of them"
            )
    if manifest.topology and "pools" in manifest.topology:
        raise UserError(f"{path}: prefill and decode ran in pools of their own: measure one engine that does both")


def _verdict(path: Path) -> str:
    file = path / RESULT
    if not file.exists():
        return analyse(path).validity.verdict
    try:
        found = msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as damaged:
        raise FileError(f"{file}: no JSON: {damaged}: remove it, `phasemeter report` makes it anew") from damaged
    validity = found.get("validity") if isinstance(found, dict) else None
    return str((validity or {}).get("verdict"))


def _must_tell(path: Path, rows: Sequence[RequestRow], requests: Sequence[Observed]) -> None:
    """Raises UserError for a run from which no step time can come, with what would help."""
    ok = [row for row in rows if row.outcome == "ok"]
    if not ok:
        raise UserError(f"{path}: no request of {len(rows)} succeeded: there is nothing to fit")
    if not any(row.stream for row in ok):
        raise UserError(
            f"{path}: its answers were not streamed, so that no token has a time: measure with streaming on"
        )
    if not any(row.output_tokens for row in ok):
        raise UserError(
            f"{path}: nobody counted its output tokens (the server sends no usage): name a tokenizer with"
            " `phasemeter bench --tokenizer`"
        )
    if not any(row.input_tokens or row.asked_input_tokens for row in ok):
        raise UserError(
            f"{path}: nobody counted its prompts' tokens (the server sends no usage): give --input-tokens to `phasemeter bench`"
        )
    if not any(one.output_tokens > 1 and one.last_s > one.first_s for one in requests):
        raise UserError(
            f"{path}: no request got its tokens one after another (one token, or all in one read): measure answers of 16 tokens or"
            " more, streamed past no proxy that holds them back"
        )


def must_match(runs: Sequence[Measured]) -> None:
    """Raises UserError where two runs are of different engines."""
    first = runs[0]
    for other in runs[1:]:
        for name in SAME:
            mine, its = getattr(first.manifest, name), getattr(other.manifest, name)
            if mine is not None and its is not None and mine != its:
                raise UserError(
                    f"{first.path} and {other.path} differ in `{name}` ({mine} and {its}): one step time can't be both; fit them apart"
                )


def study(
    paths: Sequence[Path], held_out: Sequence[Path] = (), plan: Plan | None = None, *, even_invalid: bool = False
) -> dict[str, Any]:
    """The document of `calibrate --json`; `plan`: whose scheduler, memory and limits predict (its step time is replaced).

    Raises UserError and FileError for what can't be fitted.
    """
    names = [str(path.resolve()) for path in (*paths, *held_out)]
    if len(set(names)) < len(names):
        raise UserError("a run is named twice: a run that is fitted can't be held out, and counts once")
    budget = None if plan is None else plan.deployment.max_num_batched_tokens
    runs = [read_run(path, even_invalid=even_invalid, budget=budget) for path in paths]
    others = [read_run(path, even_invalid=even_invalid, budget=budget) for path in held_out]
    must_match([*runs, *others])
    found = calibrate([one.run for one in runs], [one.run for one in others], None if plan is None else build_of(plan))
    if isinstance(found, str):
        raise UserError(f"{', '.join(map(str, paths))}: {found}")
    return document(runs, others, found, plan)


def build_of(plan: Plan) -> Build:
    """A fresh deployment of the plan with the step time it is given."""

    def fresh(linear: LinearCoefficients) -> Any:
        spec = msgspec.structs.replace(plan.deployment, step_time=StepTimeSpec(linear=linear))
        return build(msgspec.structs.replace(plan, deployment=spec), tokens=False)

    return fresh


def document(
    runs: Sequence[Measured], others: Sequence[Measured], found: Calibration, plan: Plan | None
) -> dict[str, Any]:
    """Strict JSON. Seconds; errors are shares of what was measured."""
    model, load = found.model, _load(runs)
    constants: list[dict[str, Any]] = []
    # a load of large batches has prompts and contexts of many lengths too
    covered = {"lengths", "contexts"} if any(one.measure == "batches" for one in model.constants) else set[str]()
    for one in model.constants:
        plain = msgspec.to_builtins(one)
        wanted = "batches" if one.measure in covered else one.measure
        plain["measure"] = None if wanted is None else measure(wanted, load)
        constants.append(plain)
    mixed = None
    if model.mixed_s is not None:
        mixed = {"value": model.mixed_s, "ci95": list(model.mixed_ci95), "taken": _mixed_taken(model.linear)}
    manifest = runs[0].manifest
    answer: dict[str, Any] = {
        "phasemeter": 1,
        "calibration": {
            "model": manifest.model,
            "engine": manifest.engine,
            "engine_version": manifest.engine_version,
            "accelerator": manifest.accelerator,
            "runs": [_run_document(one, fitted=True) for one in runs]
            + [_run_document(one, fitted=False) for one in others],
            "constants": constants,
            "mixed_constant": mixed,
            "rows": {kind: {"n": n, "spread": found.spread[kind]} for kind, n in found.rows.items() if n},
            "left_out": {"n": found.left_out, "longest_s": found.longest_left_out_s},
            "by_answers": list(found.by_answers),
            "bends": msgspec.to_builtins(found.bends),
            "predicted_with": "the plan's deployment" if plan is not None else "the scheduler as the run shows it",
            "errors": [_prediction(one, plan is not None) for one in found.predictions],
        },
        "linear": msgspec.to_builtins(model.linear),
        "outside_s": model.outside_s,
    }
    return dict(strict(answer))


def _mixed_taken(linear: LinearCoefficients | None) -> float | None:
    return None if linear is None else max(linear.prefill_s[0], linear.decode_s[0])


def _run_document(one: Measured, *, fitted: bool) -> dict[str, Any]:
    requests = one.run.requests
    return {
        "run": one.path, "fitted": fitted, "requests": len(requests), "with_server_prefill": one.told,
        "input_tokens": [min(r.prompt_tokens for r in requests), max(r.prompt_tokens for r in requests)],
        "output_tokens": [min(r.output_tokens for r in requests), max(r.output_tokens for r in requests)],
    }  # fmt: skip


def _prediction(one: Any, planned: bool) -> dict[str, Any]:
    seen = None if planned else {"policy": one.seen.policy, "seats": one.seen.seats}
    plain = {"run": one.run, "fitted_on": one.fitted_on, "scheduler": seen, "reason": one.reason}
    return plain | {name: msgspec.to_builtins(error) for name, error in one.errors.items()}


def _load(runs: Sequence[Measured]) -> Load:
    requests = [one for run in runs for one in run.run.requests]
    first = runs[0].manifest
    return Load(
        url=first.url,
        input_tokens=round(median(one.prompt_tokens for one in requests)),
        output_tokens=round(median(one.output_tokens for one in requests)),
        concurrency=max((run.manifest.concurrency or 1 for run in runs), default=1),
    )
