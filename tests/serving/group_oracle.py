"""Fourth oracle of the serving tests: vLLM v0 with several samples a request, one token and one block table at a time.

A block is an object with a count of owners; a swapped request keeps the shape of its tables on the host. Sources: vLLM 0.2
`core/scheduler.py`, `core/block_manager.py` (copy on write, swap for groups, recomputation for single sequences), PagedAttention
section 4.4. It differs from them in one thing, as the engine does: whoever needs no block in a step asks for none, where vLLM wants
one free block a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import BatchShape, StepTime, ticks_of_ns

Table = list["Block"]


@dataclass(eq=False)
class Block:
    owners: int = 0


@dataclass(eq=False)
class Group:
    request: Request
    number: int
    emitted: int = 0
    held: int = 0
    tables: list[Table] = field(default_factory=list)
    start: int = -1
    times: list[int] = field(default_factory=list)
    preemptions: int = 0

    def distinct(self) -> int:
        return len({id(block) for table in self.tables for block in table})


class Groups:
    """`blocks` of `size` tokens, of which `watermark` are left by whoever starts or comes back. `run` answers who ended, in order."""

    def __init__(self, blocks: int, size: int, model: StepTime, limits: Limits, watermark: int) -> None:
        self.size, self.model, self.limits, self.watermark = size, model, limits, watermark
        self.total = self.free = blocks
        self.waiting: list[Group] = []
        self.running: list[Group] = []
        self.swapped: list[Group] = []
        self.moved = 0

    def block(self) -> Block:
        self.free -= 1
        assert self.free >= 0
        return Block(1)

    def drop(self, block: Block) -> None:
        block.owners -= 1
        self.free += not block.owners

    def seats(self) -> int:
        return sum(group.request.samples for group in self.running)

    def run(self, requests: list[Request]) -> list[Group]:
        coming = [Group(request, number) for number, request in enumerate(requests)]
        done: list[Group] = []
        t = 0
        while len(done) < len(requests):
            if not (self.waiting or self.running or self.swapped):
                t = max(t, ticks_of_ns(coming[0].request.arrival_ns))
            while coming and ticks_of_ns(coming[0].request.arrival_ns) <= t:
                self.waiting.append(coming.pop(0))
            prompts = self.prompts() if not self.swapped else []
            for group in prompts:
                group.start = t if group.start < 0 else group.start
            decodes = [] if prompts else self.decodes()
            if not prompts and not decodes:
                continue  # everybody had to go: who can run now?
            shape = BatchShape(
                sum(group.request.samples for group in decodes),
                sum((group.held + 1) * group.request.samples for group in decodes),
                [(group.request.prompt_tokens + group.emitted, 0) for group in prompts],
                self.moved,
            )
            self.moved = 0
            t += self.model.step_ticks(shape)
            for group in prompts or decodes:
                group.held = group.request.prompt_tokens + group.emitted
                group.emitted += 1
                group.times.append(t)
                if group.emitted == group.request.output_tokens:
                    self.running.remove(group)
                    self.let_go(group)
                    done.append(group)
        assert self.free == self.total
        return done

    def let_go(self, group: Group) -> None:
        for table in group.tables:
            for block in table:
                self.drop(block)
        group.tables = []

    def prompts(self) -> list[Group]:
        started: list[Group] = []
        tokens = 0
        while self.waiting:
            head = self.waiting[0]
            length, samples = head.request.prompt_tokens + head.emitted, head.request.samples
            blocks = (length + self.size - 1) // self.size
            if self.free - blocks < self.watermark or tokens + length > self.limits.max_num_batched_tokens:
                break
            if self.seats() + samples > self.limits.max_num_seqs:
                break
            tokens += length
            prompt = [self.block() for _ in range(blocks)]
            for block in prompt:
                block.owners = samples
            head.tables = [list(prompt) for _ in range(samples)]
            self.running.append(self.waiting.pop(0))
            started.append(head)
        return started

    def wanted(self, group: Group) -> int:
        """Blocks that this step's tokens take: a new one where the last is full, a copy where it is shared by all but the last writer."""
        if group.held == len(group.tables[0]) * self.size:
            return group.request.samples
        return group.tables[0][-1].owners - 1

    def append(self, group: Group) -> None:
        full = group.held == len(group.tables[0]) * self.size
        for table in group.tables:
            if full:
                table.append(self.block())
            elif table[-1].owners > 1:
                copied = self.block()
                self.drop(table[-1])
                table[-1] = copied

    def decodes(self) -> list[Group]:
        """In order of arrival, each takes its blocks; who came last gives way. Swapped ones come back if nobody had to."""
        queue = sorted(self.running, key=lambda group: group.number)
        ready: list[Group] = []
        preempted = False
        while queue:
            group = queue.pop(0)
            while group and self.wanted(group) > self.free:
                victim = queue.pop() if queue else group
                self.preempt(victim)
                preempted = True
                if victim is group:
                    break
            else:
                self.append(group)
                ready.append(group)
        self.running = ready
        while self.swapped and not preempted:
            head = min(self.swapped, key=lambda group: group.number)
            blocks, samples = head.distinct(), head.request.samples
            room = self.free - blocks - samples >= self.watermark and self.seats() + samples <= self.limits.max_num_seqs
            if self.running and not room:
                break
            self.swapped.remove(head)
            self.back(head)
            self.append(head)
            self.running.append(head)
        return list(self.running)

    def preempt(self, group: Group) -> None:
        group.preemptions += 1
        if group.request.samples == 1:
            self.let_go(group)
            self.waiting.insert(0, group)
            return
        shape = group.tables
        self.moved += group.distinct()
        self.let_go(group)
        group.tables = shape
        self.swapped.append(group)

    def back(self, group: Group) -> None:
        """Tables as they were, sharing included."""
        self.moved += group.distinct()
        fresh: dict[int, Block] = {}
        for table in group.tables:
            for old in table:
                if id(old) not in fresh:
                    fresh[id(old)] = self.block()
                    fresh[id(old)].owners = 0
                fresh[id(old)].owners += 1
        group.tables = [[fresh[id(old)] for old in table] for table in group.tables]
