"""Nothing is lost and nothing made up: blocks and tokens after every move, under any order of arrivals, departures and steps."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Aborted, Event, Finished, Tokens, Truth
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime, ticks_of_ns
from phasemeter.stats.distributions import t_quantile
from tests.serving.workloads import paged

BLOCKS, SIZE, LONGEST = 40, 4, 60
ALONE = [name for name in POLICIES if not name.startswith("distserve")]
RESERVING = {"orca", "request_level"}


class Served(RuleBasedStateMachine):
    """An engine that is told of requests, departures and time in any order; every token is counted as it is told."""

    @initialize(
        policy=st.sampled_from(ALONE), names=st.sampled_from(["counted", "named", "cached"]), seats=st.integers(1, 8)
    )
    def begin(self, policy: str, names: str, seats: int) -> None:
        self.policy = policy
        self.kv: CountedKv | ReservedKv = CountedKv(BLOCKS, SIZE)
        if policy in RESERVING:
            self.kv = ReservedKv(BLOCKS * SIZE, "max", LONGEST, block_size=SIZE)
        elif names != "counted":
            self.kv = paged(policy, BLOCKS, SIZE, prefix_caching=names == "cached")
        limits = Limits(max_num_seqs=seats, max_num_batched_tokens=LONGEST + 20)
        model = LinearStepTime(fixed=ticks_of_ns(5), per_decode=300, per_new_token=200)
        self.engine = Engine(POLICIES[policy](), self.kv, model, limits, tokens=True)
        self.now = 0
        self.asked: dict[str, Request] = {}
        self.emitted: dict[str, int] = {}
        self.over: dict[str, str] = {}

    @rule(prompt=st.integers(1, LONGEST - 1), output=st.integers(1, LONGEST - 1), family=st.integers(0, 2))
    def submit(self, prompt: int, output: int, family: int) -> None:
        output = min(output, LONGEST - prompt)
        name = f"r{len(self.asked)}"
        shared = prompt // SIZE // 2
        names = [hash((family, i)) for i in range(shared)]
        names += [hash((len(self.asked), 7, i)) for i in range(shared, (prompt + output) // SIZE)]
        self.asked[name] = Request(
            request_id=name, prompt_tokens=prompt, output_tokens=output, arrival_ns=self.now, block_hashes=tuple(names)
        )
        self.emitted[name] = 0
        self.engine.submit(self.now, self.asked[name])

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 10**6))
    def leave(self, which: int) -> None:
        self.engine.abort(self.now, f"r{which % len(self.asked)}")

    @rule(ns=st.integers(1, 60))
    def time_passes(self, ns: int) -> None:
        self.now += ns
        self.hear(self.engine.advance(self.now))

    @rule()
    def a_step_ends(self) -> None:
        if (due := self.engine.due_ns()) is not None:
            self.now = max(self.now, due)
            self.hear(self.engine.advance(self.now))

    def hear(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                for name in (*event.first, *event.more):
                    self.emitted[name] += 1
            elif isinstance(event, Finished):
                assert self.emitted[event.request_id] == self.asked[event.request_id].output_tokens
                assert self.over.setdefault(event.request_id, "finished") == "finished"
            elif isinstance(event, Aborted):
                assert event.request_id not in self.over
                self.over[event.request_id] = "left"

    @invariant()
    def every_block_is_somebodys_or_free(self) -> None:
        state, kv = self.engine.state, self.kv
        least = most = 0
        for sequence in state.running:
            if isinstance(kv, ReservedKv):
                least += kv.held_blocks(sequence, 0)
                most += kv.held_blocks(sequence, 0)
            elif sequence._finish_at >= 0:  # the step in progress may have its block already
                least += kv.blocks_for(state.held(sequence))
                most += kv.blocks_for(state.held(sequence) + 1)
            else:
                least += sequence.blocks
                most += sequence.blocks
        if not isinstance(kv, PagedKv):
            assert least <= kv.total - kv.free <= most
            return
        owners = [0] * BLOCKS
        for sequence in state.running:
            for block in sequence.table:
                owners[block] += 1
        assert least <= sum(owners) <= most
        null = [] if self.policy != "vllm_v1" else [0]
        assert [r for b, r in enumerate(kv.references) if b not in null] == [
            o for b, o in enumerate(owners) if b not in null
        ]
        assert kv.free == len(kv.unowned) == sum(1 for r in kv.references if not r)

    @invariant()
    def a_sequence_holds_its_prompt_and_all_but_its_last_token(self) -> None:
        for sequence in self.engine.state.running:
            if sequence._finish_at >= 0 and self.policy != "request_level":  # there all hold what the longest does
                name = sequence._request.request_id
                assert self.engine.state.held(sequence) == sequence.prompt_tokens + self.emitted[name] - 1

    @invariant()
    def seats_are_kept(self) -> None:
        state = self.engine.state
        assert len(state.running) == state.seats <= state.limits.max_num_seqs

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.hear(self.engine.advance(1 << 50))
        assert set(self.over) == set(self.asked) and self.engine.due_ns() is None
        assert self.kv.free == self.kv.total and not self.engine.state.seats


TestConservation = Served.TestCase
TestConservation.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v1", "sarathi", "orca"])
def test_littles_law_holds_in_every_stage(policy: str) -> None:
    """How many are waiting, in prefill, decoding (seen from the state at random instants) = rate × time in it (each request's truth).

    Within 2 % over all replications, and the interval between replications covers the difference.
    """
    stages = ("queue", "prefill", "decode", "whole")
    differences: dict[str, list[float]] = {stage: [] for stage in stages}
    seen_all: dict[str, list[float]] = {stage: [] for stage in stages}
    for seed in range(10):
        seen, told = stage_counts(policy, seed)
        for stage in stages:
            differences[stage].append(seen[stage] - told[stage])
            seen_all[stage].append(told[stage])
    for stage in stages:
        difference, level = differences[stage], fmean(seen_all[stage])
        spread = (sum((one - fmean(difference)) ** 2 for one in difference) / (len(difference) - 1)) ** 0.5
        half = t_quantile(0.995, len(difference) - 1) * spread / len(difference) ** 0.5
        assert abs(fmean(difference)) <= 0.02 * level, (stage, fmean(difference), level)
        assert abs(fmean(difference)) <= half + 1e-9, (stage, fmean(difference), half)


def stage_counts(policy: str, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """(mean number in each stage as seen, the same from rate and time) of one run of a busy engine that starts and ends empty."""
    random, t = Random(seed), 0
    kv: CountedKv | ReservedKv = ReservedKv(16_000, "oracle", 400) if policy == "orca" else CountedKv(4000)
    model = LinearStepTime(fixed=20 << 10, per_decode=1 << 10, per_new_token=150)
    engine = Engine(POLICIES[policy](), kv, model, Limits(max_num_seqs=12))
    arrivals = []
    for _ in range(1500):
        t += int(random.expovariate(1 / 140)) + 1
        arrivals.append(t)
    looks = sorted(random.randrange(t) for _ in range(12_000))
    counts = {"queue": 0, "prefill": 0, "decode": 0}
    truths: list[Truth] = []
    at = 0
    for look in looks:
        while at < len(arrivals) and arrivals[at] <= look:
            now = arrivals[at]
            truths += [e.truth for e in engine.advance(now - 1) if isinstance(e, Finished)]
            engine.submit(
                now,
                Request(
                    request_id=str(at),
                    prompt_tokens=random.randrange(1, 300),
                    output_tokens=random.randrange(1, 60),
                    arrival_ns=now,
                ),
            )
            at += 1
        truths += [e.truth for e in engine.advance(look) if isinstance(e, Finished)]
        running, decoding = len(engine.state.running), engine.state.decodes.count
        counts["decode"] += decoding
        counts["prefill"] += running - decoding
        counts["queue"] += at - len(truths) - running
    truths += [e.truth for e in engine.advance(1 << 60) if isinstance(e, Finished)]
    assert not sum(truth.preemptions for truth in truths)
    seen = {stage: count / len(looks) for stage, count in counts.items()} | {"whole": sum(counts.values()) / len(looks)}

    def spent(begin: str, end: str) -> float:
        return sum(max(0, min(getattr(one, end), t) - min(getattr(one, begin), t)) for one in truths) / t

    told = {
        "queue": spent("arrival_ns", "prefill_start_ns"),
        "prefill": spent("prefill_start_ns", "first_token_ns"),
        "decode": spent("first_token_ns", "finish_ns"),
        "whole": spent("arrival_ns", "finish_ns"),
    }
    return seen, told


def test_with_one_seat_all_policies_are_one_queue() -> None:
    """One request at a time: who comes first is served first, by everybody alike, to the nanosecond."""
    for seed in range(30):
        random, t, asked = Random(seed), 0, []
        for number in range(25):
            t += random.randrange(3000)
            asked.append(
                Request(
                    request_id=str(number),
                    prompt_tokens=random.randrange(1, 200),
                    output_tokens=random.randrange(1, 40),
                    arrival_ns=t,
                )
            )
        model = LinearStepTime(
            fixed=random.randrange(1, 20_000),
            per_decode=77,
            per_context=random.randrange(50),
            per_new_token=900,
            per_pair=3,
        )
        lives = {}
        for policy in ALONE:
            kv = ReservedKv(4096, "max", 256) if policy in RESERVING else CountedKv(256)
            engine = Engine(POLICIES[policy](), kv, model, Limits(max_num_seqs=1))
            for request in asked:
                engine.submit(request.arrival_ns, request)
            truths = [e.truth for e in engine.advance(1 << 60) if isinstance(e, Finished)]
            lives[policy] = [
                (one.request_id, one.prefill_start_ns, one.first_token_ns, one.finish_ns) for one in truths
            ]
        assert len({tuple(life) for life in lives.values()}) == 1, seed
