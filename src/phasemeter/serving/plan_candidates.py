"""A plan with candidates: the same workload on deployments that differ in what the plan lets vary.

Lives here: the keys that `phasemeter plan` adds to a plan (`vary`, `candidates`, `prices`, `target_rate`, `headroom`, `budget`,
`contract`), the deployments that they make, one clear line for each mistake. Must not live here: files, what a candidate can carry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import product
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.deploy import POLICIES, build
from phasemeter.serving.hardware import accelerator
from phasemeter.serving.models import model_shape
from phasemeter.serving.plan import CapacitySpec, DeploymentSpec, Plan, PlanFile, PoolSpec, parse_plan, pools_of
from phasemeter.serving.plan_changes import hardware_of
from phasemeter.serving.plan_checks import check_numbers, check_options
from phasemeter.serving.plan_workload import Read, WorkloadSpec
from phasemeter.serving.routers import ROUTERS
from phasemeter.units import rate_per_s, share
from phasemeter.workload.plain_yaml import read_yaml

MOST = 400
POOLS = ("split.prefill", "split.decode")
# what engines call it: what a plan does
CALLED = {
    "gpu_memory_utilization": "memory_share", "tensor_parallel_size": "tensor_parallel", "data_parallel_size": "replicas",
    "pipeline_parallel_size": "pipeline_parallel", "quantization": "weight_bytes", "quantisation": "weight_bytes",
    "dtype": "weight_bytes", "kv_cache_dtype": "kv_bytes", "kv_dtype": "kv_bytes", "chunk_size": "max_num_batched_tokens",
    "scheduler": "policy", "accelerator": "hardware", "gpu": "hardware", "gpus": "replicas", "num_gpu_blocks": "kv_tokens",
}  # fmt: skip
SHORT = {
    "tensor_parallel": "tp{}", "pipeline_parallel": "pp{}", "replicas": "×{}", "max_num_batched_tokens": "batch {}",
    "max_num_seqs": "{} seqs", "weight_bytes": "w{}", "kv_bytes": "kv{}", "memory_share": "mem {}", "block_size": "block {}",
    "kv_tokens": "{} kv", "split.prefill.replicas": "{}p", "split.decode.replicas": "{}d",
    "split.prefill.tensor_parallel": "ptp{}", "split.decode.tensor_parallel": "dtp{}",
    "split.prefill.pipeline_parallel": "ppp{}", "split.decode.pipeline_parallel": "dpp{}",
}  # fmt: skip
BARE = {"hardware", "policy", "model", "router", "name"}


class ChoiceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan's keys, its deployment what all candidates have in common, and the keys that make candidates of it."""

    phasemeter: int = 1
    workload: WorkloadSpec
    deployment: dict[str, Any] = {}
    latency_slo: dict[str, Any] | None = None
    capacity: CapacitySpec = CapacitySpec()
    seed: int = 0
    emulate: dict[str, Any] = {}
    vary: dict[str, list[Any]] | list[dict[str, list[Any]]] = {}
    candidates: list[dict[str, Any]] = []
    prices: dict[str, str | float] = {}
    target_rate: str | float | None = None
    headroom: str | float = 0
    budget: int | None = None
    contract: str | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment. `plan` None: it can't be (`reason`, one line). `varied`: what sets it apart, by key."""

    name: str
    varied: Mapping[str, Any]
    plan: Plan | None
    reason: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. `prices`: an accelerator's hour by the accelerator's own name; empty: none are given."""

    candidates: tuple[Candidate, ...]
    prices: Mapping[str, float]
    currency: str
    target_per_s: float | None
    headroom: float
    budget: int | None
    contract: str | None
    seed: int

    @property
    def first(self) -> Plan | None:
        """A plan whose workload and limits are everybody's."""
        return next((one.plan for one in self.candidates if one.plan is not None), None)


def parse_choice(text: str, name: str, read: Read | None = None) -> Choice:
    """The plan and its candidates; `name` is what an error calls the file, `read` gives the lines of a file that it names.

    Raises UserError, or FileError: one line with the file's name and the path in it.
    """
    value = read_yaml(text, name)
    if not isinstance(value, dict):
        raise UserError(f"{name}: a plan has the keys `workload`, `deployment` and `vary`")
    try:
        return _choice(value, None if read is None else cache(lambda file: tuple(read(file))))
    except UserError as error:
        words = str(error).removeprefix(": ")
        raise UserError(words if words.startswith(f"{name}: ") else f"{name}: {words}") from error


def _choice(value: dict[str, Any], read: Read | None) -> Choice:
    try:
        file = msgspec.convert(value, ChoiceFile)
    except msgspec.ValidationError as error:
        raise UserError(_where(str(error))) from error
    overlays = list(_overlays(file))
    if not overlays:
        raise UserError(
            "`vary`: no candidate: write what may differ, like vary: {tensor_parallel: [1, 2], policy: [vllm_v1, sarathi]}"
        )
    if len(overlays) > MOST:
        raise UserError(f"`vary`: {len(overlays)} candidates: at most {MOST}: vary less at a time")
    prices, currency = _prices(file.prices)
    if file.budget is not None and file.budget < 1:
        raise UserError(f"`budget`: {file.budget}: the most accelerators there may be, 1 or more")
    common = {name: value[name] for name in PlanFile.__struct_fields__ if name in value and name != "deployment"}
    candidates = tuple(_all_of(common, file.deployment, overlays, read))
    if prices:
        _check_prices(prices, candidates)
    names = [one.name for one in candidates]
    for one in names:
        if names.count(one) > 1:
            raise UserError(f"`candidates`: two are called `{one}`: list each once, or give each a name")
    return Choice(
        candidates=candidates,
        prices=prices,
        currency=currency,
        target_per_s=None if file.target_rate is None else _finite("target_rate", file.target_rate),
        headroom=_named("headroom", share, file.headroom),
        budget=file.budget,
        contract=file.contract,
        seed=file.seed,
    )


def _named(path: str, read: Any, value: Any) -> Any:
    try:
        return read(value)
    except UserError as error:
        raise UserError(f"`{path}`: {error}") from error


def _finite(path: str, value: str | float) -> float:
    found: float = _named(path, rate_per_s, value)
    if found == float("inf"):
        raise UserError(f"`{path}`: {value}: write a rate, like 40 req/s")
    return found


def _where(message: str) -> str:
    unknown = re.match(r"Object contains unknown field `(.+?)`(?: - at `\$\.?(.*?)`)?$", message)
    if unknown is not None:
        path = f"{unknown[2]}.{unknown[1]}" if unknown[2] else unknown[1]
        close = get_close_matches(unknown[1], ChoiceFile.__struct_fields__, 1)
        return f"`{path}`: no such key{f': {close[0]}?' if close and not unknown[2] else ''}"
    other = re.match(r"(.*) - at `\$\.?(.*?)`$", message, re.DOTALL)
    if other is None:
        return message
    if other[2].startswith("vary"):
        return f"`{other[2].replace('[...]', '')}`: {other[1]}: write a list of values under each key, like tensor_parallel: [1, 2]"
    return f"`{other[2]}`: {other[1]}"


# ---- what varies


def _overlays(file: ChoiceFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands in the file, key: value) of each candidate, keys as paths with dots."""
    blocks = file.vary if isinstance(file.vary, list) else [file.vary] if file.vary else []
    for number, block in enumerate(blocks):
        path = f"vary[{number}]" if isinstance(file.vary, list) else "vary"
        if not block:
            raise UserError(f"`{path}`: empty: write what may differ, like tensor_parallel: [1, 2]")
        for key, values in block.items():
            _check_key(path, key)
            if not values:
                raise UserError(f"`{path}.{key}`: an empty list: give the values that it may take, or leave it out")
        for chosen in product(*block.values()):
            yield path, dict(zip(block, chosen, strict=True))
    for number, one in enumerate(file.candidates):
        path = f"candidates[{number}]"
        flat = dict(_flat(one))
        for key in flat:
            if key != "name":
                _check_key(path, key)
        yield path, flat


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots; shapes of one's own and lengths stay whole."""
    for key, one in value.items():
        whole = f"{path}{key}"
        nested = whole.split(".")[0] in {"split", "policy_options", "step_time"} and key != "linear"
        if isinstance(one, Mapping) and nested:
            yield from _flat(one, f"{whole}.") if one else [(whole, {})]
        else:
            yield whole, one


@cache
def keys() -> frozenset[str]:
    """Every key of a deployment that may vary, with dots."""
    plain = set(DeploymentSpec.__struct_fields__)
    step = {f"step_time.{one}" for one in ("linear", "file", "tables", "step_overhead", "sequence_overhead", "scale")}
    pools = {f"{pool}.{one}" for pool in POOLS for one in PoolSpec.__struct_fields__}
    pools |= {f"{pool}.{one}" for pool in POOLS for one in step}
    return frozenset(
        plain
        | step
        | pools
        | {*POOLS, "split.link", "split.link.bytes_per_s", "split.link.latency", "split.first_token"}
    )


def _check_key(path: str, key: str) -> None:
    if key in keys() or (key.startswith("policy_options.") and key.count(".") == 1):
        return
    close = [CALLED[key]] if key in CALLED else get_close_matches(key, sorted(keys()), 1)
    raise UserError(f"`{path}.{key}`: no such key of a deployment{f': {close[0]}?' if close else ''}")


def _merged(deployment: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(deployment))
    for key, value in varied.items():
        *way, last = key.split(".")
        at = found
        for step in way:
            if not isinstance(at.get(step), dict):
                at[step] = {}
            at = at[step]
        at[last] = value
    return found


# ---- what it makes

# holds any request: what is wrong beside it is wrong for every candidate
LARGE: dict[str, Any] = {
    "model": {
        "name": "any", "layers": 1, "hidden": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "intermediate": 1, "vocabulary": 1,
        "max_context_tokens": 10**12,
    },
    "hardware": "H200", "kv_tokens": 10**12,
}  # fmt: skip
ONE_TOKEN = {"input_tokens": 1, "output_tokens": 1, "arrivals": {"poisson": "1/s"}}


def _all_of(
    common: dict[str, Any],
    deployment: dict[str, Any],
    overlays: Iterable[tuple[str, dict[str, Any]]],
    read: Read | None,
) -> Iterator[Candidate]:
    """Each candidate, checked. The workload is read once: a trace may be long.

    Raises UserError for a value that is none; values that don't go together make a candidate that can't be.
    """
    if common["workload"].get("arrivals") is None and not _traced(common["workload"]):
        common = common | {"workload": common["workload"] | {"arrivals": ONE_TOKEN["arrivals"]}}
    whole = parse_plan(json.dumps(common | {"deployment": LARGE}), "", read)
    light = json.dumps({key: value for key, value in common.items() if key != "workload"} | {"workload": ONE_TOKEN})
    for path, overlay in overlays:
        varied = {key: value for key, value in overlay.items() if key != "name"}
        merged = _merged(deployment, varied)
        name = str(overlay.get("name") or _label(varied))
        _check_values(path, varied, merged)
        try:
            plan = parse_plan(json.dumps(json.loads(light) | {"deployment": merged}), "", read)
            plan = msgspec.structs.replace(
                plan, workload=whole.workload, trace_rows=whole.trace_rows, trace_notes=whole.trace_notes
            )
            pools_of(plan)
            build(plan, tokens=False)
        except UserError as error:
            reason = re.sub(r"^(: )?(`[^`]+`: )?", "", str(error).strip())
            yield Candidate(name=name, varied=varied, plan=None, reason=reason)
            continue
        yield Candidate(name=name, varied=varied, plan=plan)


def _traced(workload: Mapping[str, Any]) -> bool:
    return workload.get("trace") is not None


def _check_values(path: str, varied: Mapping[str, Any], merged: Mapping[str, Any]) -> None:
    """Types, numbers, names: each value by itself. Raises UserError with the path in the file."""
    _check_names(path, varied, merged)
    try:
        spec = msgspec.convert(merged, DeploymentSpec)
        check_numbers(spec, "deployment")
        check_options(spec.policy or "the scheduler", spec.policy_options)
        for pool, own in (
            {} if spec.split is None else {"prefill": spec.split.prefill, "decode": spec.split.decode}
        ).items():
            check_numbers(own, f"deployment.split.{pool}")
    except msgspec.ValidationError as error:
        words = _where(str(error).replace("`$.", "`$.deployment.").replace("`$`", "`$.deployment`"))
        raise UserError(_placed(words, path, varied)) from error
    except UserError as error:
        raise UserError(_placed(str(error), path, varied)) from error


def _placed(words: str, path: str, varied: Mapping[str, Any]) -> str:
    """A path in a deployment as the path of the key that put it there."""
    for key in varied:
        words = words.replace(f"`deployment.{key}`", f"`{path}.{key}`")
    return words


def _check_names(path: str, varied: Mapping[str, Any], merged: Mapping[str, Any]) -> None:
    """Names that the catalogues and tables don't have are mistakes, whatever else is wrong. Raises UserError."""
    for key, known in (("policy", POLICIES), ("router", ROUTERS)):
        given = merged.get(key)
        if given is not None and given not in known and given != "distserve":
            where = path if key in varied else "deployment"
            raise UserError(f"`{where}.{key}`: `{given}` is none I know: write {', '.join(known)}")
    for key in ("model", "hardware"):
        where = path if key in varied else "deployment"
        if key not in merged:
            raise UserError(f"`deployment.{key}`: missing: give it to all, or let it vary")
        if isinstance(merged[key], str):
            _named(f"{where}.{key}", model_shape if key == "model" else accelerator, merged[key])


def _label(varied: Mapping[str, Any]) -> str:
    return " ".join(_part(key, value) for key, value in varied.items() if value is not None) or "as it is"


def _part(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        named = value.get("name")
        if not value:
            return "split" if key == "split" else f"plain {key.replace('_', ' ')}"
        if key in {"step_time", "policy_options"}:
            return " ".join(_part(one, each) for one, each in _flat({key: value}))
        if key == "split":
            return "split " + " ".join(_part(one, each) for one, each in _flat({"split": value}))
        return str(named) if named is not None else f"{key}={json.dumps(value, separators=(',', ':'))}"
    if (short := SHORT.get(key)) is not None:
        return short.format(f"{value:g}" if isinstance(value, float) else value)
    if isinstance(value, bool):
        return key.replace("_", " ") if value else f"no {key.replace('_', ' ')}"
    return str(value) if key in BARE else f"{key.rsplit('.', 1)[-1]}={value}"


# ---- prices

_PRICE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z€$£¥]*)\s*(?:/\s*h(?:our)?)?\s*")


def _prices(given: Mapping[str, str | float]) -> tuple[dict[str, float], str]:
    """({accelerator's own name: price of its hour}, the currency)."""
    found: dict[str, float] = {}
    currencies: dict[str, str] = {}
    for name, value in given.items():
        match = _PRICE.fullmatch(str(value))
        if match is None or not float(match[1]) > 0:
            raise UserError(f"`prices.{name}`: {value!r}: write the price of one accelerator's hour, like 2.50 USD")
        try:
            key = accelerator(name).name
        except UserError:
            key = name  # one of the plan's own
        found[key] = float(match[1])
        if match[2]:
            currencies[match[2]] = name
    if len(currencies) > 1:
        raise UserError(f"`prices`: two currencies, {' and '.join(currencies)}: write one")
    return found, next(iter(currencies), "price unit")


def _check_prices(prices: Mapping[str, float], candidates: Iterable[Candidate]) -> None:
    for one in candidates:
        if one.plan is not None and (used := hardware_of(one.plan)) not in prices:
            raise UserError(f"`prices`: none for {used}, which `{one.name}` runs on: price every accelerator, or none")


def schema() -> dict[str, Any]:
    """A JSON Schema of the file, for editors. What may vary is listed by name; its values are checked when the plan is read."""
    found: dict[str, Any] = msgspec.json.schema(ChoiceFile, ref_template="#/$defs/{name}")
    own = found["$defs"]["ChoiceFile"]["properties"]
    block = {"type": "object", "properties": {key: {"type": "array", "minItems": 1} for key in sorted(keys())},
             "patternProperties": {r"^policy_options\.": {"type": "array", "minItems": 1}}, "additionalProperties": False}  # fmt: skip
    own["vary"] = {"anyOf": [block, {"type": "array", "items": block}]}
    own["deployment"] = msgspec.json.schema_components([DeploymentSpec], ref_template="#/$defs/{name}")[0][0]
    found["$defs"] |= msgspec.json.schema_components([DeploymentSpec], ref_template="#/$defs/{name}")[1]
    found["$defs"]["DeploymentSpec"].pop("required", None)  # what varies need not be given to all
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a plan with candidates", **found}
