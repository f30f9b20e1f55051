"""Third oracle of the serving tests: a prefill engine, a link and a decode engine, one token at a time.

Source: DistServe (arXiv 2401.09670), section 4.3, and its schedulers: KV stays with the prefill engine until it is pulled; what was
pulled and waits is bounded; who came last is swapped out when memory runs out, who was swapped out first comes back first.
"""

from __future__ import annotations

from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import BatchShape, StepTime, ns_of_ticks, ticks_of_ns
from tests.serving.oracle import Life

NEVER = 1 << 80


class Pools:
    """`blocks` of each engine; a transfer of n tokens takes `link_ns(n)`. Instants are ticks inside an engine, ns between them."""

    def __init__(self, blocks: tuple[int, int], size: int, model: StepTime, limits: Limits, token_ns: int) -> None:
        self.size, self.model, self.limits, self.token_ns = size, model, limits, token_ns
        self.total = blocks[1]
        self.free = list(blocks)
        self.coming: list[Life] = []
        self.waiting: list[Life] = []  # for a prefill
        self.offered: list[Life] = []  # for their pull
        self.pulling: list[tuple[int, Life]] = []  # (ns of arrival, who)
        self.ready: list[Life] = []  # pulled, not started
        self.running: list[Life] = []
        self.swapped: list[Life] = []
        self.batch: list[Life] = []  # in prefill now
        self.ends = [NEVER, NEVER]  # of the step in progress of each engine
        self.link_free_ns = 0
        self.moved = 0  # blocks swapped since the last decode step
        self.done: list[Life] = []

    def of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def run(self, requests: list[Request]) -> list[Life]:
        self.coming = [Life(request) for request in requests]
        while len(self.done) < len(requests):
            arrival = ticks_of_ns(self.coming[0].request.arrival_ns) if self.coming else NEVER
            pulled = ticks_of_ns(min(at for at, _ in self.pulling)) if self.pulling else NEVER
            t = min(arrival, pulled, *self.ends)
            assert t < NEVER, "nobody can run"
            while self.coming and ticks_of_ns(self.coming[0].request.arrival_ns) <= t:
                self.waiting.append(self.coming.pop(0))
            for at, life in sorted(self.pulling, key=lambda pull: pull[0]):
                if ticks_of_ns(at) <= t:
                    self.pulling.remove((at, life))
                    self.ready.append(life)
                    self.free[0] += self.of(life.request.prompt_tokens)
            if self.ends[0] == t:
                self.end_prefill(t)
            if self.ends[1] == t:
                self.end_decode(t)
            if self.ends[0] == NEVER:
                self.begin_prefill(t)
            if self.ends[1] == NEVER:
                self.begin_decode(t)
        assert self.free == [self.free[0], self.total]
        return self.done

    def begin_prefill(self, t: int) -> None:
        tokens = 0
        while self.waiting and len(self.batch) < self.limits.max_num_seqs:
            prompt = self.waiting[0].request.prompt_tokens
            tokens += prompt
            if (self.batch and tokens > self.limits.max_num_batched_tokens) or self.of(prompt) > self.free[0]:
                break
            self.free[0] -= self.of(prompt)
            self.waiting[0].start = t
            self.batch.append(self.waiting.pop(0))
        if self.batch:
            shape = BatchShape(0, 0, [(life.request.prompt_tokens, 0) for life in self.batch])
            self.ends[0] = t + self.model.step_ticks(shape)

    def end_prefill(self, t: int) -> None:
        for life in self.batch:
            life.emitted, life.held = 1, life.request.prompt_tokens
            life.times.append(t)
            if life.done:
                self.free[0] += self.of(life.held)
                self.done.append(life)
            else:
                self.offered.append(life)
        self.batch, self.ends[0] = [], NEVER

    def due(self) -> int:
        """Blocks that this step's tokens take."""
        return sum(1 for life in self.running if self.of(life.held + 1) > self.of(life.held))

    def begin_decode(self, t: int) -> None:
        while True:
            out = 0
            while self.due() > self.free[1]:
                life = self.running.pop()
                self.free[1] += self.of(life.held)
                out += self.of(life.held)
                life.preemptions += 1
                self.swapped.insert(0, life)
            self.moved += out
            if not out:
                self.moved += self.start()
            self.pull(t)
            if self.running or not out:
                break
        if self.running:
            self.free[1] -= self.due()
            contexts = sum(life.held + 1 for life in self.running)
            shape = BatchShape(len(self.running), contexts, (), self.moved)
            self.moved = 0
            self.ends[1] = t + self.model.step_ticks(shape)

    def start(self) -> int:
        moved = 0
        while self.swapped and len(self.running) < self.limits.max_num_seqs:
            blocks = self.of(self.swapped[0].held)
            if blocks + 1 + self.due() > self.free[1]:
                break
            self.free[1] -= blocks
            moved += blocks
            self.running.append(self.swapped.pop(0))
        while self.ready and not (self.swapped and self.running) and len(self.running) < self.limits.max_num_seqs:
            if self.due() >= self.free[1]:
                break
            self.running.append(self.ready.pop(0))
        return moved

    def pull(self, t: int) -> None:
        while self.offered and not self.swapped:
            tokens = self.offered[0].request.prompt_tokens
            idle = sum(self.of(life.held) for life in (*self.ready, *(one for _, one in self.pulling)))
            if 20 * idle >= self.total or self.of(tokens) >= self.free[1] - self.due():
                break
            self.free[1] -= self.of(tokens)
            begin = max(ns_of_ticks(t), self.link_free_ns)
            self.link_free_ns = begin + self.token_ns * tokens
            self.pulling.append((self.link_free_ns, self.offered.pop(0)))

    def end_decode(self, t: int) -> None:
        self.ends[1] = NEVER
        for life in list(self.running):
            life.held += 1
            life.emitted += 1
            life.times.append(t)
            if life.done:
                self.running.remove(life)
                self.free[1] += self.of(life.held)
                self.done.append(life)
