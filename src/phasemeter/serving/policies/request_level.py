"""Request-level batching, as FasterTransformer is served: a batch starts when the last one has ended, padded to its longest.

Source: Orca (OSDI '22), section 3; Vidur's `faster_transformer` scheduler.
"""

from __future__ import annotations

from phasemeter.serving.state import NO_CHUNKS, Chunk, Plain, State


class RequestLevel(Plain):
    """First come, first served, up to max_num_seqs; KV for the longest possible request is reserved. Prompts together, then decodes
    until all have ended; memory and seats come free at once."""

    reserves = True
    padded = True
    samples = True

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        if state.running:
            return NO_CHUNKS, True
        waiting, kv, most = state.waiting, state.kv, state.limits.max_num_seqs
        prompts: list[Chunk] = []
        while waiting and state.seats + waiting[0].samples <= most and kv.reserve(waiting[0]):
            prompts.append(state.start())
        return prompts, False
