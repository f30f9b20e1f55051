"""Second oracle of the serving tests: schedulers whose memory has names, whole batches and pools, one token and one block at a time.

Shares no code with the engine but its records and step-time model. Everything is looked up by walking lists: which block is oldest, who
has a prefix, how much is free. Sources: vLLM `v1/core`, Orca section 3. SGLang's is in radix_oracle, DistServe's in pool_oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import BatchShape, StepTime, ns_of_ticks, ticks_of_ns

Work = list[tuple["Life", int]]  # who computes how many tokens


@dataclass(eq=False)
class Life:
    """One request. `held` tokens of KV are computed, `table` are its blocks; instants in ticks."""

    request: Request
    emitted: int = 0
    held: int = 0
    table: list[int] = field(default_factory=list)
    start: int = -1
    cached: int = 0
    times: list[int] = field(default_factory=list)
    preemptions: int = 0
    decodes: bool = False

    @property
    def length(self) -> int:
        return self.request.prompt_tokens + self.emitted

    @property
    def done(self) -> bool:
        return self.emitted == self.request.output_tokens


class Blocks:
    """`many` blocks of `size` tokens: how many own each, what name its content has, when it was last let go."""

    def __init__(self, many: int, size: int) -> None:
        self.size = size
        self.owners = [0] * many
        self.names: list[int | None] = [None] * many
        self.let_go, self.named_at = list(range(many)), [0] * many
        self.clock = many

    def free(self) -> int:
        return sum(1 for owners in self.owners if not owners)

    def of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def fresh(self) -> int:
        """The block that was let go first, its content forgotten."""
        block = min((b for b, owners in enumerate(self.owners) if not owners), key=self.let_go.__getitem__)
        self.owners[block], self.names[block] = 1, None
        return block

    def leave(self, life: Life) -> None:
        """From its last block to its first: the beginning of a prefix is kept longest."""
        for block in reversed(life.table):
            self.owners[block] -= 1
            if not self.owners[block]:
                self.let_go[block] = self.clock
                self.clock += 1
        life.table, life.held = [], 0

    def known(self, life: Life) -> list[int]:
        """Blocks that hold its first tokens, all but its last one at most."""
        found: list[int] = []
        for name in life.request.block_hashes[: (life.length - 1) // self.size]:
            blocks = [b for b, n in enumerate(self.names) if n == name]
            if not blocks:
                break
            found.append(min(blocks, key=self.named_at.__getitem__))  # of equal ones the first
        return found

    def missing(self, life: Life, tokens: int, known: list[int]) -> int:
        """How many free blocks it takes to let it hold `tokens`: those it has, and shared ones that have an owner, are free of cost."""
        return max(0, self.of(tokens) - len(life.table) - sum(1 for b in known if self.owners[b]))

    def grow(self, life: Life, tokens: int, known: list[int] = []) -> None:  # noqa: B006
        """Blocks for `tokens`; those that this step fills have a name from now on."""
        for block in known:
            self.owners[block] += 1
            life.table.append(block)
        while len(life.table) < self.of(tokens):
            life.table.append(self.fresh())
        full = tokens // self.size
        for block, name in list(zip(life.table, life.request.block_hashes, strict=False))[:full]:
            if self.names[block] is None:
                self.names[block], self.named_at[block] = name, self.clock
                self.clock += 1


class Oracle:
    """`policy`: a method by name. `run` answers the finished requests in order of their end."""

    def __init__(
        self, policy: str, blocks: int, size: int, step_time: StepTime, limits: Limits, **options: int
    ) -> None:
        self.policy, self.step_time, self.limits, self.options = policy, step_time, limits, options
        self.pool = Blocks(blocks, size)
        self.named = bool(options.get("named"))
        self.waiting: list[Life] = []
        self.running: list[Life] = []
        self.preempted = False
        self.padded = policy == "request_level"

    def known(self, life: Life) -> list[int]:
        return self.pool.known(life) if self.named else []

    def start(self, life: Life, known: list[int], tokens: int) -> None:
        self.waiting.remove(life)
        self.running.append(life)
        self.pool.grow(life, tokens, known)
        life.held = len(known) * self.pool.size
        if life.start < 0:
            life.cached = life.held

    def preempt(self, life: Life) -> None:
        self.running.remove(life)
        self.pool.leave(life)
        life.decodes = False
        life.preemptions += 1
        self.preempted = True

    def run(self, requests: list[Request]) -> list[Life]:
        coming = [Life(request) for request in requests]
        coming_order = {life: number for number, life in enumerate(coming)}
        done: list[Life] = []
        t = 0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                t = max(t, ticks_of_ns(coming[0].request.arrival_ns))
            while coming and ticks_of_ns(coming[0].request.arrival_ns) <= t:
                self.waiting.append(coming.pop(0))
            self.preempted = False
            work: Work = getattr(self, self.policy)()
            assert work, "nobody can run"
            decoding = {life for life, _ in work if life.decodes}
            self.begin_step(work)
            t = self.step(t, work)
            self.end_step(work, decoding)
            ended = [life for life in self.running if life.done]
            if self.padded and len(ended) < len(self.running):
                continue  # nobody leaves before the last one
            # of those who end together, who decoded lets go before whose prompt just ended, who came first before others
            for life in sorted(ended, key=lambda life: (life not in decoding, coming_order[life])):
                self.running.remove(life)
                self.let_go(life)
                done.append(life)
        assert self.empty()
        return done

    def begin_step(self, work: Work) -> None:
        """What else happens before a step: nothing."""

    def end_step(self, work: Work, decoding: set[Life]) -> None:
        """What else happens after it: nothing."""

    def let_go(self, life: Life) -> None:
        self.pool.leave(life)

    def empty(self) -> bool:
        return not any(self.pool.owners)

    def step(self, t: int, work: Work) -> int:
        decodes = [life for life, _ in work if life.decodes]
        chunks = [(life, new) for life, new in work if not life.decodes]
        for life, _ in chunks:
            life.start = t if life.start < 0 else life.start
        sizes, contexts = [(new, life.held) for life, new in chunks], sum(life.length for life in decodes)
        if self.padded:  # as if all were as long as the longest
            longest = max(life.request.prompt_tokens for life in self.running)
            sizes = [(longest, 0)] * len(chunks)
            most = max(life.emitted for life in self.running)
            contexts = len(decodes) * (longest + most)
        t += self.step_time.step_ticks(BatchShape(len(decodes), contexts, sizes))
        for life, new in work:
            life.held += new
            if not life.done and life.held == life.length:
                life.emitted += 1
                life.decodes = True
                life.times.append(t)
        return t

    def request_level(self) -> Work:
        if self.running:
            return [(life, 0 if life.done else 1) for life in self.running]
        each = self.pool.of(self.options["longest"])
        work: Work = []
        while self.waiting and len(work) < self.limits.max_num_seqs and each <= self.pool.free():
            head = self.waiting[0]
            self.start(head, [], self.options["longest"])
            head.held = 0
            work.append((head, head.length))
        return work

    def vllm_v1(self) -> Work:
        """Running ones in order, each a token or a chunk; the tail gives way; then the head of the queue, if nobody had to."""
        budget, threshold = self.limits.max_num_batched_tokens, self.options.get("threshold") or 10**9
        work: Work = []
        for life in list(self.running):
            new = min(life.length - life.held, threshold, budget)
            while new and life in self.running and self.pool.missing(life, life.held + new, []) > self.pool.free():
                tail = self.running[-1]
                self.preempt(tail)
                self.waiting.insert(0, tail)
            if new and life in self.running:
                self.pool.grow(life, life.held + new)
                work.append((life, new))
                budget -= new
        work = [(life, new) for life, new in work if life in self.running]
        while self.waiting and not self.preempted and budget and len(self.running) < self.limits.max_num_seqs:
            head = self.waiting[0]
            known = self.known(head)
            if self.pool.missing(head, head.length, known) > self.pool.free():
                break
            new = min(head.length - len(known) * self.pool.size, threshold, budget)
            self.start(head, known, len(known) * self.pool.size + new)
            work.append((head, new))
            budget -= new
        return work


Lived = dict[str, tuple[int, int, int, int, int]]


def lived(lives: list[Life]) -> Lived:
    """By request: start, first token, last token (ns), preemptions, tokens found in the cache at its first admission."""
    return {
        life.request.request_id: (
            ns_of_ticks(life.start),
            ns_of_ticks(life.times[0]),
            ns_of_ticks(life.times[-1]),
            life.preemptions,
            life.cached,
        )
        for life in lives
    }
