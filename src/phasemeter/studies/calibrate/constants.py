"""What a fit means: constants by name, how each is known, and the step time that a plan takes.

Lives here: from columns to constants. Must not live here: algebra (fit.py), words for people (report/).

A step with prompts costs the larger of the two constants once (LinearCost). Rows of prompts alone tell the prefill's. Without any,
mixed steps tell it where they cost more than a decode; where they don't, it is no larger than the decode's, and the decode's
is taken: both read the same weights. What a request that met an idle engine took above that is outside the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.studies.calibrate.fit import Fit
from phasemeter.studies.calibrate.observed import Floats
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, Rows

Status = Literal["identified", "assumed", "unidentified"]
DECODE, MIXED, PREFILL, ALONE, TOKENS, CONTEXTS, SEQUENCES, SQUARES = range(len(COLUMNS))
ONE_LENGTH = 1.2  # the 90th percentile of prompts within so many times the 10th
DECODING = (KINDS.index("decode"), KINDS.index("answers"))
ABOVE = 0.01  # of a decode's constant: a mixed step's that is no more above it has the decode's
Interval = tuple[float | None, float | None]


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """One constant, in seconds per `unit`. `by`: what identifies it, or why nothing does; `measure`: what would (measures.py)."""

    name: str
    unit: str
    value: float | None
    ci95: Interval = (None, None)
    status: Status = "identified"
    by: str
    measure: str | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """`mixed_s`: what a step with prompts costs once beside decodes, as fitted; None where none was seen. `linear` None: no step time."""

    constants: tuple[Constant, ...]
    linear: LinearCoefficients | None
    outside_s: float
    mixed_s: float | None
    mixed_ci95: Interval
    fit: Fit

    def constant(self, name: str) -> Constant:
        return next(one for one in self.constants if one.name == name)


class _Terms(msgspec.Struct, frozen=True):
    """Which constants the fit tells, and the usual prompt (tokens) where constant and length could not be told apart."""

    has: dict[str, bool]
    usual_tokens: float
    above: bool  # mixed steps cost more than decodes, beyond doubt

    def prefill(self, values: Floats) -> float:
        """The prefill's constant."""
        if not self.has["tokens"]:  # one length: all of it is in the constants
            return float(min(values[DECODE], self._whole(values)))
        if self.has["prefill"]:
            return float(values[PREFILL])
        if self.has["mixed"]:
            bound = values[ALONE] if self.has["alone"] else np.inf
            return float(values[MIXED] if self.above else min(values[DECODE], bound))
        return float(values[ALONE] if self.has["alone"] else values[DECODE])

    def per_token(self, values: Floats) -> float:
        if self.has["tokens"]:
            return float(values[TOKENS])
        return float((self._whole(values) - self.prefill(values)) / self.usual_tokens)

    def _whole(self, values: Floats) -> float:
        name = next((one for one in ("prefill", "mixed", "alone") if self.has[one]), "alone")
        return float(values[COLUMNS.index(name)])

    def outside(self, values: Floats) -> float:
        """What meeting an idle engine cost above the prefill; 0 where nothing tells."""
        if not self.has["alone"] or not (self.has["prefill"] or self.has["mixed"]):
            return 0.0
        if not self.has["tokens"] and not self.has["prefill"]:
            return 0.0
        whole = values[PREFILL] if self.has["prefill"] and not self.has["tokens"] else self.prefill(values)
        return float(values[ALONE] - whole)


def model_of(rows: Rows, fit: Fit, outside: tuple[float, Interval, str] | None) -> Model:
    """The constants, and the step time. `outside`: what requests took beyond the server's own word, where it gave one."""
    has = {name: bool(fit.told[at]) for at, name in enumerate(COLUMNS)}
    prompts = ~np.isin(rows.kind, DECODING)
    usual = float(np.median(rows.x[prompts, TOKENS])) if prompts.any() else 1.0
    terms = _Terms(has, max(1.0, usual), has["mixed"] and _above(fit))
    constants = [*_decode(rows, fit, has), *_prefill(rows, fit, terms), _outside(fit, terms, outside)]
    value = {one.name: one.value or 0.0 for one in constants}
    linear = None
    seen = any(has[name] for name in ("prefill", "mixed", "alone", "tokens"))
    if has["decode"] and seen and value["decode.constant"] + value["decode.per_sequence"] > 0:
        linear = LinearCoefficients(
            prefill_s=(value["prefill.constant"], value["prefill.per_token"], value["prefill.per_token_squared"]),
            decode_s=(value["decode.constant"], value["decode.per_context_token"], value["decode.per_sequence"]),
        )
    return Model(
        constants=tuple(constants),
        linear=linear,
        outside_s=value["outside"],
        mixed_s=float(fit.values[MIXED]) if has["mixed"] else None,
        mixed_ci95=fit.interval(lambda v: float(v[MIXED])) if has["mixed"] else (None, None),
        fit=fit,
    )


def with_one_constant(rows: Rows, fit: Fit) -> Rows | None:
    """The rows with one constant for prompts, alone or beside decodes, where both were told and the form has them equal: mixed
    steps cost more than decodes, and not for sure another constant than prompts alone. None: as they are."""
    if not (fit.told[MIXED] and fit.told[PREFILL] and _above(fit)):
        return None
    low, high = fit.interval(lambda values: float(values[MIXED] - values[PREFILL]))
    if low is None or high is None or not low <= 0 <= high:
        return None
    x = rows.x.copy()
    x[:, PREFILL] += x[:, MIXED]
    x[:, MIXED] = 0
    return msgspec.structs.replace(rows, x=x)


def _above(fit: Fit) -> bool:
    """Whether mixed steps have a larger constant than decodes, beyond doubt."""
    low = fit.interval(lambda values: float(values[MIXED] - values[DECODE]))[0]
    return low is not None and low > ABOVE * float(fit.values[DECODE])


def _simple(fit: Fit, name: str, unit: str, column: int, by: str) -> Constant:
    return _made(fit, name, unit, lambda values: float(values[column]), by)


def _made(fit: Fit, name: str, unit: str, of: Callable[[Floats], float], by: str) -> Constant:
    value, (low, high) = max(0.0, of(fit.values)), fit.interval(of)
    if low is not None and high is not None:
        low, high = max(0.0, low), max(0.0, high)
    return Constant(name=name, unit=unit, value=value, ci95=(low, high), by=by)


def _decode(rows: Rows, fit: Fit, has: dict[str, bool]) -> list[Constant]:
    steps, answers = len(rows.of("decode")), len(rows.of("answers"))
    if not has["decode"]:
        why = "no step in which requests only decoded was seen"
        return [
            Constant(name=f"decode.{name}", unit=unit, value=None, status="unidentified", by=why, measure="decode")
            for name, unit in (
                ("constant", "step"), ("per_context_token", "context token"), ("per_sequence", "sequence")
            )
        ]  # fmt: skip
    by = " and ".join(f"{n} {what}" for n, what in ((steps, "decode steps"), (answers, "answers")) if n)
    found = [_simple(fit, "decode.constant", "step", DECODE, by)]
    if has["contexts"]:
        contexts = _per_step(rows, CONTEXTS)
        by = f"contexts of {np.quantile(contexts, 0.05):.0f} to {np.quantile(contexts, 0.95):.0f} tokens in all"
        found.append(_simple(fit, "decode.per_context_token", "context token", CONTEXTS, by))
    else:
        why = "contexts differed too little, or times too much, for what they cost: it is in the constant"
        found.append(_unknown("decode.per_context_token", "context token", why, "contexts"))
    if has["sequences"]:
        batch = _per_step(rows, SEQUENCES)
        by = f"batches of {batch.min():.0f} to {batch.max():.0f}"
        found.append(_simple(fit, "decode.per_sequence", "sequence", SEQUENCES, by))
    else:
        least, usual, most = np.quantile(_per_step(rows, SEQUENCES), [0.1, 0.5, 0.9])
        why = (
            f"the batch was nearly always {usual:.0f}"
            if least == most
            else "too much noise for the batches that there were"
        )
        why += ": what that costs is in the constant"
        found.append(_unknown("decode.per_sequence", "sequence", why, "batches"))
    return found


def _per_step(rows: Rows, column: int) -> Floats:
    """Of decode steps, where several may have come as one."""
    x = rows.x[np.isin(rows.kind, DECODING)]
    return np.asarray(x[:, column] / (x[:, DECODE] + x[:, MIXED]))


def _unknown(name: str, unit: str, why: str, measure: str) -> Constant:
    return Constant(name=name, unit=unit, value=None, status="unidentified", by=why, measure=measure)


def _prefill(rows: Rows, fit: Fit, terms: _Terms) -> list[Constant]:
    has = terms.has
    counts = {kind: len(rows.of(kind)) for kind in ("prefill", "mixed", "alone")}
    if not any(has[name] for name in ("prefill", "mixed", "alone", "tokens")):
        why = "no prompt was seen whose processing has a beginning"
        return [
            _unknown(f"prefill.{name}", unit, why, "prompts")
            for name, unit in (("constant", "step"), ("per_token", "token"), ("per_token_squared", "token²"))
        ]
    shared = f" and {counts['mixed']} beside decodes" if counts["mixed"] and not has["mixed"] else ""
    constant = _made(fit, "prefill.constant", "step", terms.prefill, f"{counts['prefill']} prefills alone{shared}")
    if not has["tokens"]:
        why = f"{_why_not(rows)}: taken as the decode's constant, which reads the same weights"
        constant = msgspec.structs.replace(constant, status="assumed", by=why, measure="lengths")
    elif not has["prefill"] and terms.above and has["mixed"]:
        constant = msgspec.structs.replace(constant, by=f"{counts['mixed']} steps with prompts and decodes")
    elif not has["prefill"] and has["mixed"]:
        why = "mixed steps cost no more than decodes: at most the decode's constant, taken as that"
        constant = msgspec.structs.replace(
            constant, ci95=(0.0, constant.value), status="assumed", by=why, measure="server"
        )
    elif not has["prefill"] and not has["alone"]:
        why = "no prompt was seen by itself: taken as the decode's constant, which reads the same weights"
        constant = msgspec.structs.replace(constant, status="assumed", by=why, measure="prompts")
    elif not has["prefill"]:
        why = f"{counts['alone']} first tokens of an idle engine: what is outside it is in here too"
        constant = msgspec.structs.replace(constant, status="assumed", by=why, measure="server")
    ranged = _prompts(rows, sum(counts.values()))
    each = _made(fit, "prefill.per_token", "token", terms.per_token, ranged)
    if not has["tokens"]:
        why = f"{_why_not(rows)}: what is left above the constant"
        each = msgspec.structs.replace(each, status="assumed", by=why, measure="lengths")
    if has["squares"]:
        return [constant, each, _simple(fit, "prefill.per_token_squared", "token²", SQUARES, ranged)]
    why = "lengths differed too little, or times too much, for the square of a prompt: it is in the line"
    return [constant, each, _unknown("prefill.per_token_squared", "token²", why, "lengths")]


def _prompts(rows: Rows, prefills: int) -> str:
    """Which prompts tell what a token costs."""
    if not prefills:
        return f"others' prompts within {len(rows.of('answers'))} answers"
    lengths = rows.x[~np.isin(rows.kind, DECODING), TOKENS]
    return f"{prefills} prefills of {np.quantile(lengths, 0.05):.0f} to {np.quantile(lengths, 0.95):.0f} tokens"


def _why_not(rows: Rows) -> str:
    """Why a prompt's length and its constant are not told apart."""
    lengths = rows.x[~np.isin(rows.kind, DECODING), TOKENS]
    alike = len(lengths) > 0 and np.quantile(lengths, 0.9) < ONE_LENGTH * np.quantile(lengths, 0.1)
    return "the prompts had one length" if alike else "too much noise for the lengths that there were"


def _outside(fit: Fit, terms: _Terms, told: tuple[float, Interval, str] | None) -> Constant:
    if told is not None:
        value, interval, by = told
        return Constant(name="outside", unit="request", value=max(0.0, value), ci95=interval, by=by)
    known = terms.has["prefill"] or (terms.has["mixed"] and terms.has["tokens"])
    if not terms.has["alone"] or not known:
        why = "needs the server's word on prefill, or first tokens both of an idle engine and of a busy one"
        return _unknown("outside", "request", why, "server")
    found = _made(fit, "outside", "request", terms.outside, "first tokens of an idle engine, less its prefill")
    if not terms.has["prefill"] and not terms.above:
        high = float(fit.values[ALONE])
        why = "what an idle engine's first token took above the prefill assumed"
        return msgspec.structs.replace(found, ci95=(found.value, high), status="assumed", by=why, measure="server")
    return found
