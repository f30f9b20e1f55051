"""Reading one value of a contract at a time, so that each mistake names the file, the path in it and what to write.

Lives here: `Place` (a value and where it stands) and the readers of keys, durations, rates, shares, distributions. Must not
live here: which sections a contract has (model.py).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from phasemeter import units
from phasemeter.errors import FileError, UserError
from phasemeter.workload.plain_yaml import read_yaml
from phasemeter.workload.think_time import think_time_of_contract

T = TypeVar("T")
LARGEST = 1_000_000  # characters of a contract: one is a page long; a file of megabytes is another one
SHOWN = 80  # characters of a wrong value that an error repeats
MOST = 10**9  # tokens or requests: beyond it a count is a slip of the keys


class Place:
    """A value of the file with its path: `latency_slo.ttft.p95`. The file's root has the path "" and prints as the file."""

    def __init__(self, file: str, path: str, value: Any) -> None:
        self.file, self.path, self.value = file, path, value

    def wrong(self, what: str) -> FileError:
        """The error that says `what` is wrong here."""
        what = _plain(what)
        return FileError(f"{self.file}: `{_short(_plain(self.path))}` {what}" if self.path else f"{self.file}: {what}")

    def section(self, known: Collection[str] | None = None) -> dict[str, Place]:
        """The entries of a mapping. Raises FileError where it is none, or for a key that is not `known`."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"should hold keys and values{_like(known)}, and holds {_what(self.value)}")
        entries = {}
        for key, value in self.value.items():
            inner = Place(self.file, f"{self.path}.{key}" if self.path else str(key), value)
            if known is not None and key not in known:
                raise inner.wrong(f"is no key I know{guess(str(key), known)}")
            entries[str(key)] = inner
        return entries

    def read(self, reader: Callable[[Any], T]) -> T:
        """What one of units' readers makes of the value. Raises FileError with the path."""
        try:
            return reader(self.value)
        except UserError as mistake:
            said = str(mistake)
            whole = repr(self.value)
            raise self.wrong(said.replace(whole, _short(whole)) if len(whole) > SHOWN else said) from mistake

    def text(self, known: Collection[str] | None = None) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"should be text, and is {_what(self.value)}")
        if known is not None and self.value not in known:
            raise self.wrong(f"can't be {self.value!r}{guess(self.value, known)}")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong(f"should be true or false, and is {_what(self.value)}")
        return self.value

    def texts(self, known: Collection[str]) -> tuple[str, ...]:
        if not isinstance(self.value, list):
            raise self.wrong(f"should be a list like [{', '.join(sorted(known)[:3])}], and is {_what(self.value)}")
        inner = [Place(self.file, f"{self.path}[{i}]", value) for i, value in enumerate(self.value)]
        return tuple(place.text(known) for place in inner)

    def number(self, at_least: float | None = None, above: float | None = None) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or self.value != self.value:
            raise self.wrong(f"should be a number, and is {_what(self.value)}")
        if at_least is not None and self.value < at_least:
            raise self.wrong(f"is {self.value}: write {at_least:g} or more")
        if above is not None and self.value <= above:
            raise self.wrong(f"is {self.value}: write more than {above:g}")
        if self.value == math.inf:
            raise self.wrong("is infinite: write a finite number")
        return float(self.value)

    def count(self) -> int:
        """A whole number of tokens or requests."""
        found = self.read(units.count)
        if found > MOST:
            raise self.wrong(f"is {_short(repr(self.value))}: more than {MOST:g} is no count of tokens or requests")
        return found

    def scalar(self) -> str | int | float | bool:
        """Text, a number or a switch: what a manifest's field holds."""
        if not isinstance(self.value, str | int | float | bool):
            raise self.wrong(f"should be text, a number, true or false, and is {_what(self.value)}")
        return self.value


def _what(value: Any) -> str:
    kinds = ((type(None), "nothing"), (dict, "keys and values"), (list, "a list"))
    return next((word for kind, word in kinds if isinstance(value, kind)), _short(repr(value)))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _plain(text: str) -> str:
    """The text on one line that a terminal only shows: what a file holds may break lines or colour them."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _like(known: Collection[str] | None) -> str:
    return "" if not known else f" ({', '.join(list(known)[:6])}{', …' if len(known) > 6 else ''})"


def guess(word: str, known: Collection[str]) -> str:
    """`: did you mean `x`?` where something known is close, else all that is known."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    if near:
        return f": did you mean `{near[0]}`?"
    names = sorted(known)
    return f": write {', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else f": write {names[0]}"


def load(text: str, file: str) -> Place:
    """The root of a YAML text. Raises FileError with the line for what is no YAML."""
    if len(text) > LARGEST:
        raise FileError(f"{file}: {len(text)} characters: a contract is a page long: is this another file?")
    return Place(file, "", read_yaml(text, file))


# distributions: kind -> its parameters (name: whether needed). A bare number is `fixed`.
LENGTHS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "uniform": ("min", "max"),
    "normal": ("mean", "sd"),
    "lognormal": ("median", "p95"),
    "empirical": (),
    "trace": (),
}
ARRIVALS: dict[str, tuple[str, ...]] = {
    "poisson": (),
    "constant": (),
    "gamma": ("rate", "cv"),
    "burst": ("rate", "size"),
    "ramp": ("from", "to", "over"),
    "steps": (),
    "concurrency": (),
    "trace": (),
}
THINK = "think_time"  # beside `concurrency`


def length(place: Place) -> Any:
    """A length distribution in tokens, as written, once it has been found sound."""
    if isinstance(place.value, int | str) and not isinstance(place.value, bool):
        return {"fixed": place.count()}
    kind, inner = _one_kind(place, LENGTHS)
    if kind == "fixed":
        return {"fixed": inner.count()}
    if kind == "trace":
        return {"trace": inner.text()}
    if kind == "empirical":
        if not isinstance(inner.value, list) or not inner.value:
            raise inner.wrong("should be a list of lengths like [64, 128, 512]")
        return {kind: [Place(inner.file, f"{inner.path}[{i}]", v).count() for i, v in enumerate(inner.value)]}
    parameters = dict(_parameters(inner, LENGTHS[kind]))
    values = {name: p.count() if name != "sd" else p.number(at_least=0) for name, p in parameters.items()}
    for low, high in (("min", "max"), ("median", "p95")):
        if low in values and values[low] > values[high]:
            raise inner.wrong(f"has {low} {values[low]} above {high} {values[high]}: swap them")
    return {kind: values}


def arrivals(place: Place) -> Any:
    """When requests are due, as written, once it has been found sound; rates in requests per second."""
    if place.value == "measured":
        return "measured"
    think = place.value.get(THINK) if isinstance(place.value, dict) and "concurrency" in place.value else None
    if think is not None:
        slots = Place(place.file, place.path, {name: value for name, value in place.value.items() if name != THINK})
        Place(place.file, f"{place.path}.{THINK}", think).read(think_time_of_contract)
        return {**arrivals(slots), THINK: think}
    kind, inner = _one_kind(place, ARRIVALS)
    if kind in ("poisson", "constant"):
        return {kind: inner.read(units.rate_per_s)}
    if kind == "concurrency":
        return {kind: inner.count()}
    if kind == "trace":
        return {kind: inner.text()}
    if kind == "steps":
        if not isinstance(inner.value, list) or not inner.value:
            raise inner.wrong("should be a list of steps like [{rate: 1/s, for: 30 s}, {rate: 4/s, for: 30 s}]")
        steps = [Place(inner.file, f"{inner.path}[{i}]", v) for i, v in enumerate(inner.value)]
        return {kind: [_numbers(dict(_parameters(step, ("rate", "for")))) for step in steps]}
    names = ARRIVALS[kind]
    if kind == "ramp" and not (isinstance(inner.value, dict) and "over" in inner.value):
        names = names[:2]  # over the run's duration
    return {kind: _numbers(dict(_parameters(inner, names)))}


def _numbers(parameters: dict[str, Place]) -> dict[str, Any]:
    """A pattern's parameters: rates per second, a stretch as written once it has been found to be one."""
    found: dict[str, Any] = {}
    for name, place in parameters.items():
        if name == "cv":
            found[name] = place.number(above=0)
        elif name == "size":
            found[name] = place.count()
        elif name in {"for", "over"}:
            if not place.read(units.duration_s) > 0:
                raise place.wrong("is a stretch of time longer than 0")
            found[name] = place.value
        else:
            found[name] = place.read(_rate_or_none if name == "from" else units.rate_per_s)
            if found[name] == float("inf"):
                raise place.wrong("is a finite rate")
    return found


def _rate_or_none(text: str | float) -> float:
    """A ramp may begin at nothing."""
    return 0.0 if str(text).strip() in {"0", "0.0", "0/s"} else units.rate_per_s(text)


def _one_kind(place: Place, kinds: dict[str, tuple[str, ...]]) -> tuple[str, Place]:
    entries = place.section(kinds)
    if len(entries) != 1:
        raise place.wrong(f"should hold exactly one of {', '.join(kinds)}, and holds {len(entries)}")
    return next(iter(entries.items()))


def _parameters(place: Place, names: tuple[str, ...]) -> Iterator[tuple[str, Place]]:
    if isinstance(place.value, list) and len(place.value) == len(names):
        yield from ((n, Place(place.file, f"{place.path}[{i}]", place.value[i])) for i, n in enumerate(names))
        return
    entries = place.section(names)
    for name in names:
        if name not in entries:
            raise place.wrong(f"lacks `{name}`: it needs {' and '.join(names)}")
        yield name, entries[name]
