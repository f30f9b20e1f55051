"""Third oracle of the serving tests: prefill engines, their links and decode engines, one token at a time.

Source: DistServe (arXiv 2401.09670), section 4.3, and its schedulers: KV stays with the prefill engine until it is pulled; what was
pulled and waits is bounded; who came last is swapped out when memory runs out, who was swapped out first comes back first. A request
goes to the prefill engine with the fewest whose KV isn't pulled yet, then to the decode engine with the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import BatchShape, StepTime, ns_of_ticks, ticks_of_ns
from tests.serving.oracle import Blocks, Life

NEVER = 1 << 80


@dataclass(eq=False)
class Prefill:
    """An engine that prefills. `here`: everybody whose KV it holds or will hold. `stages`: what leaves the first leaves the last later."""

    pool: Blocks
    here: list[Life] = field(default_factory=list)
    waiting: list[Life] = field(default_factory=list)
    batch: list[Life] = field(default_factory=list)
    pulled: list[Life] = field(default_factory=list)  # whose KV goes when the next step begins
    end: int = NEVER
    link_free_ns: int = 0


@dataclass(eq=False)
class Decode:
    """An engine that decodes. `here`: everybody that was offered to it and has not ended."""

    free: int
    here: list[Life] = field(default_factory=list)
    offered: list[Life] = field(default_factory=list)
    pulling: list[Life] = field(default_factory=list)
    ready: list[Life] = field(default_factory=list)
    running: list[Life] = field(default_factory=list)
    swapped: list[Life] = field(default_factory=list)
    end: int = NEVER
    moved: int = 0  # blocks swapped since its last step


class Pools:
    """`blocks` of each engine of the two kinds, so `many` of each; a transfer of n tokens takes n × `token_ns`. `late`: the first token
    comes from the decode engine. Instants are ticks inside an engine, ns between them."""

    def __init__(
        self,
        blocks: tuple[int, int],
        size: int,
        model: StepTime,
        limits: Limits,
        token_ns: int,
        *,
        many: tuple[int, int] = (1, 1),
        stages: int = 1,
        named: bool = False,
        late: bool = False,
    ) -> None:
        self.size, self.model, self.limits, self.token_ns, self.stages = size, model, limits, token_ns, stages
        self.blocks, self.named, self.late = blocks, named, late
        self.prefills = [Prefill(Blocks(blocks[0], size)) for _ in range(many[0])]
        self.decodes = [Decode(blocks[1]) for _ in range(many[1])]
        self.coming: list[Life] = []
        self.leaving: list[tuple[int, Life, Prefill]] = []  # (ns, who is out of the last stage, of which engine)
        self.pulls: list[tuple[int, Life, Decode]] = []  # (ns, whose KV has come, where)
        self.done: list[Life] = []

    def of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def run(self, requests: list[Request]) -> list[Life]:
        self.coming = [Life(request) for request in requests]
        while len(self.done) < len(requests):
            instants = [ticks_of_ns(at) for at, _, _ in self.leaving] + [ticks_of_ns(at) for at, _, _ in self.pulls]
            instants += [engine.end for engine in (*self.prefills, *self.decodes)]
            instants += [ticks_of_ns(life.request.arrival_ns) for life in self.coming[:1]]
            t = min(instants)
            assert t < NEVER, "nobody can run"
            while self.coming and ticks_of_ns(self.coming[0].request.arrival_ns) <= t:
                life = self.coming.pop(0)
                least = min(len(engine.here) for engine in self.prefills)
                chosen = next(engine for engine in self.prefills if len(engine.here) == least)
                chosen.here.append(life)
                chosen.waiting.append(life)
            self.arrive(t)
            for prefill in self.prefills:
                if prefill.end == t:
                    self.end_prefill(prefill, t)
            self.arrive(t)
            for decode in self.decodes:
                if decode.end == t:
                    self.end_decode(decode, t)
            for prefill in self.prefills:
                if prefill.end == NEVER:
                    self.begin_prefill(prefill, t)
            for decode in self.decodes:
                if decode.end == NEVER:
                    self.begin_decode(decode, t)
        assert not any(owners for prefill in self.prefills for owners in prefill.pool.owners)
        assert [d.free for d in self.decodes] == [self.blocks[1]] * len(self.decodes)
        return self.done

    def arrive(self, t: int) -> None:
        for entry in sorted(self.pulls, key=lambda entry: entry[0]):
            at, life, decode = entry
            if ticks_of_ns(at) <= t:
                self.pulls.remove(entry)
                decode.pulling.remove(life)
                decode.ready.append(life)
                source = next(engine for engine in self.prefills if life in engine.here)
                source.pulled.append(life)
                source.here.remove(life)
        for out in sorted(self.leaving, key=lambda out: out[0]):
            at, life, prefill = out
            if ticks_of_ns(at) > t:
                continue
            self.leaving.remove(out)
            if not self.late:
                life.times.append(ticks_of_ns(at))
            if life.done:
                prefill.here.remove(life)
                self.done.append(life)
                continue
            least = min(len(engine.here) for engine in self.decodes)
            chosen = next(engine for engine in self.decodes if len(engine.here) == least)
            chosen.here.append(life)
            chosen.offered.append(life)

    def begin_prefill(self, engine: Prefill, t: int) -> None:
        tokens = 0
        while engine.pulled:
            self.let_go(engine, engine.pulled.pop(0))
        while engine.waiting and len(engine.batch) < self.limits.max_num_seqs:
            life = engine.waiting[0]
            known = engine.pool.known(life) if self.named else []
            prompt, cached = life.request.prompt_tokens, len(known) * self.size
            tokens += prompt - cached
            too_many = engine.batch and tokens > self.limits.max_num_batched_tokens
            if too_many or engine.pool.missing(life, prompt, known) > engine.pool.free():
                break
            engine.pool.grow(life, prompt, known)
            life.start, life.cached = t, cached
            engine.batch.append(engine.waiting.pop(0))
        if engine.batch:
            sizes = [(life.request.prompt_tokens - life.cached, life.cached) for life in engine.batch]
            engine.end = t + self.model.step_ticks(BatchShape(0, 0, sizes))

    def end_prefill(self, engine: Prefill, t: int) -> None:
        for life in engine.batch:
            life.emitted, life.held = 1, life.request.prompt_tokens
            if self.late:  # the prompt's last token is computed again, where the first answer token comes from
                life.emitted, life.held = 0, life.held - 1
            if life.done:
                self.let_go(engine, life)
            later = (self.stages - 1) * (ns_of_ticks(t) - ns_of_ticks(life.start))
            self.leaving.append((ns_of_ticks(t) + later, life, engine))
        engine.batch, engine.end = [], NEVER

    def let_go(self, engine: Prefill, life: Life) -> None:
        held = life.held
        engine.pool.leave(life)
        life.held = held  # on a decode engine

    def due(self, engine: Decode) -> int:
        """Blocks that this step's tokens take."""
        return sum(self.of(life.held + 1) - self.of(life.held) for life in engine.running)

    def begin_decode(self, engine: Decode, t: int) -> None:
        while True:
            swapped = False
            while self.due(engine) > engine.free:
                life = engine.running.pop()
                engine.free += self.of(life.held)
                engine.moved += self.of(life.held)
                life.preemptions += 1
                engine.swapped.append(life)
                swapped = True
            self.start(engine)
            self.pull(engine, t)
            if engine.running or not swapped:
                break
        if engine.running:
            engine.free -= self.due(engine)
            contexts = sum(life.held + 1 for life in engine.running)
            shape = BatchShape(len(engine.running), contexts, (), engine.moved)
            engine.moved = 0
            engine.end = t + self.model.step_ticks(shape)

    def start(self, engine: Decode) -> None:
        while engine.swapped and len(engine.running) < self.limits.max_num_seqs:
            held = engine.swapped[0].held
            if self.of(held + 1) > engine.free - self.due(engine):
                break
            engine.free -= self.of(held)
            engine.moved += self.of(held)
            engine.running.append(engine.swapped.pop(0))
        while engine.ready and not (engine.swapped and engine.running):
            held = engine.ready[0].held
            more = self.of(held + 1) - self.of(held)
            if len(engine.running) == self.limits.max_num_seqs or more > engine.free - self.due(engine):
                break
            engine.running.append(engine.ready.pop(0))

    def pull(self, engine: Decode, t: int) -> None:
        while engine.offered:
            life = engine.offered[0]
            blocks = self.of(life.held)
            idle = sum(self.of(one.held) for one in (*engine.ready, *engine.pulling))
            if 20 * idle >= self.blocks[1] or blocks >= engine.free - self.due(engine):
                break
            engine.free -= blocks
            source = next(one for one in self.prefills if life in one.here)
            source.link_free_ns = max(ns_of_ticks(t), source.link_free_ns) + self.token_ns * life.request.prompt_tokens
            self.pulls.append((source.link_free_ns, life, engine))
            engine.pulling.append(engine.offered.pop(0))

    def end_decode(self, engine: Decode, t: int) -> None:
        engine.end = NEVER
        for life in list(engine.running):
            life.held += 1
            life.emitted += 1
            life.times.append(t)
            if life.done:
                engine.running.remove(life)
                engine.here.remove(life)
                engine.free += self.of(life.held)
                self.done.append(life)
