"""How long a step takes: one question, several ways to answer it.

Lives here: the question (`CostModel`), the two short answers (the analytic model and linear coefficients), and `TickedCost`,
which keeps the engine's promise of whole ticks. Must not live here: policies (they never ask), tables (tables.py).
Decode steps are lines: for n sequences the time is base + slope · (sum of contexts), up to the next knot of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Protocol

import msgspec

from phasemeter.errors import InternalError
from phasemeter.serving.analytic import Deployment, Parts, kv_read_s_per_token, pair_s, rows_s, step_parts
from phasemeter.serving.step_shape import BatchShape, DecodeLine, ticks_of_s

Chunks = Sequence[tuple[int, int]]  # (new tokens, tokens whose KV was there before) of each prefill chunk


class CostLine(msgspec.Struct, frozen=True, gc=False):
    """Time of a pure-decode step: `base_s + slope_s · context_tokens`, for context_tokens in [`start`, `end`)."""

    base_s: float
    slope_s: float
    start: float = 0
    end: float = inf


class CostModel(Protocol):
    """What a step costs. All answers are seconds; contexts are summed over the decoding sequences."""

    def cost_line(self, decodes: int, context_tokens: int) -> CostLine:
        """The line that holds for `decodes` sequences around `context_tokens`."""

    def step_s(self, decodes: int, context_tokens: int, chunks: Chunks) -> float:
        """The time of a mixed step."""

    def parts(self, decodes: int, context_tokens: int, chunks: Chunks) -> Parts:
        """The same time by resource: adds up to `step_s`."""


class AnalyticCost:
    """The formula of analytic.py. What depends only on how many decode is kept."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.slope_s = kv_read_s_per_token(deployment)
        self.pair_s = pair_s(deployment)
        self._lines: dict[int, CostLine] = {}
        self._by_tokens: dict[int, float] = {}
        self._by_rows: dict[int, float] = {}

    def cost_line(self, decodes: int, context_tokens: int) -> CostLine:
        line = self._lines.get(decodes)
        if line is None:
            line = self._lines[decodes] = CostLine(step_parts(self.deployment, decodes, 0).total_s, self.slope_s)
        return line

    def step_s(self, decodes: int, context_tokens: int, chunks: Chunks) -> float:
        """`parts` added up. What depends only on the number of tokens, or of sequences, is kept."""
        tokens, attended = decodes, 0
        for new, cached in chunks:
            tokens += new
            attended += new * (2 * cached + new)
            context_tokens += cached + new
        by_tokens = self._by_tokens.get(tokens)
        if by_tokens is None:
            by_tokens = step_parts(self.deployment, tokens, 0).total_s - self._rows_s(tokens)
            self._by_tokens[tokens] = by_tokens
        rows = self._rows_s(decodes + len(chunks))
        return by_tokens + rows + self.slope_s * context_tokens + self.pair_s * attended

    def _rows_s(self, sequences: int) -> float:
        found = self._by_rows.get(sequences)
        if found is None:
            found = self._by_rows[sequences] = rows_s(self.deployment, sequences)
        return found

    def parts(self, decodes: int, context_tokens: int, chunks: Chunks) -> Parts:
        return step_parts(self.deployment, decodes, context_tokens, chunks)


class LinearCoefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fitted lines, in seconds. Prefill: [constant, per token, per token²]; decode: [constant, per context token, per sequence].

    `decode_large` holds from `large_batch` sequences on. The form of DistServe's profiles (simdistserve, Apache-2.0).
    """

    prefill_s: tuple[float, float, float]
    decode_s: tuple[float, float, float]
    decode_large_s: tuple[float, float, float] | None = None
    large_batch: int | None = None


class LinearCost:
    """A prefill line and a decode line; a mixed step pays the larger constant once and both variable parts.

    Which resource binds is not in fitted lines: the constant is host and weights (counted as memory bandwidth), a prefill
    token is compute, a context token KV memory, a sequence host.
    """

    def __init__(self, coefficients: LinearCoefficients) -> None:
        self.coefficients = coefficients

    def _decode(self, decodes: int) -> tuple[float, float, float]:
        one = self.coefficients
        if one.decode_large_s is not None and one.large_batch is not None and decodes >= one.large_batch:
            return one.decode_large_s
        return one.decode_s

    def cost_line(self, decodes: int, context_tokens: int) -> CostLine:
        constant, context, sequence = self._decode(decodes)
        return CostLine(constant + sequence * decodes, context)

    def step_s(self, decodes: int, context_tokens: int, chunks: Chunks) -> float:
        return self.parts(decodes, context_tokens, chunks).total_s

    def parts(self, decodes: int, context_tokens: int, chunks: Chunks) -> Parts:
        prefill_constant, per_token, per_square = self.coefficients.prefill_s
        decode_constant, context, sequence = self._decode(decodes)
        constants = ([prefill_constant] if chunks else []) + ([decode_constant] if decodes else [])
        # a chunk of k after x cached tokens: what (x + k)² has over x²
        compute = sum(per_token * new + per_square * (2 * cached * new + new * new) for new, cached in chunks)
        return Parts(compute, max(constants, default=0.0), context * context_tokens, 0.0, sequence * decodes)


class TickedCost:
    """A CostModel as the engine's StepTime: pure-decode steps are whole-tick lines, split at the model's knots."""

    def __init__(self, cost: CostModel, swap_s_per_block: float = 0.0) -> None:
        self.cost = cost
        self.per_swapped_block = ticks_of_s(swap_s_per_block)
        self._lines: dict[int, tuple[int, int, float, float]] = {}  # decodes: (base, slope, start, end)

    def _line(self, decodes: int, contexts: int) -> tuple[int, int, float, float]:
        line = self._lines.get(decodes)
        if line is None or not line[2] <= contexts < line[3]:
            found = self.cost.cost_line(decodes, contexts)
            if not found.start <= contexts < found.end:
                raise InternalError(
                    f"a cost line for {contexts} context tokens holds from {found.start} to {found.end}"
                )
            line = ticks_of_s(found.base_s), ticks_of_s(found.slope_s), found.start, found.end
            self._lines[decodes] = line
        return line

    def step_ticks(self, batch: BatchShape) -> int:
        if batch.chunks:
            ticks = ticks_of_s(self.cost.step_s(batch.decodes, batch.contexts, batch.chunks))
        elif batch.decodes:
            base, slope, _, _ = self._line(batch.decodes, batch.contexts)
            ticks = base + slope * batch.contexts
        else:
            ticks = 0
        return max(1, ticks + self.per_swapped_block * batch.swapped_blocks)

    def decode_ticks(self, decodes: int, contexts: int) -> int:
        base, slope, _, _ = self._line(decodes, contexts)
        return max(1, base + slope * contexts)

    def decode_line(self, decodes: int, contexts: int) -> DecodeLine:
        line = self._lines.get(decodes)
        if line is None or not line[2] <= contexts < line[3]:
            line = self._line(decodes, contexts)
        base, slope, _, end = line
        ticks = base + slope * contexts
        steps = None if end == inf else ceil((end - contexts) / decodes)
        return DecodeLine(ticks if ticks > 0 else 1, slope * decodes, steps)

    def parts(self, batch: BatchShape) -> Parts:
        """What the step is spent on, in seconds (swaps left out)."""
        return self.cost.parts(batch.decodes, batch.contexts, batch.chunks)
