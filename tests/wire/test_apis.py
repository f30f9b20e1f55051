"""Each API's own words: where its output stands and what ends it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phasemeter.wire.apis import APIS, api_at, api_of
from phasemeter.wire.exchange import Asked, Exchange
from tests.wire.streams import DONE, MS, event, read, usage


def lines(*documents: dict[str, Any]) -> list[tuple[float, bytes]]:
    return [((number + 1) * 10, json.dumps(document).encode() + b"\n") for number, document in enumerate(documents)]


def events(*documents: dict[str, Any], named: bool = False) -> list[tuple[float, bytes]]:
    return [
        ((n + 1) * 10, event(document, document["type"] if named else None)) for n, document in enumerate(documents)
    ]


def summary(found: Exchange) -> dict[str, Any]:
    first, output, last = found.first_token_ns, found.first_output_ns, found.last_token_ns
    return {
        "outcome": found.outcome,
        "failure": found.failure,
        "ttft": first and first / MS,
        "ttfo": output and output / MS,
        "last": last and last / MS,
        "content": found.content,
        "finish": found.finish_reason,
        "tokens": found.completion_tokens,
        "prompt": found.prompt_tokens,
        "warnings": set(found.warnings),
    }


# --- completions ---------------------------------------------------------------------------------------------------------


def completion(text: str | None, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "text_completion",
        "choices": [{"index": index, "text": text, "finish_reason": finish}],
        **more,
    }


def test_completions_stream_text_and_an_empty_chunk_is_no_output() -> None:
    stream = events(completion(""), completion("a"), completion("b"), completion("", "length", usage=usage(2)))
    found = read([*stream, (41, DONE)], asked=Asked(api="openai.completions"))
    assert summary(found) == {
        "outcome": "ok", "failure": None, "ttft": 20, "ttfo": 20, "last": 30, "content": "ab", "finish": "length",
        "tokens": 2, "prompt": 7, "warnings": set(),
    }  # fmt: skip
    assert found.silent_chunks == 2


def test_an_echoed_prompt_is_no_output_whole_or_in_pieces() -> None:
    for pieces in (["Once upon"], ["Once", " upon"], ["Once upon a"], ["Once", " upon a"]):
        stream = events(*(completion(piece) for piece in pieces), completion(" time", "stop"))
        found = read([*stream, (90, DONE)], asked=Asked(api="openai.completions", echo_prompt="Once upon"))
        assert found.content in (" time", " a time")
    silent = read(
        [(1, event(completion("So", "stop")) + DONE)], asked=Asked(api="openai.completions", echo_prompt="Once")
    )
    assert silent.content == "So"


def test_usage_on_each_prompts_last_chunk_is_that_prompts_own() -> None:
    stream = events(
        completion("a"),
        completion("b", index=1),
        completion("", "stop", usage=usage(4)),
        completion("", "stop", 1, usage=usage(6)),
    )
    found = read([*stream, (50, DONE)], asked=Asked(api="openai.completions", n=2))
    assert [choice.usage_now for choice in found.choices] == [4, 6] and not found.usage_alone


def test_a_gateway_that_answers_completions_as_chat_is_read() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}]}
    stream = events(*({"choices": [{"index": 0, "delta": {"content": text}}]} for text in "ab"), completion("", "stop"))
    asked = Asked(api="openai.completions")
    assert [read([*stream, (90, DONE)], asked=asked).content, read(events(whole), asked=asked).content] == ["ab", "ab"]


# --- Responses -----------------------------------------------------------------------------------------------------------

RESPONSES = Asked(api="openai.responses")


def response(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **more}


def test_responses_count_deltas_and_end_with_the_completed_event() -> None:
    last = response("completed", response={"id": "r", "status": "completed", "usage": {"input_tokens": 3, "output_tokens": 4,
                    "output_tokens_details": {"reasoning_tokens": 1}}})  # fmt: skip
    stream = events(
        response("created", response={"id": "r"}),
        response("reasoning_text.delta", delta="hm"),
        response("output_text.delta", delta="a"),
        response("output_text.delta", delta=""),
        response("output_text.delta", delta="b"),
        response("output_text.done", text="ab"),
        last,
        named=True,
    )
    found = read(stream, asked=RESPONSES, at=999)
    assert summary(found) == {
        "outcome": "ok", "failure": None, "ttft": 20, "ttfo": 30, "last": 50, "content": "ab", "finish": "completed",
        "tokens": 4, "prompt": 3, "warnings": set(),
    }  # fmt: skip
    assert (found.reasoning, found.reasoning_tokens, found.stream_end_ns) == ("hm", 1, 70 * MS)


def test_an_incomplete_response_reached_its_budget_and_is_ok() -> None:
    body = {"status": "incomplete", "usage": {"input_tokens": 3, "output_tokens": 1}}
    stream = events(response("output_text.delta", delta="a"), response("incomplete", response=body))
    assert summary(read(stream, asked=RESPONSES))["finish"] == "incomplete"
    told_late = events(response("output_text.delta", delta="a"), response("completed", response=body))
    assert read(told_late, asked=RESPONSES).finish_reason == "incomplete"


@pytest.mark.parametrize(
    "last",
    [
        response("failed", response={"status": "failed", "error": {"message": "gone"}}),
        {"type": "error", "message": "gone"},
        {"type": "error", "error": {"message": "gone"}},
        response("completed", response={"status": "failed", "error": {"message": "gone"}}),
    ],
)
def test_a_failed_response_fails(last: dict[str, Any]) -> None:
    found = read(events(response("output_text.delta", delta="a"), last), asked=RESPONSES)
    assert (found.failure, found.failure_text, found.content) == ("server_error_in_stream", "gone", "a")


def test_a_response_that_the_server_cancelled_fails() -> None:
    last = response("cancelled", response={"status": "cancelled"})
    found = read(events(response("output_text.delta", delta="a"), last), asked=RESPONSES)
    assert (found.outcome, found.failure) == ("failed", "finish_reason_error")


def test_a_response_that_only_stops_is_truncated_and_done_alone_is_no_end() -> None:
    start = events(response("created", response={}), response("output_text.delta", delta="a"))
    assert read(start, asked=RESPONSES).failure == "truncated_stream"
    assert read([*start, (30, DONE)], asked=RESPONSES).failure == "truncated_stream"


def test_function_calls_and_refusals_of_responses_are_output() -> None:
    stream = events(
        response("output_item.added", output_index=0, item={"type": "function_call", "name": "f", "arguments": ""}),
        response("function_call_arguments.delta", output_index=0, delta="{}"),
        response("refusal.delta", delta="no"),
        response("completed", response={"status": "completed"}),
    )
    found = read(stream, asked=RESPONSES)
    assert (found.tool, found.refusal, found.first_token_ns) == ("f{}", "no", 10 * MS)


def test_a_whole_response_object_is_read() -> None:
    body = {
        "id": "r", "object": "response", "status": "completed", "error": None, "usage": {"input_tokens": 1, "output_tokens": 2},
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
            {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "function_call", "name": "f", "arguments": "{}"},
        ],
    }  # fmt: skip
    found = read([(5, json.dumps(body).encode())], asked=Asked(api="openai.responses", stream=False), headers=())
    assert (found.outcome, found.content, found.reasoning, found.tool) == ("ok", "hi", "hm", "f{}")


COMPLETED = response("completed", response={"status": "completed", "output": []})
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "one"}]}
CALL = {"type": "function_call", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    "whole",
    [
        response("output_text.done", output_index=0, text="one"),
        response("content_part.done", output_index=0, part={"type": "output_text", "text": "one"}),
        response("output_item.done", output_index=0, item=MESSAGE),
    ],
    ids=lambda whole: str(whole["type"]),
)
def test_text_that_only_its_done_event_brings_is_output_then(whole: dict[str, Any]) -> None:
    found = read(events(response("created", response={}), whole, COMPLETED), asked=RESPONSES)
    assert (found.content, found.first_token_ns, found.outcome) == ("one", 20 * MS, "ok")


def test_what_deltas_brought_is_not_said_again_by_its_done_events_whatever_their_numbers() -> None:
    for number in ({"output_index": 0}, {}):
        stream = events(
            response("output_text.delta", delta="o", **number),
            response("output_text.delta", delta="ne", **number),
            response("output_text.done", text="one", output_index=0),
            response("content_part.done", part={"type": "output_text", "text": "one"}, output_index=0),
            response("output_item.done", item=MESSAGE, output_index=1),
            response("output_text.done", text="two", output_index=2),
            COMPLETED,
        )
        found = read(stream, asked=RESPONSES)
        assert (found.content, found.last_token_ns) == ("onetwo", 60 * MS)


def test_calls_that_come_whole_are_each_output_once_though_they_are_alike() -> None:
    stream = events(
        response("output_item.added", output_index=0, item=CALL | {"arguments": ""}),
        response("function_call_arguments.done", output_index=0, arguments="{}"),
        response("output_item.done", output_index=0, item=CALL),
        response("output_item.done", output_index=1, item=CALL),
        COMPLETED,
    )
    found = read(stream, asked=RESPONSES)
    assert (found.tool, found.choices[0].reads) == ("f{}f{}", [0, 1, 3])


def test_a_tools_name_told_after_its_arguments_moves_no_last_token() -> None:
    late = response("output_item.done", output_index=0, item=CALL)
    found = read(
        events(response("function_call_arguments.delta", output_index=0, delta="{}"), late, COMPLETED), asked=RESPONSES
    )
    assert (found.tool, found.last_token_ns) == ("{}", 10 * MS)


@pytest.mark.parametrize(
    ("item", "tool"),
    [
        ({"type": "code_interpreter_call", "code": "1+1"}, "1+1"),
        ({"type": "local_shell_call", "action": {"command": ["ls"]}}, '{"command":["ls"]}'),
        ({"type": "apply_patch_call", "operation": {"diff": "+a"}}, '{"diff":"+a"}'),
        ({"type": "web_search_call", "action": {"query": "q"}}, ""),  # the server's own doing
    ],
)
def test_what_the_model_writes_for_a_tool_is_output_though_only_its_item_brings_it(
    item: dict[str, Any], tool: str
) -> None:
    stream = events(response("output_item.done", item=item), response("output_text.delta", output_index=1, delta="a"))
    found = read([*stream, (30, event(COMPLETED))], asked=RESPONSES)
    assert (found.tool, found.first_token_ns) == (tool, (10 if tool else 20) * MS)


def test_sound_and_pictures_of_responses_are_output_without_a_text() -> None:
    sound = events(response("audio.delta", delta="UklG"), response("audio.transcript.delta", delta="a"), COMPLETED)
    picture = events(
        response("image_generation_call.partial_image", partial_image_b64="iVBO"),
        response("output_item.done", item={"type": "image_generation_call", "result": "iVBO"}),
        COMPLETED,
    )
    whole = events(
        {"type": "ping"}, response("output_item.done", item={"type": "image_generation_call", "result": "i"})
    )
    heard, seen = read(sound, asked=RESPONSES), read(picture, asked=RESPONSES)
    assert (heard.content, heard.first_token_ns, heard.choices[0].reads) == ("a", 10 * MS, [0, 1])
    assert (seen.first_token_ns, seen.last_token_ns, seen.outcome) == (10 * MS, 10 * MS, "ok")
    assert read([*whole, (30, event(COMPLETED))], asked=RESPONSES).first_token_ns == 20 * MS


def test_summaries_that_come_whole_are_each_reasoning() -> None:
    stream = events(
        *(response("reasoning_summary_text.done", summary_index=n, text=text) for n, text in enumerate(("a", "b"))),
        response("output_item.done", item={"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}]}),
        COMPLETED,
    )
    assert read(stream, asked=RESPONSES).reasoning == "ab"


# --- Anthropic -----------------------------------------------------------------------------------------------------------

MESSAGES = Asked(api="anthropic.messages")


def delta(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **more}}


START = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 33, "output_tokens": 1}}}
STOP = [
    {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 8}},
    {"type": "message_stop"},
]


def test_messages_start_with_a_delta_and_count_output_tokens_once() -> None:
    stream = events(
        START,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "ping"},
        delta("thinking_delta", thinking="hm"),
        delta("signature_delta", signature="Eq"),
        delta("text_delta", text="Fi"),
        delta("text_delta", text="ne"),
        *STOP,
        named=True,
    )
    assert summary(read(stream, asked=MESSAGES)) == {
        "outcome": "ok", "failure": None, "ttft": 40, "ttfo": 60, "last": 70, "content": "Fine", "finish": "max_tokens",
        "tokens": 8, "prompt": 33, "warnings": set(),
    }  # fmt: skip


def test_a_tool_of_messages_counts_from_its_name() -> None:
    block = {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f", "input": {}}}
    found = read(events(START, block, delta("input_json_delta", partial_json="{}"), *STOP), asked=MESSAGES)
    assert found.first_token_ns == 20 * MS and "f" in found.tool and "{}" in found.tool


def test_arguments_that_a_blocks_opening_brings_are_output_once() -> None:
    call = {"type": "tool_use", "name": "f", "input": {"a": 1}}
    opening = {"type": "content_block_start", "index": 0, "content_block": call}
    for again in ([], [delta("input_json_delta", partial_json='{"a":1}')]):
        found = read(events(START, opening, *again, *STOP), asked=MESSAGES)
        assert (found.tool, found.last_token_ns) == ('f{"a":1}', 20 * MS)


def test_prompt_tokens_of_messages_hold_what_the_cache_read() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 30}}}
    found = read(events(start, delta("text_delta", text="a"), *STOP), asked=MESSAGES)
    assert (found.prompt_tokens, found.cached_tokens) == (33, 30)


def test_a_count_that_leaves_the_cache_out_later_keeps_what_the_opening_said_of_it() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 30}}}
    for more in ({}, {"cache_read_input_tokens": 30}, {"cache_read_input_tokens": None}):
        last = STOP[0] | {"usage": {"input_tokens": 3, "output_tokens": 8, **more}}
        found = read(events(start, delta("text_delta", text="a"), last, STOP[1]), asked=MESSAGES)
        assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (33, 30, 8)


def test_the_token_that_an_opening_counts_is_none_that_came() -> None:
    found = read(events(START, delta("text_delta", text="a")), asked=MESSAGES)
    assert (found.completion_tokens, found.first_usage_ns, found.prompt_tokens) == (None, None, 33)


def test_an_error_event_and_a_missing_stop_of_messages() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert read(events(START, delta("text_delta", text="x"), error), asked=MESSAGES).failure_text == "Overloaded"
    assert read(events(START, delta("text_delta", text="x")), asked=MESSAGES).failure == "truncated_stream"
    unstopped = read(events(START, delta("text_delta", text="x"), STOP[0]), asked=MESSAGES)
    assert (unstopped.outcome, unstopped.warnings) == ("ok", {"missing_message_stop"})


def test_a_whole_message_is_read() -> None:
    body = {"id": "m", "type": "message", "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 2},
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"},
                        {"type": "tool_use", "name": "f", "input": {"a": 1}}]}  # fmt: skip
    found = read([(5, json.dumps(body).encode())], asked=Asked(api="anthropic.messages", stream=False), headers=())
    assert (found.outcome, found.content, found.reasoning, found.tool) == ("ok", "hi", "hm", 'f{"a":1}')


# --- Ollama --------------------------------------------------------------------------------------------------------------

OLLAMA = Asked(api="ollama.chat")


def message(content: str, done: bool = False, **more: Any) -> dict[str, Any]:
    return {"model": "m", "message": {"role": "assistant", "content": content}, "done": done, **more}


def test_ollama_chat_streams_lines_and_keeps_its_durations() -> None:
    last = message("", True, done_reason="length", prompt_eval_count=9, eval_count=2, eval_duration=5, total_duration=7,
                   prompt_eval_cached_count=8)  # fmt: skip
    found = read(lines(message("a"), message("b"), last), asked=OLLAMA)
    assert summary(found) == {
        "outcome": "ok", "failure": None, "ttft": 10, "ttfo": 10, "last": 20, "content": "ab", "finish": "length",
        "tokens": 2, "prompt": 9, "warnings": set(),
    }  # fmt: skip
    assert found.cached_tokens == 8 and found.timings["eval_duration"] == 5 and found.timings["total_duration"] == 7


def test_ollama_generate_thinking_tools_and_an_old_done_without_reason() -> None:
    generate = Asked(api="ollama.generate")
    found = read(
        lines({"response": "", "thinking": "hm", "done": False}, {"response": "a", "done": True}), asked=generate
    )
    assert (found.reasoning, found.content, found.finish_reason, found.outcome) == ("hm", "a", "stop", "ok")
    call = {
        "message": {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        "done": True,
    }
    assert read(lines(call), asked=OLLAMA).tool == 'f{"a":1}'


def test_ollama_errors_truncation_and_a_last_line_without_its_end() -> None:
    assert read(lines(message("a"), {"error": "llama runner died"}), asked=OLLAMA).failure == "server_error_in_stream"
    assert read(lines(message("a")), asked=OLLAMA).failure == "truncated_stream"
    found = read(
        [(1, json.dumps(message("a")).encode() + b"\n"), (2, json.dumps(message("", True)).encode())], asked=OLLAMA
    )
    assert found.outcome == "ok" and found.content == "a"


def test_ollama_loading_a_model_is_ok_without_output() -> None:
    found = read(lines(message("", True, done_reason="load")), asked=OLLAMA)
    assert (found.outcome, found.finish_reason, found.warnings) == ("ok", "load", {"no_output"})


def test_a_line_of_ollama_split_over_reads_has_the_completing_reads_time() -> None:
    raw = json.dumps(message("海")).encode() + b"\n"
    found = read([(1, raw[:40]), (9, raw[40:]), (10, json.dumps(message("", True)).encode() + b"\n")], asked=OLLAMA)
    assert (found.content, found.first_token_ns) == ("海", 9 * MS)


# --- engines' own ----------------------------------------------------------------------------------------------------------


def test_llama_cpp_completion_ends_with_stop_and_its_counts() -> None:
    last = {
        "content": "",
        "stop": True,
        "stop_type": "limit",
        "tokens_predicted": 2,
        "tokens_evaluated": 5,
        "timings": {"prompt_ms": 1},
    }
    stream = events(
        {"content": "a", "stop": False, "tokens": [1]}, {"content": "b", "stop": False, "tokens": [2]}, last
    )
    found = read(stream, asked=Asked(api="llamacpp.completion"))
    assert summary(found) == {
        "outcome": "ok", "failure": None, "ttft": 10, "ttfo": 10, "last": 20, "content": "ab", "finish": "limit",
        "tokens": 2, "prompt": 5, "warnings": set(),
    }  # fmt: skip
    assert found.timings == {"timings": {"prompt_ms": 1}} and found.choices[0].logprob_tokens == 2
    assert read(stream[:2], asked=Asked(api="llamacpp.completion")).failure == "truncated_stream"


def test_each_prompt_of_llama_cpp_stops_for_itself_and_counts_its_own() -> None:
    def piece(text: str, index: int, **more: Any) -> dict[str, Any]:
        return {"index": index, "content": text, "stop": False, **more}

    stops = [piece("", i, stop=True, stop_type="limit", tokens_predicted=2 + i, tokens_evaluated=5) for i in (0, 1)]
    stream = events(piece("a", 0), piece("x", 1), piece("b", 0), stops[0], piece("yz", 1), stops[1])
    found = read(stream, asked=Asked(api="llamacpp.completion", n=2))
    assert ([choice.usage_now for choice in found.choices], found.usage_alone) == ([2, 3], False)
    assert (found.outcome, found.stream_end_ns) == ("ok", 60 * MS)
    assert read(stream[:-1], asked=Asked(api="llamacpp.completion", n=2)).failure == "truncated_stream"


def token(text: str, special: bool = False, **more: Any) -> dict[str, Any]:
    return {"token": {"id": 1, "text": text, "special": special}, "generated_text": None, "details": None, **more}


def test_tgi_counts_a_token_an_event_and_a_special_one_is_no_text() -> None:
    last = token("</s>", True) | {
        "generated_text": "ab",
        "details": {"finish_reason": "eos_token", "generated_tokens": 3},
    }
    found = read(events(token("a"), token("b"), last), asked=Asked(api="tgi.generate"))
    assert (found.outcome, found.content, found.finish_reason, found.completion_tokens) == ("ok", "ab", "eos_token", 3)
    assert (found.last_token_ns, found.choices[0].token_counts) == (20 * MS, {0: 1, 1: 1})
    assert read(events(token("a"), {"error": "x", "error_type": "overloaded"}), asked=Asked(api="tgi.generate")).failure


def test_a_whole_tgi_answer_is_read_even_as_a_list_of_one() -> None:
    body = [{"generated_text": "hi", "details": {"finish_reason": "length", "generated_tokens": 2}}]
    found = read([(5, json.dumps(body).encode())], asked=Asked(api="tgi.generate", stream=False), headers=())
    assert (found.outcome, found.content, found.completion_tokens) == ("ok", "hi", 2)


def sglang(text: str, tokens: int, finish: Any = None) -> dict[str, Any]:
    return {
        "text": text,
        "meta_info": {"id": "s", "prompt_tokens": 4, "completion_tokens": tokens, "finish_reason": finish},
    }


@pytest.mark.parametrize("texts", [["a", "ab", "abc"], ["a", "b", "c"]])
def test_sglang_text_grows_or_comes_in_increments(texts: list[str]) -> None:
    stream = events(sglang(texts[0], 1), sglang(texts[1], 2), sglang(texts[2], 3, {"type": "length", "length": 3}))
    found = read([*stream, (40, DONE)], asked=Asked(api="sglang.generate"))
    assert (found.outcome, found.content, found.finish_reason) == ("ok", "abc", "length")
    assert (found.completion_tokens, found.choices[0].cumulative) == (3, {0: 1, 1: 2, 2: 3})
    assert found.timings["meta_info"]["id"] == "s"


def sglang_stream(texts: list[str], *, grows: bool, ids: bool = False, silent_end: bool = False) -> Exchange:
    """The texts of a stream's tokens, one an event, as SGLang sends them: whole so far, or each alone."""
    told = []
    for n in range(1, len(texts) + 1):
        event = sglang("".join(texts[:n]) if grows else texts[n - 1], n)
        told.append(event | ({"output_ids": list(range(n if grows else 1))} if ids else {}))
    if silent_end:
        told.append(told[-1] | {"meta_info": sglang("", len(texts) + 1, {"type": "stop"})["meta_info"]})
        told[-1] |= {} if grows else {"text": ""}
    else:
        told[-1]["meta_info"]["finish_reason"] = {"type": "length"}
    return read([*events(*told), (999, DONE)], asked=Asked(api="sglang.generate"))


TOKENS = ["ha", "ha", "ha", "!", " a", " and", " an", "a", "aa", " ", "  "]


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("silent_end", [False, True])
@given(texts=st.lists(st.sampled_from(TOKENS), min_size=2, max_size=24))
@settings(max_examples=60, deadline=None)
def test_sglang_is_read_alike_whether_its_text_grows_or_comes_in_increments(
    grows: bool, ids: bool, silent_end: bool, texts: list[str]
) -> None:
    """Whatever tokens repeat or begin like one another, unless all of them look like one text that grows."""
    if not grows:
        told = any(not later.startswith(former) for former, later in pairwise(texts))
        assume(told or len(set(texts)) == 1)
    found = sglang_stream(texts, grows=grows, ids=ids, silent_end=silent_end)
    assert found.content == "".join(texts)
    assert found.choices[0].texts == texts and len(found.choices[0].reads) == len(texts)
    assert found.choices[0].cumulative == {at: at + 1 for at in range(len(texts))}


def test_text_held_back_for_a_whole_character_is_no_increment_that_repeats() -> None:
    told = [sglang("ha", 1), sglang("ha", 2), sglang("ha", 3), sglang("ha\U0001f600", 4, {"type": "length"})]
    found = read([*events(*told), (99, DONE)], asked=Asked(api="sglang.generate"))
    assert found.content == "ha\U0001f600" and found.choices[0].texts == ["ha", "\U0001f600"]
    assert found.choices[0].cumulative == {0: 1, 1: 4}


def test_ids_in_increments_beside_text_that_grows_do_not_make_it_increments() -> None:
    told = [sglang(text, n) | {"output_ids": [n]} for n, text in enumerate(["a", "ab", "abc"], 1)]
    found = read([*events(*told), (99, DONE)], asked=Asked(api="sglang.generate"))
    assert found.content == "abc"


def test_token_ids_of_a_server_that_does_not_detokenise_are_output() -> None:
    told = [{"output_ids": list(range(n)), "meta_info": sglang("", n)["meta_info"]} for n in (1, 2, 3)]
    told.append(told[-1] | {"meta_info": told[-1]["meta_info"] | {"finish_reason": {"type": "length"}}})
    found = read([*events(*told), (50, DONE)], asked=Asked(api="sglang.generate"))
    assert (found.outcome, found.content, found.warnings) == ("ok", "", frozenset())
    assert found.choices[0].cumulative == {0: 1, 1: 2, 2: 3}


def test_an_abort_of_sglang_fails() -> None:
    abort = sglang("a", 1, {"type": "abort", "message": "out of memory"})
    assert read(events(abort), asked=Asked(api="sglang.generate")).failure == "finish_reason_error"


@pytest.mark.parametrize("name", APIS)
def test_each_api_is_found_by_its_path(name: str) -> None:
    assert api_at(APIS[name].path + "?x=1") == name
    assert api_at("/deployments/x" + APIS[name].path) == name


def test_a_path_of_no_api_is_none() -> None:
    assert api_at("/v1/models") is None and api_at("/metrics") is None


@pytest.mark.parametrize("name", APIS)
def test_every_api_fails_on_an_error_and_on_nothing(name: str) -> None:
    framing = (
        json.dumps({"error": "busy"}).encode() + b"\n" if APIS[name].framing == "ndjson" else event({"error": "busy"})
    )
    for stream in (True, False):
        asked = Asked(api=name, stream=stream)
        assert read([(1, framing)], asked=asked).failure == "server_error_in_stream"
        assert read([(1, b'{"error":"busy"}')], asked=asked, headers=()).failure_text == "busy"
        assert read([], asked=asked).failure == "empty_response"


LAST_READS = {
    "openai.chat": b"data: [DONE]\n\n",
    "openai.responses": b'event: response.completed\r\ndata: {"type": "response.completed", "response": {"id": "r"}}\r\n\r\n',
    "anthropic.messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n\r\n',
    "ollama.chat": b'{"message":{"content":""},"done":true,"done_reason":"stop"}\n',
    "llamacpp.completion": b'data: {"content":"","stop":true,"tokens_predicted":3}\n\n',
    "tgi.generate": b'data:{"token":{"text":"x"},"generated_text":"so x","details":null}\n\n',
}


@pytest.mark.parametrize("api", LAST_READS)
def test_a_last_word_is_known_by_the_end_of_its_read_and_by_no_text(api: str) -> None:
    word, read = api_of(api).last_word, LAST_READS[api]
    more = b"%x\r\n%b\r\n" % (len(read), read)
    assert re.search(word, read) and re.search(word, b"data: {}\n\n" + read) and re.search(word, more)
    assert not re.search(word, read + b"data: {}\n\n"), "something came after it"
    quoted = json.dumps({"text": read.decode(), "done": False, "stop": False, "generated_text": None})
    assert not re.search(word, b"data: " + quoted.encode() + b"\n\n"), "a model that writes it has not ended"
