"""Random small workloads for the serving tests: enough contention that memory, seats and budgets run out."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Protocol

from phasemeter.serving.events import Event
from phasemeter.serving.kv_cache import PagedKv
from phasemeter.serving.kv_radix import RadixKv
from phasemeter.serving.sequence import Request
from phasemeter.serving.step_shape import LinearStepTime


def step_time(random: Random) -> LinearStepTime:
    return LinearStepTime(
        fixed=random.randrange(1, 20_000),
        decode_fixed=random.choice([0, 7000]),
        per_decode=random.randrange(0, 3000),
        per_context=random.choice([0, 1, 17, 501]),
        prefill_fixed=random.choice([0, 900]),
        per_new_token=random.randrange(0, 900),
        per_pair=3,
        pair_bits=4,
    )


def requests(random: Random, many: int, longest: int) -> list[Request]:
    """In order of arrival; prompt and answer together at most `longest` tokens."""
    t, found = 0, []
    pace = random.choice([0, 100, 1000, 20_000])
    for i in range(many):
        t += random.randrange(pace + 1)
        prompt = random.randrange(1, longest)
        output = random.randrange(1, longest - prompt + 1)
        found.append(Request(request_id=f"r{i}", prompt_tokens=prompt, output_tokens=output, arrival_ns=t))
    return found


def paged(policy: str, blocks: int, block_size: int, *, prefix_caching: bool = True) -> PagedKv:
    """Blocks with names, as `policy` keeps them."""
    return (RadixKv if policy == "sglang" else PagedKv)(blocks, block_size, prefix_caching=prefix_caching)


class Driven(Protocol):
    """What a request can be given to, and called off from."""

    def submit(self, now_ns: int, request: Request) -> None: ...
    def abort(self, now_ns: int, request_id: str) -> None: ...
    def advance(self, now_ns: int) -> list[Event]: ...


def moved(engine: Driven, asked: Iterable[Request], aborts: Iterable[tuple[int, str]]) -> list[Event]:
    """What happens until the last request came or was called off (at an instant, by name); who comes at an instant comes before who
    leaves at it."""
    events: list[Event] = []
    moves = [(r.arrival_ns, 0, r) for r in asked] + [(at, 1, name) for at, name in aborts]
    for at, _, what in sorted(moves, key=lambda move: move[:2]):
        events += engine.advance(at - 1)
        if isinstance(what, Request):
            engine.submit(at, what)
        else:
            engine.abort(at, what)
    return events
