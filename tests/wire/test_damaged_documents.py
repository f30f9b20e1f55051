"""Documents that are right but for one value, of whatever type: they raise nothing, and the fast path reads them as the slow one.

Random JSON seldom comes near a stream's own shapes; these begin as what servers send.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from phasemeter.metrics.tokens import count_tokens
from phasemeter.wire.apis import APIS
from phasemeter.wire.exchange import Asked
from tests.wire.streams import chunk, event, read, usage

CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": {"a": [1, "b"]}}}
TOLD = {"content": [{"token": "a", "logprob": -1.0, "bytes": [97]}], "tokens": ["a"], "text_offset": [0]}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "openai.chat": [
        chunk(delta={"role": "assistant", "content": "", "reasoning": "hm", "reasoning_details": [
            {"type": "reasoning.summary", "summary": "hm"}, {"type": "reasoning.encrypted", "data": "x"}]}),
        chunk(delta={"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "a",
                                 {"type": "text", "text": "b"}, {"type": "reasoning", "summary": [{"text": "c"}]}]}),
        chunk(delta={"content": "a", "refusal": "no", "audio": {"transcript": "b", "data": "x"}, "images": [{}]}),
        chunk("b"), chunk("c"),
        chunk(delta={"tool_calls": [CALL, CALL | {"id": "b"}], "function_call": {"name": "g", "arguments": "{}"}}),
        {"choices": [{"index": 0, "delta": {"content": "d"}, "logprobs": TOLD, "token_ids": [1], "usage": usage(3)}]},
        {"choices": [{"index": 0, "message": {"content": "abcd"}, "finish_reason": "stop", "error": None}],
         "usage": usage(4, completion_tokens_details={"reasoning_tokens": 1}), "x_groq": {"usage": usage(4)},
         "base_resp": {"status_code": 0, "status_msg": ""}, "success": True, "errors": [], "error_code": 0},
    ],
    "openai.completions": [
        {"id": "c", "choices": [{"index": 0, "text": "Once a", "logprobs": TOLD, "finish_reason": None}]},
        {"id": "c", "choices": [{"index": 0, "text": "b", "token_ids": [5], "finish_reason": "length"}], "usage": usage(2)},
    ],
    "openai.responses": [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "hm"},
        {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"},
        {"type": "response.output_item.added", "output_index": 1, "item": {"type": "function_call", "name": "f"}},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
        {"type": "response.output_item.done", "output_index": 2, "item": {
            "type": "local_shell_call", "action": {"command": ["ls"]}, "code": "1", "encrypted_content": "x",
            "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "output_text", "text": "t"}]}},
        {"type": "response.content_part.done", "output_index": 3, "part": {"type": "output_text", "text": "a"}},
        {"type": "response.output_text.delta", "output_index": 4, "delta": "a", "logprobs": [{"token": "a"}]},
        {"type": "response.image_generation_call.partial_image", "partial_image_b64": "x"},
        {"type": "response.completed", "response": {"status": "completed", "usage": {
            "input_tokens": 1, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 1}}}},
    ],
    "anthropic.messages": [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "cache_read_input_tokens": 4}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "f", "input": {"a": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
    "ollama.chat": [
        {"message": {"content": "a", "thinking": "h", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
         "logprobs": [{"token": "a"}], "done": False},
        {"message": {"content": "b"}, "done": True, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 2},
    ],
    "ollama.generate": [{"response": "a", "image": "x", "done": False}, {"response": "", "done": True, "eval_count": 1}],
    "llamacpp.completion": [
        {"index": 0, "content": "a", "tokens": [1], "stop": False}, {"index": 1, "content": "x", "stop": False},
        {"index": 0, "content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 3},
    ],
    "tgi.generate": [
        {"index": 1, "token": {"id": 1, "text": "a", "special": False}, "generated_text": None, "details": None},
        {"token": {"text": "b"}, "generated_text": "ab", "details": {"finish_reason": "length", "generated_tokens": 2,
                                                                     "prefill": [{}]}},
    ],
    "sglang.generate": [
        {"index": 0, "text": "a", "output_ids": [1], "meta_info": {"id": "s", "completion_tokens": 1, "prompt_tokens": 2}},
        {"index": 0, "text": "ab", "output_ids": [1, 2],
         "meta_info": {"completion_tokens": 2, "finish_reason": {"type": "length", "message": "x"}}},
    ],
}  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 1e300, 2**70, "", "x", "error", "\ud83d", [], {}, [1], [[]], [{}], [None], {"a": 1}, {"type": []},
    {"index": {}}, {"\ud83d": "\ud83d"},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in it, its own first."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def damaged(documents: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The documents, with each value in turn replaced by each of VALUES."""
    for path in places(documents):
        for value in VALUES if path else ():
            changed = copy.deepcopy(documents)
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = value
            yield changed


@pytest.mark.parametrize("api", sorted(STREAMS))
def test_one_value_of_another_type_raises_nothing_on_either_path(api: str) -> None:
    asked = Asked(api=api, echo_prompt="Once " if api == "openai.completions" else None)
    for documents in damaged(STREAMS[api]):
        texts = [json.dumps(document) for document in documents]
        framed = [event(text) if APIS[api].framing == "sse" else text.encode() + b"\n" for text in texts]
        stream = [(float(n), piece) for n, piece in enumerate(framed, 1)]
        fast, slow = read(stream, asked=asked), read(stream, asked=asked, fast=False)
        assert fast.outcome in ("ok", "failed")
        assert count_tokens(fast) == count_tokens(slow)
        assert [(c.texts, c.reads, c.runs) for c in fast.choices] == [(c.texts, c.reads, c.runs) for c in slow.choices]


def test_every_api_has_a_stream_here() -> None:
    assert set(STREAMS) == set(APIS)
