"""Model shapes: what one token computes, what a step reads, what a token's KV takes.

Lives here: the record, counts that follow from the shape alone, and the catalogue. Must not live here: time (analytic.py).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from phasemeter.errors import UserError


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only transformer. Counts are per layer unless named otherwise; `experts` is 0 for a dense model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    max_context_tokens: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    source: str = ""

    @property
    def attention_parameters(self) -> int:
        """Q, K, V and output projections of one layer."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def expert_parameters(self) -> int:
        """One expert's (or the dense MLP's) matrices of one layer."""
        return self.hidden * self.intermediate * (3 if self.gated_mlp else 2)

    @property
    def head_parameters(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """All matrices (norms and biases left out: under 0.1 %)."""
        router = self.hidden * self.experts
        layer = self.attention_parameters + router + self.expert_parameters * max(1, self.experts)
        return self.layers * layer + self.head_parameters * (1 if self.tied_embeddings else 2)

    @property
    def active_layer_parameters(self) -> int:
        """What one token multiplies with in one layer."""
        router = self.hidden * self.experts
        return self.attention_parameters + router + self.expert_parameters * max(1, self.experts_per_token)

    def read_layer_parameters(self, tokens: int) -> float:
        """What a step of `tokens` tokens reads of one layer: E·(1 − (1 − k/E)^T) experts, with even routing."""
        if not self.experts:
            return self.attention_parameters + self.expert_parameters
        touched = self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)
        return self.attention_parameters + self.hidden * self.experts + touched * self.expert_parameters

    def kv_bytes_per_token(self, bytes_per_value: float = 2) -> float:
        """KV of one token over all layers: 2 · layers · kv_heads · head_dim · bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value


@cache
def models() -> dict[str, ModelShape]:
    """The catalogue by name."""
    text = (resources.files("phasemeter.serving.catalogue") / "models.json").read_bytes()
    return {one.name: one for one in msgspec.json.decode(text, type=list[ModelShape])}


def model_shape(name: str) -> ModelShape:
    """The shape of `name`: our short name or the hub's ("meta-llama/Llama-3.1-8B", "-Instruct" or "-hf" ignored).

    Raises UserError listing what is known.
    """
    short = name.lower().rsplit("/", 1)[-1]
    for suffix in ("-instruct", "-chat", "-hf", "-v0.1", "-v0.2", "-v0.3"):
        short = short.removesuffix(suffix)
    found = models().get(short) or models().get(short.removesuffix("-instruct"))
    if found is None:
        raise UserError(f"no model `{name}` is known: give its shape, or write one of {', '.join(models())}")
    return found
