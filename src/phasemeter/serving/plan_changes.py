"""What a deployment is made of, and the same deployment larger or slower.

Lives here: names, counts, copies. Must not live here: the plan's keys (plan.py), which deployments are compared (plan_candidates.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phasemeter.serving.hardware import Hardware, accelerator
from phasemeter.serving.models import ModelShape, model_shape
from phasemeter.serving.plan import Plan, pools_of
from phasemeter.serving.step_time import LinearCoefficients


def hardware_of(plan: Plan) -> str:
    """The own name of the accelerator that a plan runs on."""
    spec = plan.deployment.hardware
    return spec.name if isinstance(spec, Hardware) else accelerator(spec).name


def model_of(plan: Plan) -> str:
    """The own name of the model."""
    spec = plan.deployment.model
    return spec.name if isinstance(spec, ModelShape) else model_shape(spec).name


def accelerators_of(plan: Plan) -> int:
    """How many accelerators the deployment has, all of its pools together."""
    return sum(pool.deployment.accelerators * pool.replicas for pool in pools_of(plan).values())


def copies(plan: Plan, many: int) -> Plan:
    """The deployment so many times as large, behind one router: replicas, or the instances of both pools."""
    spec = plan.deployment
    if spec.split is None:
        return msgspec.structs.replace(plan, deployment=msgspec.structs.replace(spec, replicas=spec.replicas * many))
    pools = {
        name: msgspec.structs.replace(pool, replicas=pool.replicas * many)
        for name, pool in (("prefill", spec.split.prefill), ("decode", spec.split.decode))
    }
    split = msgspec.structs.replace(spec.split, **pools)
    return msgspec.structs.replace(plan, deployment=msgspec.structs.replace(spec, split=split))


def slowed(plan: Plan, times: float) -> Plan:
    """The same with every step so many times as long."""
    spec = plan.deployment
    step = msgspec.structs.replace(spec.step_time, scale=spec.step_time.scale * times)
    split = spec.split
    if split is not None:
        pools = {
            name: pool if pool.step_time is None else msgspec.structs.replace(
                pool, step_time=msgspec.structs.replace(pool.step_time, scale=pool.step_time.scale * times)
            )
            for name, pool in (("prefill", split.prefill), ("decode", split.decode))
        }  # fmt: skip
        split = msgspec.structs.replace(split, **pools)
    return msgspec.structs.replace(plan, deployment=msgspec.structs.replace(spec, step_time=step, split=split))


# what a line fitted to one engine can't follow; layer tables know the parallelism they were profiled with, and their own precision
MACHINE = ("model", "hardware", "tensor_parallel", "pipeline_parallel", "weight_bytes", "kv_bytes")


def unseen_changes(plans: Iterable[Plan]) -> list[str]:
    """The keys in which plans of one fitted step time (`step_time: {linear}` or `{file}`) differ, although it holds for one engine."""
    by_lines: dict[LinearCoefficients, list[Plan]] = {}
    for plan in plans:
        if (lines := plan.deployment.step_time.linear) is not None:
            by_lines.setdefault(lines, []).append(plan)
    return [
        key
        for key in MACHINE
        if any(len({getattr(plan.deployment, key) for plan in alike}) > 1 for alike in by_lines.values())
    ]
