"""Clusters lose nothing, repeat themselves, and keep the theory of queues."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.serving.cluster import Replicas, Split
from phasemeter.serving.events import Event, Finished, Tokens
from phasemeter.serving.hardware import Link
from phasemeter.serving.routers import ROUTERS, prefix_affinity, round_robin, shortest_queue
from phasemeter.serving.sequence import Request
from tests.serving.plain_engine import PlainEngine, fixed, request

MS = 1_000_000
FREE_LINK = Link(latency_s=0.0, bytes_per_s=1e30)


def drive(serving: Replicas | Split | PlainEngine, requests: list[Request]) -> list[Event]:
    events: list[Event] = []
    for one in requests:
        events += serving.advance(one.arrival_ns)
        serving.submit(one.arrival_ns, one)
    while (due := serving.due_ns()) is not None:
        events += serving.advance(due)
    return events


def finished(events: list[Event]) -> dict[str, Finished]:
    return {one.request_id: one for one in events if isinstance(one, Finished)}


WORK = st.lists(st.tuples(st.integers(0, 30 * MS), st.integers(1, 300), st.integers(1, 12)), min_size=1, max_size=40)


def requests_of(work: list[tuple[int, int, int]]) -> list[Request]:
    found, now = [], 0
    for number, (gap, prompt, output) in enumerate(work):
        now += gap
        found.append(request(number, now, prompt, output))
    return found


def step(decodes: int, contexts: int, new: int) -> int:
    return 5 * MS + 1000 * decodes + 10 * contexts + 20_000 * new


def split_of(prefill: int, decode: int, kv: int = 2000, stages: int = 1) -> Split:
    return Split(
        [PlainEngine(step, kv, role="prefill") for _ in range(prefill)],
        [PlainEngine(step, kv, role="decode") for _ in range(decode)],
        Link(latency_s=0.001, bytes_per_s=1e9),
        1e5,
        stages,
    )


@settings(max_examples=60, deadline=None)
@given(WORK, st.sampled_from(sorted(ROUTERS)), st.integers(1, 4))
def test_replicas_finish_every_request_once_with_all_its_tokens(
    work: list[tuple[int, int, int]], router: str, n: int
) -> None:
    requests = requests_of(work)
    replicas = Replicas([PlainEngine(step, 2000) for _ in range(n)], ROUTERS[router])
    events = drive(replicas, requests)
    made = [one for event in events if isinstance(event, Tokens) for one in (*event.first, *event.more)]
    assert {one.request_id: made.count(one.request_id) for one in requests} == {
        r.request_id: r.output_tokens for r in requests
    }
    assert len(finished(events)) == len(requests) and replicas.outstanding == [0] * n


@settings(max_examples=60, deadline=None)
@given(WORK, st.integers(1, 3), st.integers(1, 3))
def test_a_split_finishes_every_request_in_the_order_of_its_phases(
    work: list[tuple[int, int, int]], p: int, d: int
) -> None:
    requests = requests_of(work)
    split = split_of(p, d)
    events = drive(split, requests)
    done = finished(events)
    assert set(done) == {one.request_id for one in requests} and not split.moving
    assert split.in_prefill == [0] * p and split.in_decode == [0] * d
    assert all(not engine.kv for engine in (*split.prefill, *split.decode) if isinstance(engine, PlainEngine))
    for one in split.handovers:
        truth = done[one.request_id].truth
        assert truth.prefill_start_ns < truth.first_token_ns <= one.prefilled_ns <= one.pull_ns < one.delivered_ns
        assert one.delivered_ns < truth.finish_ns
        size = 1e5 * truth.prompt_tokens
        assert one.delivered_ns - one.pull_ns >= round(1e9 * (0.001 + size / 1e9))


@settings(max_examples=30, deadline=None)
@given(WORK)
def test_events_of_a_cluster_come_in_order_of_time(work: list[tuple[int, int, int]]) -> None:
    requests = requests_of(work)
    for serving in (Replicas([PlainEngine(step) for _ in range(3)], round_robin), split_of(2, 2)):
        instants = [one.at_ns for one in drive(serving, requests) if isinstance(one, Finished)]
        assert all(a <= b for a, b in pairwise(instants))


def over(link: Link) -> Split:
    """One prefill and one decode engine, 1000 bytes of KV a token, steps of a millisecond."""
    engines = [[PlainEngine(fixed(MS, MS), role=role)] for role in ("prefill", "decode")]
    return Split(*engines, link, 1000.0, 1)


def test_one_transfer_at_a_time_leaves_a_prefill_engine() -> None:
    split = over(Link(latency_s=0.0, bytes_per_s=1e6))
    drive(split, [request(i, 0, prompt=100, output=3) for i in range(3)])  # 100 tokens: 100 ms on the link
    ends = sorted(one.delivered_ns for one in split.handovers)
    assert ends[0] == 101 * MS and [b - a for a, b in pairwise(ends)] == [100 * MS, 100 * MS]


def test_latency_of_a_link_delays_each_transfer_and_keeps_none_waiting() -> None:
    split = over(Link(latency_s=0.5, bytes_per_s=1e8))
    drive(split, [request(i, 0, prompt=100, output=3) for i in range(3)])  # 100 tokens: 1 ms on the link
    ends = sorted(one.delivered_ns for one in split.handovers)
    assert ends[0] == 502 * MS and [b - a for a, b in pairwise(ends)] == [MS, MS]


def test_routers_see_counts_and_never_the_future() -> None:
    plain = request(0, 0)
    assert [round_robin([0, 0, 0], i, plain) for i in range(4)] == [0, 1, 2, 0]
    assert shortest_queue([2, 1, 1], 9, plain) == 1
    shared = Request(request_id="a", prompt_tokens=32, output_tokens=1, arrival_ns=0, block_hashes=(7, 8))
    assert prefix_affinity([3, 3, 3], 0, shared) == 7 % 3
    assert prefix_affinity([0, 50, 0], 0, shared) == 0  # affinity gives way to load
    assert prefix_affinity([5, 0, 5], 0, plain) == 1


def poisson(rate_per_s: float, n: int, seed: int) -> list[Request]:
    rng, now, found = random.Random(seed), 0.0, []
    for number in range(n):
        now += rng.expovariate(rate_per_s)
        found.append(request(number, round(now * 1e9), output=1))
    return found


def mean_ttft(split: Split, requests: list[Request]) -> float:
    times = [one.truth.first_token_ns - one.truth.arrival_ns for one in finished(drive(split, requests)).values()]
    return sum(times) / len(times) / 1e9


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("kind", ["single", "pipeline", "tensor"])
def test_ttft_follows_distserves_three_equations(kind: str, load: float) -> None:
    """arXiv 2401.09670, equations 1 to 3: M/D/1, two pipeline stages, K-way tensor parallelism with K = 2 here."""
    d, n = 0.05, 20_000
    r = load / d
    expected = {
        "single": d + r * d**2 / (2 * (1 - r * d)),
        "pipeline": d + r * d**2 / (4 * (2 - r * d)),
        "tensor": d / 2 + r * d**2 / (4 * (2 - r * d)),
    }[kind]
    step_s, stages = {"single": (d, 1), "pipeline": (d / 2, 2), "tensor": (d / 2, 1)}[kind]
    engine = PlainEngine(fixed(round(step_s * 1e9), MS), role="prefill")
    split = Split([engine], [PlainEngine(fixed(MS, MS), role="decode")], FREE_LINK, 0.0, stages)
    assert mean_ttft(split, poisson(r, n, 3)) == pytest.approx(expected, rel=0.02)
