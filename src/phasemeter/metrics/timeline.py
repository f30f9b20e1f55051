"""All output events of a run as flat columns: when each came, how many tokens it held, whose it was.

Lives here: the store and the arithmetic over it. Must not live here: which window counts (throughput) or names (definitions).
Bounded: 8 bytes an event (16 where one holds several tokens), and beyond `limit` events every second request's events are
let go (and counted as such).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phasemeter.metrics import gaps
from phasemeter.records.request_row import RequestRow

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Numbers = NDArray[np.int32]  # of rows: an event's gap, its owner and its kind take 13 bytes
MAX_EVENTS = 20_000_000  # 160 MB of instants

UNKNOWN, ONE_EACH, SEVERAL = 0, 1, 2


class Timeline:
    """Events of every request that had any, whatever became of it. A segment is one choice's run of events."""

    def __init__(self, limit: int = MAX_EVENTS) -> None:
        self.times = array("q")
        self.bounds = array("q", [0])  # segment i is times[bounds[i]:bounds[i + 1]]
        self.owner = array("q")  # segment i's row number
        self.kind = array("b")  # UNKNOWN | ONE_EACH | SEVERAL
        self.tokens = array("d")  # segment i's tokens; nan: not known
        self.counts: dict[int, Sequence[int]] = {}  # segment i's tokens an event, where kind is SEVERAL
        self.usable = array("b")  # whether segment i enters latency statistics
        self.step = 1  # one request in `step` is kept
        self.let_go = 0  # requests whose events were let go
        self._limit = limit

    def add(self, number: int, row: RequestRow, usable: bool) -> None:
        """The events of row number `number`."""
        if not row.choices:
            return
        if number % self.step:
            self.let_go += 1
            return
        for choice in row.choices:
            held = gaps.tokens_per_event(row, choice)
            total = _tokens(row, choice.output_tokens, held)
            self.times.frombytes(np.array(choice.times_ns, dtype=np.int64).tobytes())  # twice as quick as `extend`
            self._close(number, usable, total)
            if held is None:
                self.kind.append(UNKNOWN)
            elif choice.tokens is None or held.count(1) == len(held):
                self.kind.append(ONE_EACH)
            else:
                self.kind.append(SEVERAL)
                self.counts[len(self.kind) - 1] = held
        if len(self.times) > self._limit:
            self._thin()

    def add_alike(self, numbers: Ints, counts: Ints, times_ns: Ints, usable: NDArray[np.bool_]) -> None:
        """The events of these rows (`counts` of each, one's after another's), each of one token, of one choice."""
        kept = numbers % self.step == 0
        self.let_go += int(len(kept) - kept.sum())
        if not kept.all():
            times_ns = times_ns[np.repeat(kept, counts)]
            numbers, counts, usable = numbers[kept], counts[kept], usable[kept]
        ends = self.bounds[-1] + np.cumsum(counts)
        self.times.frombytes(times_ns.tobytes())
        self.bounds.frombytes(ends.tobytes())
        self.owner.frombytes(numbers.tobytes())
        self.usable.frombytes(usable.astype(np.int8).tobytes())
        self.tokens.frombytes(counts.astype(np.float64).tobytes())
        self.kind.extend([ONE_EACH] * len(counts))
        while len(self.times) > self._limit:
            self._thin()

    def _close(self, number: int, usable: bool, total: float) -> None:
        self.bounds.append(len(self.times))
        self.owner.append(number)
        self.usable.append(usable)
        self.tokens.append(total)

    def _thin(self) -> None:
        """Let the events of every second kept request go: a systematic sample by request."""
        old = (self.times, self.bounds, self.owner, self.kind, self.tokens, self.counts, self.usable)
        times, bounds, owner, kind, tokens, counts, usable = old
        self.times, self.bounds, self.owner, self.kind = array("q"), array("q", [0]), array("q"), array("b")
        self.tokens, self.counts, self.usable = array("d"), {}, array("b")
        self.step *= 2
        gone = set()
        for i, number in enumerate(owner):
            if number % self.step:
                gone.add(number)
                continue
            self.times.extend(times[bounds[i] : bounds[i + 1]])
            self._close(number, bool(usable[i]), tokens[i])
            self.kind.append(kind[i])
            if i in counts:
                self.counts[len(self.kind) - 1] = counts[i]
        self.let_go += len(gone)

    # ---- read once, at the end

    def instants(self) -> Ints:
        """All event times in ns, in store order: a view, to be let go of before the next `add`."""
        return np.asarray(memoryview(self.times))

    def lengths(self) -> Ints:
        """Events of each segment."""
        bounds = np.array(self.bounds, dtype=np.int64)
        return bounds[1:] - bounds[:-1]

    def tokens_per_event_known(self) -> float | None:
        """Tokens an event over the segments whose tokens are known; None where none is."""
        tokens, lengths = np.array(self.tokens), self.lengths()
        known = ~np.isnan(tokens) & (lengths > 0)
        events = lengths[known].sum()
        return float(tokens[known].sum() / events) if events else None

    def weights(self) -> tuple[Floats, float]:
        """(tokens of each event, how many of them are estimated).

        Known per event, else the choice's tokens shared evenly over its events, else (a cancelled or failed request never
        told) the run's own tokens an event; where nothing tells, 0.
        """
        lengths, tokens = self.lengths(), np.array(self.tokens)
        typical = self.tokens_per_event_known() or 0.0
        unknown = np.isnan(tokens)
        share = np.where(unknown, typical, tokens / np.maximum(lengths, 1))
        weights = np.repeat(share, lengths)
        for i, counts in self.counts.items():
            weights[self.bounds[i] : self.bounds[i + 1]] = counts
        return weights, float((lengths[unknown] * typical).sum())

    def gap_columns(self) -> tuple[Floats, Numbers, NDArray[np.int8]]:
        """(gaps in seconds, owner row number, segment kind) of the usable segments; never across two segments."""
        times, lengths = self.instants(), self.lengths()
        counted = np.array(self.usable, dtype=bool) & (lengths > 0)
        inside = np.repeat(counted, lengths)
        last = np.array(self.bounds, dtype=np.int64)[1:] - 1
        inside[last[lengths > 0]] = False
        between = (times[1:] - times[:-1])[inside[:-1]]
        many = lengths[counted] - 1
        owners = np.repeat(np.array(self.owner, dtype=np.int32)[counted], many)
        kinds = np.repeat(np.array(self.kind, dtype=np.int8)[counted], many)
        return gaps.seconds(between), owners, kinds

    def spread_columns(self) -> tuple[Floats, Numbers]:
        """(token gaps in seconds under `itl_spread`, owner) of the usable segments whose tokens an event are known."""
        values, owners, kinds = self.gap_columns()
        plain = kinds == ONE_EACH
        parts, whose = [values[plain]], [owners[plain]]
        for i, counts in self.counts.items():
            if self.usable[i]:
                shared = gaps.spread(self.times[self.bounds[i] : self.bounds[i + 1]], counts)
                parts.append(shared)
                whose.append(np.full(len(shared), self.owner[i], dtype=np.int32))
        return np.concatenate(parts), np.concatenate(whose)


def _tokens(row: RequestRow, own: int | None, held: Sequence[int] | None) -> float:
    if held is not None:
        return float(sum(held))
    known = own if own is not None or len(row.choices) > 1 else row.output_tokens
    return float("nan") if known is None else float(known)
