"""vLLM v1: one token budget for decodes and chunks of prompts alike, running first, the tail gives way.

Source: vLLM `v1/core/sched/scheduler.py` (0.8 to 0.19).
"""

from __future__ import annotations

from phasemeter.errors import UserError
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
        chunks, budget, spare = self.run(state)
        kv, waiting = state.kv, state.waiting
        if self.watermark:
            spare -= int(self.watermark * kv.total)
        while waiting and budget > 0 and state.seats < state.limits.max_num_seqs and not state.preempted_now:
            head = waiting[0]
            cached = kv.match(head) if kv.named else 0
            rest = head.target - cached
            new = rest if rest <= budget and self.threshold is None else self.chunk(rest, budget)
            wanted = kv.needed(head, cached + new, cached)
            if wanted > spare:
                break
            if new < rest and self.reserve_full_isl and kv.needed(head, head.target, cached) > spare:
                break
            spare -= wanted
            budget -= new
            chunks.append((state.admit(cached + new, cached), new))
        return chunks, True

    def run(self, state: State) -> tuple[list[Chunk], int, int]:
        """A token for each decode, then prompts that are half done, in order; the tail gives way while their blocks are not free.

        vLLM walks its list in order and stops where the budget ends. That is always within the last one: nobody asks for more than it
        got in the step before but the one that got what was left. So every decode has its token, wherever it stands.
        """
        kv, decodes = state.kv, state.decodes
        while True:
            budget = state.limits.max_num_batched_tokens - decodes.count
            spare = kv.free - decodes.blocks_due()
            chunks: list[Chunk] = []
            for sequence in state.prefilling:
                new = self.chunk(sequence.target - sequence.computed, budget)
                budget -= new
                spare -= kv.needed(sequence, sequence.computed + new)
                chunks.append((sequence, new))
            if spare >= 0:
                break
            state.preempt(next(reversed(state.running)))
        if kv.named:
            kv.settle(decodes)
        for sequence, new in chunks:
            kv.take(sequence, sequence.computed + new)
        return chunks, budget, spare

    def chunk(self, rest: int, budget: int) -> int:
        """How many of `rest` tokens of a prompt a step takes."""
        most = budget if self.threshold is None or self.threshold > budget else self.threshold
        return rest if rest < most else most
