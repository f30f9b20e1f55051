"""One look at a candidate: its deployment simulated at a rate, each request judged.

Lives here: the run, what each request's values are beside their limits, whether the load was carried, which requests a deployment
refuses. Must not live here: which candidates and rates (studies/race.py), what follows (choose.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.contract.goodput import Promise
from phasemeter.errors import UserError
from phasemeter.serving.demand import Demand, Draws
from phasemeter.serving.deploy import build
from phasemeter.serving.ended import Ended
from phasemeter.serving.plan import Plan, demand_of
from phasemeter.serving.plan_changes import slowed
from phasemeter.serving.sequence import Request
from phasemeter.serving.simulate import Simulation
from phasemeter.studies.paired import Look
from phasemeter.studies.steady import stability
from phasemeter.workload.streams import stable_hash

Floats = npt.NDArray[np.float64]
WARM, END = (
    0.1,
    0.05,
)  # of a look: its start, and its end, where nobody comes any more and the last ones have the service to themselves
POINTS = 400
FIRST = {"ttft", "ttfo", "ttft_from_due"}
WHOLE = {"e2e", "e2e_from_due", "stream_e2e"}
JUDGED = {*FIRST, *WHOLE, "tpot", "generation"}


class Simulated:
    """Looks at candidates: `plans` are those that can be."""

    def __init__(self, plans: Sequence[Plan], promise: Promise, seed: int) -> None:
        self.plans, self.promise, self.seed = plans, promise, seed
        self.demands = [demand_of(plan) for plan in plans]
        self._classes: dict[tuple[int, int], npt.NDArray[np.object_]] = {}

    def look(self, index: int, rate: float, requests: int, stage: int, step: float) -> Look:
        """One run at a rate. All candidates draw the same requests in a stage."""
        plan = self.plans[index] if step == 1 else slowed(self.plans[index], step)
        return self.looked(plan, self.offered(index, rate, requests), self.seed_of(stage))

    def offered(self, index: int, rate: float, requests: int) -> Demand:
        return msgspec.structs.replace(self.demands[index].at_rate(rate), requests=requests, duration_s=None)

    def seed_of(self, stage: int) -> int:
        return self.seed if stage == 0 else stable_hash(self.seed, "stage", stage) % 2**31

    def looked(self, plan: Plan, demand: Demand, seed: int) -> Look:
        """The plan's deployment under the demand, every request judged."""
        run = Simulation(build(plan, tokens=False), demand, seed, tokens=False, sample_every_ns=10**15)
        ended = Ended(tokens=False)
        run.fill(ended)
        ended.sort()
        numbers = ended.numbers_of()
        order = np.argsort(numbers, kind="stable")
        kept = order[int(WARM * order.size) : order.size - int(END * order.size)]
        classes = self._class_of(demand, seed, numbers[kept])
        arrivals, ends = ended.column("arrival_ns"), ended.column("finish_ns")
        served = ended.served()
        span = float(arrivals[-1] - arrivals[0])
        lasted = float((ends - arrivals)[served].sum())
        return Look(
            ratios=self._ratios(ended, kept, classes),
            names=tuple(name if who is None else f"{who}.{name}" for who, name in self.promise.columns()),
            parts={name: classes == name for name in self.promise.shares} if classes is not None else {},
            stable=_stable(arrivals, np.where(served, ends, arrivals)),
            in_system=lasted / span if span > 0 else 0.0,
        )

    def _class_of(self, demand: Demand, seed: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_] | None:
        if not demand.classes:
            return None
        key = (seed, demand.most() or 0)
        if key not in self._classes:
            draws = Draws(demand, seed)
            self._classes[key] = np.array([draws.class_name(i) for i in range(key[1])], dtype=object)
        return self._classes[key][numbers]

    def _ratios(self, ended: Ended, kept: npt.NDArray[np.int64], classes: npt.NDArray[np.object_] | None) -> Floats:
        """Value over limit of each request and objective."""
        columns = self.promise.columns()
        ratios = np.full((kept.size, len(columns)), -math.inf)
        served = ended.served(kept)
        for at, ((who, name), limit) in enumerate(columns.items()):
            own = np.ones(kept.size, bool)
            if classes is not None:
                own = (
                    classes == who
                    if who is not None
                    else ~np.isin(classes, [one for one in self.promise.objectives if one])
                )
            values = np.where(served, seconds_of(name, ended, kept), math.inf)
            ratios[own, at] = (values / limit)[own] if limit > 0 else np.where(values > 0, math.inf, 0.0)[own]
        return ratios


def seconds_of(name: str, ended: Ended, places: npt.NDArray[np.int64]) -> Floats:
    """A metric of simulated requests, in seconds; nan where it is undefined (a cadence of one token)."""
    arrival, first, finish = (ended.column(one, places) for one in ("arrival_ns", "first_token_ns", "finish_ns"))
    if name in FIRST:
        found = (first - arrival) / 1e9
    elif name in WHOLE:
        found = (finish - arrival) / 1e9
    elif name == "generation":
        found = (finish - first) / 1e9
    else:
        more = ended.column("output_tokens", places) - 1
        found = np.where(more > 0, (finish - first) / 1e9 / np.maximum(more, 1), math.nan)
    return np.asarray(found, dtype=np.float64)


def _stable(arrivals: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> bool | None:
    if arrivals.size < 20 or arrivals[-1] == arrivals[0]:
        return None
    at = np.linspace(float(arrivals[0]), float(arrivals[-1]), POINTS)
    counts = np.searchsorted(arrivals, at, side="right") - np.searchsorted(np.sort(ends), at, side="right")
    return stability((at - at[0]) / 1e9, counts.astype(np.int64), arrivals)[0]


def accepted(plan: Plan, requests: Sequence[Request]) -> tuple[list[Request], str]:
    """(the requests that the deployment does not refuse as too long for it, why it refused the last one that it did)."""
    serving, taken, reason = build(plan, tokens=False), [], ""
    for one in requests:
        try:
            serving.submit(0, one)
        except UserError as error:
            reason = str(error).removeprefix(f"request {one.request_id}: ")
        else:
            taken.append(one)
    return taken, reason
