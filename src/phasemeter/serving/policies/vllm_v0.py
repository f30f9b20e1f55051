"""vLLM v0: prompts first, in steps of their own; then everybody decodes; the latest gives way when memory runs out.

Source: vLLM 0.2 to 0.6, `core/scheduler.py`; PagedAttention (arXiv 2309.06180), sections 4.5 and 6.
"""

from __future__ import annotations

from phasemeter.serving.state import NO_CHUNKS, Chunk, Kv, Limits, Plain, State


class VllmV0(Plain):
    """`watermark`: share of the pool that admission leaves free. `padded_tokens`: count a batch as prompts × longest, as Vidur does."""

    samples = True

    def __init__(self, watermark: float = 0.01, *, padded_tokens: bool = False) -> None:
        self.watermark = watermark
        self.padded_tokens = padded_tokens

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        return (kv.total - int(self.watermark * kv.total)) * kv.block_size, limits.max_num_batched_tokens

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        if state.waiting and not state.swapped:
            prompts = self.admit(state)
            if prompts:
                return prompts, False
        kv, decodes = state.kv, state.decodes
        while decodes.blocks_due() > kv.free:
            # not simply the last one let in: who was swapped may be back before somebody who came earlier
            latest = max(state.running, key=lambda sequence: sequence.order)
            if latest.samples > 1:
                state.swap_out(latest)
            else:
                state.preempt(latest)
        while state.swapped and not state.preempted_now and self.fits(state):
            state.swap_in()
        return NO_CHUNKS, True

    def admit(self, state: State) -> list[Chunk]:
        kv, limits, waiting = state.kv, state.limits, state.waiting
        room = kv.free - int(self.watermark * kv.total)
        prompts: list[Chunk] = []
        tokens = longest = 0
        while waiting:
            head = waiting[0]
            tokens = batched = tokens + head.target
            if self.padded_tokens:
                longest = max(longest, head.target)
                batched = longest * (len(prompts) + 1)
            room -= kv.needed(head, head.target)
            if room < 0 or batched > limits.max_num_batched_tokens or state.seats + head.samples > limits.max_num_seqs:
                break
            prompts.append((state.admit(head.target), head.target))
        return prompts

    def fits(self, state: State) -> bool:
        """Whether the first swapped sequence, and a block for each of its samples, fit above the watermark and this step's needs."""
        head, kv = state.swapped[0], state.kv
        blocks = kv.held_blocks(head, head.computed) + head.samples + state.decodes.blocks_due()
        if not state.running:
            return True
        seats = state.seats + head.samples <= state.limits.max_num_seqs
        return seats and kv.free - blocks >= int(self.watermark * kv.total)
