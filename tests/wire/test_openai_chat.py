"""Chat streams as servers really send them: what is output, what only looks like it."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from phasemeter.wire.exchange import Asked
from tests.wire.streams import DONE, MS, chunk, event, finished, read, usage


def ms(value: int | None) -> float | None:
    return None if value is None else value / MS


def test_a_role_only_chunk_starts_no_clock() -> None:
    role = chunk(delta={"role": "assistant", "content": ""})
    found = read([(10, event(role)), (50, event(chunk("a"))), (70, event(chunk("b"))), (71, finished(2))])
    assert (ms(found.first_chunk_ns), ms(found.first_token_ns), ms(found.last_token_ns)) == (10, 50, 70)
    assert found.content == "ab" and found.warnings == frozenset() and found.outcome == "ok"


def test_role_and_text_in_one_chunk_are_output() -> None:
    both = chunk(delta={"role": "assistant", "content": "a"})
    assert ms(read([(10, event(both)), (12, finished(1))]).first_token_ns) == 10


def test_keep_alive_comments_start_no_clock() -> None:
    found = read([(10, b": ping\n\n"), (20, b":\n\n"), (30, event(chunk("a"))), (31, finished(1))])
    assert (ms(found.first_chunk_ns), ms(found.first_token_ns)) == (30, 30)


def test_empty_data_and_named_heartbeats_carry_nothing() -> None:
    beats = b"data:\n\ndata: \n\nevent: ping\ndata: still here\n\nevent: heartbeat\ndata: {}\n\n"
    found = read([(1, beats), (5, event(chunk("a", finish=""))), (6, finished(1))])
    assert (found.outcome, found.warnings, ms(found.first_token_ns)) == ("ok", frozenset(), 5)


def test_a_finish_chunk_and_a_late_usage_chunk_move_neither_the_last_token_nor_the_gaps() -> None:
    late = event({"id": "r", "choices": [], "usage": usage(2)}) + DONE
    found = read([(10, event(chunk("a"))), (20, event(chunk("b"))), (25, event(chunk(finish="stop"))), (500, late)])
    assert (ms(found.last_token_ns), ms(found.stream_end_ns), ms(found.usage_ns)) == (20, 500, 500)
    assert len(found.choices[0].reads) == 2


def test_several_events_in_one_read_share_its_time_and_half_an_event_waits() -> None:
    half = event(chunk("c"))
    found = read([(10, event(chunk("a")) + event(chunk("b")) + half[:9]), (30, half[9:]), (31, finished(3))])
    assert [t / MS for t in found.times_of(found.choices[0])] == [10, 10, 30]
    assert found.choices[0].reads == [0, 0, 1]


def test_a_character_split_over_reads_is_whole() -> None:
    raw = event(chunk("晴れ☀️"))
    at = raw.index("れ".encode()) + 1
    assert read([(1, raw[:at]), (2, raw[at:]), (3, finished(2))]).content == "晴れ☀️"


def test_half_surrogates_of_two_chunks_are_joined_and_a_lone_one_is_marked() -> None:
    halves = [b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
              b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00"}}]}\n\n']  # fmt: skip
    assert read([(1, halves[0]), (2, halves[1]), (3, finished(1))]).content == "😀"
    assert read([(1, halves[0]), (3, finished(1))]).content == "\ufffd"


def test_invalid_utf8_is_replaced_with_a_warning() -> None:
    broken = b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n'
    found = read([(1, broken), (2, finished(1))])
    assert (found.outcome, found.content, found.warnings) == ("ok", "\ufffd", {"invalid_utf8"})


def test_nan_in_a_chunk_is_absent_rather_than_the_end_of_the_stream() -> None:
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":NaN}]}\n\n'
    assert read([(1, odd), (2, finished(1))]).content == "a"


def test_events_that_a_gateway_framed_again_are_read_with_a_warning() -> None:
    framed = [(t, b"data:" * depth + b" " + event(chunk(text))) for t, depth, text in ((10, 1, "a"), (20, 3000, "b"))]
    found = read([*framed, (30, b"data: " + event(chunk(finish="stop")) + b"data: " + DONE)])
    assert (found.content, found.outcome, ms(found.last_token_ns)) == ("ab", "ok", 20)
    assert found.warnings == {"repeated_data_prefix"}


def test_an_error_body_over_several_lines_between_the_events_fails_in_its_own_words() -> None:
    body = b'{\n  "error": {\n    "message": "out of context"\n  }\n}\n'
    found = read([(10, event(chunk("a"))), (20, body)])
    assert (found.failure, found.failure_text) == ("server_error_in_stream", "out of context")
    page = read([(10, event(chunk("a"))), (20, b"<html>502</html>\n")])
    assert page.failure == "truncated_stream" and "<html>502</html>" in str(page.failure_text)


def test_whole_documents_on_lines_of_one_event_are_chunks_of_their_own() -> None:
    one, two = json.dumps(chunk("k")), json.dumps(chunk("v"))
    found = read([(10, f"data: {one}\ndata: {two}\n\n".encode()), (14, event(chunk("!"))), (15, finished(3))])
    assert (found.content, found.warnings) == ("kv!", {"missing_blank_line"})
    assert [t / MS for t in found.times_of(found.choices[0])] == [10, 10, 14]


def test_a_stream_without_any_blank_line_keeps_each_lines_own_time() -> None:
    lines = [f"data: {json.dumps(chunk(text))}\n".encode() for text in "ab"]
    end = f"data: {json.dumps(chunk(finish='stop'))}\ndata: [DONE]\n".encode()
    found = read([(10, lines[0]), (20, lines[1]), (21, end)])
    assert found.outcome == "ok" and found.warnings == {"missing_blank_line", "unterminated_last_event"}
    assert [t / MS for t in found.times_of(found.choices[0])] == [10, 20]


def test_one_document_over_several_data_lines_is_one_chunk() -> None:
    found = read([(1, b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n'), (2, finished(1))])
    assert (found.content, found.warnings) == ("a", frozenset())


def test_the_last_event_without_its_blank_line_counts_with_a_warning() -> None:
    last = json.dumps(chunk(finish="stop", usage=usage(1)))
    for tail in (f"data: {last}", f"data: {last}\n"):
        found = read([(1, event(chunk("a"))), (2, tail.encode())], at=9)
        assert (found.outcome, found.completion_tokens, ms(found.stream_end_ns)) == ("ok", 1, 9)
        assert found.warnings == {"missing_done", "unterminated_last_event"}


def test_half_an_event_at_the_end_is_dropped() -> None:
    found = read([(1, event(chunk("a"))), (2, event(chunk("b"))[:-9])])
    assert (found.outcome, found.failure, found.content, found.warnings) == (
        "failed",
        "truncated_stream",
        "a",
        frozenset(),
    )


def test_nothing_after_done_is_output_and_a_second_done_is_no_matter() -> None:
    extra = DONE + event({"perf_metrics": {"x": 1}}) + event(chunk("late"))
    found = read([(1, event(chunk("a"))), (2, finished(1) + extra)])
    assert (found.content, found.warnings, found.timings) == ("a", {"data_after_done"}, {"perf_metrics": {"x": 1}})
    assert read([(1, event(chunk("a"))), (2, finished(1) + DONE)]).warnings == frozenset()


def test_usage_that_comes_only_after_done_is_taken_with_a_warning() -> None:
    late = event({"choices": [], "usage": usage(2)})
    found = read([(1, event(chunk("a"))), (2, event(chunk("b", finish="stop")) + DONE), (9, late)])
    assert (found.completion_tokens, found.warnings, ms(found.stream_end_ns)) == (2, {"data_after_done"}, 2)
    first = read([(1, event(chunk("a"))), (2, finished(1) + event({"choices": [], "usage": usage(7)}))])
    assert (first.completion_tokens, first.warnings) == (1, frozenset())


def test_the_transcript_of_spoken_output_is_output() -> None:
    said = [(t, event(chunk(delta={"audio": {"id": "x", "transcript": word}}))) for t, word in ((3, "a"), (5, "b"))]
    found = read([*said, (6, finished(2))])
    assert (found.content, ms(found.first_output_ns), ms(found.last_token_ns), found.warnings) == (
        "ab",
        3,
        5,
        frozenset(),
    )


def test_sound_without_words_and_pictures_are_output() -> None:
    for delta in ({"audio": {"id": "s", "data": "UklG"}}, {"content": "", "images": [{"type": "image_url"}]}):
        found = read([(10, event(chunk(delta=delta))), (20, event(chunk("b"))), (30, finished(9))])
        assert (ms(found.first_token_ns), found.content, found.silent_chunks) == (10, "b", 0)


def test_a_finish_reason_written_as_the_text_null_is_none() -> None:
    cut = [(10, event(chunk("a", finish="null"))), (20, event(chunk("b", finish="null")))]
    assert read(cut).failure == "truncated_stream"
    assert read([*cut, (30, finished(2))]).finish_reason == "stop"


def test_an_error_in_groqs_own_field_fails() -> None:
    last = chunk(finish="stop", x_groq={"id": "r", "error": "over capacity"})
    found = read([(10, event(chunk("a"))), (20, event(last) + DONE)])
    assert (found.failure, found.failure_text) == ("server_error_in_stream", "over capacity")


def test_the_end_mark_ends_the_stream_however_long_the_connection_lives() -> None:
    found = read([(1, event(chunk("a"))), (2, finished(1))], close="timeout_idle", at=9000)
    assert (found.outcome, ms(found.stream_end_ns)) == ("ok", 2)


def test_null_means_absent_everywhere() -> None:
    nulls = chunk(delta=None, usage=None) | {"system_fingerprint": None}
    text = chunk(delta={"content": "a", "tool_calls": None, "reasoning_content": None, "refusal": None, "role": None})
    bare = {"choices": [{"index": 0}], "usage": None}
    found = read([(1, event(nulls)), (2, event(text)), (3, event("null") + event(bare) + finished(1))])
    assert (found.content, ms(found.first_token_ns), found.warnings) == ("a", 2, frozenset())


def test_content_filter_chunks_are_no_output() -> None:
    first = {"id": "", "choices": [], "prompt_filter_results": [{}]}
    tail = {"id": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]}
    found = read([(1, event(first)), (5, event(chunk("a", finish="stop"))), (90, event(tail) + DONE)])
    assert (ms(found.first_token_ns), ms(found.last_token_ns), ms(found.stream_end_ns)) == (5, 5, 90)
    assert (found.finish_reason, found.response_id) == ("stop", "r")


def test_reasoning_under_either_name_starts_the_clock_but_is_no_output_proper() -> None:
    for field in ("reasoning_content", "reasoning"):
        thinking = [(t, event(chunk(delta={field: text}))) for t, text in ((10, "hm"), (20, " ok"))]
        found = read([*thinking, (40, event(chunk("4"))), (41, finished(3))])
        assert (ms(found.first_token_ns), ms(found.first_output_ns)) == (10, 40)
        assert (found.reasoning, found.content, found.reasoning_field) == ("hm ok", "4", field)


def test_reasoning_sent_under_both_names_counts_once() -> None:
    both = chunk(delta={"reasoning": "hm", "reasoning_content": "hm"})
    assert read([(1, event(both)), (2, finished(1))]).reasoning == "hm"


def test_reasoning_and_content_in_one_chunk_are_one_event_that_is_output() -> None:
    both = chunk(delta={"reasoning": "hm", "content": "4"})
    found = read(
        [(1, event(chunk(delta={"reasoning": "a"}))), (5, event(both)), (6, event(chunk("!"))), (7, finished(3))]
    )
    assert (found.reasoning, found.content, ms(found.first_output_ns)) == ("ahm", "4!", 5)
    assert len(found.choices[0].reads) == 3


def test_a_tool_call_counts_from_its_name_and_its_pieces_join() -> None:
    def call(**function: str) -> bytes:
        return event(chunk(delta={"tool_calls": [{"index": 0, "function": function}]}))

    opening = event(chunk(delta={"role": "assistant", "content": None, "tool_calls": None}))
    found = read(
        [(1, opening), (5, call(name="f", arguments="")), (6, call(arguments="{}")), (7, finished(4, "tool_calls"))]
    )
    assert (ms(found.first_token_ns), ms(found.first_output_ns), found.tool, found.content) == (5, 5, "f{}", "")
    assert found.outcome == "ok"


def test_a_tool_name_told_with_every_delta_is_said_once_and_arguments_may_be_an_object() -> None:
    parts = [{"index": 0, "id": "t", "function": {"name": "f", "arguments": piece}} for piece in ("{", "}")]
    found = read([(t, event(chunk(delta={"tool_calls": [part]}))) for t, part in enumerate(parts)] + [(9, finished(3))])
    assert (found.tool, found.outcome) == ("f{}", "ok")
    whole = {"index": 0, "id": "t", "function": {"name": "f", "arguments": {"a": 1}}}
    assert read([(1, event(chunk(delta={"tool_calls": [whole]}))), (9, finished(3))]).tool == 'f{"a":1}'


def test_reasoning_details_count_where_no_plain_field_holds_the_same() -> None:
    parts = [{"type": "reasoning.text", "text": "hm"}]
    alone, both = {"content": "", "reasoning_details": parts}, {"reasoning": "hm", "reasoning_details": parts}
    for delta in (alone, both):
        found = read([(1, event(chunk(delta=delta))), (5, event(chunk("a"))), (9, finished(2))])
        assert (found.reasoning, ms(found.first_token_ns), ms(found.first_output_ns)) == ("hm", 1, 5)


def test_parallel_tool_calls_of_one_chunk_are_one_event_and_keep_their_order() -> None:
    calls = [{"index": i, "function": {"name": f"f{i}", "arguments": "{"}} for i in (0, 1)]
    close = [{"index": i, "function": {"arguments": "}"}} for i in (1, 0)]
    found = read(
        [
            (1, event(chunk(delta={"tool_calls": calls}))),
            (2, event(chunk(delta={"tool_calls": close}))),
            (3, finished(9)),
        ]
    )
    assert (found.tool, len(found.choices[0].reads)) == ("f0{}f1{}", 2)


def call(name: str | None, arguments: str, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"type": "function", "function": function, **more}


@pytest.mark.parametrize(
    "pieces",
    [
        [call("f", "{", index=0, id="a"), call(None, "}", index=0), call("f", "{}", index=0, id="b")],  # Gemini
        [call("f", "{", id="a"), call(None, "}"), call("f", "{}", id="b")],
        [call("f", "{}", id="a"), call("f", "{", id="b"), call(None, "}")],
        [call("f", "", index=0, id="a"), call(None, "{}", index=0, id="z"), call("f", "{}", index=1, id="b")],  # vLLM
        [call("f", "", index=0, id="a"), call(None, "{}"), call("f", "", index=1, id="b"), call(None, "{}")],
    ],
)
def test_a_call_under_an_id_of_its_own_is_one_of_its_own_whatever_its_number(pieces: list[dict[str, Any]]) -> None:
    stream = [(n, event(chunk(delta={"tool_calls": [piece]}))) for n, piece in enumerate(pieces, 1)]
    found = read([*stream, (9, finished(9, "tool_calls"))])
    assert (found.tool, len(found.choices[0].reads)) == ("f{}f{}", len(pieces))


def test_a_whole_message_after_its_deltas_brings_only_what_they_left_out() -> None:
    whole = {"role": "assistant", "content": "ab", "tool_calls": [call("f", "{}", id="a")]}
    end = event({"choices": [{"index": 0, "finish_reason": "stop", "message": whole}], "usage": usage(2)})
    found = read([(1, event(chunk("a"))), (2, event(chunk("b"))), (9, end)])
    assert (found.content, found.tool, ms(found.last_token_ns)) == ("ab", "f{}", 9)
    del whole["tool_calls"]
    end = event({"choices": [{"index": 0, "finish_reason": "stop", "message": whole}], "usage": usage(2)})
    found = read([(1, event(chunk("a"))), (2, event(chunk("b"))), (9, end)])
    assert (found.content, ms(found.last_token_ns), found.outcome) == ("ab", 2, "ok")


def test_the_old_function_call_is_a_tool_call() -> None:
    found = read([(1, event(chunk(delta={"function_call": {"name": "f", "arguments": "{}"}}))), (2, finished(3))])
    assert found.tool == "f{}"


def test_a_refusal_is_output() -> None:
    found = read(
        [
            (1, event(chunk(delta={"content": None, "refusal": ""}))),
            (7, event(chunk(delta={"refusal": "No."}))),
            (8, finished(2)),
        ]
    )
    assert (found.refusal, found.content, ms(found.first_output_ns), found.outcome) == ("No.", "", 7, "ok")


def test_content_in_typed_parts_is_read() -> None:
    mistral = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    databricks = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm", "signature": ""}]}
    for thought in (mistral, databricks):
        found = read([(1, event(chunk(delta={"content": [thought, {"type": "text", "text": "4"}]}))), (2, finished(2))])
        assert (found.reasoning, found.content) == ("hm", "4")


def test_content_in_a_list_of_plain_texts_is_read() -> None:
    found = read([(1, event(chunk(delta={"content": ["a", "b"]}))), (2, finished(2))])
    assert (found.content, len(found.choices[0].reads)) == ("ab", 1)


def test_interleaved_choices_are_kept_apart() -> None:
    events = [(t, event(chunk(text, index=i))) for t, text, i in ((1, "a", 0), (2, "b", 1), (3, "c", 0), (4, "d", 1))]
    end = event(chunk(finish="stop")) + event(chunk(index=1, finish="length"))
    found = read([*events, (5, end + DONE)], asked=Asked(n=2))
    assert [(c.text_of("content"), c.finish_reason, c.reads) for c in found.choices] == [
        ("ac", "stop", [0, 2]),
        ("bd", "length", [1, 3]),
    ]


def test_a_choice_that_never_finished_makes_an_undone_stream_truncated() -> None:
    found = read([(1, event(chunk("a", finish="stop")) + event(chunk("b", index=1)))], asked=Asked(n=2))
    assert (found.outcome, found.failure) == ("failed", "truncated_stream")


def test_usage_is_taken_from_wherever_it_stands_and_zero_is_not_yet() -> None:
    zero = chunk("b", usage=usage(0, prompt=0))
    last = chunk(
        delta={"content": None}, finish="stop", usage=usage(3, prompt=11, prompt_tokens_details={"cached_tokens": 4})
    )
    found = read([(1, event(chunk("a", usage=None))), (2, event(zero)), (3, event(last) + DONE)])
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens, ms(found.usage_ns)) == (11, 3, 4, 3)


def test_usage_inside_a_choice_is_that_choices_own() -> None:
    def end(index: int, tokens: int) -> dict[str, Any]:
        return {"index": index, "delta": {}, "finish_reason": "stop", "usage": usage(tokens, 19)}

    texts = [(1, event(chunk("a"))), (2, event(chunk("x", index=1)))]
    found = read([*texts[:1], (3, event({"choices": [end(0, 5)]}) + DONE)])
    assert (found.completion_tokens, found.prompt_tokens) == (5, 19)
    found = read([*texts, (3, event({"choices": [end(0, 5), end(1, 6)]}) + DONE)])
    assert [choice.usage_now for choice in found.choices] == [5, 6]


def test_counts_that_are_no_counts_are_absent() -> None:
    for odd in (-3, 2.5, "7", True, None, 1e300, 10**30, [1]):
        found = read(
            [
                (1, event(chunk("a"))),
                (2, event(chunk(finish="stop", usage=usage(1) | {"completion_tokens": odd})) + DONE),
            ]
        )
        assert (found.outcome, found.completion_tokens) == ("ok", None)
    whole = read([(2, event(chunk("a", finish="stop", usage=usage(1) | {"completion_tokens": 5.0})) + DONE)])
    assert whole.completion_tokens == 5


def test_compressed_streams_are_read_as_they_flush_and_flagged() -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(event(chunk(text))) + packer.flush(zlib.Z_SYNC_FLUSH) for text in "ab"]
    last = packer.compress(finished(2)) + packer.flush()
    headers = (("content-type", "text/event-stream"), ("Content-Encoding", "gzip"))
    found = read([(10, pieces[0]), (30, pieces[1]), (31, last)], headers=headers)
    assert (found.content, ms(found.first_token_ns), found.warnings) == ("ab", 10, {"content_encoding"})


def test_a_damaged_compressed_stream_fails_with_its_partial_times() -> None:
    headers = (("content-encoding", "gzip"),)
    found = read([(10, gzip.compress(event(chunk("a")))[:30]), (20, b"\0" * 60)], headers=headers)
    assert (found.outcome, found.failure) == ("failed", "content_encoding")


def test_a_whole_answer_is_one_event_of_its_request() -> None:
    answer = {"id": "r", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "reasoning": "hm"},
                                      "finish_reason": "stop"}], "usage": usage(3)}  # fmt: skip
    raw = json.dumps(answer, indent=1).encode()
    found = read([(5, b"\n\n  " + raw[:20]), (9, raw[20:])], asked=Asked(stream=False), headers=())
    assert (found.outcome, found.content, found.reasoning, ms(found.first_token_ns)) == ("ok", "hi", "hm", 9)
    assert found.warnings == frozenset()


def test_a_whole_answer_to_a_stream_request_is_ok_but_not_incremental() -> None:
    answer = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    found = read([(9, json.dumps(answer).encode())], headers=())
    assert (found.outcome, found.warnings) == ("ok", {"stream_not_incremental"})


def test_json_lines_without_data_fields_are_read_with_a_warning() -> None:
    lines = [json.dumps(document).encode() + b"\n" for document in (chunk("a"), chunk("b"), chunk(finish="stop"))]
    found = read([(1, lines[0]), (2, lines[1]), (3, lines[2])])
    assert (found.content, found.outcome, "missing_data_field" in found.warnings) == ("ab", "ok", True)
    assert [t / MS for t in found.times_of(found.choices[0])] == [1, 2]
    ended = read([(1, lines[0]), (2, lines[1]), (3, lines[2]), (7, b"[DONE]\n"), (9, b"\n")])
    assert (ended.warnings, ms(ended.stream_end_ns)) == ({"missing_data_field"}, 7)


def test_empty_chunks_that_other_tools_stamp_are_counted_apart() -> None:
    found = read([(1, event(chunk(""))), (2, event(chunk("a"))), (3, event(chunk(""))), (4, finished(1))])
    assert (found.silent_chunks, ms(found.first_silent_ns), ms(found.last_silent_ns), ms(found.first_token_ns)) == (
        2,
        1,
        3,
        2,
    )


def test_engine_times_are_kept_as_received() -> None:
    last = chunk(finish="stop", timings={"prompt_ms": 3.5}, metrics={"queue_time_ms": 0.1}, nvext={"timing": {}})
    found = read([(1, event(chunk("a"))), (2, event(last) + DONE)])
    assert found.timings == {"timings": {"prompt_ms": 3.5}, "metrics": {"queue_time_ms": 0.1}, "nvext": {"timing": {}}}
