"""SGLang: prompts first and in chunks, those that share most with the radix cache before others, admitted on a guess of the memory
that running requests will still take; when the guess was too low, requests are retracted.

Source: SGLang `managers/schedule_policy.py`, `scheduler.py`, `schedule_batch.py` (0.4), with `--disable-overlap-schedule`: a step is
scheduled when the one before it has ended. The radix cache is kept in blocks here. Who ends while decoding leaves the batch with the next
decode step: until then its seat is taken, and a batch that is full stays so. Ratios are whole millionths: sums of floats would depend
on how a stretch is cut.
"""

from __future__ import annotations

from phasemeter.errors import UserError
from phasemeter.serving.kv_radix import RadixKv
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
        self.longest = 0  # tokens of prompt and answer that fit
        self.full = False  # somebody could not be admitted, and nobody has left the batch since
        self.batch = 0  # how many were in it then
        self.emptied = -1  # decode steps before nobody was left in it

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        if kv.named and not isinstance(kv, RadixKv):
            raise UserError("policy Sglang needs a CountedKv or RadixKv")
        tokens = kv.total * kv.block_size
        self.longest = tokens if limits.max_model_len is None else min(tokens, limits.max_model_len)
        return tokens, None

    def schedule(self, state: State) -> tuple[list[Chunk], bool]:
        kv, decodes = state.kv, state.decodes
        if isinstance(kv, RadixKv):
            kv.computed()
        if (steps := decodes.steps - self.decoded) > 0:
            self.ratio = max(self.least_ratio, self.ratio - self.decay * steps)
            self.decoded = decodes.steps
        if not state.running:  # a server that is idle starts anew
            self.emptied, self.ratio = decodes.steps, self.first_ratio
        left = (
            decodes.ended if self.emptied != decodes.steps == decodes.ended_at else 0
        )  # with the last step: still in the batch
        if state.prefilling or not state.running or len(state.running) + left < self.batch:
            self.full = False
        if state.waiting and not state.prefilling and state.seats + left >= state.limits.max_num_seqs:
            self.full = True  # nobody is sorted: whoever waits keeps its place until there is a seat
        if state.prefilling or (state.waiting and not self.full):
            chunks = self.prefill(state, state.limits.max_num_seqs - left)
            if chunks:
                self.batch = len(state.running) + left
                return chunks, False
        if left:
            self.full = False
            state.ask_again()
        if decodes.blocks_due() > kv.free:
            self.retract(state)
        self.batch = len(state.running)
        return NO_CHUNKS, True

    def prefill(self, state: State, seats: int) -> list[Chunk]:
        """One chunk in all: the prompt that the last one cut, then whoever is next in the queue. At most `seats` may run."""
        kv, budget = state.kv, self.chunk_size
        chunks: list[Chunk] = []
        promised = sum([self.expected(state, s) for s in state.running])
        cut = sum([self.expected(state, s) for s in state.prefilling])
        found = {} if self.full else self.sort(state)
        for sequence in state.prefilling:
            new = min(sequence.target - sequence.computed, budget)
            kv.take(sequence, sequence.computed + new)
            chunks.append((sequence, new))
            budget -= new
        spare = kv.free * kv.block_size - (promised - cut) * self.ratio // MILLION - cut
        while state.waiting and budget > 0 and not self.full:
            head = state.waiting[0]
            cached = found[head] if found else kv.match(head)
            wanted = kv.needed(head, head.target, cached)
            needs = wanted * kv.block_size + self.expected(state, head)
            if state.seats >= seats or wanted > kv.free or (state.running and needs > spare):
                self.full = True
                break
            spare -= needs
            new = min(head.target - cached, budget)
            chunks.append((state.admit(cached + new, cached), new))
            budget -= new
        if isinstance(kv, RadixKv):
            kv.compute(chunks)
        return chunks

    def expected(self, state: State, sequence: Sequence) -> int:
        """The most tokens it may still emit, as far as anyone knows."""
        cap, room = sequence.max_tokens, self.longest - sequence.prompt_tokens
        left = (room if cap is None or cap > room else cap) - state.emitted(sequence)
        return CLIP if left > CLIP else left if left > 0 else 0

    def sort(self, state: State) -> dict[Sequence, int]:
        """Longest prefix match first; a prefix that somebody ahead will bring into the cache is waited for. Answers what is cached of each:
        nothing goes before the step begins. Empty: nobody was looked up."""
        kv = state.kv
        found: dict[Sequence, int] = {}
        if not kv.named or len(state.waiting) > LPM_WAITING:
            return found
        ahead: set[int] = set()
        late: set[Sequence] = set()
        blocks = -(-DUPLICATE_TOKENS // kv.block_size)
        for sequence in state.waiting:
            cached = found[sequence] = kv.match(sequence)
            if (
                cached <= DUPLICATE_TOKENS
                and blocks * kv.block_size < sequence.target
                and blocks <= len(sequence.block_hashes)
            ):
                mark = sequence.block_hashes[blocks - 1]
                if mark in ahead:
                    late.add(sequence)
                ahead.add(mark)
        ranked = sorted(state.waiting, key=lambda s: 1 if s in late else -found[s])
        state.waiting.clear()
        state.waiting.extend(ranked)
        return found

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
        capped = sum(min(CLIP if s.max_tokens is None else s.max_tokens, self.longest - s.prompt_tokens) for s in order)
        self.ratio = min(MILLION, (emitted + RETRACT_STEPS * len(order)) * MILLION // max(1, capped))
        self.decoded = decodes.steps + 1  # the step that follows brings no decay
        self.full = False
