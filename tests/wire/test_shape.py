"""Events with a running usage, logprobs, timings or an id of their own: recognised as reading in full would take them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.wire.events import Told
from phasemeter.wire.exchange import Asked, Exchange
from phasemeter.wire.shape import leaves, shape_of
from tests.wire.streams import DONE, event
from tests.wire.test_template import HEAD, TEXTS, both_ways, everything, framed

CONTENT = (("choices", 0, "delta", "content"), 0, "content")
NUMBERS = st.one_of(
    st.integers(0, 10**6), st.floats(-1e6, 1e6), st.sampled_from([1e-7, 1e22, 0, None, "5", 10**18, -0.0])
)


def told(found: Exchange) -> tuple[Any, ...]:
    counts = [(c.logprob_tokens, c.usage_now, c.usage_before, c.silent_tokens, c.token_counts) for c in found.choices]
    return everything(found), counts


def entry(text: str, top: int) -> dict[str, Any]:
    one = {"token": text, "logprob": -0.25, "bytes": list(text.encode("utf-8", "surrogatepass"))}
    return {**one, "top_logprobs": [one] * top}


@st.composite
def chunks(draw: st.DrawFn, number: int, kind: str) -> dict[str, Any]:
    """One chat or completions chunk, mostly like its neighbours."""
    text = draw(TEXTS)
    odd = draw(st.integers(0, 9)) == 0
    index = draw(st.sampled_from([0, 0, 0, 1]))
    choice: dict[str, Any] = {"index": index, "finish_reason": "stop" if odd and draw(st.booleans()) else None}
    choice |= {"text": text} if kind == "completions" else {"delta": {"content": text}}
    document: dict[str, Any] = {"id": f"r{number % 3}", "created": 17 + number, "model": "m", "choices": [choice]}
    features = draw(st.sets(st.sampled_from(["usage", "logprobs", "timings", "obfuscation", "ids"]))) if odd else set()
    document["features"] = features
    return document


def with_features(document: dict[str, Any], features: set[str], number: int, draw: Any, kind: str) -> dict[str, Any]:
    choice = document["choices"][0]
    text = choice.get("text", choice.get("delta", {}).get("content", ""))
    if "usage" in features:
        count = draw(NUMBERS) if draw(st.integers(0, 7)) == 0 else number + 1
        document["usage"] = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 8 + number}
        if draw(st.integers(0, 5)) == 0:
            document["usage"] |= {"completion_tokens_details": {"reasoning_tokens": draw(NUMBERS)}}
        if draw(st.integers(0, 9)) == 0:
            document["usage"]["prompt_tokens"] = draw(NUMBERS)
    if "logprobs" in features:
        top = draw(st.sampled_from([0, 1, 1, 2]))
        if kind == "completions":
            choice["logprobs"] = {
                "tokens": [text],
                "token_logprobs": [draw(NUMBERS)],
                "top_logprobs": [{text: -1.5, "x": -2}],
            }
        else:
            choice["logprobs"] = {"content": [entry(text, top) for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2])))]}
    if "timings" in features:
        document["timings"] = {"predicted_n": number, "predicted_ms": draw(NUMBERS)}
    if "obfuscation" in features:
        document["obfuscation"] = draw(st.text(max_size=8))
    if "ids" in features:
        choice["token_ids"] = draw(st.sampled_from([[5], [6], [7, 8], None]))
    return document


@st.composite
def streams(draw: st.DrawFn, kind: str) -> list[bytes]:
    shared = draw(st.sets(st.sampled_from(["usage", "logprobs", "timings", "obfuscation", "ids"]), min_size=1))
    separators = draw(st.sampled_from([None, (",", ":")]))
    bodies = []
    for number in range(draw(st.integers(3, 16))):
        document = draw(chunks(number, kind))
        features = document.pop("features") or shared
        document = with_features(document, features, number, draw, kind)
        raw = json.dumps(document, separators=separators, ensure_ascii=draw(st.integers(0, 6)) == 0, allow_nan=True)
        bodies.append(b"data: " + raw.encode("utf-8", "surrogatepass") + b"\n\n")
    return [HEAD, *(framed(body) for body in bodies), framed(DONE), b"0\r\n\r\n"]


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_fast_equals_slow_whatever_the_chunks_tell_beside_their_text(kind: str) -> None:
    taken = 0

    @given(streams(kind), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2))
    @settings(max_examples=150, deadline=None)
    def check(reads: list[bytes], damage: list[tuple[int, int]]) -> None:
        nonlocal taken
        for place, value in damage:
            number = 1 + place % (len(reads) - 1)
            raw = bytearray(reads[number])
            raw[place % len(raw)] = value
            reads[number] = bytes(raw)
        fast, slow = both_ways(reads, Asked(api=f"openai.{kind}"))
        assert told(fast) == told(slow)
        taken += fast.fast_events

    check()
    assert taken > 30  # the fast path was what was tested (110–380 in sixteen tries)


def chunk_with(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


SHAPES: dict[str, Any] = {
    "running usage": lambda n: chunk_with(
        "a", usage={"prompt_tokens": 3, "completion_tokens": n + 1, "total_tokens": n + 4}
    ),
    "obfuscation": lambda n: chunk_with("a", usage=None, obfuscation="xyz"[: 1 + n % 3]),
    "a time of its own": lambda n: chunk_with("a", created=n),
    "timings": lambda n: chunk_with("a", timings={"predicted_n": n + 1, "predicted_ms": 3.25 * n}),
    "an id of its own": lambda n: {**chunk_with("a"), "id": f"r-{n}"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_common_shapes_are_recognised_after_two_events(shape: str) -> None:
    reads = [HEAD, *(framed(event(SHAPES[shape](n))) for n in range(12)), framed(DONE), b"0\r\n\r\n"]
    fast, slow = both_ways(reads)
    assert told(fast) == told(slow) and fast.fast_events >= 9


def test_an_answer_in_the_responses_api_is_recognised_though_its_events_are_numbered() -> None:
    documents = [
        {"type": "response.output_text.delta", "item_id": "i", "sequence_number": n, "delta": t, "logprobs": []}
        for n, t in enumerate("abcdefghij")
    ]
    reads = [HEAD, *(framed(event(document, "response.output_text.delta")) for document in documents)]
    fast, slow = both_ways(reads, Asked(api="openai.responses"))
    assert told(fast) == told(slow) and fast.fast_events >= 6 and fast.content == "abcdefghij"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=12))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_leaves_stand_where_their_paths_lead(value: Any) -> None:
    document = json.dumps(value).encode()
    for leaf in leaves(document):
        found = value
        for step in leaf.path[:-1] if leaf.key else leaf.path:
            found = found[step]
        spelt = json.loads(document[leaf.start : leaf.end])
        assert (spelt in found) if leaf.key else (spelt == found)


@pytest.mark.parametrize(
    "document",
    [
        b'{"choices":[{"index":0,"delta":{"content":"a","content":"b"}}],"usage":{"completion_tokens":1}}',
        b'{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"completion_tokens":0}}',
        b'{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"output_tokens":4}}',
    ],
)
def test_what_could_be_read_in_two_ways_teaches_nothing(document: bytes) -> None:
    body = b"data: " + document + b"\n\n"
    assert shape_of(body, body, document, CONTENT, Told(counts=True)) is None


def test_a_prompt_count_that_moves_is_never_passed_over() -> None:
    told_prompts = [7, 7, 7, 7, 9, 0]
    documents = [
        chunk_with("a", usage={"prompt_tokens": p, "completion_tokens": n + 1}) for n, p in enumerate(told_prompts)
    ]
    reads = [HEAD, *(framed(event(document)) for document in documents)]
    fast, slow = both_ways(reads)
    assert fast.prompt_tokens == slow.prompt_tokens == 9 and fast.fast_events >= 2
