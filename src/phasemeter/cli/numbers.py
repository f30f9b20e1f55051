"""Numbers on the command line.

Lives here: the one reading of them, for the annotation of every such option: cyclopts itself rounds "1.5" to a whole number and
takes "nan" and "inf". Must not live here: quantities with a unit (phasemeter.units).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TypeVar

from cyclopts import Parameter, Token

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_NUMBER = re.compile(r"[+-]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LONGEST = 30
Number = TypeVar("Number", int, float)


def whole(least: int | None = None) -> Parameter:
    """A whole number like "12", "-3" or "10_000", `least` or more."""

    def read(type_: type, tokens: Sequence[Token]) -> int:
        text = tokens[0].value.strip()
        if not _WHOLE.fullmatch(text) or len(text) > LONGEST:
            raise ValueError(f"{text!r} is no whole number")
        return _at_least(int(text), least, text)

    return Parameter(converter=read)


def number(least: float | None = None) -> Parameter:
    """A finite number like "0.5" or "1e-3", `least` or more."""

    def read(type_: type, tokens: Sequence[Token]) -> float:
        text = tokens[0].value.strip()
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise ValueError(f"{text!r} is no number")
        return _at_least(float(text), least, text)

    return Parameter(converter=read)


def _at_least(value: Number, least: float | None, text: str) -> Number:
    if least is not None and value < least:
        raise ValueError(f"{text!r} is less than {least:g}")
    return value


WHOLE = whole()
NUMBER = number()
