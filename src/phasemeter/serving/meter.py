"""What steps are spent on, added up as an engine runs.

Lives here: a step-time model that remembers what it was asked, and a log that adds it up. Must not live here: costs themselves.
"""

from __future__ import annotations

from collections import Counter

from msgspec import structs

from phasemeter.serving.analytic import RESOURCES, Parts
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.step_shape import BatchShape, DecodeLine
from phasemeter.serving.step_time import TickedCost


class Meter(SegmentLog):
    """Give it to an engine as its step time and as its log: the one hears what a step holds, the other that it ran.

    `seconds` by resource and `steps` by the resource that bound them; a stretch of decode steps counts by its middle one.
    """

    def __init__(self, cost: TickedCost) -> None:
        super().__init__()
        self.cost = cost
        self.seconds = dict.fromkeys(RESOURCES, 0.0)
        self.steps: Counter[str] = Counter()
        self._mixed: BatchShape | None = None
        self._decodes = (0, 0)

    def step_ticks(self, batch: BatchShape) -> int:
        self._mixed = batch
        return self.cost.step_ticks(batch)

    def decode_ticks(self, decodes: int, contexts: int) -> int:
        return self.cost.decode_ticks(decodes, contexts)

    def decode_line(self, decodes: int, contexts: int) -> DecodeLine:
        self._decodes = decodes, contexts
        return self.cost.decode_line(decodes, contexts)

    def add(self, line: tuple[int, int, int, int, int, int]) -> None:
        """One stretch ran. The log's own columns stay empty: a meter keeps sums."""
        count = line[2]
        if self._mixed is not None:
            batch = structs.replace(self._mixed, chunks=tuple(self._mixed.chunks))
            self._mixed = None
        else:
            running, contexts = self._decodes
            batch = BatchShape(running, contexts + running * (count - 1) // 2)
        self._count(self.cost.parts(batch), count)

    def _count(self, parts: Parts, count: int) -> None:
        values = (parts.compute_s, parts.memory_bandwidth_s, parts.kv_memory_s, parts.link_s, parts.host_s)
        for name, value in zip(RESOURCES, values, strict=True):
            self.seconds[name] += value * count
        self.steps[parts.binding] += count


def added(meters: list[Meter]) -> dict[str, dict[str, float]]:
    """`time_share` by resource (adds up to 1) and `steps_bound_by`, over engines; empty before any step."""
    seconds = {name: sum(one.seconds[name] for one in meters) for name in RESOURCES}
    whole = sum(seconds.values())
    if not whole:
        return {}
    steps: Counter[str] = Counter()
    for one in meters:
        steps.update(one.steps)
    return {
        "time_share": {name: value / whole for name, value in seconds.items()},
        "steps_bound_by": {name: steps[name] for name in RESOURCES},
    }
