"""Sarathi-Serve: all decodes first, then the prompts under way, then new ones, in chunks up to a token budget.

Source: Sarathi-Serve (arXiv 2403.02310), algorithm 3, and its artifact's scheduler. It is a fork of vLLM without sequence groups: its
API and its sampling parameters know no `n`.
"""

from __future__ import annotations

from phasemeter.serving.state import Chunk, Kv, Limits, Plain, State


class Sarathi(Plain):
    """`chunk_size`: the token budget of a step, decodes counted. A prompt's blocks are taken whole when it starts, and leave
    `watermark` (a share of the pool) free. Stalls are bounded by the chunk: no step holds more prompt tokens."""

    alone = "a request to Sarathi-Serve has no `n`"

    def __init__(self, chunk_size: int = 512, watermark: float = 0.01) -> None:
        self.chunk_size = chunk_size
        self.watermark = watermark

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        return (kv.total - int(self.watermark * kv.total)) * kv.block_size, None

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, decodes, waiting = state.kv, state.decodes, state.waiting
        while decodes.blocks_due() > kv.free:
            state.preempt(next(reversed(state.running)))
        budget = self.chunk_size - decodes.count
        chunks: list[Chunk] = []
        for sequence in state.prefilling:
            if budget <= 0:
                break
            new = min(sequence.target - sequence.computed, budget)
            chunks.append((sequence, new))
            budget -= new
        spare = kv.free - decodes.blocks_due() - int(self.watermark * kv.total) if waiting else 0
        while waiting and budget > 0 and state.seats < state.limits.max_num_seqs and not state.preempted_now:
            head = waiting[0]
            spare -= kv.needed(head, head.target)
            if spare < 0:
                break
            new = min(head.target, budget)
            chunks.append((state.admit(head.target), new))
            budget -= new
        return chunks, True
