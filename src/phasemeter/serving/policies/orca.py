"""Orca: every step runs all decodes and as many whole prompts as fit; memory is reserved, so nobody is ever preempted.

Source: Orca (OSDI '22), section 4; its memory variants (max, pow2, oracle) are PagedAttention's, section 6.1.
"""

from __future__ import annotations

from phasemeter.serving.state import Chunk, Plain, State


class Orca(Plain):
    """Iteration-level scheduling, first come, first served. How much is reserved is the ReservedKv's rule."""

    reserves = True
    samples = True

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        waiting, kv, most = state.waiting, state.kv, state.limits.max_num_seqs
        prompts: list[Chunk] = []
        while waiting and state.seats + waiting[0].samples <= most and kv.reserve(waiting[0]):
            prompts.append(state.start())
        return prompts, True
