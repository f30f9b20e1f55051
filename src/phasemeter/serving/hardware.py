"""Accelerators: peaks from datasheets, efficiencies from measured kernels, links from measured all-reduces.

Lives here: the record and its catalogue. Must not live here: the formula that uses it (analytic.py).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from phasemeter.errors import UserError


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What one transfer takes: `latency_s + bytes / bytes_per_s`; only its bytes keep the next one waiting."""

    latency_s: float
    bytes_per_s: float

    def transfer_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bytes_per_s


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator. Peaks are dense 16-bit; efficiencies are shares of them that kernels were seen to reach.

    `attention_layer_s` is an attention kernel's fixed time a layer, `step_overhead_s` and `sequence_overhead_s` are host
    software (they belong to an engine more than to an accelerator: a plan may override them). `allreduce` is keyed by the
    number of accelerators.
    """

    name: str
    peak_flops_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    compute_efficiency: float
    memory_efficiency: float
    attention_memory_efficiency: float
    attention_compute_efficiency: float
    attention_layer_s: float
    step_overhead_s: float
    sequence_overhead_s: float
    allreduce: dict[str, Link]
    hop_bytes_per_s: float  # one pipeline hop, or a KV transfer inside a node
    sources: tuple[str, ...]
    tile_tokens: int = 1  # matrices compute whole tiles of so many tokens, from two tiles on


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


@cache
def accelerators() -> dict[str, Hardware]:
    """The catalogue by name."""
    text = (resources.files("phasemeter.serving.catalogue") / "hardware.json").read_bytes()
    return {one.name: one for one in msgspec.json.decode(text, type=list[Hardware])}


def accelerator(name: str) -> Hardware:
    """The accelerator called `name`; case, spaces and dashes don't matter.

    Raises UserError listing what is known.
    """
    found = {_key(one): hardware for one, hardware in accelerators().items()}.get(_key(name))
    if found is None:
        raise UserError(f"no accelerator `{name}` is known: write one of {', '.join(accelerators())}")
    return found
