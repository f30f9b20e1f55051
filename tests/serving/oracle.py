"""Second oracle of the serving tests: schedulers whose memory has names, whole batches and pools, one token and one block at a time.

Shares no code with the engine but its records and step-time model. Everything is looked up by walking lists: which block is oldest, who
has a prefix, how much is free. Sources: vLLM `v1/core`, SGLang `managers/` (0.4), Orca section 3, DistServe section 4.3.
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
        self.ratio, self.full, self.ended = 700_000, False, False

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
            t = self.step(t, work)
            ended = [life for life in self.running if life.done]
            self.ended = bool(ended)
            if self.padded and len(ended) < len(self.running):
                continue  # nobody leaves before the last one
            # of those who end together, who decoded lets go before whose prompt just ended, who came first before others
            for life in sorted(ended, key=lambda life: (life not in decoding, coming_order[life])):
                self.running.remove(life)
                self.pool.leave(life)
                done.append(life)
        assert not any(self.pool.owners)
        return done

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

    def sglang(self) -> Work:
        """Prompts first; one that a chunk cut goes on before others; then everybody decodes, retracting if there is no room."""
        if self.ended:
            self.full = False
        cut = [life for life in self.running if not life.decodes]
        if self.waiting and not cut and len(self.running) >= self.limits.max_num_seqs:
            self.full = True  # before the queue is looked at
        if cut or (self.waiting and not self.full):
            work = self.sglang_prompts(cut)
            if work:
                return work
        due = [life for life in self.running if len(life.table) < self.pool.of(life.held + 1)]
        if len(due) > self.pool.free():
            self.retract()
        else:
            self.ratio = max(98_000, self.ratio - (700_000 - 98_000) // 600)
        for life in self.running:
            self.pool.grow(life, life.held + 1)
        return [(life, 1) for life in self.running]

    def expected(self, life: Life) -> int:
        cap = life.request.max_tokens
        return max(0, min((4096 if cap is None else cap) - life.emitted, 4096))

    def sglang_prompts(self, cut: list[Life]) -> Work:
        budget = self.options["chunk"]
        work: Work = []
        promised = sum(self.expected(life) for life in self.running) * self.ratio // 1_000_000
        room = self.pool.free() * self.pool.size - promised
        for life in cut:
            work.append((life, min(life.length - life.held, budget)))
            budget -= work[-1][1]
        if self.full:
            return work
        if self.named and len(self.waiting) <= 128:
            self.longest_prefix_first()
        while self.waiting and budget > 0:
            head = self.waiting[0]
            known = self.known(head)
            wanted = self.pool.missing(head, head.length, known)
            needs = wanted * self.pool.size + self.expected(head)
            if (
                len(self.running) >= self.limits.max_num_seqs
                or wanted > self.pool.free()
                or (self.running and needs > room)
            ):
                self.full = bool(self.running)
                break
            room -= needs
            self.start(head, known, head.length)
            work.append((head, min(head.length - head.held, budget)))
            budget -= work[-1][1]
        return work

    def longest_prefix_first(self) -> None:
        first_32: list[tuple[int, ...]] = []
        late: list[Life] = []
        cached = {id(life): len(self.known(life)) * self.pool.size for life in self.waiting}
        for life in self.waiting:
            head = life.request.block_hashes[: 32 // self.pool.size]
            if cached[id(life)] > 32 or len(head) < 32 // self.pool.size:
                continue
            if head in first_32:
                late.append(life)
            first_32.append(head)
        rest = [life for life in self.waiting if life not in late]
        self.waiting = sorted(rest, key=lambda life: -cached[id(life)]) + late

    def retract(self) -> None:
        """The shortest answer goes, of those the longest prompt, until the others have 20 tokens each; one always stays."""
        while len(self.running) > 1:
            free = self.pool.free()
            due = [life for life in self.running if len(life.table) < self.pool.of(life.held + 1)]
            if len(due) <= free and free * self.pool.size >= 20 * len(self.running):
                break
            least = min(life.emitted for life in self.running)
            shortest = [life for life in self.running if life.emitted == least]
            longest = max(life.request.prompt_tokens for life in shortest)
            chosen = [life for life in shortest if life.request.prompt_tokens == longest][-1]
            self.preempt(chosen)
            self.waiting.append(chosen)
        emitted = sum(life.emitted for life in self.running) + 20 * len(self.running)
        capped = sum(4096 if r.request.max_tokens is None else r.request.max_tokens for r in self.running)
        self.ratio = min(1_000_000, emitted * 1_000_000 // max(1, capped))
        self.full = False


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
