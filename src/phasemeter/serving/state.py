"""What a policy sees and moves: the queues, the decodes as aggregates, the KV pool.

Lives here: `Limits`, `State` with the moves a scheduler makes (admit, preempt, swap, pull, resume), `Policy`. Must not live here: time
and tokens (engine), the choice of moves (policies/).

Attributes that begin with an underscore are the engine's: a policy that reads one sees the future, and a test fails.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.block_demand import Decodes
from phasemeter.serving.kv_cache import CountedKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.sequence import Sequence

Kv = CountedKv | ReservedKv
Chunk = tuple[Sequence, int]  # (who, new tokens this step)
NO_CHUNKS: list[Chunk] = []  # shared, never changed


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's limits under vLLM's names. `max_model_len` None: as long as the KV pool allows."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1:
            raise UserError("max_num_seqs and max_num_batched_tokens have to be 1 or more")


def decodes_on(kv: Kv) -> Decodes:
    """Nobody decodes yet. Where memory is reserved whole, decodes take no blocks."""
    return Decodes(0 if isinstance(kv, ReservedKv) else kv.block_size, by_slot=kv.named)


class State:
    """`waiting` (head first), `running` (in order of admission; those still in prefill are in `prefilling` too), `swapped`,
    `unpulled` and `held_out` (prefill and decode pools), `decodes`, `kv`, `limits`, `seats` (running sequences, each sample one).
    """

    def __init__(self, kv: Kv, limits: Limits) -> None:
        self.kv = kv
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        self.prefilling: list[Sequence] = []
        self.swapped: deque[Sequence] = deque()
        self.unpulled: deque[Sequence] = deque()
        self.held_out: dict[str, Sequence] = {}
        self.in_flight: dict[str, Sequence] = {}  # their KV is being pulled, their blocks are taken
        self.decodes = decodes_on(kv)
        self.seats = 0
        self.preempted_now = False  # whether somebody was preempted in this very scheduling
        self.moved = False  # or resumed, or pulled
        self._preempted: list[tuple[Sequence, str]] = []
        self._resumed: list[Sequence] = []
        self._pulled: list[Sequence] = []
        self._swapped_blocks = 0

    def emitted(self, sequence: Sequence) -> int:
        """Tokens that it has emitted so far."""
        if sequence._finish_at < 0:
            return sequence.generated
        return sequence.generated + sequence.offset + self.decodes.steps - sequence.target

    def held(self, sequence: Sequence) -> int:
        """Tokens of KV that it holds now (computed ones, where a prefill isn't over)."""
        return sequence.computed if sequence._finish_at < 0 else sequence.offset + self.decodes.steps

    def admit(self, tokens: int, cached: int = 0) -> Sequence:
        """Moves the head of waiting to running, with blocks for `tokens`, of which `cached` are there already."""
        sequence = self.waiting.popleft()
        self.kv.take(sequence, tokens, cached)
        sequence.cached = sequence.computed = cached
        self.running[sequence] = None
        self.seats += sequence.samples
        return sequence

    def start(self) -> Chunk:
        """Moves the head of waiting, whose memory is reserved, to running: all of its prompt is a chunk of this step."""
        sequence = self.waiting.popleft()
        self.running[sequence] = None
        self.seats += sequence.samples
        return sequence, sequence.target

    def preempt(self, sequence: Sequence) -> None:
        """Takes all KV of a running sequence; it waits, first in line, to recompute prompt and answer so far."""
        decoding = sequence._finish_at >= 0
        self._stop(sequence)
        if decoding:
            self.kv.retract(sequence, sequence.computed)
            sequence.target += 1  # the last token it emitted has no KV yet: it is recomputed with the others
        else:
            self.kv.give_up(sequence)
        sequence.computed = sequence.cached = 0
        self.waiting.appendleft(sequence)
        self._preempted.append((sequence, "recompute"))
        self.preempted_now = self.moved = True

    def ask_again(self) -> None:
        """Lets the policy be asked after one step, though nobody may have come or gone by then."""
        self.preempted_now = self.moved = True

    def swap_out(self, sequence: Sequence, *, last: bool = False) -> None:
        """Moves all KV of a decoding sequence to the host, where it is first in line to come back, or `last`."""
        self._stop(sequence)
        self._swapped_blocks += self.kv.held_blocks(sequence, sequence.computed)
        self.kv.release(sequence, sequence.computed)
        (self.swapped.append if last else self.swapped.appendleft)(sequence)
        self._preempted.append((sequence, "swap"))
        self.preempted_now = self.moved = True

    def swap_in(self) -> None:
        """Moves the first swapped sequence back; it decodes in this step."""
        sequence = self.swapped.popleft()
        self._swapped_blocks += self.kv.held_blocks(sequence, sequence.computed)
        self.kv.restore(sequence, sequence.computed)
        self._run(sequence)

    def pull(self) -> None:
        """Makes room for the first unpulled sequence's KV and starts its transfer."""
        sequence = self.unpulled.popleft()
        self.kv.take(sequence, sequence.target)
        self.in_flight[sequence._request.request_id] = sequence
        self._pulled.append(sequence)
        self.moved = True

    def resume(self) -> None:
        """Lets the head of waiting, whose KV has come, decode in this step."""
        self._run(self.waiting.popleft())

    def _run(self, sequence: Sequence) -> None:
        self.running[sequence] = None
        self.seats += sequence.samples
        self.decodes.join(sequence, sequence._left, sequence.computed)
        self._resumed.append(sequence)
        self.moved = True

    def _stop(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self.seats -= sequence.samples
        if sequence._finish_at < 0:
            self.prefilling.remove(sequence)
            return
        held = sequence.offset + self.decodes.steps
        gained = held - sequence.target
        self.decodes.leave(sequence)
        sequence.generated += gained
        sequence.target = sequence.computed = held


class Policy(Protocol):
    """Who runs in the next step. Decides from what `State` shows; knows no output length but what it may know.

    `schedule` makes its moves on the state and answers the step's prefill chunks, and whether the decodes run in it. It isn't asked
    while everybody decodes, nobody waits, and the next step's blocks are free: then all of them decode.
    `largest` answers how many tokens of KV one sequence may reach and how many tokens it may have to prefill (None: any): more
    could never be served. `reserves`: it needs a ReservedKv. `padded`: a batch costs as if all were as long as its longest,
    and holds its seats until all have ended. `null_blocks` are taken from the pool for good. `prefill_only`: an engine's
    sequences leave with their first token and hold their KV until released. `emits_first`: those that come with their KV have no
    token yet. `samples`: it runs requests of several samples;
    `alone`: why it doesn't.
    """

    reserves: bool
    padded: bool
    null_blocks: int
    prefill_only: bool
    emits_first: bool
    samples: bool
    alone: str

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]: ...

    def schedule(self, state: State) -> tuple[list[Chunk], bool]: ...


class Plain:
    """What most policies have in common, to be overridden by name."""

    reserves = False
    padded = False
    null_blocks = 0
    prefill_only = False
    emits_first = False
    samples = False
    alone = "its scheduler knows one sequence a request"

    def largest(self, kv: Kv, limits: Limits) -> tuple[int, int | None]:
        return kv.total * kv.block_size, None
