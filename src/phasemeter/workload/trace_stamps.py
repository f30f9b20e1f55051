"""Time stamps as trace files write them, read exactly into integer ns.

Lives here: ISO dates (with or without fraction and zone, up to 9 digits) and numbers in a stated unit. Must not live
here: which column it was.

Nothing goes through a float that was not one in the file: an epoch in ns has more digits than a double.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
LIMIT_NS = 2**63 - 1
MISSING = -(2**63)  # in an array of stamps: no stamp on this row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = re.compile(r"\d{4}-\d\d-\d\d[ Tt]\d\d:\d\d")
_REST = re.compile(r":(\d\d)(?:[.,](\d+))?\s*(Z|z|UTC|[+-]\d\d(?::?\d\d)?)?")


class StampError(ValueError):
    """What is wrong with one stamp, without its place."""


class StampReader:
    """Reads the stamps of one column. All are of one kind (number, date with a zone, date without): the first one decides."""

    def __init__(self, unit_ns: int | None) -> None:
        self.unit_ns = unit_ns  # None: not stated; the first number decides (likely_unit_ns)
        self.guessed = False
        self.fractional = False
        self.kind: str | None = None
        self._minutes: dict[str, int] = {}

    def read(self, text: str) -> int:
        """Integer ns of one stamp: since its own origin for a number, since 1970 UTC for a date (a date without a zone is taken as UTC).

        Raises StampError for NaN, an infinity, an overflow, what is no stamp, and another kind than the first.
        """
        text = text.strip()
        minute = self._minutes.get(text[:16])
        if minute is None and _MINUTE.match(text) is None:
            return self._ranged(self._number(text), "number")
        match = _REST.fullmatch(text, 16)
        if match is None:
            raise StampError(f"{text!r} is no time I can read: write 2023-11-16 18:17:03.5+00:00, or a number")
        seconds, fraction, zone = match.groups()
        if minute is None:
            minute = self._minute_ns(text)
        value = minute + int(seconds) * 10**9
        if fraction:
            value += int(fraction[:9].ljust(9, "0"))
        if int(seconds) > 60:
            raise StampError(f"{text!r}: second {seconds} of a minute")
        if zone is None:
            return self._ranged(value, "date without a zone")
        return self._ranged(value - _zone_ns(zone, text), "date with a zone")

    def _minute_ns(self, text: str) -> int:
        try:
            moment = datetime.fromisoformat(text[:16]).replace(tzinfo=UTC)
        except ValueError as error:
            raise StampError(f"{text!r} is no date: {error}") from None
        if len(self._minutes) > 100_000:  # a file of unrelated minutes must not fill the memory
            self._minutes.clear()
        minute = (moment - _EPOCH) // timedelta(seconds=1) * 10**9
        self._minutes[text[:16]] = minute
        return minute

    def _number(self, text: str) -> int:
        if self.unit_ns is not None and text.isdecimal() and len(text) <= 19:
            return int(text) * self.unit_ns
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise StampError(f"{text!r} is no time stamp") from None
        if not number.is_finite():
            raise StampError(f"{text!r} is no instant")
        if abs(number) >= Decimal(2**63):
            raise StampError(f"{text!r} overflows 64 bits of ns")
        self.fractional = self.fractional or number != int(number)
        return int((number * self._unit(int(number))).to_integral_value())

    def _unit(self, number: int) -> int:
        if self.unit_ns is None:
            likely = likely_unit_ns(number)
            self.guessed = likely is not None
            self.unit_ns = likely or UNITS_NS["s"]
        return self.unit_ns

    def number(self, value: int | float) -> int:
        """A JSON number's ns: exact for a whole number, the nearest ns for a fraction.

        Raises StampError as `read` does.
        """
        if type(value) is int:
            return self._ranged(value * self._unit(value), "number")
        return self._ranged(self._number(repr(value)), "number")

    def _ranged(self, value: int, kind: str) -> int:
        if self.kind is None:
            self.kind = kind
        elif kind != self.kind:
            raise StampError(f"is a {kind}, the rows before it have a {self.kind}: one file, one kind")
        if not -LIMIT_NS <= value <= LIMIT_NS:
            raise StampError("overflows 64 bits of ns")
        return value


def _zone_ns(zone: str, text: str) -> int:
    if zone in {"Z", "z", "UTC"}:
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        raise StampError(f"{text!r}: `{zone}` is no time zone")
    ns = (hours * 3600 + minutes * 60) * 10**9
    return -ns if zone[0] == "-" else ns


def likely_unit_ns(number: int) -> int | None:
    """For a column that says no unit: the unit finer than a second in which this number is a date between 1990 and 2100.

    None when seconds are plausible.
    """
    for unit, factor in (("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        if 631_152_000 * factor <= abs(number) <= 4_102_444_800 * factor:
            return UNITS_NS[unit]
    return None
