"""Orca with every way of reserving memory lives what one step at a time with memory as a plain line of slots lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from phasemeter.serving.engine import Engine
from phasemeter.serving.kv_reserved import RULES, ReservedKv
from phasemeter.serving.policies.orca import Orca
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import BatchShape, StepTime, ns_of_ticks, ticks_of_ns
from tests.serving.test_engine import Lives, finished, run
from tests.serving.workloads import requests, step_time


class Line:
    """Blocks in a row, each somebody's or nobody's. `parts`: (start, length) of the powers of two that it is made of, largest first."""

    def __init__(self, blocks: int, *, buddy: bool) -> None:
        self.owner: list[str | None] = [None] * blocks
        self.buddy = buddy
        self.parts: list[tuple[int, int]] = []
        while blocks:
            length = 2 ** (len(bin(blocks)) - 3)
            self.parts.append((len(self.owner) - blocks, length))
            blocks -= length

    def free_runs(self, length: int) -> list[tuple[int, int]]:
        """Maximal aligned runs without an owner that hold `length`: (their length, where), smallest first."""
        found: list[tuple[int, int]] = []
        to_look_at = [part for part in self.parts if part[1] >= length]
        while to_look_at:
            start, size = to_look_at.pop()
            if not any(self.owner[start : start + size]):
                found.append((size, start))
            elif size > length:
                to_look_at += [(start, size // 2), (start + size // 2, size // 2)]
        return sorted(found)

    def give(self, who: str, blocks: int) -> bool:
        if not self.buddy:
            free = [b for b, owner in enumerate(self.owner) if owner is None][:blocks]
            if len(free) < blocks:
                return False
        else:
            length = 1
            while length < blocks:
                length *= 2
            runs = self.free_runs(length)
            if not runs:
                return False
            free = list(range(runs[0][1], runs[0][1] + length))
        for block in free:
            self.owner[block] = who
        return True

    def take_back(self, who: str) -> None:
        self.owner = [None if owner == who else owner for owner in self.owner]


@dataclass(eq=False)
class Life:
    request: Request
    start: int = -1
    tokens: list[int] = field(default_factory=list)


def asked(rule: str, request: Request, longest: int, size: int) -> int:
    """Blocks for all samples."""
    tokens = longest
    if rule == "oracle":
        tokens = request.prompt_tokens + request.output_tokens
    elif rule == "pow2":
        answer = 1
        while answer < request.output_tokens:
            answer *= 2
        tokens = min(longest, request.prompt_tokens + answer)
    return (tokens + size - 1) // size * request.samples


def live(line: Line, rule: str, longest: int, size: int, todo: tuple[StepTime, Limits, list[Request]]) -> Lives:
    model, limits, coming = todo[0], todo[1], [Life(request) for request in todo[2]]
    waiting: list[Life] = []
    running: list[Life] = []
    lives: Lives = {}
    t = 0
    while coming or waiting or running:
        if not waiting and not running:
            t = max(t, ticks_of_ns(coming[0].request.arrival_ns))
        while coming and ticks_of_ns(coming[0].request.arrival_ns) <= t:
            waiting.append(coming.pop(0))
        prompts: list[Life] = []
        while waiting and sum(life.request.samples for life in running + prompts) + waiting[0].request.samples <= (
            limits.max_num_seqs
        ):
            head = waiting[0].request
            if not line.give(head.request_id, asked(rule, head, longest, size)):
                break
            waiting[0].start = t
            prompts.append(waiting.pop(0))
        contexts = sum((life.request.prompt_tokens + len(life.tokens)) * life.request.samples for life in running)
        sizes = [(life.request.prompt_tokens, 0) for life in prompts]
        t += model.step_ticks(BatchShape(sum(life.request.samples for life in running), contexts, sizes))
        running += prompts
        for life in running:
            life.tokens.append(t)
        for life in [life for life in running if len(life.tokens) == life.request.output_tokens]:
            running.remove(life)
            line.take_back(life.request.request_id)
            lives[life.request.request_id] = (ns_of_ticks(life.start), ns_of_ticks(life.tokens[0]), ns_of_ticks(t), 0)
    return lives


@pytest.mark.parametrize("buddy", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_orca_lives_what_slots_in_a_row_live(rule: str, buddy: bool) -> None:
    waited = 0
    for seed in range(120):
        wanted = lives_of(rule, seed, buddy=buddy)
        waited += sum(life[0] > request.arrival_ns for request, life in wanted)
    assert waited > 400


def lives_of(rule: str, seed: int, *, buddy: bool) -> list[tuple[Request, tuple[int, int, int, int]]]:
    random = Random(seed)
    longest, size = random.choice([24, 60, 120]), random.choice([1, 1, 4])
    slots = longest * random.choice([6, 8, 12]) + random.randrange(100)
    most = random.choice([1, 2, 3]) if random.random() < 0.4 else 1
    limits = Limits(max_num_seqs=random.choice([3, 8, 40]))
    model, todo = step_time(random), requests(random, random.randrange(1, 30), longest)
    todo = [
        Request(
            request_id=r.request_id, prompt_tokens=r.prompt_tokens, output_tokens=r.output_tokens,
            arrival_ns=r.arrival_ns, samples=random.randrange(1, most + 1),
        )
        for r in todo
    ]  # fmt: skip
    kv = ReservedKv(slots, rule, longest, buddy=buddy, block_size=size)
    engine = Engine(Orca(), kv, model, limits, log=SegmentLog())
    wanted = live(Line(slots // size, buddy=buddy), rule, longest, size, (model, limits, todo))
    assert finished(run(engine, todo)) == wanted, (rule, seed)
    assert kv.free == kv.total and not kv.runs
    return [(request, wanted[request.request_id]) for request in todo]
