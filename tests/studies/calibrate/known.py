"""Runs whose constants are known: the simulator's own, with or without what its server would tell."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.simulate import replicate
from phasemeter.serving.ended import Served
from phasemeter.serving.plan import Plan, demand_of, parse_plan
from phasemeter.serving.simulate import phases_of
from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.studies.calibrate.observed import Run, in_order, observed
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, Rows, in_blocks

TRUTH = LinearCoefficients(prefill_s=(0.0181, 0.0001019, 7.1e-9), decode_s=(0.01993, 6.27e-7, 0.0000385))
DEARER = LinearCoefficients(prefill_s=(0.03, 0.0001, 5e-9), decode_s=(0.012, 4e-7, 0.0001))
MIXED_LENGTHS = "input_tokens: {lognormal: {median: 300, p95: 1500}}, output_tokens: {uniform: [8, 96]}"
SPANS = {"queue": ("queue_enter", "prefill_start"), "prefill": ("prefill_start", "prefill_end")}
Floats = npt.NDArray[np.float64]


def plan_of(
    load: str, lengths: str = MIXED_LENGTHS, deployment: str = "policy: vllm_v1", truth: LinearCoefficients = TRUTH
) -> Plan:
    lines = f"{{prefill_s: {list(truth.prefill_s)}, decode_s: {list(truth.decode_s)}}}"
    return parse_plan(
        f"workload: {{{lengths}, arrivals: {load}, requests: 100}}\n"
        f"deployment: {{model: llama-3.1-8b, hardware: H100, {deployment}, step_time: {{linear: {lines}}}}}"
    )


@cache
def _rows(plan_text: bytes) -> tuple[tuple[RequestRow, tuple[EvidenceValue, ...]], ...]:
    plan = msgspec.json.decode(plan_text, type=Plan)
    outcome = replicate(plan, demand_of(plan), 0, tokens=True)
    found = []
    for one, row in zip(outcome.ended, outcome.rows(), strict=True):
        assert isinstance(one, Served)
        phases = phases_of(one.truth)
        told = tuple(
            EvidenceValue(
                phase=name, value_s=phases[name], start=start, end=end, source="simulator", clock="engine_monotonic",
                definition="virtual time",
            )
            for name, (start, end) in SPANS.items()
        )  # fmt: skip
        found.append((row, told))
    return tuple(found)


def run_of(plan: Plan, *, told: bool, name: str = "run") -> Run:
    """The plan's run as a client saw it; `told`: its server said how long it waited and computed."""
    seen = [observed(row, said if told else (), 0) for row, said in _rows(msgspec.json.encode(plan))]
    demand, budget = demand_of(plan), plan.deployment.max_num_batched_tokens
    return Run(name=name, requests=in_order(one for one in seen if one), concurrency=demand.concurrency, budget=budget)


def rows_with(
    values: Floats, generator: np.random.Generator, *, noise: float = 0.0, stalls: float = 0.0, rows: int = 600
) -> Rows:
    """Equations of every kind that `values` (by COLUMNS) keep, with relative noise, and a share of stalls of five times."""
    kind = generator.choice(4, rows, p=[0.6, 0.2, 0.1, 0.1])
    batch = generator.integers(1, 33, rows)
    prompt = generator.integers(16, 2048, rows).astype(float)
    x = np.zeros((rows, len(COLUMNS)))
    x[np.arange(rows), kind] = 1
    decodes = kind <= KINDS.index("mixed")
    x[decodes, COLUMNS.index("sequences")] = batch[decodes]
    x[decodes, COLUMNS.index("contexts")] = (batch * generator.integers(50, 1500, rows))[decodes]
    prompts = kind >= KINDS.index("mixed")
    x[prompts, COLUMNS.index("tokens")] = prompt[prompts]
    x[prompts, COLUMNS.index("squares")] = prompt[prompts] ** 2
    y = x @ values * np.exp(noise * generator.standard_normal(rows))
    y = np.where(generator.random(rows) < stalls, 5 * y, y)
    made = Rows(x=x, y=y, at_s=np.arange(rows) * 0.02, kind=kind, block=np.zeros(rows, dtype=np.int64))
    return in_blocks([made], 40)


VALUES = np.array([0.02, 0.021, 0.018, 0.0195, 1e-4, 6e-7, 4e-5, 7e-9])
