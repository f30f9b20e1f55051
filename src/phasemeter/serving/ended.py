"""Every request of a simulated run, as columns: 112 bytes of numbers each, 8 of its own number, 8 of its place in order of arrival,
and its tokens' instants where they were kept.

Lives here: the store and its views. Must not live here: the run (simulate.py), statistics (runs/).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.serving.events import Event, Finished, Truth
from phasemeter.serving.sequence import Request

Ints = npt.NDArray[np.int64]
Places = Ints | slice
ALL = slice(None)
NUMBERS = Truth.__struct_fields__[1:-1]  # all but the name and the spans
_LINE = Struct(f"{len(NUMBERS)}q").pack  # takes a third of the time that an array takes to read a tuple
NONE: Ints = np.zeros(0, np.int64)


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
        self.refused: dict[int, str] = {}
        self._numbers_of = array("q")  # a request's number: its id without the `r` (demand.Draws)
        self._numbers = array("q")
        self._times = array("q")
        self._bounds = array("q", [0])
        self._tokens = tokens
        self.sampled: dict[int, Ints] = {}  # instants of the tokens of some, by their number, where not all were kept
        self._order: Ints = np.zeros(0, np.int64)  # store position of the i-th to arrive

    def add(self, one: Served | Refused) -> None:
        if isinstance(one, Refused):
            request = one.request
            self.refused[len(self)] = one.reason
            self._numbers_of.append(int(request.request_id[1:]))
            lengths = (request.prompt_tokens, request.output_tokens, request.samples, 0)
            self._numbers.extend((*lengths, request.arrival_ns, *(0 for _ in NUMBERS[5:])))
        else:
            self._take(one.truth)
        if self._tokens:
            self._times.extend(one.times_ns if isinstance(one, Served) else ())
            self._bounds.append(len(self._times))

    def take(self, events: list[Event]) -> None:
        """Every request that these events end, without the instants of its tokens."""
        for event in events:
            if type(event) is Finished:
                self._take(event.truth)

    def _take(self, truth: Truth) -> None:
        self._numbers_of.append(int(truth.request_id[1:]))
        self._numbers.frombytes(
            _LINE(
                truth.prompt_tokens, truth.output_tokens, truth.samples, truth.cached_tokens, truth.arrival_ns,
                truth.queue_enter_ns, truth.prefill_start_ns, truth.prefill_end_ns, truth.first_token_ns, truth.finish_ns,
                truth.stall_prefill_ns, truth.stall_mixed_ns, truth.stall_preempted_ns, truth.preemptions,
            )
        )  # fmt: skip

    def sort(self) -> None:
        """By arrival, ties as they ended."""
        self._order = np.argsort(self._table()[:, NUMBERS.index("arrival_ns")], kind="stable")

    def _table(self) -> Ints:
        return (
            np.frombuffer(self._numbers, np.int64).reshape(-1, len(NUMBERS))
            if self._numbers_of
            else np.zeros((0, len(NUMBERS)), np.int64)
        )

    def column(self, name: str, places: Places = ALL) -> Ints:
        """A number of every request, or of those at `places`, in order of arrival."""
        found: Ints = self._table()[self._order[places], NUMBERS.index(name)]
        return found

    def served(self, places: Places = ALL) -> npt.NDArray[np.bool_]:
        """Which were served, in order of arrival."""
        mask = np.ones(len(self), bool)
        mask[list(self.refused)] = False
        ordered: npt.NDArray[np.bool_] = mask[self._order[places]]
        return ordered

    def tokens(self, places: Places = ALL) -> tuple[Ints, Ints]:
        """(the instants of the tokens of these requests, one's after another's; how many each has: 0 where none were kept)."""
        if self._tokens:
            bounds, at = np.frombuffer(self._bounds, np.int64), self._order[places]
            counts: Ints = bounds[at + 1] - bounds[at]
            shift = np.repeat(bounds[at] - (np.cumsum(counts) - counts), counts)
            times = np.frombuffer(self._times, np.int64) if self._times else NONE
            return times[shift + np.arange(len(shift))], counts
        kept = [self.sampled.get(number, NONE) for number in self.numbers_of(places).tolist()] if self.sampled else []
        if not kept:
            return NONE, np.zeros(len(self._order[places]), np.int64)
        return np.concatenate(kept), np.fromiter(map(len, kept), np.int64, len(kept))

    def numbers_of(self, places: Places = ALL) -> Ints:
        """The number in every request's id, in order of arrival."""
        found: Ints = np.frombuffer(self._numbers_of, np.int64)[self._order[places]]
        return found

    @property
    def has_tokens(self) -> bool:
        return self._tokens

    def __len__(self) -> int:
        return len(self._numbers_of)

    def __iter__(self) -> Iterator[Served | Refused]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, i: int) -> Served | Refused:
        at = int(self._order[i])
        width = len(NUMBERS)
        numbers = self._numbers[at * width : (at + 1) * width].tolist()
        name, (prompt, output, samples, _, arrival) = f"r{self._numbers_of[at]}", numbers[:5]
        request = Request(
            request_id=name, prompt_tokens=prompt, output_tokens=output, arrival_ns=arrival, max_tokens=output, samples=samples
        )  # fmt: skip
        if at in self.refused:
            return Refused(request, self.refused[at])
        if self._tokens:
            times = tuple(self._times[self._bounds[at] : self._bounds[at + 1]])
        else:
            times = tuple(self.sampled[number].tolist()) if (number := self._numbers_of[at]) in self.sampled else ()
        fields: dict[str, Any] = dict(zip(NUMBERS, numbers, strict=True))
        return Served(Truth(request_id=name, spans=(), **fields), request, times)
