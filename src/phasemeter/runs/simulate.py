"""A simulated run, whole: the plan's workload through its deployment, its statistics, its run directory.

Lives here: warm-up, stability, replications, and the writing of the same records a measured run has. Must not live here: the
simulation (serving/), any metric (metrics/).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter import __version__
from phasemeter.contract.goodput import attainment_interval, goodput_of, summed
from phasemeter.contract.model import Contract
from phasemeter.errors import Undefined, UserError
from phasemeter.io.run_directory import RunDirectory
from phasemeter.metrics.document import document, strict
from phasemeter.metrics.summary import Summary
from phasemeter.metrics.validity import RunFacts
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result
from phasemeter.runs.simulated_columns import add_simulated, judged
from phasemeter.runs.simulated_tables import PHASES, phases_s, write_simulated
from phasemeter.serving.demand import DEFAULT_REQUESTS, Demand, Draws, replication_seed
from phasemeter.serving.deploy import build, spent, token_times
from phasemeter.serving.ended import Ended
from phasemeter.serving.plan import Plan, demand_of, objectives_of, pools_of
from phasemeter.serving.simulate import Sample, Simulation, row_of
from phasemeter.stats.distributions import t_quantile
from phasemeter.stats.quantiles import quantile
from phasemeter.stats.stationarity import SHORTEST, at_limit, mser5, trend
from phasemeter.studies.goodput_search import Attainment, Goodput, Search, max_goodput
from phasemeter.units import share

TOKENS_KEPT = 4_000_000  # above this many output tokens, a run keeps no instant of each token
TOKENS_SAMPLED = 1_000_000  # and the gaps of so many tokens are read off its log of steps, by whole requests
SAMPLES = 1000
SHORT_WARMUP = 0.1  # share of a run too short for MSER-5 that is cut
Floats = npt.NDArray[np.float64]
Tell = Callable[
    [int, float, int, tuple[int, int, float]], None
]  # ended, of about, virtual ns, (running, waiting, share of KV)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One replication: what became of each request in order of arrival, the load over time, how much is warm-up."""

    ended: Ended
    samples: tuple[Sample, ...]
    warmup: int  # requests cut from the start
    warmup_rule: str
    stable: bool | None  # None: can't be said
    stability: str  # the evidence
    spent: dict[str, dict[str, dict[str, float]]]  # by pool: share of step time and steps, by the resource that binds
    mix: Draws | None = None  # where the demand has several kinds of requests

    def rows(self) -> Iterator[RequestRow]:
        for number, one in enumerate(self.ended):
            row = row_of(one)
            if self.mix is not None:
                row = msgspec.structs.replace(row, workload_class=self.mix.class_name(int(row.request_id[1:])))
            yield msgspec.structs.replace(row, phase="warmup") if number < self.warmup else row


def replicate(
    plan: Plan, demand: Demand, seed: int, *, tokens: bool | None = None, tell: Tell | None = None
) -> Outcome:
    """One run of the plan's deployment under `demand`. `tokens` None: kept where there are not too many; `tell` gets how far it is."""
    every = 0
    if tokens is None:
        expected = expected_tokens(demand)
        tokens = expected <= TOKENS_KEPT
        every = math.ceil(expected / TOKENS_SAMPLED)
    serving = build(plan, tokens=tokens, sample_every=every)
    every_ns = max(1, round(_horizon_s(demand) * 1e9 / SAMPLES))
    run = Simulation(serving, demand, seed, tokens=tokens, sample_every_ns=every_ns)
    ended = Ended(tokens=tokens)
    if tell is not None:

        def sampled(last: Sample) -> None:
            tell(len(ended), _requests(demand), last.at_ns, (last.running, last.waiting, last.kv_share))

        run.sampled = sampled
    run.fill(ended)
    ended.sort()
    ended.sampled = token_times(serving)
    warmup, rule = _warmup(plan, ended, run.samples)
    stable, evidence = _stability(demand, ended, run.samples)
    return Outcome(
        ended=ended,
        samples=tuple(run.samples),
        warmup=warmup,
        warmup_rule=rule,
        stable=stable,
        stability=evidence,
        spent=spent(serving),
        mix=Draws(demand, seed) if demand.classes else None,
    )


def expected_tokens(demand: Demand) -> float:
    draws = Draws(demand, 0)
    many = min(100, demand.most() or 100)
    sizes = [draws.request(index, 0).output_tokens for index in range(many)]
    return sum(sizes) / max(1, len(sizes)) * _requests(demand)


def _requests(demand: Demand) -> float:
    most, rate = demand.most(), demand.mean_rate_per_s()
    if most is not None:
        return most
    return demand.duration_s * rate if demand.duration_s is not None and rate is not None else DEFAULT_REQUESTS


def _horizon_s(demand: Demand) -> float:
    if demand.duration_s is not None:
        return demand.duration_s
    if demand.arrivals.kind == "trace":
        return demand.trace_span_s() or 100.0
    rate = demand.mean_rate_per_s()
    return _requests(demand) / demand.turns / rate if rate else 100.0


def _warmup(plan: Plan, ended: Ended, samples: list[Sample]) -> tuple[int, str]:
    """(requests to cut, the rule): the larger of MSER-5 on log TTFT and on the number in the system."""
    if plan.workload.warmup is not None:
        return min(plan.workload.warmup, len(ended)), f"{plan.workload.warmup} requests, by the plan"
    if len(ended) < SHORTEST:
        return int(SHORT_WARMUP * len(ended)), f"the first tenth: {len(ended)} requests are too few for MSER-5"
    arrivals = ended.column("arrival_ns")
    ttft = (ended.column("first_token_ns") - arrivals)[ended.served()]
    cut = mser5(np.log(np.maximum(1, ttft)).tolist())
    within = [one for one in samples if one.at_ns <= arrivals[-1]]
    queue_cut = mser5([one.running + one.waiting for one in within])
    by_queue = 0
    if queue_cut:
        by_queue = int(np.searchsorted(arrivals, within[queue_cut].at_ns))
    limited = at_limit(cut, len(ended)) or at_limit(queue_cut, len(within))
    rule = f"MSER-5: {cut} requests by log TTFT, {by_queue} by the number in the system"
    return min(max(cut, by_queue), len(ended) // 2), rule + (
        ": at its limit, no steady state was seen" if limited else ""
    )


def _stability(demand: Demand, ended: Ended, samples: list[Sample]) -> tuple[bool | None, str]:
    """Whether the number in the system stayed level while requests arrived: its slope over the last half (HAC errors)."""
    if demand.concurrency is not None:
        return True, "a closed loop holds its concurrency"
    last = int(ended.column("arrival_ns")[-1]) if len(ended) else 0
    within = [one for one in samples if one.at_ns <= last]
    half = within[len(within) // 2 :]
    try:
        found = trend([one.running + one.waiting for one in half], [one.at_ns / 1e9 for one in half])
    except Undefined as absent:
        return None, f"too short to say ({absent.reason})"
    level = float(np.mean([one.running + one.waiting for one in half]))
    growth = found.slope * (half[-1].at_ns - half[0].at_ns) / 1e9
    words = f"the number in the system grew by {growth:.3g} around {level:.3g} in the last half of the arrivals"
    grows = found.low > 0 and growth > max(2.0, 0.25 * level)
    return not grows, words


def simulate(
    plan: Plan,
    *,
    seed: int | None = None,
    replications: int = 1,
    output: Path | None = None,
    contract: Contract | None = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """The result's document, with what only a simulator knows under `simulation`; `contract`: whose goodput is counted; `tell`
    gets how far it is.

    The first replication is the run; the others give intervals between replications. Raises UserError for a directory
    that holds something already.
    """
    if replications < 1:
        raise UserError(f"--replications {replications}: write 1 or more")
    first_seed = plan.seed if seed is None else seed
    demand = demand_of(plan)
    with _new(output) as directory:
        outcome = replicate(plan, demand, first_seed, tell=tell)
        manifest = manifest_of(plan, demand, first_seed, replications)
        result = result_of(plan, outcome, manifest)
        if contract is not None and (counted := goodput_of(contract, outcome.rows())) is not None:
            result = msgspec.structs.replace(result, goodput=counted.document())
        found = document(result)
        found["simulation"] = _own(plan, outcome)
        if replications > 1:
            found["simulation"]["replications"] = _between(plan, demand, first_seed, replications, result)
        found = dict(strict(found))
        if directory is not None:
            write(directory, manifest, found, outcome)
    return found


@contextmanager
def _new(output: Path | None) -> Iterator[RunDirectory | None]:
    """A run directory that stays only where the block comes to its end: an interrupted simulation has nothing to keep."""
    directory = None if output is None else RunDirectory.create(output)
    with ExitStack() as undo:
        if directory is not None:
            undo.callback(shutil.rmtree, directory.path, ignore_errors=True)
        yield directory
        undo.pop_all()


def _own(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What only a simulator knows of a run."""
    phases = _phases(outcome)
    return {
        "phases": {name: _spread(phases[name]) for name in PHASES},
        "preemptions": int(outcome.ended.column("preemptions")[outcome.warmup :].sum()),
        "warmup": {"requests": outcome.warmup, "rule": outcome.warmup_rule},
        "stability": {"stable": outcome.stable, "evidence": outcome.stability},
        "load": _load(outcome.samples),
        "steps": outcome.spent,
        "kv_tokens": {name: pool.kv_tokens for name, pool in pools_of(plan).items()},
    }


def result_of(plan: Plan, outcome: Outcome, manifest: Manifest) -> Result:
    """The house's metrics of the measured rows, and goodput where the plan has objectives."""
    summary, ended, objectives = Summary(), outcome.ended, objectives_of(plan)
    add_simulated(summary, ended, outcome.warmup)
    result = summary.result(manifest, RunFacts(planned_requests=len(ended) - outcome.warmup))
    if objectives:
        counted = summed(judged(ended, outcome.warmup, objectives))
        result = msgspec.structs.replace(result, goodput=counted.document())
    return result


def _phases(outcome: Outcome) -> dict[str, Floats]:
    """Seconds of each phase of the measured requests."""
    kept = np.flatnonzero(outcome.ended.served())
    return phases_s(outcome.ended, kept[kept >= outcome.warmup])


def _spread(values: Floats) -> dict[str, float | None]:
    if not len(values):
        return {"mean": None, "p50": None, "p95": None, "p99": None, "max": None}
    told: dict[str, float | None] = {"mean": float(np.mean(values))}
    told |= {name: quantile(values, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
    return told | {"max": float(values.max())}


def _load(samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Time averages, peaks, and about a hundred points of each."""
    series: dict[str, list[float]] = {
        "running": [one.running for one in samples],
        "waiting": [one.waiting for one in samples],
        "kv_share": [one.kv_share for one in samples],
    }
    step = max(1, len(samples) // 100)
    told: dict[str, Any] = {"at_s": [one.at_ns / 1e9 for one in samples[::step]]}
    for name, values in series.items():
        told[name] = {"mean": float(np.mean(values)), "max": max(values), "over_time": values[::step]}
    return told


def _between(plan: Plan, demand: Demand, seed: int, replications: int, first: Result) -> dict[str, Any]:
    """Means over replications of each metric's mean and p99, with t intervals."""
    results = [first]
    for number in range(1, replications):
        own = replication_seed(seed, number)
        outcome = replicate(plan, demand, own)
        results.append(result_of(plan, outcome, manifest_of(plan, demand, own, 1)))
    told: dict[str, Any] = {"n": replications, "metrics": {}}
    for name in ("ttft", "tpot", "e2e", "inter_chunk"):
        metrics = [one.metrics[name] for one in results if name in one.metrics]
        values = {"mean": [one.mean for one in metrics]}
        values["p99"] = [one.percentiles["p99"].value if "p99" in one.percentiles else None for one in metrics]
        told["metrics"][name] = {kind: _t_interval(found) for kind, found in values.items()}
    return told


def _t_interval(values: list[float | None]) -> dict[str, Any]:
    known = [one for one in values if one is not None]
    if len(known) < 2:
        return {"value": known[0] if known else None, "ci95": [None, None]}
    mean = float(np.mean(known))
    half = t_quantile(0.975, len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return {"value": mean, "ci95": [mean - half, mean + half]}


def manifest_of(plan: Plan, demand: Demand, seed: int, repetitions: int) -> Manifest:
    """What the simulated service and workload were; everything is known, nothing was probed."""
    spec, pools = plan.deployment, pools_of(plan)
    pool = pools.get("all") or pools["decode"]
    deployment = pool.deployment
    return Manifest(
        version=__version__,
        kind="simulated",
        run_id=f"simulated-{deployment.model.name}-{seed}",
        api=plan.workload.api,
        model=deployment.model.name,
        engine="phasemeter simulator",
        engine_version=__version__,
        accelerator=deployment.hardware.name,
        accelerator_count=sum(one.deployment.accelerators * one.replicas for one in pools.values()),
        topology="prefill and decode pools" if spec.split is not None else f"{pool.replicas} replica(s), {spec.router}",
        dtype=f"{spec.weight_bytes:g} bytes a weight",
        quantisation="none" if spec.weight_bytes >= 2 else f"{spec.weight_bytes:g} bytes a weight",
        tensor_parallel=deployment.tensor_parallel,
        pipeline_parallel=deployment.pipeline_parallel,
        data_parallel=pool.replicas,
        batching="continuous" if plan.policy != "request_level" else "request level",
        scheduling=plan.policy,
        kv_policy=f"{pool.kv_tokens} tokens in blocks of {spec.block_size}",
        prefix_cache="on" if spec.prefix_cache else "off",
        speculative_decoding="none",
        input_tokens=plan.workload.input_tokens,
        output_tokens=plan.workload.output_tokens,
        arrivals=plan.workload.arrivals,
        rate_per_s=demand.mean_rate_per_s(),
        concurrency=demand.concurrency,
        requests=demand.most(),
        duration_s=demand.duration_s,
        repetitions=repetitions,
        notes=plan.trace_notes,
        seed=seed,
        streaming=True,
        network_path="none: the client stands beside the engine",
        measurement_point="engine, virtual time",
        stamps="virtual",
        sources={"*": "plan"},
    )


def write(run: RunDirectory, manifest: Manifest, found: dict[str, Any], outcome: Outcome) -> None:
    """A simulated run's directory: manifest, tables, and `found` as its result."""
    run.write_manifest(manifest)
    class_name = None if outcome.mix is None else outcome.mix.class_name
    write_simulated(run.path, outcome.ended, outcome.warmup, class_name)
    (run.path / "result.json").write_text(json.dumps(found, ensure_ascii=False, allow_nan=False))


def attainment_at(plan: Plan, rate_per_s: float, seed: int | None = None) -> Attainment:
    """One probe of a goodput search: the plan's requests offered at another rate.

    Raises UserError without objectives.
    """
    objectives = objectives_of(plan)
    if not objectives:
        raise UserError("a goodput needs `capacity.objectives` (or `latency_slo`) in the plan")
    outcome = replicate(plan, demand_of(plan).at_rate(rate_per_s), plan.seed if seed is None else seed, tokens=False)
    kept = judged(outcome.ended, outcome.warmup, objectives)
    found, (good, _) = summed(kept), kept.good()
    interval = attainment_interval(good) if len(good) else (None, None)
    return Attainment(value=found.attainment or 0.0, ci95=interval, stable=outcome.stable, binding=found.binding)


def search_goodput(plan: Plan, *, start_per_s: float | None = None, precision: float = 0.02) -> Goodput:
    """The highest rate that the plan's deployment carries within its objectives."""
    rate = start_per_s or demand_of(plan).mean_rate_per_s() or 1.0
    search = Search(target=share(plan.capacity.attainment), start_per_s=rate, precision=precision)
    return max_goodput(lambda per_s: attainment_at(plan, per_s), search)
