"""What is found out of the best candidates beside their goodput: how they stand at it, what other limits and step times would choose.

Lives here: metered runs, scenarios. Must not live here: the race (choose.py), words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from phasemeter.errors import UserError
from phasemeter.runs.choose_looks import END, POINTS, WARM, Floats, Simulated, seconds_of
from phasemeter.serving.deploy import build, metered, spent
from phasemeter.serving.ended import Ended
from phasemeter.serving.plan import Plan, link_of, pools_of
from phasemeter.serving.plan_changes import hardware_of, model_of
from phasemeter.serving.simulate import Simulation
from phasemeter.stats.quantiles import quantile
from phasemeter.studies.paired import Crossing
from phasemeter.studies.race import Racer

MOST_DETAIL = 12_000  # requests
SCENARIOS = {
    "slo ×0.8": (0.8, 1.0),
    "slo ×1.25": (1.25, 1.0),
    "steps 10 % slower": (1.0, 1.1),
    "steps 10 % faster": (1.0, 0.9),
}
APART = "its machine's steps 10 % slower, all others' 10 % faster"
BEST, OTHERS = 4, 2  # in a scenario: the best ones, and the best on other machines


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate at its goodput. Seconds by percentile; `time_share` by pool and resource; `link_share`: of the KV link's time."""

    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    time_share: Mapping[str, Mapping[str, float]]
    running: float
    waiting: float
    kv_share: float
    most_kv_share: float
    kv_tokens: Mapping[str, int]
    preemptions: int
    link_share: float | None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What another limit or step time would choose: entrants by what they carry then, the best first; who can't be told from it."""

    name: str
    order: tuple[tuple[int, Crossing], ...]
    tied: tuple[int, ...]


def detail(simulated: Simulated, index: int, racer: Racer) -> Detail:
    """A metered run at the candidate's goodput, of the requests that it was found with: its percentiles are those that were judged."""
    standing = racer.found[index]
    found = standing.crossing
    if found is None or found.rate_per_s is None:
        raise UserError(f"{racer.entrants[index].name}: it has no goodput to look at")
    plan, rate, requests = simulated.plans[index], found.rate_per_s, min(found.requests, MOST_DETAIL)
    demand = simulated.offered(index, rate, requests)
    serving = metered(build(plan, tokens=False))
    every = max(1, round(requests / demand.turns / rate * 1e9 / POINTS))
    run, ended = (
        Simulation(serving, demand, simulated.seed_of(standing.stage), tokens=False, sample_every_ns=every),
        Ended(tokens=False),
    )
    run.fill(ended)
    ended.sort()
    places = np.flatnonzero(ended.served())
    places = places[int(WARM * places.size) : places.size - int(END * places.size)]
    last = int(ended.column("arrival_ns")[-1])
    loads = [one for one in run.samples if WARM * last <= one.at_ns <= last]
    tpots = seconds_of("tpot", ended, places)
    return Detail(
        ttft_s=_percentiles(seconds_of("ttft", ended, places)), tpot_s=_percentiles(tpots[~np.isnan(tpots)]),
        time_share={pool: told["time_share"] for pool, told in spent(serving).items() if told},
        running=_mean([one.running for one in loads]), waiting=_mean([one.waiting for one in loads]),
        kv_share=_mean([one.kv_share for one in loads]), most_kv_share=max((one.kv_share for one in loads), default=0.0),
        kv_tokens={pool: own.kv_tokens for pool, own in pools_of(plan).items()},
        preemptions=int(ended.column("preemptions").sum()), link_share=_link_share(plan, ended, rate),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _percentiles(values: Floats) -> dict[str, float]:
    return {f"p{q}": quantile(values, q / 100) for q in (50, 90, 95, 99)} if values.size else {}


def _link_share(plan: Plan, ended: Ended, rate: float) -> float | None:
    """The share of the time that a prefill engine's link is busy; None where nothing is handed over."""
    split = plan.deployment.split
    if split is None:
        return None
    _, bytes_per_s = link_of(split)
    pools = pools_of(plan)
    size = float(ended.column("prompt_tokens").mean()) * pools["decode"].deployment.kv_bytes_per_token
    return rate * size / bytes_per_s / pools["prefill"].replicas


def machine_of(plan: Plan) -> tuple[object, ...]:
    """What an error of step times belongs to: model, accelerator, how they are shared out, precision, fitted times."""
    spec = plan.deployment
    pools = tuple(
        (name, own.deployment.tensor_parallel, own.deployment.pipeline_parallel, own.step_time)
        for name, own in pools_of(plan).items()
    )
    sizes = {(tp, pp, repr(step)) for _, tp, pp, step in pools}
    return model_of(plan), hardware_of(plan), spec.weight_bytes, spec.kv_bytes, tuple(sorted(sizes))


def in_question(racer: Racer, plans: Sequence[Plan]) -> list[int]:
    """The best candidates, and the best one of each other machine."""
    ranked = [index for _, index in racer.ranks()]
    chosen, seen = ranked[:BEST], {machine_of(plans[i]) for i in ranked[:BEST]}
    for index in ranked[BEST:]:
        if len(chosen) < BEST + OTHERS and machine_of(plans[index]) not in seen:
            chosen.append(index)
            seen.add(machine_of(plans[index]))
    return chosen


def what_if(racer: Racer, plans: Sequence[Plan], name: str) -> Scenario:
    """The best candidates again, with other limits or other step times."""
    scale, step = SCENARIOS[name]
    return _scenario(racer, name, racer.scenario(in_question(racer, plans), scale, step))


def apart_of(racer: Racer, plans: Sequence[Plan], scenarios: Sequence[Scenario]) -> Scenario | None:
    """The worst that errors of a tenth can do to the choice: steps on its machine are slower, on all others quicker. None where the
    best all run on one machine, for an error there is everybody's."""
    named = {one.name: dict(one.order) for one in scenarios}
    slower, quicker = named["steps 10 % slower"], named["steps 10 % faster"]
    best = racer.best()
    if best is None:
        return None
    own = machine_of(plans[best])
    mixed = [(i, slower[i] if machine_of(plans[i]) == own else quicker[i]) for i in slower]
    if all(machine_of(plans[i]) == own for i in slower):
        return None
    mixed.sort(
        key=lambda one: (-(one[1].rate_per_s or 0.0) / racer.entrants[one[0]].units, racer.entrants[one[0]].name)
    )
    return _scenario(racer, APART, mixed)


def _scenario(racer: Racer, name: str, order: Sequence[tuple[int, Crossing]]) -> Scenario:
    known = [(i, found) for i, found in order if found.rate_per_s is not None]
    return Scenario(name=name, order=tuple(order), tied=tuple(racer.alike(known)))
