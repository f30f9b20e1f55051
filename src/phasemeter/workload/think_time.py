"""How long a user thinks before asking again: a distribution of seconds, in the grammar of lengths.

Lives here: reading it (as typed, or as a contract writes it) and sampling it. Must not live here: when a slot is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.units import duration_s
from phasemeter.workload.lengths import Z95
from phasemeter.workload.streams import Stream

FORMS = 'write "500 ms", exponential:2s, uniform:1s:3s, normal:2s:500ms (mean:sd) or lognormal:2s:10s (median:p95)'


class ThinkTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """fixed(a) · exponential(mean a) · uniform(a..b) · normal(mean a, sd b; never below 0) · lognormal(median a, p95 b); seconds."""

    kind: str = "fixed"
    a_s: float = 0.0
    b_s: float = 0.0

    def words(self) -> str:
        """For the manifest and the person; empty for none."""
        if self.kind == "fixed":
            return f"{self.a_s:g} s" if self.a_s else ""
        numbers = [self.a_s] if self.kind == "exponential" else [self.a_s, self.b_s]
        return f"{self.kind} " + ":".join(f"{each:g} s" for each in numbers)


def _exponential(think: ThinkTime, stream: Stream) -> float:
    return think.a_s * stream.exponential()


def _uniform(think: ThinkTime, stream: Stream) -> float:
    return think.a_s + (think.b_s - think.a_s) * stream.random()


def _normal(think: ThinkTime, stream: Stream) -> float:
    return max(0.0, think.a_s + think.b_s * stream.normal())


def _lognormal(think: ThinkTime, stream: Stream) -> float:
    return think.a_s * math.exp(math.log(think.b_s / think.a_s) / Z95 * stream.normal())


SAMPLED: dict[str, Callable[[ThinkTime, Stream], float]] = {
    "fixed": lambda think, stream: think.a_s,
    "exponential": _exponential,
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
}
# a contract's names of the numbers, in their order
FIELDS = {
    "fixed": ("",), "exponential": ("mean",), "uniform": ("min", "max"), "normal": ("mean", "sd"),
    "lognormal": ("median", "p95"),
}  # fmt: skip


def sample_ns(think: ThinkTime, stream: Stream) -> int:
    """One pause in ns."""
    return round(SAMPLED[think.kind](think, stream) * 1e9)


def parse_think_time(text: str) -> ThinkTime:
    """`500 ms`, `exponential:2s`, `uniform:1s:3s`, `normal:2s:500ms`, `lognormal:2s:10s`. Raises UserError saying what to write."""
    name, *parts = str(text).strip().split(":")
    if not parts:
        return ThinkTime(a_s=_seconds(name, text))
    return _checked(name.strip().lower(), parts, text)


def think_time_of_contract(value: Any) -> ThinkTime:
    """`2 s`, `{exponential: 2 s}`, `{uniform: {min: 1 s, max: 3 s}}`, or the text a command line takes. Raises UserError."""
    if not isinstance(value, Mapping):
        return parse_think_time(value)
    if len(value) != 1:
        raise UserError(f"think time: name one distribution, not {sorted(value)}")
    ((kind, given),) = value.items()
    if isinstance(given, Mapping):
        names = FIELDS.get(kind, ())
        if set(given) != set(names):
            raise UserError(
                f"think time: {kind} takes {' and '.join(names) or FORMS}, not {', '.join(map(str, given))}"
            )
        given = [given[name] for name in names]
    return _checked(kind, given if isinstance(given, list) else [given], f"{kind}: {given}")


def _seconds(part: Any, text: str) -> float:
    try:
        return duration_s(part)
    except UserError as wrong:
        raise UserError(f"think time {text!r}: {wrong}: {FORMS}") from None


def _checked(kind: str, parts: list[Any], text: str) -> ThinkTime:
    if kind not in FIELDS:
        raise UserError(f"think time {text!r}: `{kind}` is no distribution I know: {FORMS}")
    if len(parts) != len(FIELDS[kind]):
        raise UserError(f"think time {text!r}: {kind} takes {len(FIELDS[kind])} durations: {FORMS}")
    first, second = (*(_seconds(part, text) for part in parts), 0.0)[:2]
    if kind in {"uniform", "lognormal"} and second < first:
        raise UserError(f"think time {text!r}: {FIELDS[kind][1]} is below {FIELDS[kind][0]}: {FORMS}")
    if kind in {"exponential", "lognormal"} and not first > 0:
        raise UserError(f"think time {text!r}: {kind} needs more than 0: {FORMS}")
    return ThinkTime(kind=kind, a_s=first, b_s=second)
