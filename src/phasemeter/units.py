"""Quantities as people write them: "450 ms", "3.5 req/s", "99 %", "64k".

Lives here: parsing text into SI numbers, with errors that name what was read. Must not live here: printing for people (report/).
"""

from __future__ import annotations

import math
import re

from phasemeter.errors import UserError

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*", re.DOTALL)

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
_PER_SECOND = {"s": 1.0, "sec": 1.0, "min": 1 / 60.0, "m": 1 / 60.0, "h": 1 / 3600.0}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}  # fmt: skip
_COUNTS = {"": 1, "k": 10**3, "m": 10**6}
MOST = 2**53  # whole numbers beyond are rounded on their way through a float
_RATE_NOUNS = {"", "req", "reqs", "request", "requests", "r", "tok", "token", "tokens"}


def _split(text: str | float, what: str, example: str) -> tuple[float, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UserError(f"{text!r} is no {what}: write it like {example}")
    if isinstance(text, int | float):
        number, unit = float(text), ""
    else:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise UserError(f"{text!r} is no {what}: write it like {example}")
        number, unit = float(match[1].replace("_", "")), match[2]
    if not math.isfinite(number):
        raise UserError(f"{text!r} is no {what}: it has to be finite")
    return number, unit


def duration_s(text: str | float) -> float:
    """Seconds in "450 ms", "25ms", "4 s", "2 min". A number without a unit is refused: seconds and milliseconds look alike.

    Raises UserError for an unknown or missing unit and for a negative duration. "0" may stand alone.
    """
    number, unit = _split(text, "duration", '"450 ms" or "2 s"')
    if number < 0:
        raise UserError(f"{text!r} is negative: a duration is 0 or more")
    if unit == "" and number == 0:
        return 0.0
    factor = _SECONDS.get(unit)
    if factor is None:
        had = f"`{unit}` is no unit of time I know" if unit else "the unit is missing"
        raise UserError(f'{text!r}: {had}: write "450 ms", "2 s" or "5 min"')
    return number * factor


def rate_per_s(text: str | float) -> float:
    """Events per second in "4/s", "3.5 req/s", "120/min", "4" (a bare number is per second) or "inf".

    Raises UserError for an unknown unit and for a rate of 0 or less.
    """
    if (isinstance(text, str) and text.strip().lower() in {"inf", "infinity"}) or text == math.inf:
        return math.inf
    number, unit = _split(text, "rate", '"4/s" or "3.5 req/s"')
    noun, slash, per = unit.partition("/")
    factor = _PER_SECOND.get(per.strip()) if slash else (1.0 if not unit else None)
    if factor is None or noun.strip() not in _RATE_NOUNS:
        raise UserError(f'{text!r}: `{unit}` is no unit of a rate I know: write "4/s", "3.5 req/s" or "120/min"')
    if number <= 0:
        raise UserError(f'{text!r}: a rate is greater than 0 (no limit is spelt "inf")')
    return number * factor


def share(text: str | float) -> float:
    """A share between 0 and 1 in "99 %", "0.99" or 0.99.

    Raises UserError outside [0, 1].
    """
    number, unit = _split(text, "share", '"99 %" or 0.99')
    if unit not in {"", "%"}:
        raise UserError(f'{text!r}: `{unit}` is no unit of a share: write "99 %" or 0.99')
    value = number / 100 if unit == "%" else number
    if not 0 <= value <= 1:
        raise UserError(f'{text!r} is not between 0 and 1 (or "0 %" and "100 %")')
    return value


def size_bytes(text: str | float) -> int:
    """Bytes in "16 MB", "2 GiB" or a bare number of bytes."""
    number, unit = _split(text, "size", '"16 MB" or "2 GiB"')
    factor = _BYTES.get(unit.lower())
    if factor is None or number < 0:
        raise UserError(f'{text!r} is no size I know: write it like "16 MB" or "2 GiB"')
    return round(number * factor)


def count(text: str | float) -> int:
    """A whole number of 1 or more in "100", "8k" or 64."""
    number, unit = _split(text, "count", '"100" or "8k"')
    factor = _COUNTS.get(unit.lower())
    value = number * factor if factor is not None else math.nan
    if not value >= 1 or value != int(value):
        raise UserError(f'{text!r} is no count: write a whole number of 1 or more, like "100" or "8k"')
    if value > MOST:
        raise UserError(f"{text!r} is more than can be counted: write at most {MOST}")
    return int(value)
