"""A plan: a workload on a deployment, read from text and checked before anything runs.

Lives here: PLAN.yaml's keys, and one clear line for each mistake. Must not live here: files (the caller hands over the text),
the building of engines (deploy.py).
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.analytic import (
    Deployment,
    activation_reserve_bytes,
    check_parallelism,
    kv_capacity_tokens,
)
from phasemeter.serving.demand import Demand
from phasemeter.serving.hardware import Hardware, accelerator
from phasemeter.serving.models import ModelShape, model_shape
from phasemeter.serving.plan_checks import (
    check_hardware,
    check_names,
    check_numbers,
    check_options,
    check_overhead,
    check_rate,
    check_shape,
    no_such_key,
    shortest_tokens,
)
from phasemeter.serving.plan_workload import Read, WorkloadSpec, demand, read_trace
from phasemeter.serving.plan_workload import at as _at
from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.serving.step_time_file import parse_step_time
from phasemeter.serving.tables import LayerTables, read_tables
from phasemeter.units import duration_s, rate_per_s, share, size_bytes
from phasemeter.workload.lengths import Lengths
from phasemeter.workload.plain_yaml import read_yaml
from phasemeter.workload.plan import TraceRow
from phasemeter.workload.trace_words import words_of


class StepTimeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`linear`: fitted coefficients instead of the formula; `file`: the same in a file (step_time_file.py). `tables`: a folder of
    profiled kernels (tables.py). Overheads replace the accelerator's ("200 us"). `scale`: each step takes so many times as long."""

    linear: LinearCoefficients | None = None
    file: str | None = None  # once the plan is read, its lines are in `linear`
    tables: str | None = None
    step_overhead: str | None = None
    sequence_overhead: str | None = None
    scale: float = 1.0


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of instance of a split deployment."""

    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_tokens: int | None = None
    step_time: StepTimeSpec | None = None


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What KV crosses from prefill to decode."""

    bytes_per_s: str | float = "25 GB"  # per second
    latency: str = "0"


class SplitSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prefill and decode on instances of their own (DistServe). `first_token`: which of them hands out the first one."""

    prefill: PoolSpec = PoolSpec()
    decode: PoolSpec = PoolSpec()
    link: LinkSpec = LinkSpec()
    first_token: Literal["prefill", "decode"] = "prefill"


class DeploymentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who serves. `model` and `hardware` are names of the catalogue or shapes of your own."""

    model: str | ModelShape
    hardware: str | Hardware
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    replicas: int = 1
    router: str = "shortest_queue"
    policy: str | None = None  # None: vllm_v1, and distserve where the deployment is split
    policy_options: dict[str, Any] = {}
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    kv_tokens: int | None = None  # None: from memory
    memory_share: str | float = 0.9
    weight_bytes: float = 2
    kv_bytes: float = 2
    prefix_cache: bool = False
    step_time: StepTimeSpec = StepTimeSpec()
    split: SplitSpec | None = None


class CapacitySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    objectives: dict[str, Any] = {}
    attainment: str | float = 0.9
    goodput: str | None = None


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `emulate` holds faults for every request of the emulator."""

    phasemeter: int = 1
    workload: WorkloadSpec
    deployment: DeploymentSpec
    latency_slo: dict[str, Any] | None = None
    capacity: CapacitySpec = CapacitySpec()
    seed: int = 0
    emulate: dict[str, Any] = {}


PARTS: dict[str, type[msgspec.Struct]] = {  # path in the file: which keys it has
    "": PlanFile, "workload": WorkloadSpec, "deployment": DeploymentSpec, "capacity": CapacitySpec,
    "deployment.split": SplitSpec, "deployment.split.prefill": PoolSpec, "deployment.split.decode": PoolSpec,
    "deployment.step_time": StepTimeSpec,
}  # fmt: skip


class Plan(PlanFile, frozen=True, kw_only=True):
    """The file, and what the files hold that it names."""

    trace_rows: tuple[TraceRow, ...] | None = None
    trace_notes: tuple[str, ...] = ()  # what reading it left out or changed
    tables: dict[str, LayerTables] = {}

    @property
    def policy(self) -> str:
        """The scheduler of a deployment that isn't split, `distserve` of one that is."""
        return self.deployment.policy or ("vllm_v1" if self.deployment.split is None else "distserve")


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Checked: one kind of instance. `kv_tokens` and `deployment` are of one instance."""

    deployment: Deployment
    replicas: int
    kv_tokens: int
    step_time: StepTimeSpec
    tables: LayerTables | None = None


_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`(?: - at `\$\.?(.*?)`)?$")
_OTHER = re.compile(r"(.*) - at `\$\.?(.*?)`$", re.DOTALL)


def parse_plan(text: str, name: str = "plan", read: Read | None = None) -> Plan:
    """The plan in YAML or JSON text; `name` is what an error calls the file, `read` gives the lines of a file that it names.

    Raises UserError, or FileError: one line with the file's name and the path in it.
    """
    value = read_yaml(text, name)
    if not isinstance(value, dict):
        raise UserError(f"{name}: a plan has the keys `workload` and `deployment`")
    try:
        file = msgspec.convert(value, PlanFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: {_plainly(str(error), value)}") from error
    try:
        file = msgspec.structs.replace(file, deployment=_with_lines(file.deployment, read))
        fields = {one: getattr(file, one) for one in PlanFile.__struct_fields__}
        if file.phasemeter != 1:
            raise UserError(f"`phasemeter`: {file.phasemeter}: the version of a plan's form, which is 1")
        check_numbers(file.deployment, "deployment")
        spec = file.deployment
        check_options(spec.policy or "the scheduler", spec.policy_options)
        check_names(spec.policy, spec.policy_options, spec.router, split=spec.split is not None)
        trace = read_trace(file.workload, read)
        plan = Plan(
            **fields,
            trace_rows=None if trace is None else tuple(trace.rows()),
            trace_notes=() if trace is None else tuple(words_of(trace)),
            tables=_tables(file, read),
        )
        check_rate(demand_of(plan).mean_rate_per_s())
        pools_of(plan)
        objectives_of(plan)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    return plan


def _with_lines(spec: DeploymentSpec, read: Read | None) -> DeploymentSpec:
    """The deployment with the lines that its step time's files hold. Raises UserError or FileError."""

    def filled(path: str, one: StepTimeSpec) -> StepTimeSpec:
        if one.file is None:
            return one
        if one.linear is not None or one.tables is not None:
            raise UserError(f"`{path}.step_time`: file, linear or tables, not two of them")
        if read is None:
            raise UserError(f"`{path}.step_time.file`: {one.file}: this plan came without a folder to read files from")
        return msgspec.structs.replace(one, linear=parse_step_time("".join(read(one.file)), one.file).linear)

    def pool(path: str, one: PoolSpec) -> PoolSpec:
        return one if one.step_time is None else msgspec.structs.replace(one, step_time=filled(path, one.step_time))

    split = spec.split
    if split is not None:
        prefill = pool("deployment.split.prefill", split.prefill)
        split = msgspec.structs.replace(split, prefill=prefill, decode=pool("deployment.split.decode", split.decode))
    return msgspec.structs.replace(spec, step_time=filled("deployment", spec.step_time), split=split)


def _tables(file: PlanFile, read: Read | None) -> dict[str, LayerTables]:
    """The profiled tables that the plan names, by folder. Raises UserError or FileError."""
    spec = file.deployment
    pools = [spec.step_time] if spec.split is None else [
        spec.step_time, *(one.step_time for one in (spec.split.prefill, spec.split.decode) if one.step_time)
    ]  # fmt: skip
    found: dict[str, LayerTables] = {}
    for folder in {one.tables for one in pools if one.tables is not None}:
        if read is None:
            raise UserError(
                f"`deployment.step_time.tables`: {folder}: this plan came without a folder to read files from"
            )
        dense, head, attention = (
            "".join(read(f"{folder}/{part}.csv")) for part in ("dense", "per_sequence", "attention")
        )
        model = spec.model if isinstance(spec.model, ModelShape) else _at("deployment.model", model_shape, spec.model)
        found[folder] = read_tables(dense, head, attention, model.layers)
    return found


def _plainly(message: str, value: dict[str, Any]) -> str:
    if (unknown := _UNKNOWN.match(message)) is not None:
        path = f"{unknown[2]}.{unknown[1]}" if unknown[2] else unknown[1]
        there = PARTS.get(unknown[2] or "")
        return no_such_key(path, unknown[1], () if there is None else there.__struct_fields__)
    if (other := _OTHER.match(message)) is not None:
        return f"`{other[2]}`: {other[1]}"
    return message


def demand_of(plan: Plan) -> Demand:
    """The workload, checked. Raises UserError with the path."""
    spec = plan.deployment
    named = spec.prefix_cache or spec.router == "prefix_affinity"
    return demand(plan.workload, plan.trace_rows, block_size=spec.block_size, named=named)


def objectives_of(plan: Plan) -> dict[str, float]:
    """Per-request thresholds in seconds: `capacity.objectives`, else the values of `latency_slo`."""
    found = {name: _at(f"capacity.objectives.{name}", duration_s, at) for name, at in plan.capacity.objectives.items()}
    if not found:
        for name, lines in (plan.latency_slo or {}).items():
            if not isinstance(lines, dict) or not lines:
                raise UserError(f"`latency_slo.{name}`: write {{p95: 450 ms}}")
            found[name] = min(_at(f"latency_slo.{name}.{p}", duration_s, at) for p, at in lines.items())
    for name in found:
        if name not in {"ttft", "tpot", "e2e", "ttfo", "ttft_from_due", "e2e_from_due"}:
            raise UserError(f"`capacity.objectives.{name}`: write ttft, tpot or e2e")
    if not _at("capacity.attainment", share, plan.capacity.attainment) > 0:
        raise UserError(
            f"`capacity.attainment`: {plan.capacity.attainment} asks for nothing: write a share above 0, like 90 %"
        )
    if plan.capacity.goodput is not None:
        _at("capacity.goodput", rate_per_s, plan.capacity.goodput)
    return found


def longest_tokens(lengths: Lengths) -> int | None:
    """The longest length a bounded distribution can draw; None where there is no bound."""
    if lengths.kind == "fixed":
        return int(lengths.a)
    if lengths.kind == "uniform":
        return int(lengths.b)
    if lengths.kind == "empirical":
        return max(lengths.values)
    return None


def pools_of(plan: Plan) -> dict[str, Pool]:
    """{"all": …}, or {"prefill": …, "decode": …} of a split. Raises UserError with the path of what can't be."""
    spec = plan.deployment
    if spec.split is None:
        whole = PoolSpec(
            replicas=spec.replicas,
            tensor_parallel=spec.tensor_parallel,
            pipeline_parallel=spec.pipeline_parallel,
            kv_tokens=spec.kv_tokens,
        )
        return {"all": _pool(plan, "deployment", whole)}
    link_of(spec.split)
    if spec.policy not in {None, "distserve"} or spec.policy_options:
        raise UserError(
            f"`deployment.policy`: {spec.policy or 'options'}: a split runs distserve's two schedulers: leave policy and its options out"
        )
    if (spec.replicas, spec.tensor_parallel, spec.pipeline_parallel) != (1, 1, 1):
        raise UserError("`deployment.split`: give replicas and parallelism to `split.prefill` and `split.decode`")
    return {
        "prefill": _pool(plan, "deployment.split.prefill", spec.split.prefill),
        "decode": _pool(plan, "deployment.split.decode", spec.split.decode),
    }


def _pool(plan: Plan, path: str, pool: PoolSpec) -> Pool:
    spec = plan.deployment
    model = spec.model if isinstance(spec.model, ModelShape) else _at("deployment.model", model_shape, spec.model)
    hardware = spec.hardware
    if not isinstance(hardware, Hardware):
        hardware = _at("deployment.hardware", accelerator, hardware)
    check_numbers(pool, path)
    check_shape(model)
    check_hardware(hardware)
    step_time = pool.step_time or spec.step_time
    deployment = Deployment(
        model=model,
        hardware=hardware,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
        weight_bytes=spec.weight_bytes,
        kv_bytes=spec.kv_bytes,
        step_overhead_s=_overhead("step_overhead", step_time.step_overhead),
        sequence_overhead_s=_overhead("sequence_overhead", step_time.sequence_overhead),
    )
    _at(f"{path}.tensor_parallel", check_parallelism, deployment)
    kv_tokens = pool.kv_tokens or spec.kv_tokens
    if kv_tokens is None:
        memory_share = _at("deployment.memory_share", share, spec.memory_share)
        if memory_share == 0:
            raise UserError(f"`deployment.memory_share`: {spec.memory_share} leaves no memory to the engine")
        reserve = activation_reserve_bytes(deployment, spec.max_num_batched_tokens or 2048)
        kv_tokens = _at("deployment.model", lambda one: kv_capacity_tokens(one, memory_share, reserve), deployment)
    longest = _longest_prompt(plan)
    if longest is not None and longest >= model.max_context_tokens:
        raise UserError(
            f"`workload.input_tokens`: a prompt of {longest} tokens leaves no room in the context of "
            f"{model.name}, {model.max_context_tokens} tokens"
        )
    if kv_tokens < spec.block_size:
        raise UserError(f"`deployment.block_size`: a KV pool of {kv_tokens} tokens has no block of {spec.block_size}")
    if spec.max_model_len is not None and spec.max_model_len > model.max_context_tokens:
        raise UserError(
            f"`deployment.max_model_len`: {spec.max_model_len} is more than {model.name} can, {model.max_context_tokens} tokens"
        )
    if longest is not None and longest > kv_tokens:
        raise UserError(
            f"`workload.input_tokens`: a prompt of {longest} tokens is longer than the KV pool of {kv_tokens}"
        )
    holds = model.max_context_tokens if path == "deployment.split.prefill" else kv_tokens  # no answer is kept there
    _check_shortest(plan, min(holds, spec.max_model_len or model.max_context_tokens))
    if step_time.linear is not None and step_time.tables is not None:
        raise UserError(f"`{path}.step_time`: linear or tables, not both")
    tables = plan.tables.get(step_time.tables) if step_time.tables is not None else None
    return Pool(deployment=deployment, replicas=pool.replicas, kv_tokens=kv_tokens, step_time=step_time, tables=tables)


def _check_shortest(plan: Plan, limit: int) -> None:
    """Raises UserError where not even the shortest request can be served."""
    found = demand_of(plan)
    if found.rows is not None or found.classes:
        return
    shortest = shortest_tokens(found.input_tokens) + shortest_tokens(found.output_tokens)
    if shortest > limit:
        raise UserError(
            f"`workload`: no request fits: the shortest has {shortest} tokens of prompt and answer, the deployment takes {limit}"
        )


def _longest_prompt(plan: Plan) -> int | None:
    """The longest prompt that is sure to come; a trace's rows are refused one by one."""
    found = demand_of(plan)
    return None if found.rows is not None or found.input_tokens is None else longest_tokens(found.input_tokens)


def _overhead(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    path = f"deployment.step_time.{name}"
    value = float(_at(path, duration_s, text))
    check_overhead(path, value)
    return value


def link_of(split: SplitSpec) -> tuple[float, float]:
    """(latency in seconds, bytes per second) of the link. Raises UserError with the path."""
    path = "deployment.split.link"
    rate = split.link.bytes_per_s
    text = rate.removesuffix("/s").strip() if isinstance(rate, str) else rate
    latency: float = _at(f"{path}.latency", duration_s, split.link.latency)
    bytes_per_s: float = _at(f"{path}.bytes_per_s", size_bytes, text)
    if not bytes_per_s > 0:
        raise UserError(f"`{path}.bytes_per_s`: {rate} carries nothing: write it like 25 GB")
    return latency, bytes_per_s
