"""What the serving engine's speed is told as a multiple of: flat lists, one step at a time, one token at a time. Frozen: don't improve it.

It stands by itself, so that a ratio moves only when the engine does. The tests' oracle (tests/serving/reference.py) is where it came
from and goes its own way. Times are ticks (1024 to the ns); a step costs fixed + per_decode·decodes + per_context·contexts +
per_new_token·new tokens. It lives the engine's lives to the ns, request_level aside, whose steps aren't padded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    fixed: int
    per_decode: int
    per_context: int
    per_new_token: int

    def step_ticks(self, decodes: int, contexts: int, sizes: list[tuple[int, int]]) -> int:
        ticks = self.fixed + self.per_decode * decodes + self.per_context * contexts
        for new, _ in sizes:
            ticks += self.per_new_token * new
        return ticks


@dataclass(eq=False)
class Flat:
    """One request: what it asks, tokens emitted, KV tokens held, blocks taken, instants."""

    prompt: int
    output: int
    arrival: int
    emitted: int = 0
    computed: int = 0
    blocks: int = 0
    start: int = -1
    tokens: list[int] = field(default_factory=list)
    preemptions: int = 0
    decodes: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.emitted


class FrozenReference:
    """`policy`: a method below by name. `run` answers the requests in the order they finished."""

    def __init__(
        self, policy: str, blocks: int, cost: Cost, *, seats: int = 256, budget: int = 8192, longest: int = 2048
    ) -> None:
        self.policy, self.cost, self.seats, self.budget, self.longest = policy, cost, seats, budget, longest
        self.block, self.chunk = 16, 512
        self.total = self.free = blocks
        self.waiting: list[Flat] = []
        self.running: list[Flat] = []
        self.preempted = False

    def blocks_for(self, tokens: int) -> int:
        return (tokens + self.block - 1) // self.block

    def grow(self, flat: Flat, tokens: int) -> None:
        wanted = max(0, self.blocks_for(tokens) - flat.blocks)
        flat.blocks += wanted
        self.free -= wanted

    def preempt_last(self) -> Flat:
        flat = self.running.pop()
        self.free += flat.blocks
        flat.blocks = flat.computed = 0
        flat.decodes = False
        flat.preemptions += 1
        self.waiting.insert(0, flat)
        self.preempted = True
        return flat

    def start(self, flat: Flat) -> None:
        self.waiting.remove(flat)
        self.running.append(flat)

    def run(self, requests: list[tuple[int, int, int]]) -> list[Flat]:
        """`requests`: (prompt tokens, output tokens, arrival in ticks), in order of arrival."""
        coming = [Flat(*request) for request in requests]
        done: list[Flat] = []
        t = 0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                t = max(t, coming[0].arrival)
            while coming and coming[0].arrival <= t:
                self.waiting.append(coming.pop(0))
            self.preempted = False
            work: list[tuple[Flat, int]] = getattr(self, self.policy)()
            decodes = [flat for flat, _ in work if flat.decodes]
            chunks = [(flat, new) for flat, new in work if not flat.decodes]
            for flat, _ in chunks:
                flat.start = t if flat.start < 0 else flat.start
            contexts = sum(flat.length for flat in decodes)
            sizes = [(new, flat.computed) for flat, new in chunks]
            t += self.cost.step_ticks(len(decodes), contexts, sizes)
            for flat, new in work:
                flat.computed += new
                if flat.computed == flat.length:
                    flat.emitted += 1
                    flat.decodes = True
                    flat.tokens.append(t)
            padded = self.policy == "request_level" and any(f.emitted < f.output for f in self.running)
            for flat in [] if padded else [f for f in self.running if f.emitted == f.output]:
                self.running.remove(flat)
                self.free += flat.blocks
                done.append(flat)
        return done

    def vllm_v0(self) -> list[tuple[Flat, int]]:
        watermark = self.total // 100
        prompts: list[tuple[Flat, int]] = []
        tokens = 0
        while self.waiting and len(self.running) < self.seats:
            head = self.waiting[0]
            if self.free - self.blocks_for(head.length) < watermark or tokens + head.length > self.budget:
                break
            tokens += head.length
            self.start(head)
            self.grow(head, head.length)
            prompts.append((head, head.length))
        return prompts or self.decode_all()

    def decode_all(self) -> list[tuple[Flat, int]]:
        work: list[tuple[Flat, int]] = []
        for flat in list(self.running):
            if flat in self.running and flat.decodes and self.make_room(flat, flat.computed + 1):
                work.append((flat, 1))
        return work

    def make_room(self, flat: Flat, tokens: int) -> bool:
        while self.blocks_for(tokens) - flat.blocks > self.free:
            if self.preempt_last() is flat:
                return False
        self.grow(flat, tokens)
        return True

    def vllm_v1(self) -> list[tuple[Flat, int]]:
        budget = self.budget
        work: list[tuple[Flat, int]] = []
        for flat in list(self.running):
            if flat not in self.running:
                break
            new = min(flat.length - flat.computed, budget)
            if new and self.make_room(flat, flat.computed + new):
                work.append((flat, new))
                budget -= new
        while self.waiting and not self.preempted and budget and len(self.running) < self.seats:
            head = self.waiting[0]
            if self.blocks_for(head.length) > self.free:
                break
            new = min(head.length, budget)
            self.start(head)
            self.grow(head, new)
            work.append((head, new))
            budget -= new
        return work

    def sarathi(self) -> list[tuple[Flat, int]]:
        work = self.decode_all()
        budget = self.chunk - len(work)
        for flat in self.running:
            new = min(flat.length - flat.computed, max(0, budget))
            if not flat.decodes and new:
                work.append((flat, new))
                budget -= new
        while self.waiting and not self.preempted and budget > 0 and len(self.running) < self.seats:
            head = self.waiting[0]
            if self.free - self.blocks_for(head.length) < self.total // 100:
                break
            self.start(head)
            self.grow(head, head.length)
            work.append((head, min(head.length, budget)))
            budget -= work[-1][1]
        return work

    def orca(self) -> list[tuple[Flat, int]]:
        work = [(flat, 1) for flat in self.running]
        return work + self.reserving()

    def request_level(self) -> list[tuple[Flat, int]]:
        return [(flat, 1) for flat in self.running if flat.emitted < flat.output] or self.reserving()

    def reserving(self) -> list[tuple[Flat, int]]:
        work: list[tuple[Flat, int]] = []
        while self.waiting and len(self.running) < self.seats:
            head = self.waiting[0]
            if self.blocks_for(self.longest) > self.free:
                break
            self.start(head)
            self.grow(head, self.longest)
            work.append((head, head.length))
        return work
