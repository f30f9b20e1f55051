"""Bounds on what a deployment can carry, before anything is simulated.

Lives here: arithmetic on a cost model and a mean workload. Must not live here: queues (serving/), searches (goodput_search).
"""

from __future__ import annotations

import msgspec

from phasemeter.serving.step_time import CostModel


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """`requests_per_s` no schedule exceeds in the long run; `binding` is the resource that its steps spend most time on."""

    requests_per_s: float
    batch: int
    step_s: float
    binding: str


def throughput_bound(cost: CostModel, kv_tokens: int, input_tokens: float, output_tokens: float, most: int) -> Bound:
    """The steady state with the KV pool full: `batch` sequences of mean context, each step prefilling as much as ends.

    A sequence's mean KV is input + output / 2. In steady state a step of b decodes finishes b / output requests, so it
    prefills b · input / output tokens. `most`: the limit on running sequences.
    """
    context = input_tokens + output_tokens / 2
    batch = max(1, min(most, int(kv_tokens / context)))
    new = max(1, round(batch * input_tokens / output_tokens))
    parts = cost.parts(batch, round(batch * context), [(new, 0)])
    return Bound(
        requests_per_s=batch / output_tokens / parts.total_s, batch=batch, step_s=parts.total_s, binding=parts.binding
    )
