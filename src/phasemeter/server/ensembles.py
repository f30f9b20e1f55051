"""Triton counts a request once for the model that was asked and once for each step behind it.

Lives here: which models of a page are steps of others, by the names of TensorRT-LLM's own model repository. Must not live here:
reading pages, adding up.
Source: the metrics pages in triton-inference-server/tensorrtllm_backend issues 49 and 284.
"""

from __future__ import annotations

from collections.abc import Mapping

ASKED = ("ensemble", "tensorrt_llm_bls")  # what clients call
STEPS = ("preprocessing", "postprocessing", "tensorrt_llm")  # what those call


def steps(values: Mapping[str, float]) -> set[str]:
    """Of models with the requests that each served, those whose requests are another's steps; none if nobody asked for the whole."""
    if any(values.get(model, 0) > 0 for model in ASKED):
        return {model for model in values if model in STEPS}
    return set()
