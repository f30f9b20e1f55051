"""How an engine asks what a step costs: the shape of a batch, and the promise a step-time model makes.

Lives here: `BatchShape`, the `StepTime` protocol, and `LinearStepTime`, the smallest model that keeps the promise.
Must not live here: hardware, tables, rooflines (step_time).

Time is counted in ticks, TICKS_PER_NS to the nanosecond, and every cost is a whole number of ticks: then the closed form of a
stretch of decode steps equals the sum over its steps exactly, which sums of floats don't. Instants are rounded to ns where
they leave the engine.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Protocol

import msgspec

from phasemeter.errors import UserError

TICK_BITS = 10
TICKS_PER_NS = 1 << TICK_BITS
_HALF = TICKS_PER_NS >> 1


def ticks_of_s(seconds: float) -> int:
    """Whole ticks nearest to a duration in seconds."""
    return round(seconds * 1e9 * TICKS_PER_NS)


def ticks_of_ns(ns: int) -> int:
    return ns << TICK_BITS


def ns_of_ticks(ticks: int) -> int:
    """The nearest ns, halves up."""
    return (ticks + _HALF) >> TICK_BITS


class BatchShape(msgspec.Struct, frozen=True, gc=False):
    """One step's work. `contexts` is the sum over the decodes of KV tokens attended, the new token's own included.

    A chunk is (new tokens, tokens whose KV was there before). With `samples` > 1 each sample counts as one decode.
    `swapped_blocks` moved between device and host before the step.
    """

    decodes: int = 0
    contexts: int = 0
    chunks: Many[tuple[int, int]] = ()
    swapped_blocks: int = 0


class DecodeLine(msgspec.Struct, frozen=True, gc=False):
    """The cost of coming pure-decode steps: step j (from 0) takes base + j·growth ticks, for the next `steps` steps.

    `steps` None: for as long as the batch stays the same. At least 1 otherwise.
    """

    base: int
    growth: int
    steps: int | None = None


class StepTime(Protocol):
    """A step-time model. Pure: equal shapes cost equal ticks, and every cost is at least 1 tick.

    `decode_line(n, contexts)` must agree with `step_ticks`: its step j is BatchShape(n, contexts + j·n), for j < `steps`.
    A model that bends in context answers the line up to its next knot. `decode_ticks` is such a line's `base` alone.
    """

    def step_ticks(self, batch: BatchShape) -> int: ...

    def decode_ticks(self, decodes: int, contexts: int) -> int: ...

    def decode_line(self, decodes: int, contexts: int) -> DecodeLine: ...


class LinearStepTime(msgspec.Struct, frozen=True, kw_only=True):
    """c0 + c_n·decodes + c_ctx·contexts + c_chunk·chunks + c_new·new + c_pair·Σ new·(before + new/2), in ticks.

    The form of DistServe's fits (arXiv 2401.09670): prefill is linear in tokens plus quadratic in a prompt's length, decode linear in
    batch and in the sum of contexts. `prefill_fixed` is added once to a step that holds chunks, `decode_fixed` once to one
    that holds decodes, `fixed` to every step. `pair_bits`: c_pair is in ticks / 2**pair_bits (a token pair costs little).
    """

    fixed: int = 1
    decode_fixed: int = 0
    per_decode: int = 0
    per_context: int = 0
    prefill_fixed: int = 0
    per_chunk: int = 0
    per_new_token: int = 0
    per_pair: int = 0
    pair_bits: int = 0
    per_swapped_block: int = 0

    def __post_init__(self) -> None:
        if self.fixed < 1 or any(getattr(self, name) < 0 for name in self.__struct_fields__):
            raise UserError("a linear step time needs `fixed` of 1 tick or more and no negative coefficient")

    def step_ticks(self, batch: BatchShape) -> int:
        ticks, decodes, chunks = self.fixed, batch.decodes, batch.chunks
        if decodes:
            ticks += self.decode_fixed + self.per_decode * decodes + self.per_context * batch.contexts
        if chunks:
            new = 0
            for tokens, _ in chunks:
                new += tokens
            ticks += self.prefill_fixed + self.per_chunk * len(chunks) + self.per_new_token * new
            if self.per_pair:
                pairs = sum(tokens * (2 * before + tokens) for tokens, before in chunks)
                ticks += self.per_pair * pairs >> self.pair_bits + 1
        if batch.swapped_blocks:
            ticks += self.per_swapped_block * batch.swapped_blocks
        return ticks

    def decode_ticks(self, decodes: int, contexts: int) -> int:
        return self.fixed + self.decode_fixed + self.per_decode * decodes + self.per_context * contexts

    def decode_line(self, decodes: int, contexts: int) -> DecodeLine:
        slope = self.per_context
        return DecodeLine(
            self.fixed + self.decode_fixed + self.per_decode * decodes + slope * contexts, slope * decodes
        )
