"""Numbers of a plan that could not be: nothing is unlimited by 0, and no step takes no time.

Lives here: bounds, each with its path in the file. Must not live here: what the numbers do (plan.py, deploy.py).
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from phasemeter.errors import UserError
from phasemeter.serving.step_time import LinearCoefficients

COUNTS = (
    "block_size", "kv_tokens", "max_num_batched_tokens", "max_num_seqs", "max_model_len", "replicas", "tensor_parallel",
    "pipeline_parallel",
)  # fmt: skip
AMOUNTS = ("weight_bytes", "kv_bytes")


def check_numbers(spec: Any, path: str) -> None:
    """The counts and amounts of a deployment or of one of its pools, and its fitted lines. Raises UserError with the path."""
    for name in COUNTS:
        value = getattr(spec, name, None)
        if value is not None and value < 1:
            raise UserError(f"`{path}.{name}`: {value} has to be 1 or more; leave it out for the default")
    for name in AMOUNTS:
        value = getattr(spec, name, None)
        if value is not None and not (value > 0 and isfinite(value)):
            raise UserError(f"`{path}.{name}`: {value} has to be above 0, like 2 (16 bit) or 1 (8 bit)")
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
