"""vLLM v1: one token budget for decodes and chunks of prompts alike, running first, the tail gives way.

Source: vLLM `v1/core/sched/scheduler.py` (0.8 to 0.19).
"""

from __future__ import annotations

from phasemeter.errors import UserError
from phasemeter.serving.sequence import Sequence
from phasemeter.serving.state import Chunk, Kv, Limits, Plain, State


class VllmV1(Plain):
    """`long_prefill_threshold`: the most tokens of one prompt a step (None: the budget alone). `reserve_full_isl`: a request starts only
    if all of its prompt fits. `watermark`: share of the pool that admission leaves free (older releases: 0)."""

    null_blocks = 1

    def __init__(
        self, *, long_prefill_threshold: int | None = None, reserve_full_isl: bool = True, watermark: float = 0.0
    ) -> None:
        self.threshold = long_prefill_threshold
        self.reserve_full_isl = reserve_full_isl
        self.watermark = watermark

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        if limits.max_num_batched_tokens < limits.max_num_seqs:
            raise UserError(
                "vllm_v1 needs max_num_batched_tokens of max_num_seqs or more: a decode takes a token of the budget"
            )
        return (kv.total - int(self.watermark * kv.total)) * kv.block_size, None

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        if self.threshold is not None and state.prefilling:
            chunks, budget = self.run_in_order(state)
        else:
            chunks, budget = self.run(state)
        if state.waiting and budget > 0 and not state.preempted_now:
            self.admit(state, chunks, budget)
        return chunks, True

    def run(self, state: State) -> tuple[list[Chunk], int]:
        """Decodes, then the one prompt that may be half done: without a threshold it is always the tail."""
        kv, decodes = state.kv, state.decodes
        while True:
            budget = state.limits.max_num_batched_tokens - decodes.count
            if not state.prefilling and decodes.blocks_due() <= kv.free:
                return [], budget
            chunks = [(s, self.chunk(s, budget)) for s in state.prefilling if budget > 0]
            wanted = sum(kv.needed(s, s.computed + new) for s, new in chunks)
            if decodes.blocks_due() + wanted <= kv.free:
                break
            state.preempt(next(reversed(state.running)))
        state.settle()  # the decodes come before the tail
        for sequence, new in chunks:
            kv.take(sequence, sequence.computed + new)
            budget -= new
        return chunks, budget

    def run_in_order(self, state: State) -> tuple[list[Chunk], int]:
        """One by one: a long prompt before a decode may leave it no budget."""
        kv, decodes, budget = state.kv, state.decodes, state.limits.max_num_batched_tokens
        slot = decodes.steps % kv.block_size
        promised = 0
        chunks: list[Chunk] = []
        order = list(state.running)
        at = 0
        while at < len(order) and budget > 0:
            sequence = order[at]
            if sequence in state.prefilling:
                new = self.chunk(sequence, budget)
                wanted = kv.needed(sequence, sequence.computed + new)
            else:
                new, wanted = 1, int(-sequence.offset % kv.block_size == slot)
            if promised + wanted > kv.free:
                state.preempt(order.pop())
                continue
            if sequence in state.prefilling:
                kv.take(sequence, sequence.computed + new)
                chunks.append((sequence, new))
            else:
                promised += wanted
            budget -= new
            at += 1
        state.left_out = [s for s in order[at:] if s not in state.prefilling]
        return chunks, budget

    def admit(self, state: State, chunks: list[Chunk], budget: int) -> None:
        kv, limits, waiting = state.kv, state.limits, state.waiting
        owed = state.settle()
        spare = kv.free - owed - int(self.watermark * kv.total)
        while waiting and budget > 0 and state.seats < limits.max_num_seqs:
            head = waiting[0]
            cached = kv.match(head)
            new = min(head.target - cached, self.threshold or budget, budget)
            wanted = kv.needed(head, cached + new, cached)
            if max(wanted, kv.needed(head, head.target, cached) if self.reserve_full_isl else 0) > spare:
                break
            spare -= wanted
            chunks.append((state.admit(cached + new, cached), new))
            budget -= new

    def chunk(self, sequence: Sequence, budget: int) -> int:
        return min(sequence.target - sequence.computed, self.threshold or budget, budget)
