"""The engine against queueing theory and bookkeeping: M/D/1, M/M/1, Little's law, conservation of tokens and blocks."""

from __future__ import annotations

from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished, Truth
from phasemeter.serving.kv_cache import CountedKv, PagedKv
from phasemeter.serving.kv_reserved import Buddies, ReservedKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime
from tests.serving.workloads import paged

MEAN_NS = 1000


def waits(rate_of_service: float, *, exponential: bool, seed: int) -> list[Truth]:
    """One seat, one token each: a queue with one server whose service is a prefill, at the given utilisation."""
    random = Random(seed)
    engine = Engine(
        POLICIES["vllm_v0"](),
        CountedKv(10**6),
        LinearStepTime(fixed=1, per_new_token=1 << 10),
        Limits(max_num_seqs=1, max_num_batched_tokens=10**6),
    )
    t = 0.0
    for i in range(20_000):
        t += random.expovariate(rate_of_service / MEAN_NS)
        prompt = max(1, round(random.expovariate(1 / MEAN_NS))) if exponential else MEAN_NS
        engine.submit(int(t), Request(request_id=str(i), prompt_tokens=prompt, output_tokens=1, arrival_ns=int(t)))
    return [e.truth for e in engine.advance(1 << 60) if isinstance(e, Finished)]


@pytest.mark.parametrize(("exponential", "factor"), [(False, 0.5), (True, 1.0)])
def test_waiting_is_what_pollaczek_and_khinchine_say(exponential: bool, factor: float) -> None:
    """Mean wait: factor · ρ/(1 − ρ) services, inside three standard errors over independent runs."""
    for load in (0.3, 0.6):
        means = []
        for seed in range(8):
            truths = waits(load, exponential=exponential, seed=seed)
            means.append(fmean(t.prefill_start_ns - t.arrival_ns for t in truths))
        expected = factor * load / (1 - load) * MEAN_NS
        assert abs(fmean(means) - expected) <= 3 * stdev(means) / len(means) ** 0.5 + 2


def test_what_is_in_the_system_is_rate_times_time_in_it() -> None:
    """Little's law, from sampled state on one side and from each request's truth on the other."""
    random, t, inside, samples = Random(3), 0, 0, 0
    model = LinearStepTime(fixed=20 << 10, per_decode=1 << 10, per_new_token=100)
    engine = Engine(POLICIES["vllm_v1"](), CountedKv(4000), model, Limits(max_num_seqs=64))
    truths: list[Truth] = []
    for i in range(4000):
        t += int(random.expovariate(1 / 120)) + 1
        asked = Request(
            request_id=str(i),
            prompt_tokens=random.randrange(1, 300),
            output_tokens=random.randrange(1, 60),
            arrival_ns=t,
        )
        truths += [e.truth for e in engine.advance(t - 1) if isinstance(e, Finished)]
        inside += i - len(truths)  # who has come and not gone: Poisson arrivals see time averages
        samples += 1
        engine.submit(t, asked)
    truths += [e.truth for e in engine.advance(1 << 60) if isinstance(e, Finished)]
    rate = len(truths) / t
    in_it = rate * fmean(x.finish_ns - x.arrival_ns for x in truths)
    assert inside / samples == pytest.approx(in_it, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["vllm_v0", "vllm_v1", "sarathi", "sglang"]), st.booleans())
def test_blocks_and_tokens_are_conserved_at_every_step(seed: int, policy: str, shared: bool) -> None:
    """After its k-th token a sequence holds KV for prompt + k − 1 tokens, in just as many blocks; all blocks are somebody's or free."""
    random = Random(seed)
    kv = paged(policy, 40, 4, prefix_caching=shared)
    engine = Engine(
        POLICIES[policy](), kv, LinearStepTime(fixed=7), Limits(max_num_seqs=6, max_num_batched_tokens=150), tokens=True
    )
    for i in range(15):
        prompt, output = random.randrange(1, 60), random.randrange(1, 60)
        family = random.randrange(3)
        hashes = tuple(hash((family, j)) for j in range((prompt + output) // 4)) if shared else ()
        engine.submit(
            i, Request(request_id=str(i), prompt_tokens=prompt, output_tokens=output, arrival_ns=i, block_hashes=hashes)
        )
    emitted: dict[str, int] = {}
    while (due := engine.due_ns()) is not None:
        for event in engine.advance(due):
            for name in (*getattr(event, "first", ()), *getattr(event, "more", ())):
                emitted[name] = emitted.get(name, 0) + 1
        state = engine.state
        owners = [0] * 40
        for sequence in state.running:
            for block in sequence.table:
                owners[block] += 1
            if sequence._finish_at >= 0:
                assert state.held(sequence) == sequence.prompt_tokens + emitted[sequence._request.request_id] - 1
                assert len(sequence.table) - kv.blocks_for(state.held(sequence)) in {
                    0,
                    1,
                }  # the step in progress may have one
        null = [0] if policy == "vllm_v1" else []
        assert [r for b, r in enumerate(kv.references) if b not in null] == [
            o for b, o in enumerate(owners) if b not in null
        ]
        assert kv.free == len(kv.unowned) == sum(1 for r in kv.references if r == 0)
    assert len(emitted) == 15 and kv.free == kv.total


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_samples_share_their_prompt_and_copy_on_write(seed: int, tight: bool) -> None:
    """Counted and named blocks agree for requests of several samples, and every block comes back."""
    lives = []
    for make in (CountedKv, PagedKv):
        random = Random(seed)
        kv = make(60 if tight else 400, 4)
        engine = Engine(
            POLICIES["vllm_v0"](0.0),
            kv,
            LinearStepTime(fixed=900, per_decode=70, per_swapped_block=9),
            Limits(max_num_seqs=12),
        )
        for i in range(12):
            asked = Request(
                request_id=str(i), prompt_tokens=random.randrange(1, 30), output_tokens=random.randrange(1, 30), arrival_ns=i,
                samples=random.randrange(1, 4),
            )  # fmt: skip
            engine.submit(i, asked)
        lives.append([e.truth for e in engine.advance(1 << 60) if isinstance(e, Finished)])
        assert len(lives[-1]) == 12 and kv.free == kv.total
    assert lives[0] == lives[1]


def test_reserving_less_holds_more_tokens_and_paging_most() -> None:
    """The order of PagedAttention's figure 2: max < pow2 < oracle < paged, under a queue that never empties."""
    shares = {}
    for name in ("max", "pow2", "oracle", "paged"):
        random = Random(1)
        kv: CountedKv | ReservedKv = CountedKv(980) if name == "paged" else ReservedKv(15_700, name, 2048)
        engine = Engine(
            POLICIES["vllm_v0" if name == "paged" else "orca"](), kv, LinearStepTime(fixed=1 << 20), Limits()
        )
        for i in range(400):
            prompt, output = (
                min(1000, int(random.expovariate(1 / 161)) + 1),
                min(1000, int(random.expovariate(1 / 338)) + 1),
            )
            engine.submit(0, Request(request_id=str(i), prompt_tokens=prompt, output_tokens=output, arrival_ns=0))
        seen = []
        for step in range(200, 1200, 20):
            engine.advance(step * 1000 * 1000 // 1000)
            seen.append(engine.kv_shares())
            assert sum(seen[-1]) == pytest.approx(1) and min(seen[-1]) >= 0
        shares[name] = fmean(s.tokens for s in seen)
    assert shares["max"] < shares["pow2"] < shares["oracle"] < shares["paged"]


@given(st.integers(1, 5000), st.lists(st.integers(0, 9), max_size=40))
@settings(max_examples=60, deadline=None)
def test_buddies_never_overlap_and_join_again(slots: int, asked: list[int]) -> None:
    buddies = Buddies(slots)
    before = {size: list(runs) for size, runs in buddies.free.items() if runs}
    taken: list[tuple[int, int]] = []
    for n in asked:
        address = buddies.take(1 << n)
        if address is None:
            continue
        assert all(address + (1 << n) <= a or a + s <= address for a, s in taken) and address + (1 << n) <= slots
        taken.append((address, 1 << n))
    for address, size in taken[::2] + taken[1::2]:
        buddies.give_back(address, size)
    assert {size: list(runs) for size, runs in buddies.free.items() if runs} == before
