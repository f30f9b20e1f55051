"""KV blocks as SGLang's radix cache keeps them: what a step computes is found from the next one on, and what is looked up stays.

Lives here: `RadixKv`. Must not live here: the order of the queue, who is admitted (policies/sglang).

It differs from the blocks of vLLM v1 (`PagedKv`) in when content has a name and in what is forgotten first:
- A prompt's blocks are named when their chunk is computed, an answer's when the request ends: requests that are prefilled in one
  step never share. Equal content that was computed twice is kept once, from the moment at which it is named.
- A retracted request keeps its prompt in the cache and loses its answer so far.
- A look-up counts as use. Blocks without a name are taken before any that has one.

Source: SGLang 0.4 `mem_cache/radix_cache.py` (`cache_unfinished_req`, `cache_finished_req`, `evict`), `managers/schedule_batch.py`
(`retract_decode`). Leaves are evicted block by block here, in SGLang with all tokens of their edge; what a retracted request leaves
counts as used at that instant.
"""

from __future__ import annotations

from phasemeter.serving.block_demand import Decodes
from phasemeter.serving.kv_cache import PagedKv
from phasemeter.serving.sequence import Sequence


class RadixKv(PagedKv):
    """`promised`: blocks that this scheduling gives away, taken when all are found that it shares: (to whom, how many).
    `computing`: what the step in progress computes: (sequence, tokens it has then)."""

    def __init__(self, blocks: int, block_size: int = 16, *, prefix_caching: bool = True) -> None:
        super().__init__(blocks, block_size, prefix_caching=prefix_caching)
        self.promised: list[tuple[Sequence, int]] = []
        self.computing: list[tuple[Sequence, int]] = []

    def take(self, sequence: Sequence, tokens: int, cached: int = 0) -> None:
        """Its shared blocks now, fresh ones with `compute`: whoever else is admitted in this scheduling still finds their content."""
        table = sequence.table = sequence.table or []
        if cached:
            table += [self.block_of[block_hash] for block_hash in sequence.block_hashes[: cached // self.block_size]]
            self._share(table)
        sequence.blocks = -(-tokens // self.block_size)
        fresh = sequence.blocks - len(table)
        self.free -= fresh
        self.promised.append((sequence, fresh))

    def compute(self, chunks: list[tuple[Sequence, int]]) -> None:
        """A step begins that computes so many new tokens each."""
        for sequence, fresh in self.promised:
            self.free += fresh
            sequence.table += self._pop(fresh)
        self.promised.clear()
        self.computing = [(sequence, sequence.computed + new) for sequence, new in chunks]

    def computed(self) -> None:
        """The step before is over: what it computed can be found."""
        for sequence, tokens in self.computing:
            self._keep(sequence, tokens)
        self.computing = []

    def match(self, sequence: Sequence) -> int:
        cached = super().match(sequence)
        hashes, block_of, references, used = sequence.block_hashes, self.block_of, self.references, self.unowned
        for index in range(
            cached // self.block_size - 1, -1, -1
        ):  # the end of a chain is forgotten before its beginning
            block = block_of[hashes[index]]
            if not references[block]:
                used.move_to_end(block)
        return cached

    def grow(self, decodes: Decodes, most: int) -> int:
        if self.computing:
            self.computed()
        return super().grow(decodes, most)

    def release(self, sequence: Sequence, tokens: int) -> None:
        if self.computing:
            self.computed()
        self._keep(sequence, tokens)
        self.give_up(sequence)

    def retract(self, sequence: Sequence, tokens: int) -> None:
        self.give_up(sequence)

    def give_up(self, sequence: Sequence) -> None:
        if self.computing:
            self.computed()
        super().give_up(sequence)

    def _name_filled(self, decodes: Decodes, slot: int) -> None:
        """Nothing: an answer is named when it is whole."""

    def _keep(self, sequence: Sequence, tokens: int) -> None:
        """Names the full blocks of the first `tokens`; of those whose content is there already, its block is used instead."""
        table, hashes = sequence.table, sequence.block_hashes
        hash_of, block_of = self.hash_of, self.block_of
        if not self.prefix_caching:
            return
        for index in range(min(tokens // self.block_size, len(hashes), len(table))):
            block = table[index]
            if hash_of[block] is not None:
                continue
            block_hash = hashes[index]
            same = block_of.get(block_hash)
            if same is None:
                hash_of[block] = block_hash
                block_of[block_hash] = block
            else:
                self._share([same])
                self._drop([block])
                table[index] = same

    def _drop(self, blocks: list[int]) -> None:
        references, unowned, hash_of = self.references, self.unowned, self.hash_of
        for block in blocks:
            references[block] = left = references[block] - 1
            if not left:
                unowned[block] = None
                self.free += 1
                if hash_of[block] is None:
                    unowned.move_to_end(block, last=False)
