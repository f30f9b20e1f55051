"""Bounds on what a deployment can carry, before anything is simulated.

Lives here: arithmetic on a cost model and a mean workload. Must not live here: queues (serving/), searches (goodput_search).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, inf

import msgspec

from phasemeter.serving.analytic import Deployment, kv_read_s_per_token, pair_s
from phasemeter.serving.demand import Demand, Draws
from phasemeter.serving.deploy import cost_of
from phasemeter.serving.plan import Plan, Pool, pools_of
from phasemeter.serving.sequence import Request
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


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one arrival asks for, on average: a request, or a conversation's requests together.

    `decode_tokens`: answers without their first tokens, each a step's row; `contexts`: the contexts of those steps added up, `own` the
    same without the prompts; `squares`: the prompts' squared lengths.
    """

    requests: float
    input_tokens: float
    decode_tokens: float
    contexts: float
    own: float
    squares: float


def first_requests(demand: Demand, seed: int, most: int = 2000) -> list[Request]:
    """The workload's first requests. What conversations have said before is left out."""
    plain = msgspec.structs.replace(demand, named=False, prefix=None)
    drawn = Draws(plain, seed)
    return [drawn.request(index, 0) for index in range(min(most, plain.most() or most))]


def work_of(requests: Sequence[Request], arrivals: float, turns: int = 1) -> Work:
    """Averages over `requests`, those that are served of so many `arrivals` (conversations of so many `turns`, what was said before
    left out: it only adds)."""
    sums = [0.0] * 5
    for one in requests:
        prompt, more = one.prompt_tokens, one.output_tokens - 1
        for place, value in enumerate(
            (prompt, more, more * prompt + more * more / 2, more * more / 2, prompt * prompt)
        ):
            sums[place] += value
    means = [turns * one / max(1.0, arrivals) for one in sums]
    return Work(
        requests=turns * len(requests) / max(1.0, arrivals), input_tokens=means[0], decode_tokens=means[1], contexts=means[2],
        own=means[3], squares=means[4],
    )  # fmt: skip


def shared(work: Work) -> Work:
    """The same where a prefix cache may hold every prompt: nobody computes it, nobody's memory holds it twice."""
    return msgspec.structs.replace(work, input_tokens=0.0, squares=0.0)


def least_busy_s(pool: Pool, work: Work, most: int, resident: float) -> float:
    """Seconds of one engine's steps that one arrival needs at least, whatever the schedule; 0 where step times are tables.

    `most`: sequences that run together; `resident`: token-steps of KV that one arrival holds. A step serves at most `most` of them
    and holds at most the pool's KV, so an arrival needs max(decodes / most, resident / pool) steps of its own, each of which reads
    the weights once. Matrices cost hypot(compute, reading) a step, and a sum of hypots is never below the hypot of the sums
    (Minkowski). Chunks of a prompt cost as much attention as the prompt whole, or more.
    """
    if pool.tables is not None:
        return 0.0
    kv_tokens = pool.kv_tokens // pool.deployment.pipeline_parallel
    steps = max(work.decode_tokens / most, resident / max(1, kv_tokens))
    lines = pool.step_time.linear
    if lines is not None:
        decodes = [lines.decode_s] + ([lines.decode_large_s] if lines.decode_large_s is not None else [])
        constant, context, sequence = (min(float(values[at]) for values in decodes) for at in range(3))
        _, per_token, per_square = lines.prefill_s
        prompts = per_token * work.input_tokens + per_square * work.squares
        answers = context * work.contexts + sequence * work.decode_tokens + constant * steps
        return pool.step_time.scale * (prompts + answers)
    return pool.step_time.scale * _least_by_formula_s(pool.deployment, work, steps)


def _least_by_formula_s(one: Deployment, work: Work, steps: float) -> float:
    model, hardware, tp = one.model, one.hardware, one.tensor_parallel
    tokens, rows = work.input_tokens + work.decode_tokens, work.requests + work.decode_tokens
    flops_per_s = tp * hardware.compute_efficiency * hardware.peak_flops_per_s
    bytes_per_s = tp * hardware.memory_efficiency * hardware.memory_bytes_per_s
    compute_s = 2 * (model.layers * model.active_layer_parameters * tokens + model.head_parameters * rows) / flops_per_s
    read = (model.layers * model.read_layer_parameters(1) + model.head_parameters) * one.weight_bytes
    seconds = hypot(compute_s, steps * read / bytes_per_s)
    seconds += pair_s(one) * work.squares + kv_read_s_per_token(one) * (work.contexts + work.input_tokens)
    seconds += steps * model.layers * hardware.attention_layer_s
    if tp > 1:
        link = hardware.allreduce[str(tp)]
        seconds += 2 * model.layers * (steps * link.latency_s + tokens * model.hidden * 2 / link.bytes_per_s)
    step = hardware.step_overhead_s if one.step_overhead_s is None else one.step_overhead_s
    each = hardware.sequence_overhead_s if one.sequence_overhead_s is None else one.sequence_overhead_s
    return seconds + steps * step + each * rows


def ceiling_per_s(plan: Plan, work: Work) -> float:
    """Arrivals a second that the plan's deployment can't carry more of in the long run, under any schedule; inf: none is known."""
    spec, pools = plan.deployment, pools_of(plan)
    most, cached = spec.max_num_seqs or 256, spec.prefix_cache
    asked = shared(work) if cached else work
    found = inf
    for name, pool in pools.items():
        own, resident = asked, asked.own if cached else asked.contexts
        if name == "prefill":
            own = msgspec.structs.replace(asked, decode_tokens=0.0, contexts=0.0, own=0.0)
            resident = 0.0
        elif name == "decode":
            own = msgspec.structs.replace(asked, requests=0.0, input_tokens=0.0, squares=0.0)
        busy_s = least_busy_s(pool, own, most, resident)
        if busy_s > 0:
            found = min(found, pool.replicas * pool.deployment.pipeline_parallel / busy_s)
    return found


def likely_per_s(plan: Plan, work: Work) -> float:
    """Arrivals a second around which a search may begin where no ceiling is known: full batches, each pool for itself."""
    found = inf
    for name, pool in pools_of(plan).items():
        cost, engines = cost_of(pool), pool.replicas * pool.deployment.pipeline_parallel
        prompt, answer = work.input_tokens / work.requests, work.decode_tokens / work.requests + 1
        if name == "prefill":
            one_s = cost.step_s(0, 0, [(max(1, round(prompt)), 0)])
            found = min(found, pool.replicas / one_s / work.requests)
            continue
        kv_tokens = pool.kv_tokens // pool.deployment.pipeline_parallel
        bound = throughput_bound(cost, kv_tokens, prompt, answer, plan.deployment.max_num_seqs or 256)
        found = min(found, engines * bound.requests_per_s / work.requests)
    return found
