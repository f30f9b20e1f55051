"""The sequences that decode, as aggregates: how many, the sum of their contexts, when each ends, how many blocks a step takes.

Lives here: the counts that make a stretch of decode steps cheap. Must not live here: who decodes (policies/), the pool (kv_cache).

Every sequence in here gains one token a decode step. With d the number of decode steps so far, a sequence holds
offset + d tokens of KV, ends after the step that makes d its finish step, and needs a new block before each step for which
offset + d is a multiple of the block size: so a step's demand is a count by (−offset) mod block size.
"""

from __future__ import annotations

from heapq import heappop, heappush

from phasemeter.serving.sequence import Sequence


class Decodes:
    """`count` sequences (each sample is one), `steps` decode steps done so far, `owing` blocks of copies still to be made.

    After prefill the samples of a request share its last, half-filled block; before their first decode step all but one of them
    take a block of their own and copy it (PagedAttention, section 4.4). `block_size` 0: memory is reserved whole, no block is counted.
    """

    def __init__(self, block_size: int, *, by_slot: bool) -> None:
        self.block_size = block_size
        self.count = 0
        self.offsets = 0  # sum of offsets, weighted by samples
        self.steps = 0
        self.ended, self.ended_at = 0, -1  # how many answers the last one of them ended that ended any, and its number
        self.demand = [0] * block_size
        self.owing: dict[Sequence, int] = {}
        self.heap: list[int] = []  # finish steps, one that isn't in `ends` is stale:
        self.ends: dict[int, tuple[Sequence, ...]] = {}  # who ends with that step
        self.members: list[dict[Sequence, None]] | None = [{} for _ in range(block_size)] if by_slot else None

    def join(self, sequence: Sequence, left: int, context: int) -> None:
        """`sequence` holds `context` tokens (a padded batch: is charged for them) and has `left` tokens to go."""
        steps, samples, ends = self.steps, sequence.samples, self.ends
        offset = sequence.offset = context - steps
        sequence._finish_at = finish = steps + left
        if finish in ends:
            ends[finish] += (sequence,)
        else:
            ends[finish] = (sequence,)
            heappush(self.heap, finish)
        self.count += samples
        self.offsets += offset * samples
        if not self.block_size:
            return
        slot = -offset % self.block_size
        self.demand[slot] += samples
        if self.members is not None:
            self.members[slot][sequence] = None
        if samples > 1 and slot != steps % self.block_size and sequence.generated == 1:
            self.owing[sequence] = samples - 1

    def stay(self, sequence: Sequence, context: int) -> None:
        """`sequence` has all its tokens and is computed on, as if it held `context`, until its padded batch ends."""
        self.count += sequence.samples
        self.offsets += (context - self.steps) * sequence.samples

    def leave(self, sequence: Sequence) -> None:
        """Before its end."""
        finish = sequence._finish_at
        others = tuple(one for one in self.ends.pop(finish) if one is not sequence)
        if others:
            self.ends[finish] = others
        self.end(sequence)

    def end(self, sequence: Sequence) -> int:
        """`sequence`, which is in `ends` no more, counts no more. Answers how many tokens of KV it holds."""
        samples, offset = sequence.samples, sequence.offset
        sequence._finish_at = -1
        self.count -= samples
        self.offsets -= offset * samples
        if self.block_size:
            slot = -offset % self.block_size
            self.demand[slot] -= samples
            if self.members is not None:
                del self.members[slot][sequence]
            if self.owing:
                self.owing.pop(sequence, None)
        return offset + self.steps

    def contexts(self) -> int:
        """KV tokens that the next decode step attends to, the new tokens included."""
        return self.offsets + self.count * (self.steps + 1)

    def blocks_due(self) -> int:
        """New blocks that the next decode step takes."""
        due = self.demand[self.steps % self.block_size]
        return due + sum(self.owing.values()) if self.owing else due

    def next_finish(self) -> int:
        """The number of decode steps after which the next sequence ends. There must be one."""
        heap, ends = self.heap, self.ends
        while heap[0] not in ends:
            heappop(heap)
        return heap[0]

    def steps_within(self, blocks: int, most: int) -> int:
        """How many steps, at most `most`, need no more than `blocks` new blocks altogether, copies left out."""
        per_cycle = self.count
        if ((most + self.block_size - 1) // self.block_size) * per_cycle <= blocks:
            return most
        cycles, room = divmod(blocks, per_cycle)
        steps = cycles * self.block_size
        slot = self.steps % self.block_size
        while steps < most and (room := room - self.demand[slot]) >= 0:
            steps += 1
            slot = (slot + 1) % self.block_size
        return min(steps, most)
