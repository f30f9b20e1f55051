"""SGLang: prompts first and in chunks, those that share most with the radix cache before others, admitted on a guess of the memory
that running requests will still take; when the guess was too low, requests are retracted.

Source: SGLang `managers/schedule_policy.py`, `scheduler.py`, `schedule_batch.py` (0.4). The radix cache is kept in blocks here.
Ratios are whole millionths: sums of floats would depend on how a stretch is cut.
"""

from __future__ import annotations

from phasemeter.serving.sequence import Sequence
from phasemeter.serving.state import NO_CHUNKS, Chunk, Kv, Limits, Plain, State

MILLION = 1_000_000
CLIP = 4096  # of a request's cap, at most this many tokens are reckoned with
RETRACT_STEPS = 20  # retraction makes room for this many steps of those who stay
LPM_WAITING = 128  # with more waiting, sorting isn't worth it: first come, first served
DUPLICATE_TOKENS = 32  # a prefix this long that somebody ahead in the queue will cache is waited for


class Sglang(Plain):
    def __init__(
        self, *, chunk_size: int = 8192, ratio: float = 0.7, least_ratio: float = 0.098, decay_steps: int = 600
    ) -> None:
        self.chunk_size = chunk_size
        self.first_ratio = self.ratio = round(ratio * MILLION)
        self.least_ratio = round(least_ratio * MILLION)
        self.decay = (self.first_ratio - self.least_ratio) // decay_steps
        self.decoded = 0  # decode steps whose decay is in `ratio`
        self.full = False  # admission failed, and nobody has ended since
        self.seen = 0  # how many ran then

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        return kv.total * kv.block_size, None

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, decodes = state.kv, state.decodes
        self.ratio = max(self.least_ratio, self.ratio - self.decay * max(0, decodes.steps - self.decoded))
        self.decoded = decodes.steps
        if len(state.running) < self.seen:
            self.full = False
        if state.waiting and state.seats >= state.limits.max_num_seqs and not state.prefilling:
            self.full = True  # nobody is sorted: whoever waits keeps its place until there is a seat
        if state.prefilling or (state.waiting and not self.full):
            chunks = self.prefill(state)
            self.seen = len(state.running)
            if chunks:
                return chunks, False
        if decodes.blocks_due() > kv.free:
            self.retract(state)
        self.seen = len(state.running)
        return NO_CHUNKS, True

    def prefill(self, state: State) -> list[Chunk]:
        kv, limits = state.kv, state.limits
        budget = self.chunk_size
        chunks: list[Chunk] = []
        for sequence in state.prefilling:  # the one that the last chunk cut
            new = min(sequence.target - sequence.computed, budget)
            chunks.append((sequence, new))
            budget -= new
        spare = kv.free * kv.block_size - sum(self.expected(state, s) for s in state.running) * self.ratio // MILLION
        if not self.full:
            self.sort(state)
        while state.waiting and budget > 0 and not self.full:
            head = state.waiting[0]
            cached = kv.match(head)
            wanted = kv.needed(head, head.target, cached)
            if (
                state.seats >= limits.max_num_seqs
                or wanted > kv.free
                or (state.running and wanted * kv.block_size + self.expected(state, head) > spare)
            ):
                self.full = bool(state.running)
                break
            spare -= wanted * kv.block_size + self.expected(state, head)
            new = min(head.target - cached, budget)
            chunks.append((state.admit(head.target, cached), new))
            budget -= new
        return chunks

    def expected(self, state: State, sequence: Sequence) -> int:
        """The most tokens it may still emit, as far as anyone knows."""
        cap = CLIP if sequence.max_tokens is None else sequence.max_tokens
        return max(0, min(cap - state.emitted(sequence), CLIP))

    def sort(self, state: State) -> None:
        """Longest prefix match first; a prefix that somebody ahead will bring into the cache is waited for."""
        kv = state.kv
        if not kv.named or len(state.waiting) > LPM_WAITING:
            return
        ahead: set[int] = set()
        ranks: dict[Sequence, float] = {}
        blocks = DUPLICATE_TOKENS // kv.block_size
        for sequence in state.waiting:
            cached = kv.match(sequence)
            mark = sequence.block_hashes[blocks - 1] if 0 < blocks <= len(sequence.block_hashes) else None
            duplicate = cached <= DUPLICATE_TOKENS and mark in ahead
            ranks[sequence] = float("inf") if duplicate else -cached
            if mark is not None and cached <= DUPLICATE_TOKENS:
                ahead.add(mark)
        ranked = sorted(state.waiting, key=ranks.__getitem__)
        state.waiting.clear()
        state.waiting.extend(ranked)

    def retract(self, state: State) -> None:
        """Those with the shortest answers so far, longest prompts first, until the rest has room for some steps; never the last one."""
        decodes, kv = state.decodes, state.kv
        order = sorted(state.running, key=lambda s: (-state.emitted(s), s.prompt_tokens))
        while len(order) > 1 and (
            decodes.blocks_due() > kv.free or kv.free * kv.block_size < RETRACT_STEPS * len(order)
        ):
            state.preempt(order.pop())
            state.waiting.append(state.waiting.popleft())  # retracted ones queue up behind all others
        emitted = sum(state.emitted(s) for s in order)
        capped = sum(CLIP if s.max_tokens is None else s.max_tokens for s in order)
        self.ratio = min(MILLION, (emitted + RETRACT_STEPS * len(order)) * MILLION // max(1, capped))
        self.decoded = decodes.steps + 1  # the step that follows brings no decay
        self.full = False
