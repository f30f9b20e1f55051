"""What a step costs, part by part, from a model's shape and an accelerator's figures.

Lives here: the formula. Must not live here: an engine's policy, a table of measurements (tables.py).

A step takes T tokens of n sequences: decodes with contexts c_i, and chunks of k_j tokens after x_j cached ones.

- linear: sqrt(compute² + memory²) over all layers: a plain max() is 5 to 23 % low at the knee (64 to 256 tokens);
- attention: a fixed time a layer, KV reads of Σc + Σ(x + k), and 4·h·k·(x + k/2) FLOPs a chunk;
- head: n rows; a mixture of experts reads E·(1 − (1 − k/E)^T) experts and computes k;
- link: two all-reduces a layer over `tp`, one hop a pipeline stage; host: a constant and a term per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

import msgspec

from phasemeter.errors import UserError
from phasemeter.serving.hardware import Hardware
from phasemeter.serving.models import ModelShape

RESOURCES = ("compute", "memory_bandwidth", "kv_memory", "link", "host")


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Seconds of one step by what they are spent on; they add up to the step. KV memory is attention's
    reading of KV and its kernels' fixed time."""

    compute_s: float
    memory_bandwidth_s: float
    kv_memory_s: float
    link_s: float
    host_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.memory_bandwidth_s + self.kv_memory_s + self.link_s + self.host_s

    @property
    def binding(self) -> str:
        """The resource with the largest part."""
        values = (self.compute_s, self.memory_bandwidth_s, self.kv_memory_s, self.link_s, self.host_s)
        return RESOURCES[values.index(max(values))]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's model on its accelerators. `step_overhead_s` and `sequence_overhead_s`: None takes the hardware's."""

    model: ModelShape
    hardware: Hardware
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    weight_bytes: float = 2  # a parameter
    kv_bytes: float = 2  # a value of the KV cache
    step_overhead_s: float | None = None
    sequence_overhead_s: float | None = None

    @property
    def accelerators(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def kv_bytes_per_token(self) -> float:
        """KV of one token over all accelerators; KV heads are repeated where `tp` is greater than their number."""
        copies = max(1, self.tensor_parallel // self.model.kv_heads)
        return self.model.kv_bytes_per_token(self.kv_bytes) * copies


def check_parallelism(deployment: Deployment) -> None:
    """Raises UserError when heads, KV heads or layers can't be shared out evenly."""
    model, tp, pp = deployment.model, deployment.tensor_parallel, deployment.pipeline_parallel
    if model.heads % tp:
        raise UserError(f"tensor parallelism {tp} does not divide the {model.heads} heads of {model.name}")
    if model.kv_heads % tp and tp % model.kv_heads:
        raise UserError(f"tensor parallelism {tp} and the {model.kv_heads} KV heads of {model.name} don't divide")
    if pp > model.layers:
        raise UserError(f"pipeline parallelism {pp} is more than the {model.layers} layers of {model.name}")
    if tp > 1 and str(tp) not in deployment.hardware.allreduce:
        known = ", ".join(deployment.hardware.allreduce)
        raise UserError(
            f"no all-reduce time of {deployment.hardware.name} over {tp} is known: tensor_parallel is 1, {known}"
        )


def _roofline(deployment: Deployment, parameters: float, read: float, rows: int) -> tuple[float, float]:
    """(compute, memory) seconds of matrices, the smooth roofline shared by the squares of its legs."""
    hardware, tp = deployment.hardware, deployment.tensor_parallel
    flops_s = 2 * parameters * rows / (tp * hardware.compute_efficiency * hardware.peak_flops_per_s)
    bytes_s = read * deployment.weight_bytes / (tp * hardware.memory_efficiency * hardware.memory_bytes_per_s)
    whole = hypot(flops_s, bytes_s)
    return whole * (flops_s / whole) ** 2, whole * (bytes_s / whole) ** 2


def tiled(tokens: int, tile: int) -> int:
    """Tokens that matrices compute for `tokens`: whole tiles. Up to two tiles kernels have smaller ones, and reading hides the rest.

    A chunk of 257 takes 32 % more than one of 256 on an A100 (Sarathi-Serve, arXiv 2403.02310, section 4.3).
    """
    return tokens if tokens <= 2 * tile else -(-tokens // tile) * tile


def _layers(deployment: Deployment, tokens: int) -> tuple[float, float]:
    model = deployment.model
    read = model.layers * model.read_layer_parameters(tokens)
    rows = tiled(tokens, deployment.hardware.tile_tokens)
    return _roofline(deployment, model.layers * model.active_layer_parameters, read, rows)


def _head(deployment: Deployment, sequences: int) -> tuple[float, float]:
    parameters = deployment.model.head_parameters
    return _roofline(deployment, parameters, parameters, sequences)


def _sequence_s(deployment: Deployment) -> float:
    own = deployment.sequence_overhead_s
    return deployment.hardware.sequence_overhead_s if own is None else own


def kv_read_s_per_token(deployment: Deployment) -> float:
    """Seconds a step spends reading one token of context."""
    hardware = deployment.hardware
    rate = deployment.tensor_parallel * hardware.attention_memory_efficiency * hardware.memory_bytes_per_s
    return deployment.kv_bytes_per_token / rate


def rows_s(deployment: Deployment, sequences: int) -> float:
    """Seconds that a step spends on its sequences apart from their tokens: the head's rows, and the host's work."""
    return sum(_head(deployment, sequences)) + _sequence_s(deployment) * sequences


def pair_s(deployment: Deployment) -> float:
    """Seconds of attention for half a pair of tokens, a new one and one before it (4·h FLOPs a pair and layer)."""
    hardware, model = deployment.hardware, deployment.model
    rate = deployment.tensor_parallel * hardware.attention_compute_efficiency * hardware.peak_flops_per_s
    return model.layers * 2 * model.heads * model.head_dim / rate


def step_parts(
    deployment: Deployment, decodes: int, context_tokens: int, chunks: Sequence[tuple[int, int]] = ()
) -> Parts:
    """What a step of `decodes` sequences with `context_tokens` in all, and of (new, cached) prefill chunks, costs.

    The step's whole latency: through every pipeline stage where there are several.
    """
    model, hardware, tp = deployment.model, deployment.hardware, deployment.tensor_parallel
    new_tokens = sum(new for new, _ in chunks)
    tokens, sequences = decodes + new_tokens, decodes + len(chunks)
    (compute, memory), (head_compute, head_memory) = _layers(deployment, tokens), _head(deployment, sequences)
    compute, memory = compute + head_compute, memory + head_memory
    attended = sum(new * (cached + new / 2) for new, cached in chunks)
    compute += 2 * pair_s(deployment) * attended
    kv = model.layers * hardware.attention_layer_s
    kv += kv_read_s_per_token(deployment) * (context_tokens + sum(cached + new for new, cached in chunks))
    link = 0.0
    moved_bytes = tokens * model.hidden * 2
    if tp > 1:
        link += 2 * model.layers * hardware.allreduce[str(tp)].transfer_s(moved_bytes)
    if deployment.pipeline_parallel > 1:
        link += (deployment.pipeline_parallel - 1) * (10e-6 + moved_bytes / hardware.hop_bytes_per_s)
    step = hardware.step_overhead_s if deployment.step_overhead_s is None else deployment.step_overhead_s
    return Parts(compute, memory, kv, link, step + _sequence_s(deployment) * sequences)


def kv_capacity_tokens(deployment: Deployment, memory_share: float, reserve_bytes: float) -> int:
    """Tokens of KV that fit beside the weights: share · memory − weights − reserve, over all accelerators.

    `reserve_bytes` (activations, CUDA graphs) is per accelerator. Raises UserError when the weights alone don't fit.
    """
    count = deployment.accelerators
    usable = deployment.hardware.memory_bytes * memory_share
    weights = deployment.model.parameters * deployment.weight_bytes / count
    left = usable - weights - reserve_bytes
    if left <= 0:
        room = max(0.0, usable - reserve_bytes)
        raise UserError(
            f"{deployment.model.name} does not fit: its weights take {weights / 1e9:.1f} GB on each of {count} "
            f"{deployment.hardware.name} with room for {room / 1e9:.1f} GB: use more accelerators or fewer bytes a weight"
        )
    return int(left * count / deployment.kv_bytes_per_token)


def activation_reserve_bytes(deployment: Deployment, batched_tokens: int) -> float:
    """What to keep free of KV: 1 GB of runtime, and the widest activations of one step.

    vLLM 0.19 on an RTX 4090 with Llama-3.1-8B and 2,048 batched tokens kept 1.24 GB (LLMServingSim's recorded run).
    """
    model = deployment.model
    widest = 2 * model.intermediate + 4 * model.hidden
    return 1e9 + batched_tokens * 2 * widest / deployment.tensor_parallel
