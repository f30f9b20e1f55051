"""SGLang's radix cache: what is found when, what is kept once, what goes first."""

from __future__ import annotations

import pytest

from phasemeter.errors import UserError
from phasemeter.serving.engine import Engine
from phasemeter.serving.events import Finished, Preempted, Truth
from phasemeter.serving.kv_cache import PagedKv
from phasemeter.serving.kv_radix import RadixKv
from phasemeter.serving.policies import POLICIES
from phasemeter.serving.sequence import Request
from phasemeter.serving.state import Limits
from phasemeter.serving.step_shape import LinearStepTime

SIZE = 4
MODEL = LinearStepTime(fixed=10 << 10, per_new_token=1 << 10)  # 10 ns a step and 1 ns a prompt token


def asked(name: str, prompt: int, output: int, at_ns: int, names: tuple[int, ...], cap: int | None = None) -> Request:
    return Request(request_id=name, prompt_tokens=prompt, output_tokens=output, arrival_ns=at_ns, block_hashes=names,
                   max_tokens=output if cap is None else cap)  # fmt: skip


def live(kv: RadixKv, requests: list[Request], seats: int = 8) -> dict[str, Truth]:
    engine = Engine(POLICIES["sglang"](), kv, MODEL, Limits(max_num_seqs=seats))
    for request in requests:
        engine.submit(request.arrival_ns, request)
    return {e.request_id: e.truth for e in engine.advance(1 << 50) if isinstance(e, Finished)}


def test_who_is_prefilled_together_shares_nothing_and_who_comes_after_does() -> None:
    names = tuple(range(10))
    kv = RadixKv(100, SIZE)
    found = live(kv, [asked("a", 40, 9, 0, names), asked("b", 40, 9, 0, names), asked("c", 40, 9, 60, names)])
    assert [found[name].cached_tokens for name in "abc"] == [0, 0, 36]  # the last token is always computed
    assert found["a"].first_token_ns == found["b"].first_token_ns == 10 + 80


def test_what_was_computed_twice_is_kept_once() -> None:
    names = tuple(range(10))
    kv = RadixKv(100, SIZE)
    engine = Engine(POLICIES["sglang"](), kv, MODEL, Limits())
    for name in "ab":
        engine.submit(0, asked(name, 40, 9, 0, names))
    engine.advance(0)
    assert kv.total - kv.free == 20
    engine.submit(91, asked("c", 3, 1, 91, ()))
    engine.advance(105)
    assert kv.total - kv.free == 10 + 2 + 1  # the prompt, a block of answer each, and the newcomer's
    engine.advance(1 << 50)
    assert kv.free == kv.total and len(kv.block_of) == 10


def test_an_answer_is_found_when_it_is_whole_and_not_before() -> None:
    names = tuple(range(30))
    first = asked("a", 20, 21, 0, names[:10])
    longer = [asked("early", 44, 2, 180, (*names[:10], 99)), asked("late", 44, 2, 10_000, (*names[:10], 98))]
    found = live(RadixKv(100, SIZE), [first, *longer])
    assert found["a"].finish_ns > found["early"].prefill_start_ns
    assert (found["early"].cached_tokens, found["late"].cached_tokens) == (20, 40)


def test_a_full_batch_takes_nobody_before_the_decode_step_after_an_end() -> None:
    """SGLang filters its batch when it decodes: the seat of who ended is free one decode step later."""
    requests = [asked("short", 4, 3, 0, ()), asked("long", 4, 9, 0, ()), asked("next", 8, 2, 5, ())]
    found = live(RadixKv(100, SIZE), requests, seats=2)
    assert found["short"].finish_ns == 18 + 10 + 10
    assert found["next"].prefill_start_ns == found["short"].finish_ns + 10
    alone = live(RadixKv(100, SIZE), [requests[0], requests[2]], seats=1)
    assert alone["next"].prefill_start_ns == alone["short"].finish_ns  # nobody is left to decode


def test_a_queue_keeps_its_order_while_no_seat_is_free() -> None:
    """What begins with a cached prefix isn't put first while nobody could start: by the time of a seat the prefix is gone."""
    names = tuple(range(4))
    requests = [asked("old", 16, 1, 0, names), asked("runs", 4, 44, 40, ())]
    requests += [asked("first", 8, 2, 95, ()), asked("second", 17, 2, 95, names)]
    found = live(RadixKv(12, SIZE), requests, seats=1)
    assert found["second"].cached_tokens == 0
    assert found["runs"].finish_ns == found["first"].prefill_start_ns < found["second"].prefill_start_ns


def test_who_is_retracted_finds_its_prompt_again_but_not_its_answer() -> None:
    """The guess is that a tenth of an answer will come: two answers of 26 tokens outgrow 18 blocks after 20 each."""
    kv = RadixKv(18, SIZE)
    engine = Engine(POLICIES["sglang"](ratio=0.1), kv, MODEL, Limits())
    engine.submit(0, asked("stays", 16, 26, 0, tuple(range(10))))
    engine.submit(40, asked("goes", 16, 26, 40, tuple(range(20, 30))))
    engine.advance(1)
    assert not engine.state.waiting
    events = engine.advance(1 << 50)
    truths = {e.request_id: e.truth for e in events if isinstance(e, Finished)}
    assert (truths["stays"].preemptions, truths["goes"].preemptions) == (0, 1)
    (at_ns,) = [e.at_ns for e in events if isinstance(e, Preempted)]
    emitted = 1 + (at_ns - truths["goes"].first_token_ns) // 10
    left_ns = 10 * (26 - emitted - 1)
    computed_ns = truths["goes"].finish_ns - truths["stays"].finish_ns - left_ns
    assert computed_ns == 10 + emitted  # its prompt is cached, its answer so far is not


def test_a_prompt_that_is_looked_up_outlives_one_that_is_not() -> None:
    """Two prompts stay behind; the one that a waiting request begins with is used, so the other one makes room."""
    one, two = tuple(range(10)), tuple(range(20, 30))
    kv = RadixKv(30, SIZE)
    requests = [asked("a", 40, 1, 0, one), asked("b", 40, 1, 100, two), asked("c", 41, 1, 200, one)]
    requests += [asked("d", 60, 1, 300, ()), asked("e", 41, 1, 500, one), asked("f", 41, 1, 600, two)]
    found = live(kv, requests)
    assert found["c"].cached_tokens == found["e"].cached_tokens == 40
    assert found["f"].cached_tokens < 40


def test_sglang_takes_no_blocks_that_are_named_before_they_are_computed() -> None:
    with pytest.raises(UserError, match="RadixKv"):
        Engine(POLICIES["sglang"](), PagedKv(10), MODEL, Limits())
