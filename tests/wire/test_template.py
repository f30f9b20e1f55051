"""The fast path equals the slow one, on any stream, split anywhere, broken anywhere."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phasemeter.wire.exchange import Asked, Exchange, Received, read_exchange
from phasemeter.wire.template import learn
from tests.wire.streams import DONE, chunk, event, usage

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXTS = st.one_of(
    st.sampled_from(
        [" the", "a", "\n", '"', "\\", "é", "海", "content", "index", "id", "", "\u2028", "\x7f", "🙂", "data: x", "{}"]
    ),
    st.text(max_size=12),
)


def framed(body: bytes, upper: bool = False) -> bytes:
    return (b"%X" if upper else b"%x") % len(body) + b"\r\n" + body + b"\r\n"


def everything(found: Exchange) -> tuple[Any, ...]:
    choices = [
        (c.index, c.reads, c.texts, [c.channel_at(i) for i in range(len(c.reads))], c.finish_reason, c.cumulative, c.token_counts,
         [c.text_of(name) for name in ("content", "reasoning", "tool", "refusal")])
        for c in found.choices
    ]  # fmt: skip
    scalars = [getattr(found, name) for name in found.__struct_fields__ if name not in ("choices", "fast_events")]
    return choices, scalars


def both_ways(reads: list[bytes], asked: Asked | None = None) -> tuple[Exchange, Exchange]:
    received = Received(reads=reads, times_ns=list(range(len(reads))), close="eof", closed_ns=len(reads))
    return read_exchange(asked or Asked(), received), read_exchange(asked or Asked(), received, fast=False)


def test_a_plain_stream_is_read_by_template() -> None:
    reads = [HEAD, *(framed(event(chunk(text))) for text in "abcdefgh"), framed(event(chunk(finish="stop")) + DONE)]
    fast, slow = both_ways(reads)
    assert everything(fast) == everything(slow)
    assert fast.fast_events == 6 and fast.content == "abcdefgh" and slow.fast_events == 0


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Reads of a chat stream: mostly one plain event a read, with everything else in between."""
    compact = draw(st.booleans())
    ascii_only = draw(st.booleans())
    upper = draw(st.booleans())
    bodies: list[bytes] = []
    for text in draw(st.lists(TEXTS, min_size=2, max_size=14)):
        document = draw(
            st.sampled_from([
                chunk(text), chunk(text), chunk(text), chunk(text, index=1), chunk(text, usage=usage(3)), chunk(finish="stop"),
                chunk(delta={"reasoning": text}), chunk(delta={"content": text, "reasoning": text}), chunk(text, object=text),
                chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": text}}]}), {"error": text}, {"choices": []},
                chunk(text, finish="length"), chunk(text, content=text),
            ])
        )  # fmt: skip
        separators = (",", ":") if compact else None
        raw = json.dumps(document, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        end = draw(st.sampled_from([b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\n", b"\r\r"]))
        lead = draw(st.sampled_from([b"", b"", b"", b": c\n", b"event: x\n", b"id: 1\n"]))
        bodies.append(lead + b"data: " + raw + end)
    bodies.append(DONE)
    return [HEAD, *(framed(body, upper) for body in bodies), b"0\r\n\r\n"]


@given(streams())
@settings(max_examples=150, deadline=None)
def test_fast_equals_slow_on_whole_reads(reads: list[bytes]) -> None:
    fast, slow = both_ways(reads)
    assert everything(fast) == everything(slow)


@given(streams(), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4))
@settings(max_examples=150, deadline=None)
def test_fast_equals_slow_on_damaged_reads(reads: list[bytes], damage: list[tuple[int, int]]) -> None:
    for place, value in damage:
        number = 1 + place % (len(reads) - 1)
        raw = bytearray(reads[number])
        raw[place % len(raw)] = value
        reads[number] = bytes(raw)
    fast, slow = both_ways(reads)
    assert everything(fast) == everything(slow)


@given(streams(), st.lists(st.integers(0, 10_000), max_size=12))
@settings(max_examples=150, deadline=None)
@example([HEAD, framed(event(chunk("a"))), framed(event(chunk("b"))), framed(DONE)], [0])
def test_any_split_of_the_bytes_says_the_same_but_for_times(reads: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(reads)
    edges = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    fast, slow = both_ways(pieces)
    assert everything(fast) == everything(slow)
    told, _ = both_ways(reads)
    assert [(c.texts, c.text_of("content"), c.finish_reason) for c in told.choices] == [
        (c.texts, c.text_of("content"), c.finish_reason) for c in fast.choices
    ]
    assert (told.outcome, told.failure, told.warnings, told.completion_tokens) == (
        fast.outcome, fast.failure, fast.warnings, fast.completion_tokens,
    )  # fmt: skip


RAW = st.sampled_from([
    b"a", b" the", b"x" * 40, b"\\n", b'\\"', b"\xe2\x80\xa8", "海".encode(), b"\\u0000",
    b'a"', b'","', b'",\n"b', b'"]', b"c\\", b",", b"\n", b"\r", b"\x01", b"\xff", b"\\ud83d", b"\\ude00", b"",
])  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 30), RAW, st.sampled_from([0, 0, 0, 1])), max_size=12), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_fast_equals_slow_on_long_streams_with_hostile_texts_between(
    stretches: list[tuple[int, bytes, int]], longer: int
) -> None:
    reads = [HEAD, *(framed(event(chunk(text, index=index))) for text in "abc" for index in (0, 1))]
    for many, raw, index in stretches:
        plain = framed(event(chunk("w" * longer, index=index)))  # its size has two hexadecimal digits, or three
        body = event(chunk("#", index=index)).replace(b"#", raw)
        reads += [*([plain] * many), framed(body)]
    fast, slow = both_ways([*reads, framed(DONE)])
    assert everything(fast) == everything(slow)


@given(st.lists(RAW, max_size=12))
@example([b'a","b', b"c\\", b"d"])
@example([b'",\n"', b"\\"])
def test_many_texts_at_once_are_what_each_read_alone_holds(raw: list[bytes]) -> None:
    body = event(chunk("first"))
    template = learn(body, body, body[6:-2], (("choices", 0, "delta", "content"), 0, "content"))
    assert template is not None
    reads = [body.replace(b"first", text) for text in raw]
    alone = [template.text(read) for read in reads]
    assert template.texts(reads) == list(itertools.takewhile(lambda text: text is not None, alone))


def test_a_text_that_also_stands_elsewhere_teaches_nothing() -> None:
    document = json.dumps(chunk("r")).encode()  # "r" is the id as well
    body = b"data: " + document + b"\n\n"
    assert learn(body, body, document, (("choices", 0, "delta", "content"), 0, "content")) is None


def test_a_key_that_reads_like_the_text_teaches_nothing() -> None:
    document = b'{"choices":[{"index":0,"delta":{"content":"\\u0069ndex"}}]}'  # the text is "index", written otherwise
    body = b"data: " + document + b"\n\n"
    assert learn(body, body, document, (("choices", 0, "delta", "content"), 0, "content")) is None


@pytest.mark.parametrize(
    "text",
    [
        b"x\\u0041\\n",
        b"a\nb",
        b"a\rb",
        b"a\n\nb",
        b"\x01",
        b'a"b',
        b"a\\",
        b"\xff",
        b"\xc2\x85",
        b'","content":"z',
        b"\\ud83d",
    ],
)
def test_text_that_could_end_a_string_or_a_line_is_never_taken_as_it_is(text: bytes) -> None:
    reads = [
        HEAD,
        *(framed(event(chunk(t))) for t in "abc"),
        framed(event(chunk("#")).replace(b"#", text)),
        framed(DONE),
    ]
    fast, slow = both_ways(reads)
    assert everything(fast) == everything(slow) and fast.fast_events >= 1


def test_other_apis_have_their_fast_path_too() -> None:
    documents = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in "abcdef"
    ]
    last = [
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 6}},
        {"type": "message_stop"},
    ]
    reads = [HEAD, *(framed(event(document, document["type"])) for document in [*documents, *last])]
    fast, slow = both_ways(reads, Asked(api="anthropic.messages"))
    assert everything(fast) == everything(slow) and fast.fast_events == 4
