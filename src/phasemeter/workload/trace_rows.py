"""The rows of a trace file, CSV or JSON lines, each fault with its line.

Lives here: reading lines into columns of integers. Must not live here: opening files, order, dropping, scaling (traces.py).

A million rows stay small: numbers are kept in arrays, hash ids in one flat array.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import msgspec

from phasemeter.errors import NOT_JSON, FileError, InternalError
from phasemeter.workload.trace_columns import Columns, find_columns
from phasemeter.workload.trace_stamps import MISSING, UNITS_NS, StampError, StampReader

MAX_LISTED = 1000  # faults kept with their words; all are counted
MAX_TOKENS = 2**31 - 1
MAX_ID = 2**64 - 1
DELIMITERS = ",;\t|"
csv.field_size_limit(2**30)  # the module's own limit, 131072, is shorter than a long prompt beside its lengths


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something about one line (1 is the first of the file) that a person should know."""

    line: int
    kind: str
    message: str


class Faults:
    """Faults in the order of finding; the first thousand keep their words."""

    def __init__(self) -> None:
        self.listed: list[Fault] = []
        self.count = 0

    def add(self, line: int, kind: str, message: str) -> None:
        self.count += 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Fault(line=line, kind=kind, message=message))


class RawRows:
    """What a file holds, row by row in file order. Arrays are as long as `lines`, or None where the file has no such column."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.rows_read = 0
        self.errors = Faults()
        self.notes = Faults()
        self.lines = array("q")
        self.stamps = array("q") if columns.time or columns.send else None
        self.arrivals = array("q") if columns.time and columns.send else None  # stamps are the sends then
        self.inputs = array("q") if columns.input else None
        self.outputs = array("q") if columns.output else None
        self.sessions: list[str] | None = [] if columns.session else None
        self.hash_ids = array("Q") if columns.hashes else None
        self.hash_ends = array("q")
        self.float_counts = 0
        seconds = dict.fromkeys(("burstgpt", "azure", "bailian"), UNITS_NS["s"])
        default = ({"mooncake": UNITS_NS["ms"]} | seconds).get(columns.format)
        main, side = columns.send or columns.time, columns.time if columns.send else None
        units = (columns.send_unit_ns if columns.send else columns.unit_ns), columns.unit_ns
        self.stamp_name, self.arrival_name = main, side
        self.stamp_reader, self.arrival_reader = StampReader(units[0] or default), StampReader(units[1] or default)

    def take(self, line: int, get: Mapping[str, Any]) -> None:
        """One row's fields by column name; a fault keeps the row out and is put on record."""
        self.rows_read += 1
        try:
            stamp = self._stamp(get, self.stamp_name, self.stamp_reader)
            arrival = self._stamp(get, self.arrival_name, self.arrival_reader)
            inputs = self._count(get, self.columns.input, least=0)
            outputs = self._count(get, self.columns.output, least=0)
            ids = self._ids(get)
        except StampError as error:
            self.errors.add(line, "row", str(error))
            return
        self.lines.append(line)
        for column, value in (
            (self.stamps, stamp),
            (self.arrivals, arrival),
            (self.inputs, inputs),
            (self.outputs, outputs),
        ):
            if column is not None:
                column.append(value)
        if self.sessions is not None:
            self.sessions.append(str(get.get(self.columns.session or "", "")))
        if self.hash_ids is not None:
            self.hash_ids.extend(ids)
            self.hash_ends.append(len(self.hash_ids))

    def _stamp(self, get: Mapping[str, Any], name: str | None, reader: StampReader) -> int:
        value = get.get(name) if name is not None else None
        if value is None or value == "":
            return MISSING
        try:
            if isinstance(value, str):
                return reader.read(value)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return reader.number(value)
        except StampError as error:
            raise StampError(f"`{name}` {error}") from None
        raise StampError(f"`{name}` is {value!r}: no time stamp")

    def seconds_after_all(self) -> bool:
        """Whether a Mooncake file's stamps, whole ms in Mooncake's own, are seconds by their look; then they are made seconds.

        They have fractions, and as ms they would be over 1000 requests a second (public examples are written so).
        """
        stamps = self.stamps
        if (
            stamps is None
            or self.columns.format != "mooncake"
            or self.columns.unit_ns
            or not self.stamp_reader.fractional
        ):
            return False
        known = [stamp for stamp in stamps if stamp != MISSING]
        if len(known) < 2 or not 0 < max(known) - min(known) < (len(known) - 1) * UNITS_NS["ms"]:
            return False
        self.stamps = array("q", (stamp if stamp == MISSING else stamp * 1000 for stamp in stamps))
        return True

    def _count(self, get: Mapping[str, Any], name: str | None, least: int) -> int:
        if name is None:
            return 0
        value = get.get(name)
        if value is None or value == "":
            raise StampError(f"`{name}` is missing")
        number = value if type(value) is int else self._whole(name, value)
        if number < least:
            raise StampError(f"`{name}` is {value}: a count of tokens is never negative")
        if number > MAX_TOKENS:
            raise StampError(f"`{name}` is {value}: more than {MAX_TOKENS} tokens is no length")
        return number

    def _whole(self, name: str, value: Any) -> int:
        """A count written as text or as a float: `12` and `12.0` are 12, `12.5` and `NaN` are refused."""
        try:
            if isinstance(value, str) and "." not in value and "e" not in value.lower():
                return int(value)
            number = float(value)
        except (TypeError, ValueError):
            raise StampError(f"`{name}` is {value!r}: no whole number") from None
        if isinstance(value, bool) or not number.is_integer():
            raise StampError(f"`{name}` is {value!r}: no whole number")
        self.float_counts += 1
        return int(number)

    def _ids(self, get: Mapping[str, Any]) -> list[int]:
        if self.columns.hashes is None:
            return []
        value = get.get(self.columns.hashes)
        if isinstance(value, str):
            value = [int(part) if part.isdecimal() else part for part in value.strip("[] ").replace(",", " ").split()]
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(one) is int and 0 <= one <= MAX_ID for one in value):
            raise StampError(f"`{self.columns.hashes}` has to be a list of whole numbers of at most 64 bits")
        return value


def read_rows(lines: Iterable[str], name: str, chosen: Mapping[str, str]) -> RawRows:
    """All rows of a file given as its lines (text, line ends kept or not).

    Raises FileError for an empty file, one without the wanted columns, and one that is neither CSV nor JSON lines.
    """
    counted = iter(lines)
    skipped = 0
    for first in counted:
        first = first.removeprefix("\ufeff") if skipped == 0 else first
        if first.strip():
            break
        skipped += 1
    else:
        raise FileError(f"{name}:1: is empty: a trace has at least one request")
    whole = chain([first], counted)
    if first.lstrip().startswith("{"):
        return _read_json(whole, name, chosen, skipped)
    if first.lstrip().startswith("["):
        raise FileError(f"{name}:1: is one JSON array: a trace is read line by line, write one object a line")
    return _read_csv(whole, name, chosen, skipped)


def _records(lines: Iterable[str], delimiter: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of each record; a quoted field may run over lines."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise FileError(f"{name}:{start}: is no CSV: {error}") from None


def _delimiter(header: str) -> str:
    """The candidate that stands most often in the header, outside quotes."""
    bare = "".join(header.split('"')[::2])
    return max(DELIMITERS, key=bare.count)


def _read_csv(lines: Iterable[str], name: str, chosen: Mapping[str, str], skipped: int) -> RawRows:
    iterator = iter(lines)
    first = next(iterator)
    records = _records(chain([first], iterator), _delimiter(first), name)
    _, header = next(records)
    header = [column.strip() for column in header]
    doubled = sorted({column for column in header if header.count(column) > 1})
    rows = RawRows(find_columns(header, chosen, f"{name}:{skipped + 1}"))
    used = {c for c in (rows.columns.time, rows.columns.send, rows.columns.input, rows.columns.output) if c}
    if used & set(doubled):
        raise FileError(f"{name}:{skipped + 1}: has two columns named `{doubled[0]}`: which one is meant?")
    plain_columns = (rows.columns.time, rows.columns.input, rows.columns.output)
    quick = all(plain_columns) and not (rows.columns.send or rows.columns.hashes or rows.columns.session)
    slowly = (
        _take_quickly(rows, records, [header.index(c or "") for c in plain_columns], len(header), skipped)
        if quick
        else records
    )
    for line, fields in slowly:
        if len(fields) < len(header) or any(field.strip() for field in fields[len(header) :]):
            rows.rows_read += 1
            rows.errors.add(line + skipped, "fields", f"has {len(fields)} fields, the header has {len(header)}")
            continue
        rows.take(line + skipped, dict(zip(header, fields, strict=False)))
    return rows


def _take_quickly(
    rows: RawRows, records: Iterator[tuple[int, list[str]]], places: list[int], width: int, skipped: int
) -> Iterator[tuple[int, list[str]]]:
    """Takes the faultless rows of a plain file itself and hands on the others, to be judged in words: a third of the time of `take`."""
    at, given, made = places
    stamps, inputs, outputs, lines = rows.stamps, rows.inputs, rows.outputs, rows.lines
    if stamps is None or inputs is None or outputs is None:
        raise InternalError("the quick way is for files with stamps and both lengths")
    read = rows.stamp_reader.read
    for record in records:
        line, fields = record
        try:
            stamp, asked, answered = read(fields[at]), int(fields[given]), int(fields[made])
        except (ValueError, IndexError):  # a StampError is a ValueError
            yield record
            continue
        if len(fields) != width or not (0 <= asked <= MAX_TOKENS and 0 <= answered <= MAX_TOKENS):
            yield record
            continue
        rows.rows_read += 1
        lines.append(line + skipped)
        stamps.append(stamp)
        inputs.append(asked)
        outputs.append(answered)


def _read_json(lines: Iterable[str], name: str, chosen: Mapping[str, str], skipped: int) -> RawRows:
    iterator = iter(lines)
    head = list(islice(iterator, 200))
    rows = RawRows(find_columns(_keys(head, name, skipped), chosen, f"{name}:{skipped + 1}"))
    decode = msgspec.json.Decoder().decode
    for line, text in enumerate(chain(head, iterator), skipped + 1):
        if not text.strip():
            continue
        try:
            value = decode(text)
        except NOT_JSON as error:
            rows.rows_read += 1
            rows.errors.add(line, "json", f"is no JSON: {error}")
            continue
        if not isinstance(value, dict):
            rows.rows_read += 1
            rows.errors.add(line, "json", "is no JSON object")
            continue
        rows.take(line, value)
    return rows


def _keys(head: list[str], name: str, skipped: int) -> list[str]:
    """The keys that the first rows have between them: one row may lack what the others have."""
    keys: dict[str, None] = {}
    fault = ""
    for line, text in enumerate(head, skipped + 1):
        try:
            value = msgspec.json.decode(text) if text.strip() else {}
        except NOT_JSON as error:
            fault = fault or f"{name}:{line}: is no JSON: {error}"
            continue
        keys.update(dict.fromkeys(value) if isinstance(value, dict) else {})
    if not keys:
        raise FileError(fault or f"{name}:{skipped + 1}: holds no JSON object with a request")
    return list(keys)
