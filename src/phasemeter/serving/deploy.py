"""From a checked plan to something that serves.

Lives here: which step time, KV pool, policy and cluster a plan means. Must not live here: the plan's keys (plan.py), engines.

Pipeline stages: a replica of `pp` stages is `pp` engines with a share of its KV each, whose batches follow each other through
the stages (DistServe's disjoint batches): a step takes the whole way through, and bubbles between uneven batches are left
out. A prefill engine of a split is one engine at the pace of a stage (cluster.Split delays what leaves it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.errors import UserError
from phasemeter.serving.analytic import Parts
from phasemeter.serving.cluster import Replicas, Serving, Split
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Event, Finished
from phasemeter.serving.hardware import Link
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_radix import RadixKv
from phasemeter.serving.kv_reserved import RULES, ReservedKv
from phasemeter.serving.meter import Meter, added
from phasemeter.serving.plan import Plan, Pool, link_of, pools_of
from phasemeter.serving.policies.distserve import DistserveDecode, DistservePrefill
from phasemeter.serving.policies.orca import Orca
from phasemeter.serving.policies.request_level import RequestLevel
from phasemeter.serving.policies.sarathi import Sarathi
from phasemeter.serving.policies.sglang import Sglang
from phasemeter.serving.policies.vllm_v0 import VllmV0
from phasemeter.serving.policies.vllm_v1 import VllmV1
from phasemeter.serving.routers import ROUTERS
from phasemeter.serving.samples import Families
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Kv, Limits, Policy
from phasemeter.serving.step_shape import ns_of_ticks
from phasemeter.serving.step_time import AnalyticCost, Chunks, CostLine, CostModel, LinearCost, TickedCost
from phasemeter.serving.tables import TableCost

POLICIES: dict[str, Callable[..., Policy]] = {
    "request_level": RequestLevel,
    "orca": Orca,
    "vllm_v0": VllmV0,
    "vllm_v1": VllmV1,
    "sarathi": Sarathi,
    "sglang": Sglang,
}
POOL_POLICIES: dict[str, Callable[..., Policy]] = {
    "distserve_prefill": DistservePrefill,
    "distserve_decode": DistserveDecode,
}
CHUNKED = {"sarathi", "sglang"}  # their token budget is an option of the policy

FANNED = {
    "vllm_v1": False,
    "sglang": True,
}  # samples are requests of their own; whether a prompt is computed before them


class StageCost:
    """One of `stages` equal pipeline stages of a cost model: each part takes so much less time."""

    def __init__(self, whole: CostModel, stages: float) -> None:
        self.whole, self.stages = whole, stages

    def cost_line(self, decodes: int, context_tokens: int) -> CostLine:
        line = self.whole.cost_line(decodes, context_tokens)
        return CostLine(line.base_s / self.stages, line.slope_s / self.stages, line.start, line.end)

    def step_s(self, decodes: int, context_tokens: int, chunks: Chunks) -> float:
        return self.whole.step_s(decodes, context_tokens, chunks) / self.stages

    def parts(self, decodes: int, context_tokens: int, chunks: Chunks) -> Parts:
        values = self.whole.parts(decodes, context_tokens, chunks)
        n = self.stages
        return Parts(*(getattr(values, name) / n for name in Parts.__struct_fields__))


def cost_of(pool: Pool) -> CostModel:
    """The pool's fitted lines or profiled tables where the plan gives them, else the formula; scaled where it says so."""
    found, scale = _plain_cost(pool), pool.step_time.scale
    return found if scale == 1 else StageCost(found, 1 / scale)


def _plain_cost(pool: Pool) -> CostModel:
    linear = pool.step_time.linear
    if pool.tables is not None:
        one, hardware = pool.deployment, pool.deployment.hardware
        step = hardware.step_overhead_s if one.step_overhead_s is None else one.step_overhead_s
        each = hardware.sequence_overhead_s if one.sequence_overhead_s is None else one.sequence_overhead_s
        return TableCost(pool.tables, step, each)
    return AnalyticCost(pool.deployment) if linear is None else LinearCost(linear)


def build(plan: Plan, *, tokens: bool, sample_every: int = 0) -> Serving:
    """A fresh deployment; `tokens`: it tells every token; `sample_every`: if not, its engines remember the tokens of one request in so
    many (`token_times`; 0: of none).

    Raises UserError with the path for a policy, an option or a router that isn't known.
    """
    spec, pools = plan.deployment, pools_of(plan)
    if spec.split is not None:
        prefill, decode = pools["prefill"], pools["decode"]
        latency_s, bytes_per_s = link_of(spec.split)
        stages = prefill.deployment.pipeline_parallel
        return Split(
            [_engine(plan, prefill, "distserve_prefill", tokens) for _ in range(prefill.replicas)],
            [_engine(plan, decode, "distserve_decode", tokens) for _ in range(_engines(decode))],
            Link(latency_s=latency_s, bytes_per_s=bytes_per_s),
            decode.deployment.kv_bytes_per_token,
            stages,
            first_from_decode=spec.split.first_token == "decode",
        )
    router = ROUTERS.get(spec.router)
    if router is None:
        raise UserError(f"`deployment.router`: `{spec.router}` is none I know: write {', '.join(ROUTERS)}")
    pool = pools["all"]
    engines = [_engine(plan, pool, plan.policy, tokens) for _ in range(_engines(pool))]
    if sample_every and not tokens:
        for engine in engines:
            engine.log, engine.sample_every = SegmentLog(), sample_every
    return Replicas(engines, router)


def token_times(serving: Serving) -> dict[int, npt.NDArray[np.int64]]:
    """The instants (ns) of the tokens of those requests that were sampled, by the number in their id. Pools of a split sample none."""
    if not isinstance(serving, Replicas):
        return {}
    found: dict[int, npt.NDArray[np.int64]] = {}
    for engine in serving.engines:
        if isinstance(engine, Replica) and engine.log is not None and engine.sampled:
            found |= zip(engine.sampled, engine.log.tokens_ns(list(engine.sampled.values())), strict=True)
    return found


def _engines(pool: Pool) -> int:
    return pool.replicas * pool.deployment.pipeline_parallel


Coming = tuple[int, tuple[str, ...], tuple[str, ...]]  # (when, who gets the first token, who gets a further one)


def coming(serving: Serving) -> Coming | None:
    """The next step's tokens, where one engine alone ends a step at the next instant and nothing else can happen before."""
    if not isinstance(serving, Replicas):
        return None
    due = serving.due_ns()
    ending = [e for e in serving.engines if e.due_ns() == due]
    if due is None or len(ending) != 1 or not isinstance(ending[0], Replica):
        return None
    return ending[0].coming()


class Replica(Engine):
    """An engine that tells its load, and what its step in progress will give. `sampled`: the spans of one request in `sample_every`,
    by the number in its id (demand.Draws), to be read with the log.
    """

    sample_every = 0

    @cached_property
    def sampled(self) -> dict[int, tuple[tuple[int, int], ...]]:
        return {}

    def advance(self, now_ns: int) -> list[Event]:
        told = super().advance(now_ns)
        if self.sample_every:
            for event in told:
                if isinstance(event, Finished) and not (number := int(event.request_id[1:])) % self.sample_every:
                    self.sampled[number] = event.truth.spans
        return told

    def coming(self) -> Coming | None:
        """Who will get a token when the step in progress ends: the `Tokens` of that instant, already settled. None: no step."""
        if not self._busy:
            return None
        running = self.state.running if self._decoding else ()
        more = tuple(s._request.request_id for s in running if s._finish_at >= 0)
        first = tuple(s._request.request_id for s, new in self._chunks if s.computed + new == s.target)
        return ns_of_ticks(self._end_t), first, more

    def load(self) -> tuple[int, int, float]:
        """(running, waiting, share of KV blocks in use)."""
        state = self.state
        arrived = sum(what in {"waiting", "offer"} for _, what, _ in self._inbox)
        waiting = len(state.waiting) + len(state.swapped) + len(state.unpulled) + arrived
        return len(state.running), waiting, 1 - state.kv.free / state.kv.total


class Fanned(Replica):
    """A replica whose requests of several samples run as requests of their own (`samples`)."""

    families: Families

    def submit(self, now_ns: int, request: Request) -> None:
        if request.samples == 1:
            super().submit(now_ns, request)
            return
        self.check(msgspec.structs.replace(request, samples=1))
        for one in self.families.split(request, self.state.kv.block_size):
            super().submit(now_ns, one)

    def advance(self, now_ns: int) -> list[Event]:
        if not self.families.by_id:
            return super().advance(now_ns)
        told: list[Event] = []
        while (due := self.due_ns()) is not None and due <= now_ns:
            heard, coming = self.families.hear(super().advance(due))
            told += heard
            for one in coming:  # what was submitted for a later instant goes on waiting in line
                super().submit(max(due, self._inbox[-1][0] if self._inbox else 0), one)
        return told

    def abort(self, now_ns: int, request_id: str) -> bool:
        members = self.families.members(request_id)
        if members is None:
            return super().abort(now_ns, request_id)
        return sum(super(Fanned, self).abort(now_ns, one) for one in members) > 0

    def coming(self) -> Coming | None:
        return None if self.families.by_id else super().coming()


def _engine(plan: Plan, pool: Pool, policy_name: str, tokens: bool) -> Replica:
    spec = plan.deployment
    options = {} if policy_name in POOL_POLICIES else dict(spec.policy_options)
    if policy_name == "distserve_decode" and spec.split is not None:
        options["emits_first"] = spec.split.first_token == "decode"
    reserve = options.pop("reserve", "max")
    if policy_name in CHUNKED and spec.max_num_batched_tokens is not None:
        options.setdefault("chunk_size", spec.max_num_batched_tokens)
    policy = _policy(policy_name, options)
    limits = Limits(
        max_num_seqs=spec.max_num_seqs or 256,
        max_num_batched_tokens=spec.max_num_batched_tokens or 8192,
        max_model_len=spec.max_model_len,
    )
    cost: CostModel = cost_of(pool)
    kv_tokens, stages = pool.kv_tokens, pool.deployment.pipeline_parallel
    if policy.prefill_only:
        cost = StageCost(cost, stages) if stages > 1 else cost
    else:
        kv_tokens //= stages
    kv, ticked = _kv(plan, pool, policy, kv_tokens, reserve), TickedCost(cost)
    if not tokens:
        silent = Replica(policy, kv, ticked, limits)
        silent.requests_only = True
        return silent
    meter = Meter(ticked)
    if policy_name not in FANNED:
        return Replica(policy, kv, meter, limits, tokens=True, log=meter)
    fanned = Fanned(policy, kv, meter, limits, tokens=True, log=meter)
    fanned.families = Families(prompt_first=FANNED[policy_name])
    return fanned


def metered(serving: Serving) -> Serving:
    """The same, fresh deployment, whose engines add up what their steps are spent on (`spent`) though they tell no tokens."""
    engines: Sequence[object] = ()
    if isinstance(serving, Replicas):
        engines = serving.engines
    elif isinstance(serving, Split):
        engines = (*serving.prefill, *serving.decode)
    for engine in engines:
        if isinstance(engine, Replica) and isinstance(engine.step_time, TickedCost):
            engine.step_time = engine.log = Meter(engine.step_time)
    return serving


def spent(serving: Serving) -> dict[str, dict[str, dict[str, float]]]:
    """By pool ("all", or "prefill" and "decode"): what its steps were spent on. Empty for a deployment that neither tells tokens
    nor is `metered`."""
    pools: dict[str, Sequence[object]] = {}
    if isinstance(serving, Replicas):
        pools = {"all": serving.engines}
    elif isinstance(serving, Split):
        pools = {"prefill": serving.prefill, "decode": serving.decode}
    meters = {
        name: [e.log for e in pool if isinstance(e, Engine) and isinstance(e.log, Meter)]
        for name, pool in pools.items()
    }
    return {name: added(found) for name, found in meters.items() if found}


def _policy(name: str, options: dict[str, object]) -> Policy:
    make = POLICIES.get(name) or POOL_POLICIES.get(name)
    if make is None:
        raise UserError(f"`deployment.policy`: `{name}` is none I know: write {', '.join(POLICIES)}")
    try:
        return make(**options)
    except TypeError as error:
        raise UserError(f"`deployment.policy_options`: {name} takes no {', '.join(options)}") from error


def _kv(plan: Plan, pool: Pool, policy: Policy, kv_tokens: int, reserve: object) -> Kv:
    spec = plan.deployment
    blocks = max(1, kv_tokens // spec.block_size)
    if policy.reserves:
        if reserve not in RULES:
            raise UserError(f"`deployment.policy_options.reserve`: `{reserve}`: write {', '.join(RULES)}")
        longest = spec.max_model_len or pool.deployment.model.max_context_tokens
        return ReservedKv(kv_tokens, str(reserve), longest)
    cached = spec.prefix_cache and not isinstance(policy, DistserveDecode)  # what is pulled is whole
    make = CountedKv if not cached else RadixKv if isinstance(policy, Sglang) else PagedKv
    return make(blocks, spec.block_size)
