"""The log of steps, a line for each stretch of equal ones, and the gaps between tokens read off it.

Lives here: `SegmentLog`, pooled gaps by weight, one request's token instants. Must not live here: percentiles (stats/).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import Struct

import numpy as np
import numpy.typing as npt

from phasemeter.serving.step_shape import TICK_BITS, TICKS_PER_NS

Ticks = npt.NDArray[np.int64]
COLUMNS = 6
_LINE = Struct(f"{COLUMNS}q").pack


class SegmentLog:
    """Columns: start (ticks), first step, how many steps, ticks of the first, growth, decodes in each (0: prefill
    alone). 48 bytes a segment."""

    def __init__(self) -> None:
        self._lines = array("q")

    def add(self, line: tuple[int, int, int, int, int, int]) -> None:
        """One stretch, its columns in their order."""
        self._lines.frombytes(_LINE(*line))

    def _columns(self) -> list[Ticks]:
        lines = np.frombuffer(self._lines, np.int64) if self._lines else np.zeros(0, np.int64)
        return list(lines.reshape(-1, COLUMNS).T)

    def ends(self) -> tuple[Ticks, Ticks]:
        """For each step its end in ticks, and how many decodes it had."""
        start, _, count, base, growth, decodes = self._columns()
        start, base, growth, decodes = (np.repeat(column, count) for column in (start, base, growth, decodes))
        before = np.repeat(np.cumsum(count) - count, count)
        j = np.arange(len(before)) - before + 1
        return start + j * base + growth * (j * (j - 1) // 2), decodes

    def tokens_ns(self, requests: Sequence[tuple[tuple[int, int], ...]]) -> list[Ticks]:
        """The instants of each request's tokens, ns, from their truths' spans: only the steps that they were in are looked at."""
        start, first_step, _, base, growth, decodes = self._columns()
        told: list[Ticks] = []
        for spans in requests:
            steps = np.concatenate([np.arange(first, last + 1) for first, last in spans])
            at = np.searchsorted(first_step, steps, "right") - 1
            j = steps - first_step[at] + 1
            ends = start[at] + j * base[at] + growth[at] * (j * (j - 1) // 2)
            gave = decodes[at] > 0
            place = 0
            for first, last in spans:
                gave[place] = True  # a span's first step gave it a token, whether or not it held decodes
                place += last - first + 1
            told.append((ends[gave] + TICKS_PER_NS // 2) >> TICK_BITS)
        return told

    def token_ns(self, spans: Iterable[tuple[int, int]]) -> Ticks:
        """The instants of one request's tokens, ns, from its truth's spans."""
        own = tuple(spans)
        return self.tokens_ns([own])[0] if own else np.zeros(0, np.int64)

    def pooled_gaps(self, spans: Iterable[tuple[tuple[int, int], ...]]) -> tuple[npt.NDArray[np.float64], Ticks]:
        """Gaps between tokens of all requests as (seconds, how many of each), from every request's spans.

        Between two decode steps all who took part in both have the same gap; a span's first gap starts at its own first step, and
        between two spans of one request lies an interruption's gap.
        """
        ends, decodes = self.ends()
        requests = list(spans)
        pairs = [span for request in requests for span in request]
        breaks = [(a[1], b[0]) for request in requests for a, b in pairwise(request)]
        if not pairs:
            return np.zeros(0), np.zeros(0, np.int64)
        first, last = np.array(pairs, np.int64).T
        steps = np.flatnonzero(decodes > 0)
        after, until = np.searchsorted(steps, first, "right"), np.searchsorted(steps, last, "right")
        own = until > after
        change = np.zeros(len(steps) + 1, np.int64)
        np.add.at(change, after[own] + 1, 1)
        np.add.at(change, until[own], -1)
        step_ends = ends[steps]
        joint = np.diff(step_ends, prepend=step_ends[:1])
        alone = step_ends[after[own]] - ends[first[own]]
        broken = np.array([ends[b] - ends[a] for a, b in breaks], np.int64)
        weights = np.concatenate([np.cumsum(change[:-1]), np.ones(len(alone) + len(broken), np.int64)])
        gaps = np.concatenate([joint, alone, broken]) / (TICKS_PER_NS * 1e9)
        return gaps[weights > 0], weights[weights > 0]
