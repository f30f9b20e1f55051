"""KV memory that is reserved whole when a request starts: the allocators of Orca, as PagedAttention compares them.

Lives here: `ReservedKv` with its rules (max, pow2, oracle) and the buddy allocator. Must not live here: paged memory (kv_cache).
Source: PagedAttention (arXiv 2309.06180), section 6.1; Knuth, TAOCP 1, 2.5 (buddy system).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from phasemeter.errors import UserError
from phasemeter.serving.block_demand import Decodes
from phasemeter.serving.kv_cache import Shares
from phasemeter.serving.sequence import Sequence

RULES = ("max", "pow2", "oracle")


def power_of_two(tokens: int) -> int:
    """The smallest power of two that isn't below `tokens`."""
    return 1 << (tokens - 1).bit_length()


class Buddies:
    """Contiguous runs of 2^k slots. A pool whose size is no power of two starts as several, largest first.

    So a run that was never split lies at a multiple of twice its size, and nothing of its size lies where its buddy would be.
    """

    def __init__(self, slots: int) -> None:
        self.free: dict[int, list[int]] = {
            1 << bit: [] for bit in range(slots.bit_length())
        }  # size -> addresses, lowest first
        address = 0
        for size, runs in reversed(self.free.items()):
            if slots & size:
                runs.append(address)
                address += size

    def take(self, slots: int) -> int | None:
        """The address of a run for `slots`, rounded up to a power of two, or None: the smallest free run that fits is split."""
        size = 1 << (slots - 1).bit_length()
        if runs := self.free.get(size):
            return runs.pop(0)
        return self._split(size)

    def _split(self, size: int) -> int | None:
        """The lower end of the smallest larger run; what is left of it is free in halves."""
        free, run = self.free, size
        while not (runs := free.get(run)):
            if runs is None:
                return None
            run <<= 1
        address = runs.pop(0)
        while run != size:
            run >>= 1
            free[run].append(address + run)  # there was none of this size
        return address

    def give_back(self, address: int, slots: int) -> None:
        """Frees a run that was taken for `slots` and joins it with its buddy for as long as that is free."""
        free, size = self.free, 1 << (slots - 1).bit_length()
        while True:
            runs, buddy = free[size], address ^ size
            at = bisect_left(runs, buddy)
            if at == len(runs) or runs[at] != buddy:
                runs.insert(at, address)  # nothing lies between the two
                return
            del runs[at]
            if buddy < address:
                address = buddy
            size <<= 1


class ReservedKv:
    """A pool of `slots` tokens. A request gets all it may need at once, contiguous, or waits.

    rule "max": `max_tokens` (the model's limit); "pow2": prompt and the next power of two of its output; "oracle": prompt and output.
    The last two know the future, which is what the paper grants them; no policy does. `buddy` False: any free slots serve.
    """

    named = False

    def __init__(self, slots: int, rule: str, max_tokens: int, *, buddy: bool = True, block_size: int = 1) -> None:
        if rule not in RULES:
            raise UserError(f"`{rule}` is no rule of reserving I know: write {', '.join(RULES)}")
        if slots < 1 or max_tokens < 1 or block_size < 1:
            raise UserError("a reserving KV pool needs slots, max_tokens and block_size of 1 or more")
        self.rule = rule
        self.max_tokens = max_tokens
        self.each = (
            -(-max_tokens // block_size) if rule == "max" else 0
        )  # blocks a sample; 0: it depends on the request
        self.block_size = block_size
        self.total = self.free = slots // block_size  # blocks that no request has asked for
        self.buddies = Buddies(self.total) if buddy else None
        self.runs: dict[Sequence, tuple[int, int]] = {}  # (blocks asked for, address)

    def asked(self, sequence: Sequence) -> int:
        """Blocks that the rule reserves for it: every sample has its own."""
        if self.each:
            return self.each * sequence.samples
        request = sequence._request
        if self.rule == "pow2":
            tokens = min(self.max_tokens, request.prompt_tokens + power_of_two(request.output_tokens))
        else:
            tokens = request.prompt_tokens + request.output_tokens
        return -(-tokens // self.block_size) * sequence.samples

    def reserve(self, sequence: Sequence) -> bool:
        """Reserves for `sequence`; False: there is no room now."""
        blocks = self.each * sequence.samples or self.asked(sequence)
        if self.buddies is None:
            address = 0 if blocks <= self.free else None
        else:
            address = self.buddies.take(blocks)
        if address is None:
            return False
        self.free -= blocks
        self.runs[sequence] = blocks, address
        return True

    def hold_back(self, blocks: int) -> None:
        raise UserError("a reserving KV pool has no null block")

    def held_blocks(self, sequence: Sequence, tokens: int) -> int:
        return self.runs[sequence][0]

    def match(self, sequence: Sequence) -> int:
        return 0

    def needed(self, sequence: Sequence, tokens: int, cached: int = 0) -> int:
        return 0 if sequence in self.runs else self.asked(sequence)

    def take(self, sequence: Sequence, tokens: int, cached: int = 0) -> None:
        """Nothing: `reserve` has done it."""

    def restore(self, sequence: Sequence, tokens: int) -> None:
        raise UserError("a reserving KV pool doesn't swap")

    def settle(self, decodes: Decodes) -> None:
        """Nothing: all is taken."""

    def release(self, sequence: Sequence, tokens: int) -> None:
        blocks, address = self.runs.pop(sequence)
        self.free += blocks
        if self.buddies is not None:
            self.buddies.give_back(address, blocks)

    def retract(self, sequence: Sequence, tokens: int) -> None:
        raise UserError("a reserving KV pool takes nothing back")

    def give_up(self, sequence: Sequence) -> None:
        self.release(sequence, 0)

    def used_tokens(self) -> int:
        return (self.total - self.free) * self.block_size

    def shares(self, sequences: list[Sequence], held: Callable[[Sequence], int], waits: bool) -> Shares:
        """Shares now. What buddies round up is external: no request asked for it."""
        tokens = final = 0
        for sequence in sequences:
            length = sequence.prompt_tokens + sequence._request.output_tokens
            tokens += min(held(sequence), length) * sequence.samples
            final += length * sequence.samples
        size = self.total * self.block_size
        asked = self.used_tokens()
        rest = 1 - asked / size
        return Shares(
            tokens / size,
            (final - tokens) / size,
            (asked - final) / size,
            rest if waits else 0.0,
            0.0 if waits else rest,
        )
