"""How many tokens an answer holds: who says so, never a guess."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.metrics.boundaries import row_of_exchange
from phasemeter.metrics.definitions import PER_REQUEST
from phasemeter.metrics.tokens import TokenCounts, bundled_first, count_tokens
from phasemeter.wire.exchange import Asked, Exchange
from tests.wire.streams import DONE, chunk, event, finished, read, usage


class Words:
    """A toy tokenizer: a token is a run of letters, or one other character."""

    name = "words"

    def count(self, text: str) -> int:
        spaced = "".join(c if c.isalpha() else f" {c} " for c in text)
        return len(spaced.split()) + text.count(" ")


def told(*counts: int, **more: Any) -> Exchange:
    """A stream of one chunk every 10 ms with usage on each."""
    events = [((n + 1) * 10.0, event(chunk("x", usage=usage(count)))) for n, count in enumerate(counts)]
    return read([*events, ((len(counts) + 1) * 10.0, finished(counts[-1]))], asked=Asked(**more))


def logprobs(*sizes: int) -> list[tuple[float, bytes]]:
    entry = {"token": "t", "logprob": -0.1}
    made = []
    for number, size in enumerate(sizes):
        choice = {"index": 0, "delta": {"content": "y" * size}, "logprobs": {"content": [entry] * size}}
        made.append((10.0 * (number + 1), event({"choices": [choice]})))
    return made


def test_usage_of_the_server_comes_first() -> None:
    counts = count_tokens(read([*logprobs(2, 1), (40, finished(9))]), Words())
    assert (counts.output_tokens, counts.source, counts.local) == (9, "usage", 1)


def test_without_usage_logprobs_count_and_say_how_many_came_in_each_chunk() -> None:
    counts = count_tokens(read([*logprobs(2, 1, 2), (40, event(chunk(finish="stop")) + DONE)]))
    assert (counts.output_tokens, counts.source, counts.per_event) == (5, "logprobs", ((2, 1, 2),))
    assert counts.warnings == frozenset()


def test_tokens_of_chunks_without_text_are_counted_and_belong_to_the_next_chunk() -> None:
    silent = event({"choices": [{"index": 0, "delta": {"content": ""}, "logprobs": {"content": [{}]}}]})
    first, second = logprobs(1, 1)
    counts = count_tokens(read([first, (15, silent), second, (40, event(chunk(finish="stop")) + DONE)]))
    assert (counts.output_tokens, counts.per_event) == (3, ((1, 2),))


def test_logprobs_beside_some_of_the_text_only_count_nothing() -> None:
    first, second = logprobs(1, 1)
    end = (40.0, event(chunk(finish="stop")) + DONE)
    counts = count_tokens(read([first, (15, event(chunk("z"))), second, end]), None)
    assert (counts.output_tokens, counts.source, counts.per_event) == (None, None, (None,))
    held = event({"choices": [{"index": 0, "delta": {"content": ""}, "logprobs": {"content": [{}]}}]})
    assert count_tokens(read([first, (15, held), (20, event(chunk("z"))), end])).output_tokens == 2  # text held back


def test_a_usage_ahead_of_the_answer_times_no_token() -> None:
    ahead = event({"id": "r", "choices": [], "usage": usage(4)})
    found = read([(5, ahead), (10, event(chunk("a"))), (20, event(chunk("b"))), (30, finished(252))])
    assert (found.first_usage_ns, count_tokens(found).output_tokens) == (None, 252)


def test_token_ids_count_like_logprobs() -> None:
    body = {"choices": [{"index": 0, "text": "ab", "token_ids": [5, 6, 7], "finish_reason": "length"}]}
    counts = count_tokens(read([(1, event(body) + DONE)], asked=Asked(api="openai.completions")))
    assert (counts.output_tokens, counts.source) == (3, "logprobs")


def test_a_choices_total_at_its_end_times_no_first_token_though_another_choice_goes_on() -> None:
    stream = [
        (10.0, event(chunk("a"))), (11, event(chunk("x", index=1))), (20, event(chunk(finish="stop", usage=usage(1)))),
        (30, event(chunk("y", index=1))), (40, event(chunk(index=1, finish="stop", usage=usage(2))) + DONE),
    ]  # fmt: skip
    found = read(stream, asked=Asked(n=2))
    row = row_of_exchange(found, count_tokens(found), "r", 0)
    assert (row.output_tokens, row.first_token_by_usage_ns) == (3, None)


def test_else_the_whole_text_is_counted_once_whatever_the_cut() -> None:
    whole, cut = ["Greetings all"], ["Gree", "tings", " a", "ll"]
    for texts in (whole, cut):
        found = read(
            [*((float(n), event(chunk(text))) for n, text in enumerate(texts)), (9, event(chunk(finish="stop")) + DONE)]
        )
        counts = count_tokens(found, Words())
        assert (counts.output_tokens, counts.source, counts.local) == (3, "tokenizer_full_text", 3)


@given(st.lists(st.text(max_size=6), max_size=6))
def test_a_local_count_does_not_depend_on_the_chunks(texts: list[str]) -> None:
    end = (9.0, event(chunk(finish="stop")) + DONE)
    one = read([(1, event(chunk("".join(texts)))), end])
    many = read([*((float(n), event(chunk(text))) for n, text in enumerate(texts)), end])
    assert count_tokens(one, Words()).local == count_tokens(many, Words()).local


def test_with_nothing_to_count_by_the_count_is_absent_never_the_maximum_or_the_chunks() -> None:
    counts = count_tokens(
        read([(1, event(chunk("a"))), (2, event(chunk(finish="stop")) + DONE)], asked=Asked(max_tokens=512))
    )
    assert (counts.output_tokens, counts.source, counts.per_event) == (None, None, (None,))


def test_a_failed_request_is_credited_with_nothing_it_did_not_count() -> None:
    found = read([(1, event({"error": "x"}) + DONE)], asked=Asked(max_tokens=256))
    assert count_tokens(found).output_tokens is None


def test_usage_on_each_chunk_gives_tokens_per_chunk_and_a_bundled_first_chunk_is_flagged() -> None:
    counts = count_tokens(told(8, 9, 10))
    assert (counts.per_event, counts.warnings) == (((8, 1, 1),), {"first_chunk_bundled"})
    assert count_tokens(told(1, 2, 5)).warnings == frozenset()


def test_tokens_that_came_in_empty_chunks_before_are_not_the_first_chunks() -> None:
    early = [(n + 1.0, event(chunk("", usage=usage(n + 1)))) for n in range(2)]
    found = read(
        [*early, (5, event(chunk("a", usage=usage(3)))), (6, event(chunk("b", usage=usage(4)))), (7, finished(4))]
    )
    counts = count_tokens(found)
    assert (counts.per_event, counts.output_tokens) == (((1, 1),), 4)


def test_usage_over_the_maximum_asked_for_is_impossible_and_its_steps_are_the_count() -> None:
    counts = count_tokens(told(1, 3, 6, 10, 15, max_tokens=5))
    assert (counts.server, counts.output_tokens, counts.trusted) == (15, 5, 5)
    assert counts.source != "usage" and counts.per_event == ((1, 1, 1, 1, 1),)
    assert counts.warnings == {"usage_exceeds_max_tokens"}


def test_a_sum_of_running_counts_is_noticed_without_a_maximum_too() -> None:
    assert count_tokens(told(1, 3, 6, 10)).warnings == {"usage_cumulative_sum"}
    assert count_tokens(told(1, 2, 3, 4)).warnings == frozenset()
    assert count_tokens(told(2, 4, 6, 8)).warnings == frozenset()


def test_impossible_usage_gives_way_to_a_local_count_and_stays_shown() -> None:
    found = read([(1, event(chunk("a b"))), (2, event(chunk(" c"))), (3, finished(99))], asked=Asked(max_tokens=8))
    counts = count_tokens(found, Words())
    assert (counts.output_tokens, counts.source, counts.server) == (5, "tokenizer_full_text", 99)
    alone = count_tokens(found)
    assert (alone.output_tokens, alone.source, alone.warnings) == (99, "usage", {"usage_exceeds_max_tokens"})


def test_n_choices_may_use_n_times_the_maximum() -> None:
    events = [(0.5, event(chunk("a"))), (1.0, event(chunk("b", index=1)))]
    end = event(chunk(finish="length")) + event(chunk(index=1, finish="length"))
    end += event({"choices": [], "usage": usage(10)}) + DONE
    assert count_tokens(read([*events, (2, end)], asked=Asked(n=2, max_tokens=5))).warnings == frozenset()


def test_reasoning_counted_but_not_streamed_is_hidden_and_the_rest_is_visible() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 100}}
    counts = count_tokens(read([(n * 1.0, event(chunk("a"))) for n in (50, 52, 54)] + [(55, finished(103, **details))]))
    assert (counts.output_tokens, counts.hidden_reasoning, counts.visible) == (103, True, 3)
    assert counts.warnings == {"hidden_reasoning"}


@pytest.mark.parametrize(("count", "noticed"), [(2, True), (4, True), (5, False), (10, False)])
def test_far_fewer_tokens_counted_than_chunks_of_text_is_noticed(count: int, noticed: bool) -> None:
    texts = [(n * 1.0, event(chunk("a"))) for n in range(10)]
    counts = count_tokens(read([*texts, (11, finished(count))]))
    assert (counts.output_tokens, counts.source) == (count, "usage")
    assert counts.warnings == ({"usage_below_chunks"} if noticed else frozenset())
    assert count_tokens(read([*texts[:7], (11, finished(1))])).warnings == frozenset()


def test_reasoning_that_a_total_shows_beside_the_completion_tokens_is_output_all_the_same() -> None:
    beside = {"completion_tokens_details": {"reasoning_tokens": 89}, "total_tokens": 7 + 3 + 89}
    texts = [(n * 1.0, event(chunk("a"))) for n in (50, 52, 54)]
    counts = count_tokens(read([*texts, (55, finished(3, **beside))], asked=Asked(max_tokens=3)))
    assert (counts.output_tokens, counts.reasoning, counts.visible) == (92, 89, 3)
    assert counts.warnings == {"hidden_reasoning"}
    none_left = {"completion_tokens_details": {"reasoning_tokens": 60}, "total_tokens": 7 + 60}
    assert count_tokens(read([(9, finished(0, "length", **none_left))])).output_tokens == 60
    inside = {"completion_tokens_details": {"reasoning_tokens": 2}}
    assert count_tokens(read([*texts, (55, finished(3, **inside))])).output_tokens == 3


def responses(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, name=kind)


def test_a_summary_of_reasoning_is_none_of_the_tokens_counted() -> None:
    told = {"input_tokens": 7, "output_tokens": 102, "output_tokens_details": {"reasoning_tokens": 100}}
    end = responses("response.completed", response={"status": "completed", "usage": told})
    answer = [
        (50, responses("response.output_text.delta", delta="a")),
        (52, responses("response.output_text.delta", delta="b")),
    ]
    summary = [(n * 1.0, responses("response.reasoning_summary_text.delta", delta="t")) for n in (1, 2)]
    found = read([*summary, *answer, (53, end)], asked=Asked(api="openai.responses"))
    counts = count_tokens(found)
    assert (counts.output_tokens, counts.hidden_reasoning, counts.visible) == (102, True, 2)
    row = row_of_exchange(found, counts, "r", 0)
    assert PER_REQUEST["visible_tpot"](row) == pytest.approx(0.002)
    streamed = [(n * 1.0, responses("response.reasoning_text.delta", delta="t")) for n in (1, 2)]
    assert not count_tokens(read([*streamed, *answer, (53, end)], asked=Asked(api="openai.responses"))).hidden_reasoning


@pytest.mark.parametrize("kind", ["reasoning.summary", "reasoning.encrypted"])
@pytest.mark.parametrize("counted", [True, False])
def test_details_that_say_their_reasoning_is_a_summary_or_sealed_make_it_hidden(kind: str, counted: bool) -> None:
    said = {"reasoning": "Plan", "reasoning_details": [{"type": kind, "summary": "Plan"}]}
    sealed = {"content": "", "reasoning_details": [{"type": kind, "data": "xx"}]}
    opening = (1.0, event(chunk(delta=said if kind == "reasoning.summary" else sealed)))
    details = {"completion_tokens_details": {"reasoning_tokens": 100}} if counted else {}
    counts = count_tokens(
        read([opening, (5, event(chunk("a"))), (6, event(chunk("b"))), (7, finished(102, **details))])
    )
    assert counts.hidden_reasoning is (counted or kind == "reasoning.encrypted")
    assert counts.visible == (2 if counted else None)


def test_sealed_reasoning_of_a_response_is_hidden_though_nobody_counts_it() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "xx"}
    end = {"status": "completed", "usage": {"input_tokens": 7, "output_tokens": 102}}
    found = read(
        [
            (5, responses("response.output_item.done", output_index=0, item=sealed)),
            (50, responses("response.output_text.delta", output_index=1, delta="a")),
            (52, responses("response.output_text.delta", output_index=1, delta="b")),
            (53, responses("response.completed", response=end)),
        ],
        asked=Asked(api="openai.responses"),
    )
    assert count_tokens(found).warnings == {"hidden_reasoning"}


def test_token_ids_count_where_the_list_of_logprobs_is_empty() -> None:
    def piece(text: str, ids: list[int], finish: str | None = None) -> bytes:
        told = {"index": 0, "text": text, "finish_reason": finish, "logprobs": {"tokens": []}, "token_ids": ids}
        return event({"choices": [told]})

    stream = [(1.0, piece("a", [5])), (2.0, piece("bc", [6, 7], "length"))]
    counts = count_tokens(read(stream, asked=Asked(api="openai.completions")))
    assert (counts.output_tokens, counts.source, counts.per_event) == (3, "logprobs", ((1, 2),))


def test_the_logprobs_of_an_echoed_prompt_are_no_output_even_in_the_chunk_that_goes_on() -> None:
    def piece(text: str, told: dict[str, Any], finish: str | None = None) -> bytes:
        return event({"choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": told}]})

    rest = (2.0, piece("b", {"tokens": ["b"], "text_offset": [6]}, "length"))
    asked = Asked(api="openai.completions", echo_prompt="Once ")
    first = {"tokens": ["On", "ce ", "a"], "text_offset": [0, 2, 5]}
    counts = count_tokens(read([(1.0, piece("Once a", first)), rest], asked=asked))
    assert (counts.output_tokens, counts.per_event) == (2, ((1, 1),))
    counts = count_tokens(read([(1.0, piece("Once a", {"tokens": ["On", "ce ", "a"]})), rest], asked=asked))
    assert (counts.output_tokens, counts.per_event) == (None, (None,))


def test_reasoning_that_was_streamed_and_said_again_as_its_summary_counts_once_and_is_not_hidden() -> None:
    item = {"type": "reasoning", "summary": [{"text": "hm"}], "content": [{"text": "hm"}]}
    told = {"input_tokens": 7, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}}
    end = (60, responses("response.completed", response={"status": "completed", "usage": told}))
    answer = [(50 + n, responses("response.output_text.delta", output_index=1, delta=t)) for n, t in enumerate("ab")]
    again = [
        (12, responses("response.reasoning_summary_text.delta", output_index=0, delta="hm")),
        (13, responses("response.output_item.done", output_index=0, item=item)),
    ]
    spoken = [(10 + n, responses("response.reasoning_text.delta", output_index=0, delta=t)) for n, t in enumerate("hm")]
    for opening in ([*spoken, *again], again[1:]):
        found = read([*opening, *answer, end], asked=Asked(api="openai.responses"))
        counts = count_tokens(found)
        assert (found.reasoning, counts.hidden_reasoning) == ("hm", False)


def messages(block: dict[str, Any], delta: dict[str, Any] | None, usage: dict[str, Any], **opening: int) -> TokenCounts:
    """The counts of an Anthropic answer of two texts after a block (with a delta) that may be thinking."""
    start = {"input_tokens": 5, "output_tokens": 1, **opening}
    events = [
        event({"type": "message_start", "message": {"usage": start}}),
        event({"type": "content_block_start", "index": 0, "content_block": block}),
    ]
    events += [event({"type": "content_block_delta", "index": 0, "delta": delta})] if delta else []
    texts = [
        event({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": t}}) for t in "ab"
    ]
    end = event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}) + event(
        {"type": "message_stop"}
    )
    reads = [*events, *texts, end]
    return count_tokens(
        read([(float(n), data) for n, data in enumerate(reads, 1)], asked=Asked(api="anthropic.messages"))
    )


def test_sealed_thinking_is_hidden_whether_or_not_it_is_counted() -> None:
    signed = {"type": "signature_delta", "signature": "x"}
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    told = {"output_tokens": 52, "output_tokens_details": {"thinking_tokens": 50}}
    counted = messages(thinking, signed, told, cache_read_input_tokens=10)
    assert (counted.hidden_reasoning, counted.reasoning, counted.visible) == (True, 50, 2)
    for block, delta in ((thinking, signed), ({"type": "redacted_thinking", "data": "x"}, None)):
        found = messages(block, delta, {"output_tokens": 52})
        assert (found.hidden_reasoning, found.visible, found.warnings) == (True, None, {"hidden_reasoning"})
    shown = messages(thinking, {"type": "thinking_delta", "thinking": "hm"}, {"output_tokens": 52})
    assert not shown.hidden_reasoning
    assert not messages({"type": "text", "text": ""}, None, {"output_tokens": 2}).hidden_reasoning


def test_reasoning_that_was_streamed_is_not_hidden_under_whichever_name() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    for delta in ({"reasoning": "a"}, {"reasoning_content": "a"}, {"content": "<think>"}):
        events = [(n * 1.0, event(chunk(delta=delta))) for n in (1, 2)]
        counts = count_tokens(read([*events, (3, event(chunk("x"))), (4, finished(3, **details))]))
        assert not counts.hidden_reasoning and counts.warnings == frozenset()


def test_a_whole_answer_in_one_read_is_not_incremental_unless_it_is_one_token() -> None:
    assert count_tokens(read([(9, event(chunk("long answer")) + finished(200))])).warnings == {"stream_not_incremental"}
    assert count_tokens(read([(9, event(chunk("a")) + finished(1))])).warnings == frozenset()
    whole = json.dumps(
        {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": usage(9)}
    ).encode()
    assert count_tokens(read([(9, whole)], asked=Asked(stream=False))).warnings == frozenset()


def choices(*counts: int) -> list[tuple[float, bytes]]:
    return [(1.0 + n, event(chunk("x", index=i))) for i, count in enumerate(counts) for n in range(count)]


@pytest.mark.parametrize(
    ("events", "total", "per_choice"),
    [((3, 3), 6, (3, 3)), ((3, 3), 12, (6, 6)), ((3, 1), 4, (3, 1)), ((3, 1), 8, (None, None))],
)
def test_a_total_is_shared_among_choices_only_as_the_events_show(
    events: tuple[int, int], total: int, per_choice: tuple[int | None, int | None]
) -> None:
    end = (
        event(chunk(finish="stop"))
        + event(chunk(index=1, finish="stop"))
        + event({"choices": [], "usage": usage(total)})
        + DONE
    )
    counts = count_tokens(read([*sorted(choices(*events)), (9, end)], asked=Asked(n=2)))
    assert (counts.output_tokens, counts.per_choice) == (total, per_choice)


def test_usage_of_one_choice_for_several_is_noticed_and_multiplied() -> None:
    end = (
        event(chunk(finish="stop"))
        + event(chunk(index=1, finish="stop"))
        + event({"choices": [], "usage": usage(3)})
        + DONE
    )
    counts = count_tokens(read([*sorted(choices(3, 3)), (9, end)], asked=Asked(n=2)))
    assert (counts.output_tokens, counts.per_choice, counts.warnings) == (6, (3, 3), {"usage_counts_one_choice"})


def test_usage_on_each_choices_own_chunk_is_summed() -> None:
    end = event(chunk(finish="stop", usage=usage(2))) + event(chunk(index=1, finish="stop", usage=usage(5))) + DONE
    counts = count_tokens(read([*sorted(choices(2, 3)), (9, end)], asked=Asked(n=2)))
    assert (counts.output_tokens, counts.per_choice) == (7, (2, 5))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_tokens_per_chunk_add_up_to_the_usage(sizes: list[int]) -> None:
    running = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    counts = count_tokens(told(*running))
    if not counts.warnings & {"usage_cumulative_sum"}:
        assert counts.per_event == (tuple(sizes),) and counts.output_tokens == sum(sizes)
    assert ("first_chunk_bundled" in counts.warnings) == (bundled_first(counts.per_event[0]))


def test_counts_that_fall_say_nothing_about_chunks() -> None:
    assert count_tokens(told(5, 3, 6)).per_event == (None,)
    assert count_tokens(told(1, 1, 1)).per_event == (None,)
