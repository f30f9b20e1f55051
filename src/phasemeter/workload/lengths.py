"""How long prompts and answers are asked to be: distributions of token counts.

Lives here: reading a distribution (as typed, or as a contract writes it), sampling it, and what came of it. Must not live here:
making text of that length (prompts.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.units import count
from phasemeter.workload.streams import Stream

Z95 = 1.6448536269514722  # the 95th percentile of the standard normal
FORMS = "write 64, uniform:32:128, normal:512:64 (mean:sd) or lognormal:512:2048 (median:p95)"


class Lengths(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A distribution of token counts; samples are whole and at least 1.

    fixed(a) · uniform(a..b, both included) · normal(mean a, sd b) · lognormal(median a, p95 b) · empirical(values, weights) · trace
    (the row's own lengths). Normal samples below 1 are set to 1, which moves the mean up when sd is large: `summary` says by how much.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    values: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    def words(self) -> str:
        """As a person would type it."""
        if self.kind == "fixed":
            return f"{self.a:g}"
        if self.kind in {"uniform", "normal", "lognormal"}:
            return f"{self.kind}:{self.a:g}:{self.b:g}"
        return f"empirical ({len(self.values)} values)" if self.kind == "empirical" else self.kind


def parse_lengths(text: str | int) -> Lengths:
    """A length option: `64`, `uniform:32:128`, `normal:512:64`, `lognormal:512:2048` (median:p95).

    Raises UserError saying what to write.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return _checked("fixed", [text], str(text))
    name, *parts = str(text).strip().split(":")
    if not parts:
        return _checked("fixed", [name], str(text))
    if name not in {"fixed", "uniform", "normal", "lognormal"}:
        raise UserError(f"length {text!r}: `{name}` is no distribution I know: {FORMS}")
    return _checked(name, parts, str(text))


def _number(part: object, text: str, *, whole: bool) -> float:
    if whole:
        try:
            return float(count(part if isinstance(part, str | int | float) else str(part)))
        except UserError as error:
            raise UserError(f"length {text!r}: {error}") from None
    try:
        value = float(str(part))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"length {text!r}: {part!r} has to be a number of 0 or more: {FORMS}")
    return value


def _checked(kind: str, parts: Sequence[object], text: str) -> Lengths:
    wanted = 1 if kind == "fixed" else 2
    if len(parts) != wanted:
        raise UserError(f"length {text!r}: {kind} takes {wanted} number{'s' if wanted > 1 else ''}: {FORMS}")
    first = _number(parts[0], text, whole=True)
    if kind == "fixed":
        return Lengths(kind=kind, a=first)
    second = _number(parts[1], text, whole=kind != "normal")
    if kind in {"uniform", "lognormal"} and second < first:
        names = ("low", "high") if kind == "uniform" else ("median", "p95")
        raise UserError(f"length {text!r}: {names[1]} {second:g} is below {names[0]} {first:g}: {FORMS}")
    return Lengths(kind=kind, a=first, b=second)


_FIELDS = {"uniform": ("min", "max"), "normal": ("mean", "sd"), "lognormal": ("median", "p95")}
_ALIASES = {"low": "min", "high": "max", "std": "sd", "stddev": "sd"}


def lengths_of_contract(value: Any, path: str) -> Lengths:
    """A contract's form: `{fixed: 128}`, `{uniform: {min, max}}`, `{normal: {mean, sd}}`, `{lognormal: {median, p95}}`,
    `{empirical: [..]}` or `{empirical: {values, weights}}`, `{trace: FILE}`, or the text a command line takes.

    Raises UserError with the path.
    """
    try:
        return _of_contract(value)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _of_contract(value: Any) -> Lengths:
    if not isinstance(value, Mapping):
        return parse_lengths(value)
    if len(value) != 1:
        raise UserError(f"name one distribution, like {{fixed: 128}}, not {sorted(value)}")
    ((kind, given),) = value.items()
    if kind == "trace":
        return Lengths(kind="trace")
    if kind == "empirical":
        return _empirical(given)
    if kind == "fixed":
        return _checked("fixed", [given], f"fixed: {given}")
    if kind not in _FIELDS:
        raise UserError(f"`{kind}` is no distribution I know: fixed, uniform, normal, lognormal, empirical or trace")
    if isinstance(given, Mapping):
        named = {_ALIASES.get(key, key): number for key, number in given.items()}
        if set(named) != set(_FIELDS[kind]):
            raise UserError(f"{kind} takes {' and '.join(_FIELDS[kind])}, not {', '.join(map(str, given))}")
        given = [named[name] for name in _FIELDS[kind]]
    if not isinstance(given, list | tuple):
        raise UserError(f"{kind} takes {{{': .., '.join(_FIELDS[kind])}: ..}}, not {given!r}")
    return _checked(kind, given, f"{kind}: {given}")


def _empirical(given: Any) -> Lengths:
    values = given.get("values") if isinstance(given, Mapping) else given
    weights = given.get("weights", ()) if isinstance(given, Mapping) else ()
    if not isinstance(values, list | tuple) or not values:
        raise UserError("empirical takes a list of token counts, or {values: [..], weights: [..]}")
    return empirical([int(_number(value, str(value), whole=True)) for value in values], weights)


def empirical(values: Sequence[int], weights: Sequence[float] = ()) -> Lengths:
    """Observed counts, drawn with replacement (by weight, where given).

    Raises UserError for no values, counts below 1, or weights that don't fit.
    """
    if not values or min(values) < 1:
        raise UserError("empirical lengths need at least one value, each 1 or more")
    if weights and (len(weights) != len(values) or min(weights) < 0 or sum(weights) <= 0):
        raise UserError("empirical weights: one for each value, none negative, not all 0")
    return Lengths(kind="empirical", values=tuple(values), weights=tuple(float(w) for w in weights))


def sample(lengths: Lengths, stream: Stream) -> int:
    """One token count, at least 1.

    Raises UserError for kind `trace` (its lengths come with its rows).
    """
    if lengths.kind == "fixed":
        return int(lengths.a)
    if lengths.kind == "uniform":
        return int(lengths.a) + stream.below(int(lengths.b - lengths.a) + 1)
    if lengths.kind == "normal":
        return max(1, round(lengths.a + lengths.b * stream.normal()))
    if lengths.kind == "lognormal":
        sigma = math.log(lengths.b / lengths.a) / Z95
        return max(1, round(lengths.a * math.exp(sigma * stream.normal())))
    if lengths.kind == "empirical":
        return lengths.values[_pick(lengths, stream)]
    raise UserError(f"lengths `{lengths.kind}` come with the trace's rows: give --trace")


def _pick(lengths: Lengths, stream: Stream) -> int:
    if not lengths.weights:
        return stream.below(len(lengths.values))
    total, bounds = 0.0, []
    for weight in lengths.weights:
        total += weight
        bounds.append(total)
    return min(bisect_right(bounds, stream.random() * total), len(bounds) - 1)


def mean_tokens(lengths: Lengths) -> float | None:
    """The mean of what was asked, before rounding and the floor of 1; None for a trace."""
    if lengths.kind in {"fixed", "normal"}:
        return lengths.a
    if lengths.kind == "uniform":
        return (lengths.a + lengths.b) / 2
    if lengths.kind == "lognormal":
        sigma = math.log(lengths.b / lengths.a) / Z95
        return lengths.a * math.exp(sigma * sigma / 2)
    if lengths.kind == "empirical":
        weights = lengths.weights or (1.0,) * len(lengths.values)
        return sum(v * w for v, w in zip(lengths.values, weights, strict=True)) / sum(weights)
    return None


class Realised(msgspec.Struct, frozen=True, kw_only=True):
    """Asked against realised, over the requests where both are known. `mean_ratio` is realised over asked."""

    n: int
    unknown: int  # requests whose realised length nobody told
    asked_mean: float | None
    realised_mean: float | None
    mean_difference: float | None
    mean_ratio: float | None
    exact: int
    largest_difference: int | None


def realised(pairs: Sequence[tuple[int, int | None]]) -> Realised:
    """Compare (asked, realised or None) token counts."""
    known = [(asked, got) for asked, got in pairs if got is not None]
    asked_sum, got_sum, n = sum(a for a, _ in known), sum(g for _, g in known), len(known)
    return Realised(
        n=n,
        unknown=len(pairs) - n,
        asked_mean=asked_sum / n if n else None,
        realised_mean=got_sum / n if n else None,
        mean_difference=(got_sum - asked_sum) / n if n else None,
        mean_ratio=got_sum / asked_sum if asked_sum else None,
        exact=sum(a == g for a, g in known),
        largest_difference=max((g - a for a, g in known), key=abs, default=None),
    )
