"""Third oracle of the serving tests: SGLang with its radix tree, one token and one tree node at a time.

The tree is a dict from a path of block names to its node: who locks it, when it was last used. Blocks have no numbers: a request has nodes
that it locks and so many blocks of its own. Sources: SGLang (0.4) `managers/scheduler.py`, `schedule_policy.py`, `schedule_batch.py`,
`mem_cache/radix_cache.py`, without overlapped scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import StepTime
from tests.serving.oracle import Life, Oracle, Work

Path = tuple[int, ...]


@dataclass
class Node:
    locks: int = 0
    used: int = 0


class Tree:
    """`many` blocks of `size` tokens. A node is a block; its key is the path of names that leads to it."""

    def __init__(self, many: int, size: int) -> None:
        self.many, self.size = many, size
        self.nodes: dict[Path, Node] = {}
        self.locked: dict[int, Path] = {}  # by life: the path that it locks
        self.own: dict[int, int] = {}  # by life: blocks outside the tree
        self.clock = 0

    def of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def available(self) -> int:
        return self.many - len(self.nodes) - sum(self.own.values())

    def evictable(self) -> int:
        return [node.locks for node in self.nodes.values()].count(0)

    def free(self) -> int:
        return self.available() + self.evictable()

    def path(self, life: Life, tokens: int) -> Path:
        return life.request.block_hashes[: tokens // self.size]

    def find(self, life: Life) -> Path:
        """The longest path of its tokens but the last that is in the tree; to look is to use."""
        whole = self.path(life, life.length - 1)
        depth = 0
        while depth < len(whole) and whole[: depth + 1] in self.nodes:
            depth += 1
        self.clock += 1
        for end in range(1, depth + 1):
            self.nodes[whole[:end]].used = self.clock
        return whole[:depth]

    def lock(self, life: Life, path: Path) -> None:
        old = self.locked.get(id(life), ())
        assert path[: len(old)] == old
        for end in range(len(old) + 1, len(path) + 1):
            self.nodes[path[:end]].locks += 1
        self.locked[id(life)] = path

    def held(self, life: Life) -> int:
        return len(self.locked.get(id(life), ())) + self.own.get(id(life), 0)

    def grow(self, life: Life, tokens: int) -> None:
        """Blocks of its own for `tokens`; for each that isn't available the leaf goes that was used longest ago: whoever used a node used
        those before it."""
        while self.held(life) < self.of(tokens):
            if not self.available():
                leaf = min((n.used, -len(p), p) for p, n in self.nodes.items() if not n.locks)[2]
                del self.nodes[leaf]
            self.own[id(life)] = self.own.get(id(life), 0) + 1

    def insert(self, life: Life, tokens: int) -> None:
        """Its full blocks go into the tree; of those that are there already, its own are free."""
        path = self.path(life, tokens)
        self.clock += 1
        for end in range(len(self.locked.get(id(life), ())) + 1, len(path) + 1):
            self.nodes.setdefault(path[:end], Node())
            self.own[id(life)] -= 1
        self.lock(life, max(path, self.locked.get(id(life), ()), key=len))

    def leave(self, life: Life) -> None:
        path = self.locked.pop(id(life), ())
        self.clock += 1
        for end in range(1, len(path) + 1):
            self.nodes[path[:end]].locks -= 1
            self.nodes[path[:end]].used = self.clock
        self.own.pop(id(life), None)
        life.held = 0


class SglangOracle(Oracle):
    """`chunk`: tokens a step. `named`: prefixes are kept. `most`: tokens that prompt and answer may have together."""

    def __init__(self, blocks: int, size: int, step_time: StepTime, limits: Limits, *, chunk: int, named: bool) -> None:
        super().__init__("sglang", blocks, size, step_time, limits)
        self.tree = Tree(blocks, size)
        self.chunk, self.named = chunk, named
        self.most = min(blocks * size, limits.max_model_len or blocks * size)
        self.ratio, self.full = 700_000, False
        self.stay: list[Life] = []  # ended while decoding: in the batch until it decodes again

    def begin_step(self, work: Work) -> None:
        for life, new in work:
            self.tree.grow(life, life.held + new)

    def end_step(self, work: Work, decoding: set[Life]) -> None:
        """A prompt's chunk is in the tree once it is computed. Whoever ends with its prompt leaves the batch at once."""
        for life, _ in work:
            if self.named and not decoding:
                self.tree.insert(life, life.held)
        if decoding:
            self.stay = [life for life in self.running if life.done]
        elif any(life.done or not life.decodes for life, _ in work):
            self.full = False

    def let_go(self, life: Life) -> None:
        if self.named:
            self.tree.insert(life, life.held)
        self.tree.leave(life)

    def empty(self) -> bool:
        return self.tree.free() == self.tree.many

    def sglang(self) -> Work:
        """Prompts first; one that a chunk cut goes on before others; then everybody decodes, retracting if there is no room."""
        cut = [life for life in self.running if not life.decodes]
        if not self.running:
            self.stay, self.full, self.ratio = [], False, 700_000
        if self.waiting and not cut and len(self.running) + len(self.stay) >= self.limits.max_num_seqs:
            self.full = True  # before the queue is looked at
        if cut or (self.waiting and not self.full):
            work = self.prompts(cut)
            if work:
                return work
        if self.stay:
            self.stay, self.full = [], False
        due = [life for life in self.running if self.tree.held(life) < self.tree.of(life.held + 1)]
        if len(due) > self.tree.free():
            self.retract()
        else:
            self.ratio = max(98_000, self.ratio - (700_000 - 98_000) // 600)
        return [(life, 1) for life in self.running]

    def cap(self, life: Life, without: int) -> int:
        cap = without if life.request.max_tokens is None else life.request.max_tokens
        return min(cap, self.most - life.request.prompt_tokens)

    def expected(self, life: Life) -> int:
        return max(0, min(self.cap(life, self.most) - life.emitted, 4096))

    def prompts(self, cut: list[Life]) -> Work:
        budget = self.chunk
        work: Work = []
        found: dict[int, Path] = {}
        if not self.full and self.named and len(self.waiting) <= 128:
            found = self.longest_prefix_first()
        taken = 0  # blocks that this step takes, of which nobody has one yet
        promised = sum(self.expected(life) for life in self.running if life not in cut) * self.ratio // 1_000_000
        for life in cut:
            new = min(life.length - life.held, budget)
            work.append((life, new))
            taken += self.tree.of(life.held + new) - self.tree.held(life)
            budget -= new
            promised += self.expected(life)
        while self.waiting and budget > 0 and not self.full:
            head = self.waiting[0]
            known = found[id(head)] if found else self.tree.find(head) if self.named else ()
            unlocked = sum(1 for end in range(len(known)) if not self.tree.nodes[known[: end + 1]].locks)
            wanted = self.tree.of(head.length) - len(known) + unlocked
            needs = wanted * self.tree.size + self.expected(head)
            free = self.tree.free() - taken
            seats = self.limits.max_num_seqs - len(self.stay)
            if (
                len(self.running) >= seats
                or wanted > free
                or (self.running and needs > free * self.tree.size - promised)
            ):
                self.full = True
                break
            self.waiting.remove(head)
            self.running.append(head)
            self.tree.lock(head, known)
            head.held = len(known) * self.tree.size
            if head.start < 0:
                head.cached = head.held
            new = min(head.length - head.held, budget)
            work.append((head, new))
            taken += self.tree.of(head.held + new) - len(known)
            promised += self.expected(head)
            budget -= new
        return work

    def longest_prefix_first(self) -> dict[int, Path]:
        size = self.tree.size
        first_32: list[Path] = []
        late: list[Life] = []
        found = {id(life): self.tree.find(life) for life in self.waiting}
        cached = {life: len(path) * size for life, path in found.items()}
        for life in self.waiting:
            head = self.tree.path(life, life.length - 1)[: self.tree.of(32)]
            if cached[id(life)] > 32 or len(head) < self.tree.of(32):
                continue
            if head in first_32:
                late.append(life)
            first_32.append(head)
        rest = [life for life in self.waiting if life not in late]
        self.waiting = sorted(rest, key=lambda life: -cached[id(life)]) + late
        return found

    def retract(self) -> None:
        """The shortest answer goes, of those the longest prompt, until the others have 20 tokens each; one always stays."""
        while len(self.running) > 1:
            free = self.tree.free()
            due = [life for life in self.running if self.tree.held(life) < self.tree.of(life.held + 1)]
            if len(due) <= free and free * self.tree.size >= 20 * len(self.running):
                break
            least = min(life.emitted for life in self.running)
            shortest = [life for life in self.running if life.emitted == least]
            longest = max(life.request.prompt_tokens for life in shortest)
            chosen = [life for life in shortest if life.request.prompt_tokens == longest][-1]
            self.running.remove(chosen)
            self.tree.leave(chosen)
            chosen.decodes = False
            chosen.preemptions += 1
            self.waiting.append(chosen)
        emitted = sum(life.emitted for life in self.running) + 20 * len(self.running)
        self.ratio = min(1_000_000, emitted * 1_000_000 // max(1, sum(self.cap(r, 4096) for r in self.running)))
        self.full = False
