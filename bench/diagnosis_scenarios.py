"""Scenarios with a known cause, simulated in virtual time, and how often the diagnosis names it.

    python bench/diagnosis_scenarios.py [--seeds 5] [--first-seed 0] [--verbose] [--write docs/validation/diagnosis.md]

Each scenario is a plan (workload, deployment) whose parameters a seed draws, run through the simulator; what a client and its
server's evidence would show is laid over its rows (delivery, network, buffering, chunks of several tokens, reasoning, a busy client,
a cold start). The answer is right when the expected cause stands first, or, for a healthy service, when no cause stands firm.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from phasemeter.phases.budget import Budget, budget_of
from phasemeter.phases.causes import Cause
from phasemeter.phases.diagnosis import Diagnosis, diagnose
from phasemeter.phases.features import Features, ServerWindow, features_of
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.runs.simulate import replicate
from phasemeter.serving.plan import Plan, demand_of
from phasemeter.serving.simulate import Served, row_of

MS = 1_000_000
Lay = Callable[["Seen", random.Random], "Seen"]


class Seen(NamedTuple):
    """One request: what the client saw and what its server told (queue, prefill, decode; seconds)."""

    row: RequestRow
    told: dict[str, float]


class Scenario(NamedTuple):
    """`also`: causes that are true besides, so that naming them is no mistake."""

    name: str
    cause: str | None
    plan: dict[str, Any]
    lay: tuple[Lay, ...] = ()
    also: frozenset[str] = frozenset()
    alone: bool = False
    kv_moves: bool = False
    mixed: bool = False  # several causes at once: whichever of the true ones stands first is right


SPANS = {
    "queue": ("queue_enter", "prefill_start"),
    "prefill": ("prefill_start", "prefill_end"),
    "decode": ("first_token", "decode_end"),
}


# ---- what lies between an engine and a client


def shifted(seen: Seen, by: Callable[[int], int]) -> Seen:
    """The same with each instant after the send moved to by(instant), in order."""
    row = seen.row
    before = row.choices[0].times_ns if row.choices else ()
    times = tuple(by(at) for at in before)
    if not times:
        return seen
    reads, number = [0], 0
    for one, following in pairwise(times):
        number += following > one
        reads.append(number)
    choice = msgspec.structs.replace(row.choices[0], times_ns=times, reads=tuple(reads))
    visible = before.index(row.first_output_ns) if row.first_output_ns is not None else None
    moved = msgspec.structs.replace(
        row, choices=(choice,), first_token_ns=times[0], last_token_ns=times[-1],
        first_output_ns=None if visible is None else times[visible], stream_end_ns=times[-1] + 50_000,
        single_arrival=len(times) > 1 and times[0] == times[-1], headers_ns=times[0], first_read_ns=times[0], first_chunk_ns=times[0],
    )  # fmt: skip
    return Seen(moved, seen.told)


def delivered(seen: Seen, rng: random.Random) -> Seen:
    """A near network: a few hundred microseconds, now and then more."""
    late = rng.uniform(0.2, 0.6)
    spikes = (
        [round((late + rng.expovariate(20)) * MS) for _ in range(len(seen.row.choices[0].times_ns))]
        if seen.row.choices
        else []
    )
    steps = iter(spikes)
    reached = [0]

    def by(at: int) -> int:
        reached[0] = max(reached[0], at + next(steps, round(late * MS)))
        return reached[0]

    return shifted(seen, by)


def far(delay_ms: float) -> Lay:
    return lambda seen, rng: shifted(seen, lambda at: at + round(delay_ms * MS))


def slow_link(ms_a_chunk: float) -> Lay:
    """A link that takes so long for each chunk: chunks queue up behind one another."""

    def lay(seen: Seen, rng: random.Random) -> Seen:
        free = [0]

        def by(at: int) -> int:
            free[0] = max(at, free[0]) + round(ms_a_chunk * MS)
            return free[0]

        return shifted(seen, by)

    return lay


def buffered(every_ms: float) -> Lay:
    """A gateway that flushes by the clock."""
    tick = round(every_ms * MS)
    return lambda seen, rng: shifted(seen, lambda at: -(-at // tick) * tick)


def all_at_once(seen: Seen, rng: random.Random) -> Seen:
    """A gateway that keeps the answer until it is whole."""
    last = seen.row.last_token_ns or 0
    return shifted(seen, lambda at: last + MS)


def chunks(tokens: int) -> Lay:
    """A step gives several tokens: chunks of up to `tokens`, as drafts are accepted."""

    def lay(seen: Seen, rng: random.Random) -> Seen:
        if not seen.row.choices:
            return seen
        times, held, at = [], [], 0
        whole = seen.row.choices[0].times_ns
        while at < len(whole):
            count = min(1 if at == 0 else rng.randint(1, tokens), len(whole) - at)
            times.append(whole[at + count - 1])
            held.append(count)
            at += count
        choice = ChoiceTimes(times_ns=tuple(times), reads=tuple(range(len(times))), tokens=tuple(held))
        return Seen(msgspec.structs.replace(seen.row, choices=(choice,)), seen.told)

    return lay


def thinking(share: float) -> Lay:
    """The first part of the output is reasoning."""

    def lay(seen: Seen, rng: random.Random) -> Seen:
        choice = seen.row.choices[0]
        count = min(len(choice.times_ns) - 1, max(1, round(share * rng.uniform(0.9, 1.1) * len(choice.times_ns))))
        choice = msgspec.structs.replace(choice, reasoning_events=count)
        return Seen(
            msgspec.structs.replace(seen.row, choices=(choice,), first_output_ns=choice.times_ns[count]), seen.told
        )

    return lay


def busy_client(late_ms: float) -> Lay:
    """The client sends late: due before, everything else as it was."""

    def lay(seen: Seen, rng: random.Random) -> Seen:
        return Seen(
            msgspec.structs.replace(seen.row, due_ns=seen.row.due_ns - round(rng.expovariate(1 / late_ms) * MS)),
            seen.told,
        )

    return lay


def late_reader(lag_ms: float) -> Lay:
    return lambda seen, rng: Seen(
        msgspec.structs.replace(seen.row, observer_lag_ns=round(rng.uniform(0.5, 2.0) * lag_ms * MS)), seen.told
    )


# ---- from a plan to what is on record


def seen_of(plan: Plan, seed: int) -> tuple[list[Seen], ServerWindow]:
    outcome = replicate(plan, demand_of(plan), seed, tokens=True)
    served = [one for one in outcome.ended if isinstance(one, Served)]
    found = []
    for one in served:
        truth = one.truth
        told = {
            "queue": (truth.prefill_start_ns - truth.queue_enter_ns) / 1e9,
            "prefill": (truth.prefill_end_ns - truth.prefill_start_ns) / 1e9,
            "decode": (truth.finish_ns - truth.first_token_ns) / 1e9,
        }
        found.append(Seen(row_of(one), told))
    prompt = sum(one.truth.prompt_tokens for one in served)
    cached = sum(one.truth.cached_tokens for one in served)
    window = ServerWindow(
        preemptions=float(sum(one.truth.preemptions for one in served)), kv_usage_max=max(s.kv_share for s in outcome.samples),
        waiting_max=max(s.waiting for s in outcome.samples), running_max=max(s.running for s in outcome.samples),
        prefix_hit_share=cached / prompt if plan.deployment.prefix_cache else None,
    )  # fmt: skip
    return found, window


def features(scenario: Scenario, seed: int) -> Features:
    """What a diagnosis would look at."""
    rng = random.Random(seed)
    plan = msgspec.convert(scenario.plan, Plan)
    seen, window = seen_of(plan, seed)
    if scenario.kv_moves:
        moved = [
            (s.row.choices[0].times_ns[1] - s.row.choices[0].times_ns[0]) / 1e9
            for s in seen
            if len(s.row.choices[0].times_ns) > 1
        ]
        window = msgspec.structs.replace(window, kv_transfer_mean_s=0.9 * statistics.mean(moved))
    laid = [lay_all(scenario.lay, one, rng) for one in seen]
    if scenario.alone:
        laid += alone(plan, seed, rng, scenario.lay)
    rows = [one.row for one in laid]
    return features_of(rows, budgets_of(laid), window)


def lay_all(lay: tuple[Lay, ...], one: Seen, rng: random.Random) -> Seen:
    for step in (delivered, *lay):
        one = step(one, rng)
    return one


def alone(plan: Plan, seed: int, rng: random.Random, lay: tuple[Lay, ...]) -> Iterator[Seen]:
    """Single requests, one at a time, of the same lengths."""
    workload = msgspec.structs.replace(plan.workload, arrivals={"concurrency": 1}, requests=12, duration=None, warmup=0)
    quiet = msgspec.structs.replace(plan, workload=workload)
    for number, one in enumerate(seen_of(quiet, seed + 1)[0]):
        one = lay_all(
            tuple(step for step in lay if step.__qualname__.split(".")[0] not in {"busy_client", "late_reader"}),
            one,
            rng,
        )
        yield Seen(msgspec.structs.replace(one.row, phase="probe", request_id=f"alone{number}"), one.told)


def budgets_of(seen: list[Seen]) -> dict[str, Budget]:
    found = {}
    for one in seen:
        values = [
            EvidenceValue(phase=name, value_s=value, start=SPANS[name][0], end=SPANS[name][1], source="vllm: body", definition="",
                          clock="engine_monotonic")
            for name, value in one.told.items()
        ]  # fmt: skip
        found[one.row.request_id] = budget_of(one.row, values)
    return found


# ---- the scenarios

MODEL, HARDWARE = "llama-3.1-8b", "H100"


def plan(inputs: Any, outputs: Any, arrivals: Any, requests: int = 160, **deployment: Any) -> dict[str, Any]:
    return {
        "workload": {
            "input_tokens": inputs,
            "output_tokens": outputs,
            "arrivals": arrivals,
            "requests": requests,
            "warmup": 4,
        },
        "deployment": {"model": MODEL, "hardware": HARDWARE} | deployment,
    }


def linear(prefill_ms: float, per_token_us: float, decode_ms: float, per_sequence_us: float = 20.0) -> dict[str, Any]:
    """Step times in plain numbers: fixed and per-token prefill, fixed and per-sequence decode."""
    return {
        "linear": {
            "prefill_s": [prefill_ms / 1e3, per_token_us / 1e6, 0],
            "decode_s": [decode_ms / 1e3, 0, per_sequence_us / 1e6],
        }
    }


def poisson(rate: float) -> dict[str, Any]:
    return {"poisson": f"{rate:.3f} req/s"}


def span(rng: random.Random, low: int, high: int) -> dict[str, Any]:
    middle = rng.randint(low, high)
    return {"uniform": [max(1, middle // 2), middle * 3 // 2]}


def healthy(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 30, rng.uniform(8, 16), 50)
    yield Scenario(
        "light chat", None, plan(span(rng, 150, 500), span(rng, 60, 160), poisson(rng.uniform(0.5, 2)), step_time=step)
    )
    yield Scenario(
        "closed loop of four", None, plan(span(rng, 100, 400), span(rng, 80, 160), {"concurrency": 4}, step_time=step)
    )
    yield Scenario(
        "one after another", None, plan(span(rng, 100, 400), {"fixed": 100}, {"concurrency": 1}, 60, step_time=step)
    )
    yield Scenario(
        "light, on real figures",
        None,
        plan(span(rng, 150, 600), span(rng, 80, 200), poisson(rng.uniform(1, 3))),
        alone=True,
    )


def capacity(rng: random.Random) -> Iterator[Scenario]:
    step = linear(10, 40, 12, 40)
    seats = rng.choice([4, 6, 8])
    busy = seats / (0.012 * 64 + 0.03) * rng.uniform(1.1, 1.6)
    yield Scenario(
        "more than its seats carry",
        "queueing",
        plan(span(rng, 100, 300), {"fixed": 64}, poisson(busy), max_num_seqs=seats, step_time=step),
    )
    yield Scenario(
        "crowd in a closed loop",
        "queueing",
        plan(span(rng, 60, 200), {"fixed": 48}, {"concurrency": 4 * seats}, max_num_seqs=seats, step_time=step),
    )
    bursts = {"gamma": {"rate": f"{0.85 * busy:.3f} req/s", "cv": 2.5}}
    yield Scenario(
        "bursts", "queueing", plan(span(rng, 100, 300), {"fixed": 64}, bursts, max_num_seqs=seats, step_time=step)
    )
    yield Scenario(
        "far too much",
        "queueing",
        plan(span(rng, 100, 300), span(rng, 30, 60), poisson(4 * busy), max_num_seqs=seats, step_time=step),
        alone=True,
    )


def prefill(rng: random.Random) -> Iterator[Scenario]:
    per = rng.uniform(120, 250)
    step = linear(10, per, 10, 40)
    long = rng.randint(4000, 9000)
    rate = 0.25 / (long * per / 1e6)
    for name, outputs, more in (
        ("long documents", {"fixed": 24}, {}),
        ("long and short ones", span(rng, 10, 30), {}),
        ("with single requests", {"fixed": 16}, {"alone": True}),
    ):
        inputs = {"uniform": [200, 2 * long]} if "short" in name else span(rng, long, long)
        yield Scenario(
            name,
            "prefill_compute",
            plan(inputs, outputs, poisson(rate), 120, step_time=step),
            also=frozenset({"queueing", "prefill_decode_interference"}),
            **more,
        )


def interference(rng: random.Random) -> Iterator[Scenario]:
    step = linear(5, rng.uniform(60, 100), 10, 20)
    rate = rng.uniform(1.2, 2.2)
    inputs, outputs = {"uniform": [1500, 4000]}, span(rng, 150, 250)
    both = frozenset({"decode_batch_growth"})
    for policy, more in (("vllm_v0", {}), ("sglang", {}), ("vllm_v1", {"max_num_batched_tokens": 8192})):
        yield Scenario(
            f"prefills between tokens: {policy}",
            "prefill_decode_interference",
            plan(inputs, outputs, poisson(rate), 120, policy=policy, step_time=step, **more),
            also=both,
        )


def memory(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 30, 12, 60)
    inputs, outputs = span(rng, 150, 300), {"uniform": [200, 500]}
    also = frozenset({"queueing", "decode_batch_growth", "prefill_decode_interference"})
    for factor, name in ((1.4, "a little too small"), (2.2, "far too small")):
        rate = factor * 8 / (350 * 0.013)
        yield Scenario(
            f"KV pool {name}",
            "kv_exhaustion",
            plan(inputs, outputs, poisson(rate), kv_tokens=16 * rng.randint(220, 300), step_time=step),
            also=also,
        )
    yield Scenario(
        "KV pool and a crowd",
        "kv_exhaustion",
        plan(inputs, outputs, {"concurrency": 24}, kv_tokens=16 * rng.randint(220, 320), step_time=step),
        also=also,
    )


def growth(rng: random.Random) -> Iterator[Scenario]:
    step = linear(4, 5, 6, rng.uniform(500, 900))
    also = frozenset({"prefill_decode_interference"})
    for name, arrivals in (
        ("poisson", poisson(rng.uniform(2.5, 4))),
        ("bursts", {"gamma": {"rate": "2.5 req/s", "cv": 2}}),
        ("ramp", poisson(rng.uniform(4, 5))),
    ):
        yield Scenario(
            f"decode slows with the batch: {name}",
            "decode_batch_growth",
            plan(span(rng, 30, 80), span(rng, 150, 300), arrivals, step_time=step),
            also=also,
            alone=name == "ramp",
        )


def cache(rng: random.Random) -> Iterator[Scenario]:
    step = linear(6, rng.uniform(80, 150), 10, 30)
    also = frozenset({"prefill_compute", "warm_up"})
    for groups, tokens in ((2, 2000), (12, 1600), (30, 3000)):
        made = plan(
            {"uniform": [tokens + 50, tokens + 200]},
            {"fixed": rng.randint(20, 40)},
            poisson(0.8),
            prefix_cache=True,
            step_time=step,
        )
        made["workload"]["shared_prefix"] = {"tokens": tokens, "groups": groups}
        yield Scenario(f"{groups} shared prefixes", "prefix_cache", made, also=also)


def network(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 20, 10, 30)
    quiet = plan(span(rng, 100, 300), span(rng, 40, 80), poisson(1.5), step_time=step)
    yield Scenario("far away", "network_or_buffering", quiet, (far(rng.uniform(400, 900)),))
    yield Scenario("a slow link", "network_or_buffering", quiet, (slow_link(rng.uniform(18, 40)),))
    yield Scenario(
        "a gateway that flushes by the clock", "network_or_buffering", quiet, (buffered(rng.uniform(80, 250)),)
    )
    yield Scenario("a gateway that keeps the answer", "network_or_buffering", quiet, (all_at_once,))


def movement(rng: random.Random) -> Iterator[Scenario]:
    for speed, name in ((0.25, "slow"), (0.4, "slower than wanted"), (0.15, "very slow")):
        split = {"prefill": {}, "decode": {}, "link": {"bytes_per_s": f"{speed * rng.uniform(0.8, 1.2):.3f} GB"}}
        made = plan(span(rng, 1500, 2500), {"fixed": rng.randint(24, 48)}, poisson(0.3), 80, split=split)
        yield Scenario(f"KV over a {name} link", "kv_movement", made, kv_moves=True)


def decode(rng: random.Random) -> Iterator[Scenario]:
    step = linear(20, 20, rng.uniform(60, 110), 100)
    for name, arrivals, more in (
        ("one at a time", {"concurrency": 1}, {}),
        ("a few", poisson(0.25), {}),
        ("with single requests", poisson(0.3), {"alone": True}),
    ):
        yield Scenario(
            f"slow decode: {name}",
            "decode_compute",
            plan(span(rng, 50, 150), span(rng, 50, 120), arrivals, 80, step_time=step),
            **more,
        )


def policy(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 20, 10, 30)
    for outputs, rate, seats in (
        ({"uniform": [20, 200]}, 3.0, 16),
        ({"uniform": [50, 400]}, 1.5, 32),
        ({"lognormal": {"median": 60, "p95": 400}}, 2.0, 16),
    ):
        rate *= rng.uniform(0.8, 1.1)
        yield Scenario(
            f"request-level batches at {rate:.1f}/s",
            "scheduler_policy",
            plan(
                span(rng, 50, 200),
                outputs,
                poisson(rate),
                policy="request_level",
                max_model_len=2048,
                max_num_seqs=seats,
                step_time=step,
            ),
            also=frozenset({"queueing"}),
        )


def client(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 20, 10, 30)
    quiet = plan(span(rng, 100, 300), span(rng, 40, 80), poisson(1.5), step_time=step)
    yield Scenario("sends late", "client_saturation", quiet, (busy_client(rng.uniform(500, 900)),))
    yield Scenario("sends very late", "client_saturation", quiet, (busy_client(rng.uniform(2000, 4000)),))
    yield Scenario("reads late", "client_saturation", quiet, (late_reader(rng.uniform(40, 120)),))


def several(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 20, rng.uniform(8, 14), 30)
    quiet = plan(span(rng, 100, 300), span(rng, 80, 160), poisson(1.0), step_time=step)
    for tokens in (2, 4, 6):
        yield Scenario(f"up to {tokens} tokens a step", "multi_token_streaming", quiet, (chunks(tokens),))


def reasoning(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 20, rng.uniform(8, 14), 30)
    quiet = plan(span(rng, 100, 300), span(rng, 150, 300), poisson(0.8), step_time=step)
    for share in (0.5, 0.7, 0.9):
        yield Scenario(f"{share:.0%} of the output is reasoning", "reasoning_time", quiet, (thinking(share),))


def cold_start(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 20, 10, 30)
    for first, times in ((16, 6.0), (8, 12.0), (20, 4.0)):
        made = plan(span(rng, 200, 400), span(rng, 60, 120), poisson(0.8), step_time=step)
        yield Scenario(
            f"the first {first} are {times:g} times as slow",
            "warm_up",
            made,
            (slow_first(first, times * rng.uniform(0.8, 1.2)),),
        )


def slow_first(first: int, times: float) -> Lay:
    """Prefill of the first requests takes longer: kernels are compiled, caches filled."""

    def lay(seen: Seen, rng: random.Random) -> Seen:
        number = int("".join(c for c in seen.row.request_id if c.isdigit()) or 0)
        if number >= first + 4 or not seen.row.choices:
            return seen
        more = seen.told["prefill"] * (times - 1)
        moved = shifted(seen, lambda at: at + round(more * 1e9))
        return Seen(moved.row, seen.told | {"prefill": seen.told["prefill"] * times})

    return lay


def mixtures(rng: random.Random) -> Iterator[Scenario]:
    step = linear(8, 150, 10, 30)
    long, outputs = {"uniform": [1500, 5000]}, {"fixed": 40}
    crowded = plan(long, outputs, poisson(1.4), 120, max_num_seqs=4, step_time=step)
    yield Scenario(
        "crowd of long prompts",
        "queueing",
        crowded,
        also=frozenset({"prefill_compute", "prefill_decode_interference"}),
        mixed=True,
    )
    quiet = plan(span(rng, 100, 300), span(rng, 60, 120), poisson(1.2), step_time=linear(8, 20, 10, 30))
    yield Scenario(
        "far away, several tokens a step",
        "network_or_buffering",
        quiet,
        (chunks(4), far(rng.uniform(500, 900))),
        frozenset({"multi_token_streaming"}),
        mixed=True,
    )
    yield Scenario(
        "late client, reasoning",
        "client_saturation",
        quiet,
        (thinking(0.6), busy_client(rng.uniform(600, 1200))),
        frozenset({"reasoning_time"}),
        mixed=True,
    )
    slow = plan(span(rng, 100, 300), span(rng, 60, 120), poisson(3), max_num_seqs=6, step_time=linear(8, 20, 60, 50))
    yield Scenario("slow decode, too few seats", "queueing", slow, also=frozenset({"decode_compute"}), mixed=True)


FAMILIES: dict[str, Callable[[random.Random], Iterator[Scenario]]] = {
    "healthy": healthy, "queueing": capacity, "prefill_compute": prefill, "prefill_decode_interference": interference,
    "kv_exhaustion": memory, "decode_batch_growth": growth, "prefix_cache": cache, "network_or_buffering": network,
    "kv_movement": movement, "decode_compute": decode, "scheduler_policy": policy, "client_saturation": client,
    "multi_token_streaming": several, "reasoning_time": reasoning, "warm_up": cold_start, "mixtures": mixtures,
}  # fmt: skip


def scenarios(seed: int) -> Iterator[Scenario]:
    """All of them, with the parameters that this seed draws."""
    for name, family in FAMILIES.items():
        yield from family(random.Random(f"{seed}/{name}"))


def firm(found: Diagnosis) -> list[Cause]:
    return [cause for cause in found.causes if cause.strength in {"certain", "likely"}]


def is_right(scenario: Scenario, found: Diagnosis) -> bool:
    stand = firm(found)
    if scenario.cause is None:
        return not stand
    true = {scenario.cause} | (scenario.also if scenario.mixed else frozenset())
    return bool(stand) and stand[0].cause in true


def false_certain(scenario: Scenario, found: Diagnosis) -> list[str]:
    """Causes stated as certain that are not true of it."""
    true = {scenario.cause} | scenario.also
    return [cause.cause for cause in found.causes if cause.strength == "certain" and cause.cause not in true]


def score_all(made: Callable[[int], Iterator[Scenario]]) -> None:
    """The command line of a set of scenarios: draws them, diagnoses each, prints the score."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    score: dict[str, list[bool]] = defaultdict(list)
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    wrong_certain = []
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for scenario in made(seed):
            family = "mixtures" if scenario.mixed else scenario.cause or "healthy"
            if asked.only and family != asked.only:
                continue
            seen = features(scenario, seed)
            found = diagnose(seen)
            right = is_right(scenario, found)
            score[family].append(right)
            stand = firm(found)
            taken[family][stand[0].cause if stand else "none"] += 1
            wrong_certain += [(scenario.name, cause) for cause in false_certain(scenario, found)]
            if asked.verbose and not right:
                print(
                    f"seed {seed} {family}: {scenario.name}: {[(c.cause, c.strength, round(c.weight, 2)) for c in found.causes]}"
                )
                told = {
                    k: round(v, 3) if isinstance(v, float) else v
                    for k, v in msgspec.to_builtins(seen).items()
                    if v not in (None, {})
                }
                print(f"    {told}")
    lines = table(score, taken, wrong_certain, asked.first_seed, asked.seeds)
    print("\n".join(lines))
    if asked.write:
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text("\n".join(lines) + "\n")


def table(
    score: dict[str, list[bool]], taken: dict[str, Counter[str]], wrong: list[tuple[str, str]], first: int, seeds: int
) -> list[str]:
    every = [right for found in score.values() for right in found]
    right = f"{sum(every)} of {len(every)} right ({sum(every) / len(every):.1%})"
    lines = [
        f"Seeds {first} to {first + seeds - 1}: {right}; {len(wrong)} wrong causes stated as certain.",
        "",
        "| cause | right | of | named first |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, found in score.items():
        first_named = ", ".join(f"{cause} {count}" for cause, count in taken[name].most_common())
        lines.append(f"| {name} | {sum(found)} | {len(found)} | {first_named} |")
    return [*lines, *[f"\nstated as certain and wrong: {name}: {cause}" for name, cause in wrong]]


if __name__ == "__main__":
    score_all(scenarios)
