"""Paged KV memory: counted blocks, or blocks with names where content is shared.

Lives here: `CountedKv` (arithmetic only) and `PagedKv` (block tables, reference counts, prefix reuse by hash chain, LRU of freed
blocks, copy-on-write for samples). Must not live here: who gets blocks (policies/), reserved memory (kv_reserved).

Both count blocks alike: with nothing shared between requests, an engine on either gives identical results (tests/serving).
Source: PagedAttention (arXiv 2309.06180), sections 4.2 to 4.4; prefix reuse by chained block hashes as in vLLM v1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import NamedTuple

from phasemeter.errors import UserError
from phasemeter.serving.block_demand import Decodes
from phasemeter.serving.sequence import Sequence


class Shares(NamedTuple):
    """What the KV pool holds, as shares that add up to 1. The words are those of PagedAttention's figure 2.

    `tokens`: KV that exists. `reserved`: kept for tokens its owner will still generate. `internal`: kept by an owner that will never
    fill it. `external`: free, though a request waits that doesn't fit into it. `free`: free, and nobody waits or blocks of any size serve.
    """

    tokens: float
    reserved: float
    internal: float
    external: float
    free: float


def checked_size(blocks: int, block_size: int) -> None:
    if blocks < 1 or block_size < 1:
        raise UserError(f"a KV pool of {blocks} blocks of {block_size} tokens holds nothing: both have to be 1 or more")


class CountedKv:
    """Blocks without names: `free` of `total` are left. Nothing is shared but the prompt among one request's samples."""

    named = False

    def __init__(self, blocks: int, block_size: int = 16) -> None:
        checked_size(blocks, block_size)
        self.total = self.free = blocks
        self.block_size = block_size

    def hold_back(self, blocks: int) -> None:
        """Takes blocks away for good (vLLM v1's null block)."""
        self.total -= blocks
        self.free -= blocks

    def reserve(self, sequence: Sequence) -> bool:
        raise UserError("this policy reserves memory: give it a ReservedKv")

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def held_blocks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that `sequence` holds with `tokens` of KV a sample."""
        return self.blocks_of(sequence.prompt_tokens, sequence.samples, tokens)

    def blocks_of(self, prompt_tokens: int, samples: int, tokens: int) -> int:
        """Blocks for `tokens` of KV in each of the samples: they share the prompt's full blocks."""
        blocks = -(-tokens // self.block_size)
        if samples == 1 or tokens <= prompt_tokens:
            return blocks
        shared = prompt_tokens // self.block_size
        return shared + samples * (blocks - shared)

    def match(self, sequence: Sequence) -> int:
        """Tokens of it that are in the prefix cache: none, without names."""
        return 0

    def needed(self, sequence: Sequence, tokens: int, cached: int = 0) -> int:
        """How many free blocks it takes to let `sequence` hold `tokens`."""
        return -(-tokens // self.block_size) - sequence.blocks

    def take(self, sequence: Sequence, tokens: int, cached: int = 0) -> None:
        """Gives `sequence` blocks for `tokens`. The caller has seen that `needed` are free."""
        blocks = -(-tokens // self.block_size)
        self.free -= blocks - sequence.blocks
        sequence.blocks = blocks

    def grow(self, decodes: Decodes, most: int) -> int:
        """Takes the blocks of the next decode steps: of as many as they are free for, at most `most`. Answers how many."""
        if decodes.owing:
            if decodes.blocks_due() > self.free:
                return 0
            self.free -= sum(decodes.owing.values())
            decodes.owing.clear()
        size, demand = self.block_size, decodes.demand
        slot = decodes.steps % size
        end = slot + most
        if most == 1:
            blocks = demand[slot]
        elif end <= size:
            blocks = sum(demand[slot:end])
        else:  # everybody takes one block a cycle
            cycles, end = divmod(end, size)
            blocks = cycles * decodes.count + sum(demand[:end]) - sum(demand[:slot])
        if blocks > self.free:
            return self.grow(decodes, decodes.steps_within(self.free, most))
        self.free -= blocks
        return most

    def settle(self, decodes: Decodes) -> None:
        """Nothing: which blocks the decodes take is all the same."""

    def restore(self, sequence: Sequence, tokens: int) -> None:
        """Room for a swapped sequence that comes back with `tokens` a sample."""
        blocks = self.held_blocks(sequence, tokens)
        self.free -= blocks
        sequence.blocks = blocks

    def release(self, sequence: Sequence, tokens: int) -> None:
        """Frees everything of `sequence`, which holds `tokens`."""
        self.free += self.held_blocks(sequence, tokens) if sequence.samples > 1 else -(-tokens // self.block_size)
        sequence.blocks = 0

    def retract(self, sequence: Sequence, tokens: int) -> None:
        """Frees everything of `sequence`, which decoded and will recompute its `tokens`."""
        self.release(sequence, tokens)

    def give_up(self, sequence: Sequence) -> None:
        """Frees everything of `sequence`, whose prompt is not computed to the end of its blocks."""
        self.free += sequence.blocks
        sequence.blocks = 0

    def used_tokens(self) -> int:
        return (self.total - self.free) * self.block_size

    def shares(self, sequences: list[Sequence], held: Callable[[Sequence], int], waits: bool) -> Shares:
        """Shares now, of a pool held by `sequences` with `held` tokens each.

        A last block's empty slots are internal fragmentation, as the paper has it.
        """
        tokens = sum(held(s) * s.samples - (s.samples - 1) * self._shared_tokens(s, held(s)) for s in sequences)
        size = self.total * self.block_size
        used = self.used_tokens()
        tokens = min(tokens, used)
        return Shares(tokens / size, 0.0, (used - tokens) / size, 0.0, 1 - used / size)

    def _shared_tokens(self, sequence: Sequence, tokens: int) -> int:
        if tokens <= sequence.prompt_tokens:
            return tokens
        return sequence.prompt_tokens // self.block_size * self.block_size


class PagedKv(CountedKv):
    """Blocks with names. A block whose last owner left keeps its content, findable by hash, until it is taken: oldest first.

    `free` counts those too. Each block that a decode step takes or fills is an act of its own: which one it is decides what is forgotten.
    `prefix_caching` False: names and reference counts, but nothing is ever found again.
    """

    named = True

    def __init__(self, blocks: int, block_size: int = 16, *, prefix_caching: bool = True) -> None:
        super().__init__(blocks, block_size)
        self.prefix_caching = prefix_caching
        self.references = [0] * blocks
        self.hash_of: list[int | None] = [None] * blocks
        self.block_of: dict[int, int] = {}  # by hash; equal content may be computed again, and is forgotten one by one:
        self.twins: dict[int, dict[int, None]] = {}  # the later ones, oldest first
        self.unowned: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self.evictions = 0
        self._settled = False  # the next decode step has its blocks

    def hold_back(self, blocks: int) -> None:
        self._pop(blocks)
        self.total -= blocks

    def match(self, sequence: Sequence) -> int:
        """Tokens of its leading blocks that are cached. At least its last token is always computed: it gives the next one."""
        if not self.prefix_caching:
            return 0
        found = 0
        for block_hash in sequence.block_hashes[: (sequence.target - 1) // self.block_size]:
            if block_hash not in self.block_of:
                break
            found += 1
        return found * self.block_size

    def needed(self, sequence: Sequence, tokens: int, cached: int = 0) -> int:
        wanted = -(-tokens // self.block_size) - sequence.blocks
        if cached:
            references, block_of = self.references, self.block_of
            for block_hash in sequence.block_hashes[: cached // self.block_size]:
                if references[block_of[block_hash]]:
                    wanted -= 1
        return wanted

    def take(self, sequence: Sequence, tokens: int, cached: int = 0) -> None:
        hashes, size, block_of = sequence.block_hashes, self.block_size, self.block_of
        table = sequence.table = sequence.table or []
        if cached:
            table += [block_of[block_hash] for block_hash in hashes[: cached // size]]
            self._share(table)
        named = max(0, len(table) - 1)  # the last one may not have been full
        table += self._pop(-(-tokens // size) - len(table))
        full = tokens // size
        self._remember(table[named:full], hashes[named:full])
        sequence.blocks = len(table)

    def grow(self, decodes: Decodes, most: int) -> int:
        """The blocks of the next decode steps: of as many as they are free for, at most `most`. Answers how many."""
        if not self._settled:
            if decodes.blocks_due() > self.free:
                return 0
            self._take_due(decodes)
        self._settled = False
        first, demand, size = decodes.steps, decodes.demand, self.block_size
        for step in range(first + 1, first + most):
            if demand[step % size]:
                self._name_filled(decodes, step % size)
                if demand[step % size] > self.free:
                    return step - first
                self._take(decodes, step % size)
        self._name_filled(decodes, (first + most) % size)
        return most

    def settle(self, decodes: Decodes) -> None:
        """Gives the decodes the blocks of this step ahead of whom the policy admits next: what they evict is not found any more."""
        if not self._settled and decodes.count:
            self._take_due(decodes)
            self._name_filled(decodes, (decodes.steps + 1) % self.block_size)
            self._settled = True

    def _take_due(self, decodes: Decodes) -> None:
        """The next step's blocks, then copies that are owed."""
        slot = decodes.steps % self.block_size
        if decodes.demand[slot]:
            self._take(decodes, slot)
        for sequence in sorted(decodes.owing, key=_order) if decodes.owing else ():
            self._fork(sequence)
            for table in (sequence.table, *sequence.forks):
                self._write(table)
        decodes.owing.clear()

    def _take(self, decodes: Decodes, slot: int) -> None:
        """One block for each sample whose last one is full, in list order."""
        assert decodes.members is not None
        due = decodes.members[slot]
        taken = self._pop(decodes.demand[slot])
        in_order = sorted(due, key=_order) if len(due) > 1 else due
        if len(taken) == len(due):
            for sequence, block in zip(in_order, taken, strict=True):
                sequence.table.append(block)
            return
        left = iter(taken)
        for sequence in in_order:
            self._fork(sequence)
            for table in (sequence.table, *sequence.forks):
                table.append(next(left))

    def _name_filled(self, decodes: Decodes, slot: int) -> None:
        """Names the blocks that are full before the step at `slot`, by the step before it: whoever starts in that one finds them, as
        in vLLM v1."""
        assert decodes.members is not None
        blocks: list[int] = []
        hashes: list[int] = []
        for sequence in decodes.members[slot]:
            table, own = sequence.table, sequence.block_hashes
            last = len(table) - 1
            if last < len(own):
                blocks.append(table[last])
                hashes.append(own[last])
        self._remember(blocks, hashes)

    def restore(self, sequence: Sequence, tokens: int) -> None:
        blocks = -(-tokens // self.block_size)
        sequence.table = self._pop(blocks)
        if sequence.samples > 1 and tokens > sequence.prompt_tokens:
            shared = sequence.prompt_tokens // self.block_size
            for _ in range(sequence.samples - 1):
                table = sequence.table[:shared]
                self._share(table)
                sequence.forks = [*sequence.forks, table + self._pop(blocks - shared)]
        sequence.blocks = blocks

    def release(self, sequence: Sequence, tokens: int) -> None:
        if tokens % self.block_size == 0:
            last = len(sequence.table) - 1
            self._remember(sequence.table[last:], sequence.block_hashes[last:])
        self.give_up(sequence)

    def give_up(self, sequence: Sequence) -> None:
        for table in (sequence.table, *sequence.forks):
            self._drop(table[::-1])  # the end of a chain is forgotten before its beginning
        sequence.table = []
        sequence.forks = []
        sequence.blocks = 0

    def _pop(self, many: int) -> list[int]:
        """Takes so many blocks, those longest without an owner, and forgets what they held."""
        popitem, references = self.unowned.popitem, self.references
        hash_of, block_of, twins = self.hash_of, self.block_of, self.twins
        taken: list[int] = []
        evicted = 0
        for _ in range(many):
            block, _ = popitem(False)
            references[block] = 1
            taken.append(block)
            forgotten = hash_of[block]
            if forgotten is not None:
                hash_of[block] = None
                evicted += 1
                if twins and forgotten in twins:
                    self._forget_one(block, forgotten)
                else:
                    del block_of[forgotten]
        self.evictions += evicted
        self.free -= many
        return taken

    def _forget_one(self, block: int, block_hash: int) -> None:
        """One of several with equal content: the next oldest stands for them."""
        twins = self.twins[block_hash]
        if self.block_of[block_hash] == block:
            block = self.block_of[block_hash] = next(iter(twins))
        del twins[block]
        if not twins:
            del self.twins[block_hash]

    def _share(self, blocks: list[int]) -> None:
        references = self.references
        for block in blocks:
            if not references[block]:
                del self.unowned[block]
                self.free -= 1
            references[block] += 1

    def _drop(self, blocks: list[int]) -> None:
        references, unowned = self.references, self.unowned
        before = len(unowned)
        for block in blocks:
            references[block] = left = references[block] - 1
            if not left:
                unowned[block] = None
        self.free += len(unowned) - before

    def _remember(self, blocks: list[int], hashes: Many[int]) -> None:
        """Full blocks are found by their hashes from now on, one that has none excepted."""
        if not self.prefix_caching:
            return
        hash_of, first_of = self.hash_of, self.block_of.setdefault
        for block, block_hash in zip(blocks, hashes, strict=False):
            if hash_of[block] is None:
                hash_of[block] = block_hash
                if first_of(block_hash, block) != block:
                    self.twins.setdefault(block_hash, {})[block] = None

    def _fork(self, sequence: Sequence) -> None:
        while len(sequence.forks) < sequence.samples - 1:
            self._share(sequence.table)
            sequence.forks = [*sequence.forks, list(sequence.table)]

    def _write(self, table: list[int]) -> None:
        """Copy-on-write: a shared last block is replaced by a copy of one's own."""
        if self.references[table[-1]] > 1:
            self._drop(table[-1:])
            table[-1:] = self._pop(1)


def _order(sequence: Sequence) -> int:
    return sequence.order
