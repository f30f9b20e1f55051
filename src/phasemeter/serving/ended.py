"""Every request of a simulated run, as columns: 112 bytes of numbers each, its name, and its tokens' instants where they were kept.

Lives here: the store and its views. Must not live here: the run (simulate.py), statistics (runs/).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.serving.events import Truth
from phasemeter.serving.sequence import Request

Ints = npt.NDArray[np.int64]
NUMBERS = Truth.__struct_fields__[1:-1]  # all but the name and the spans


class Served(msgspec.Struct, frozen=True):
    """One request that ended, with the instants of its tokens where they were asked for."""

    truth: Truth
    request: Request
    times_ns: tuple[int, ...] = ()


class Refused(msgspec.Struct, frozen=True):
    """One request that the deployment could never serve."""

    request: Request
    reason: str


class Ended:
    """Requests in order of arrival once `sort` has run. Reads like a sequence of Served and Refused, made when asked for.

    `column(name)`: a Truth's number of each; rows in `refused` have lengths and arrival only.
    """

    def __init__(self, *, tokens: bool) -> None:
        self.names: list[str] = []
        self.refused: dict[int, str] = {}
        self._numbers = array("q")
        self._times = array("q")
        self._bounds = array("q", [0])
        self._tokens = tokens
        self._order: Ints = np.zeros(0, np.int64)  # store position of the i-th to arrive

    def add(self, one: Served | Refused) -> None:
        if isinstance(one, Refused):
            request = one.request
            self.refused[len(self.names)] = one.reason
            self.names.append(request.request_id)
            lengths = (request.prompt_tokens, request.output_tokens, request.samples, 0)
            self._numbers.extend((*lengths, request.arrival_ns, *(0 for _ in NUMBERS[5:])))
        else:
            self.names.append(one.truth.request_id)
            self._numbers.extend(msgspec.structs.astuple(one.truth)[1:-1])
        if self._tokens:
            self._times.extend(one.times_ns if isinstance(one, Served) else ())
            self._bounds.append(len(self._times))

    def sort(self) -> None:
        """By arrival, ties as they ended."""
        self._order = np.argsort(self._table()[:, NUMBERS.index("arrival_ns")], kind="stable")

    def _table(self) -> Ints:
        return (
            np.frombuffer(self._numbers, np.int64).reshape(-1, len(NUMBERS))
            if self.names
            else np.zeros((0, len(NUMBERS)), np.int64)
        )

    def column(self, name: str) -> Ints:
        """A number of every request, in order of arrival."""
        found: Ints = self._table()[self._order, NUMBERS.index(name)]
        return found

    def served(self) -> npt.NDArray[np.bool_]:
        """Which were served, in order of arrival."""
        mask = np.ones(len(self.names), bool)
        mask[list(self.refused)] = False
        ordered: npt.NDArray[np.bool_] = mask[self._order]
        return ordered

    @property
    def has_tokens(self) -> bool:
        return self._tokens

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Served | Refused]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, i: int) -> Served | Refused:
        at = int(self._order[i])
        width = len(NUMBERS)
        numbers = self._numbers[at * width : (at + 1) * width].tolist()
        name, (prompt, output, samples, _, arrival) = self.names[at], numbers[:5]
        request = Request(
            request_id=name, prompt_tokens=prompt, output_tokens=output, arrival_ns=arrival, max_tokens=output, samples=samples
        )  # fmt: skip
        if at in self.refused:
            return Refused(request, self.refused[at])
        times = tuple(self._times[self._bounds[at] : self._bounds[at + 1]]) if self._tokens else ()
        fields: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=True))
        return Served(Truth(request_id=name, spans=(), **fields), request, times)
