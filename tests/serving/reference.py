"""The oracle of the serving tests: one step at a time, one token at a time, flat lists, blocks counted afresh for each sequence.

It shares no code with the engine but Request, Limits and the step-time model; the schedulers are written again from their sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import BatchShape, StepTime, ns_of_ticks, ticks_of_ns


@dataclass(eq=False)
class Flat:
    """One request: tokens emitted, KV tokens held, blocks taken, instants (ticks)."""

    request: Request
    emitted: int = 0
    computed: int = 0
    blocks: int = 0
    start: int = -1
    tokens: list[int] = field(default_factory=list)
    preemptions: int = 0
    decodes: bool = False  # its prefill (or its recomputation) is over

    @property
    def length(self) -> int:
        return self.request.prompt_tokens + self.emitted


class Reference:
    """`policy`: one of the functions below by name; `blocks` of `block` tokens; `run` answers the finished requests."""

    def __init__(self, policy: str, blocks: int, step_time: StepTime, limits: Limits, **options: int) -> None:
        self.policy, self.step_time, self.limits, self.options = policy, step_time, limits, options
        self.block = options.get("block", 16)
        self.total = self.free = blocks
        self.waiting: list[Flat] = []
        self.running: list[Flat] = []
        self.preempted = False
        self.gone: list[str] = []

    def blocks_for(self, tokens: int) -> int:
        return (tokens + self.block - 1) // self.block

    def grow(self, flat: Flat, tokens: int) -> None:
        wanted = max(0, self.blocks_for(tokens) - flat.blocks)
        flat.blocks += wanted
        self.free -= wanted
        assert self.free >= 0

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

    def abort(self, request_id: str) -> None:
        for queue in (self.waiting, self.running):
            for flat in [f for f in queue if f.request.request_id == request_id]:
                queue.remove(flat)
                self.free += flat.blocks
                self.gone.append(request_id)

    def run(self, requests: list[Request], aborts: list[tuple[int, str]] | None = None) -> list[Flat]:
        """`aborts`: (ns, request id) in order; each takes effect at the first step's start at or after its instant."""
        coming = [Flat(request) for request in requests]
        leaving = list(aborts or ())
        done: list[Flat] = []
        t = 0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                t = max(t, ticks_of_ns(coming[0].request.arrival_ns))
            while coming and ticks_of_ns(coming[0].request.arrival_ns) <= t:
                self.waiting.append(coming.pop(0))
            while leaving and ticks_of_ns(leaving[0][0]) <= t:
                self.abort(leaving.pop(0)[1])
            if not self.waiting and not self.running:
                continue
            self.preempted = False
            work: list[tuple[Flat, int]] = getattr(self, self.policy)()
            assert work
            decodes = [flat for flat, _ in work if flat.decodes]
            chunks = [(flat, new) for flat, new in work if not flat.decodes]
            for flat, _ in chunks:
                flat.start = t if flat.start < 0 else flat.start
            contexts = sum(flat.length for flat in decodes)
            sizes = [(new, flat.computed) for flat, new in chunks]
            t += self.step_time.step_ticks(BatchShape(len(decodes), contexts, sizes))
            for flat, new in work:
                flat.computed += new
                if flat.computed == flat.length:
                    flat.emitted += 1
                    flat.decodes = True
                    flat.tokens.append(t)
            for flat in [f for f in self.running if f.emitted == f.request.output_tokens]:
                self.running.remove(flat)
                self.free += flat.blocks
                done.append(flat)
        assert self.free == self.total
        return done

    def vllm_v0(self) -> list[tuple[Flat, int]]:
        watermark = self.total // 100
        prompts: list[tuple[Flat, int]] = []
        tokens = 0
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            head = self.waiting[0]
            if (
                self.free - self.blocks_for(head.length) < watermark
                or tokens + head.length > self.limits.max_num_batched_tokens
            ):
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
        """Preempts from the tail until `flat` can hold `tokens`; False: it had to go itself."""
        while self.blocks_for(tokens) - flat.blocks > self.free:
            if self.preempt_last() is flat:
                return False
        self.grow(flat, tokens)
        return True

    def vllm_v1(self) -> list[tuple[Flat, int]]:
        budget, threshold = self.limits.max_num_batched_tokens, self.options.get("threshold")
        work: list[tuple[Flat, int]] = []
        for flat in list(self.running):
            if flat not in self.running:
                break
            new = min(flat.length - flat.computed, threshold or budget, budget)
            if new and self.make_room(flat, flat.computed + new):
                work.append((flat, new))
                budget -= new
        while self.waiting and not self.preempted and budget and len(self.running) < self.limits.max_num_seqs:
            head = self.waiting[0]
            if self.blocks_for(head.length) > self.free:
                break
            new = min(head.length, threshold or budget, budget)
            self.start(head)
            self.grow(head, new)
            work.append((head, new))
            budget -= new
        return work

    def sarathi(self) -> list[tuple[Flat, int]]:
        work = self.decode_all()
        budget = self.options.get("chunk", 512) - len(work)
        for flat in self.running:
            new = min(flat.length - flat.computed, max(0, budget))
            if not flat.decodes and new:
                work.append((flat, new))
                budget -= new
        while self.waiting and not self.preempted and budget > 0 and len(self.running) < self.limits.max_num_seqs:
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
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            head = self.waiting[0]
            if self.blocks_for(self.options["longest"]) > self.free:
                break
            self.start(head)
            self.grow(head, self.options["longest"])
            work.append((head, head.length))
        return work


def lived(flats: list[Flat]) -> dict[str, tuple[int, int, int, int]]:
    """By request: start, first token, last token (ns), preemptions."""
    return {
        f.request.request_id: (ns_of_ticks(f.start), ns_of_ticks(f.tokens[0]), ns_of_ticks(f.tokens[-1]), f.preemptions)
        for f in flats
    }
