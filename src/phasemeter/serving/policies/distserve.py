"""DistServe's two pools: one engine prefills and keeps the KV until it is pulled, another pulls it and decodes.

Source: DistServe (OSDI '24, arXiv 2401.09670) and its artifact's `context_stage_scheduler.py` and `decoding_stage_scheduler.py`. The
cluster carries the KV between them. Three things differ: a pull leaves a block free and what is on its way counts as waiting (there a full
pool ends in an error); who starts needs no room for its prompt a second time; and decodes go on while KV comes, where the artifact's
engine waits for it, so that a second token may come a step later here.
"""

from __future__ import annotations

from phasemeter.serving.state import NO_CHUNKS, Chunk, Kv, Limits, Plain, State

ONE_ANSWER = "DistServe, whatever `n` says, generates one answer"


class DistservePrefill(Plain):
    """First come, first served, up to `max_num_seqs` prompts and `max_num_batched_tokens`, while the batch and what is finished but
    not yet pulled fit into the pool."""

    prefill_only = True
    alone = ONE_ANSWER

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        return kv.total * kv.block_size, None

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, limits = state.kv, state.limits
        prompts: list[Chunk] = []
        tokens = 0
        while state.waiting and len(prompts) < limits.max_num_seqs:
            head = state.waiting[0]
            cached = kv.match(head)
            tokens += head.target - cached
            if prompts and tokens > limits.max_num_batched_tokens:
                break
            if kv.needed(head, head.target, cached) > kv.free:
                break
            prompts.append((state.admit(head.target, cached), head.target - cached))
        return prompts, False


class DistserveDecode(Plain):
    """Pulls while what was pulled and waits is below `waiting_share` of the pool; runs up to `max_num_seqs`; when memory runs out the
    last one is swapped out; who was swapped out first comes back first, and before others start."""

    alone = ONE_ANSWER

    def __init__(self, waiting_share: float = 0.05, *, emits_first: bool = False) -> None:
        self.waiting_share = waiting_share
        self.emits_first = emits_first

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        return (kv.total - 1) * kv.block_size, None  # a pull leaves a block for the next token

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, decodes = state.kv, state.decodes
        while decodes.blocks_due() > kv.free:
            state.swap_out(next(reversed(state.running)), last=True)
        self.start(state)
        while state.unpulled:
            head = state.unpulled[0]
            waiting_blocks = sum(s.blocks for s in (*state.waiting, *state.in_flight.values()))
            spare = kv.free - decodes.blocks_due()
            if waiting_blocks >= self.waiting_share * kv.total or kv.needed(head, head.target) >= spare:
                break
            state.pull()
        return NO_CHUNKS, True

    def start(self, state: State) -> None:
        """Swapped ones first, then those whose KV has come; each needs room for this step's token too. With nobody running the
        waiting don't wait for the swapped: they may hold the memory that those need."""
        kv, decodes, most = state.kv, state.decodes, state.limits.max_num_seqs
        while state.swapped and state.seats < most:
            head = state.swapped[0]
            if kv.held_blocks(head, head.computed + 1) + decodes.blocks_due() > kv.free:
                break
            state.swap_in()
        while state.waiting and not (state.swapped and state.running) and state.seats < most:
            head = state.waiting[0]
            if kv.needed(head, head.computed + 1) + decodes.blocks_due() > kv.free:
                break
            state.resume()
