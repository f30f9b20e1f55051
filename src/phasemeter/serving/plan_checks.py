"""What of a plan could not be: nothing is unlimited by 0, no step takes no time, and no scheduler has an unknown name.

Lives here: bounds and names, each with its path in the file. Must not live here: what they do (plan.py, deploy.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import isfinite
from typing import Any

from phasemeter.errors import UserError
from phasemeter.serving.hardware import Hardware
from phasemeter.serving.models import ModelShape
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.routers import ROUTERS
from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.workload.lengths import Lengths

COUNTS = (
    "block_size", "kv_tokens", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "replicas", "tensor_parallel",
    "pipeline_parallel",
)  # fmt: skip
AMOUNTS = ("weight_bytes", "kv_bytes")
MOST = {"replicas": 4096, "block_size": 4096, "tensor_parallel": 1024}
LONGEST_OVERHEAD_S = 10.0
MOST_SCALE = 1000.0
MOST_PER_S = 1e9  # one a nanosecond

# option: (what it is, least, most); None: no bound
COUNT, SHARE, FLAG = "a whole number", "a share", "true or false"
OPTIONS: dict[str, tuple[str, float | None, float | None]] = {
    "watermark": (SHARE, 0, 0.99), "ratio": (SHARE, 0, 1), "least_ratio": (SHARE, 0, 1), "decay_steps": (COUNT, 1, None),
    "chunk_size": (COUNT, 1, None), "long_prefill_threshold": (COUNT, 1, None), "padded_tokens": (FLAG, None, None),
    "reserve_full_isl": (FLAG, None, None),
}  # fmt: skip


def check_numbers(spec: Any, path: str) -> None:
    """The counts and amounts of a deployment or of one of its pools, and its fitted lines. Raises UserError with the path."""
    for name in COUNTS:
        value = getattr(spec, name, None)
        if value is not None and value < 1:
            raise UserError(f"`{path}.{name}`: {value} has to be 1 or more; leave it out for the default")
        if value is not None and value > MOST.get(name, value):
            raise UserError(f"`{path}.{name}`: {value} is more than {MOST[name]}, the most that is simulated")
    for name in AMOUNTS:
        value = getattr(spec, name, None)
        if value is not None and not (value > 0 and isfinite(value)):
            raise UserError(f"`{path}.{name}`: {value} has to be above 0, like 2 (16 bit) or 1 (8 bit)")
    if spec.step_time is not None and not 0 < spec.step_time.scale <= MOST_SCALE:
        raise UserError(
            f"`{path}.step_time.scale`: {spec.step_time.scale} has to be above 0, like 1.1 for a tenth slower"
        )
    if spec.step_time is not None and spec.step_time.linear is not None:
        _check_lines(spec.step_time.linear, f"{path}.step_time.linear")


def _check_lines(lines: LinearCoefficients, path: str) -> None:
    for name in ("prefill_s", "decode_s", "decode_large_s"):
        values = getattr(lines, name)
        if values is None:
            continue
        if not all(isfinite(value) and value >= 0 for value in values):
            raise UserError(f"`{path}.{name}`: each of {list(values)} has to be a time of 0 s or more")
        if not any(values):
            raise UserError(f"`{path}.{name}`: a step that takes no time: one of the three has to be above 0")


def check_shape(model: ModelShape) -> None:
    """A shape of one's own. Raises UserError with the path."""
    path = "deployment.model"
    for name in (
        "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary", "max_context_tokens",
    ):  # fmt: skip
        if getattr(model, name) < 1:
            raise UserError(f"`{path}.{name}`: {getattr(model, name)} has to be 1 or more")
    if model.heads % model.kv_heads:
        raise UserError(f"`{path}.kv_heads`: {model.kv_heads} does not divide the {model.heads} heads")
    if (
        model.experts < 0
        or not 0 <= model.experts_per_token <= model.experts
        or (model.experts and not model.experts_per_token)
    ):
        raise UserError(
            f"`{path}.experts_per_token`: {model.experts_per_token} of {model.experts} experts: write 1 or more, at most all of them"
        )


def check_hardware(hardware: Hardware) -> None:
    """An accelerator of one's own. Raises UserError with the path."""
    for name in (
        "peak_flops_per_s", "memory_bytes", "memory_bytes_per_s", "compute_efficiency", "memory_efficiency",
        "attention_memory_efficiency", "attention_compute_efficiency", "hop_bytes_per_s", "tile_tokens",
    ):  # fmt: skip
        value = getattr(hardware, name)
        if not (value > 0 and isfinite(value)):
            raise UserError(f"`deployment.hardware.{name}`: {value} has to be above 0")
    for name in ("attention_layer_s", "step_overhead_s", "sequence_overhead_s"):
        check_overhead(f"deployment.hardware.{name}", getattr(hardware, name))


def check_overhead(path: str, value_s: float) -> None:
    """Host time of a step. Raises UserError with the path."""
    if not 0 <= value_s <= LONGEST_OVERHEAD_S:
        raise UserError(
            f"`{path}`: {value_s:g} s of host work a step: write 0 to {LONGEST_OVERHEAD_S:g} s, like 200 us"
        )


def check_options(policy: str, options: dict[str, Any]) -> None:
    """A scheduler's options, as far as they are known: which of them it takes is its own business. Raises UserError with the path."""
    for name, value in options.items():
        if name not in OPTIONS or value is None:
            continue
        what, least, most = OPTIONS[name]
        fits = isinstance(value, bool) == (what == FLAG)
        fits = fits and isinstance(value, int if what in {COUNT, FLAG} else int | float)
        if not fits or (least is not None and value < least) or (most is not None and value > most):
            bounds = (
                "" if least is None else f" of {least:g} or more" if most is None else f" from {least:g} to {most:g}"
            )
            raise UserError(f"`deployment.policy_options.{name}`: {value!r}: {policy} takes {what}{bounds} here")


def check_names(policy: str | None, options: dict[str, Any], router: str, *, split: bool) -> None:
    """The scheduler, its options and the router are known. A split's own schedulers are its own. Raises UserError with the path."""
    if router not in ROUTERS:
        raise UserError(f"`deployment.router`: `{router}` is none I know: write {', '.join(ROUTERS)}")
    if policy is None or split:
        return
    known = [name for name in POLICIES if not name.startswith("distserve")]
    if policy.startswith("distserve"):
        raise UserError(
            f"`deployment.policy`: `{policy}` serves from two pools: write split: {{prefill: {{}}, decode: {{}}}}"
        )
    if policy not in known:
        raise UserError(f"`deployment.policy`: `{policy}` is none I know: write {', '.join(known)}")
    for name, value in options.items():
        if name == "reserve" and POLICIES[policy]().reserves:
            continue
        try:
            POLICIES[policy](**{name: value})
        except TypeError as error:
            raise UserError(f"`deployment.policy_options`: {policy} takes no {name}") from error


def no_such_key(path: str, key: str, known: Iterable[str]) -> str:
    """One line for a key that a plan doesn't have; `known`: those that it has there."""
    there = list(known)
    close = get_close_matches(key, there, 1)
    meant = f": did you mean `{close[0]}`?" if close else f": write one of {', '.join(there)}" if there else ""
    return f"`{path}`: no such key{meant}"


def check_rate(rate_per_s: float | None) -> None:
    if rate_per_s is not None and rate_per_s > MOST_PER_S:
        raise UserError(f"`workload.arrivals`: {rate_per_s:g} requests a second is more than one a nanosecond")


def shortest_tokens(lengths: Lengths | None) -> int:
    """The shortest length that a distribution can draw."""
    if lengths is None:
        return 1
    if lengths.kind in {"fixed", "uniform"}:
        return max(1, int(lengths.a))
    return max(1, int(min(lengths.values))) if lengths.kind == "empirical" else 1
