"""Whatever comes, nothing but the project's own errors is raised, nothing hangs, and memory stays bounded."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.wire.apis import APIS
from phasemeter.wire.exchange import Asked, Received, read_exchange
from tests.wire.streams import DONE, chunk, event, finished, read

PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([
        b"data: ", b"\n\n", b"\r", b"[DONE]", b'{"choices":[', b'{"choices":[{"delta":', b'"}', b"{}", b"null", b"\xef\xbb\xbf",
        b"event: error\n", b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", b"transfer-encoding: chunked\r\n", b"5\r\n", b"0\r\n",
        b'{"error":', b'"content":"', b'{"done":true}\n', b'{"type":"response.completed","response":[]}',
    ]),
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from([
                "choices", "delta", "content", "index", "usage", "error", "type", "response", "message", "token", "text", "done",
                "tool_calls", "function", "name", "logprobs", "finish_reason", "meta_info", "details", "output", "content_block",
                "completion_tokens", "input_tokens", "reasoning", "stop", "generated_text", "status", "id", "tokens", "item",
            ]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(sorted(APIS)), st.booleans(), st.booleans(), st.lists(PIECES, max_size=12))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise(api: str, stream: bool, raw: bool, pieces: list[bytes]) -> None:
    received = Received(
        reads=pieces, times_ns=list(range(len(pieces))), close="eof", closed_ns=99, status=None if raw else 200
    )
    found = read_exchange(Asked(api=api, stream=stream), received)
    assert found.outcome in ("ok", "failed") and (found.outcome == "ok") == (found.failure is None)


@given(st.sampled_from(sorted(APIS)), st.booleans(), st.lists(JSON, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_no_document_raises(api: str, framed: bool, documents: list[object]) -> None:
    if framed and APIS[api].framing == "sse":
        pieces = [b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents]
    else:
        pieces = [json.dumps(document).encode() + b"\n" for document in documents]
    for stream in (True, False):
        found = read([(1.0 + n, piece) for n, piece in enumerate(pieces)], asked=Asked(api=api, stream=stream))
        assert found.outcome in ("ok", "failed")


def test_json_nested_without_end_is_unreadable_not_a_crash() -> None:
    found = read([(1, b"data: " + b'{"a":' * 100_000 + b"\n\n"), (2, event(chunk("a"))), (3, finished(1))])
    assert (found.outcome, found.content) == ("ok", "a")


def test_a_line_of_ten_megabytes_is_one_chunk() -> None:
    text = "x" * (10 * 1024 * 1024)
    raw = event(chunk(text))
    found = read([*((1.0, raw[at : at + 65536]) for at in range(0, len(raw), 65536)), (2, finished(9))])
    assert (found.outcome, len(found.content)) == ("ok", len(text))


def test_a_line_without_end_is_cut_by_the_limit_and_the_rest_is_not_kept() -> None:
    for first, api in ((b"data: ", "openai.chat"), (b"{", "ollama.chat"), (b'{"a":"', "openai.chat")):
        pieces = [(1.0, first)] + [(2.0, b"x" * 1000)] * 500
        found = read(pieces, asked=Asked(api=api), line_limit=10_000)
        assert (found.outcome, found.failure) == ("failed", "too_large")


def test_a_hundred_thousand_events_in_one_read_are_all_read() -> None:
    found = read([(1, event(chunk("a")) * 100_000 + DONE)])
    assert len(found.choices[0].reads) == 100_000
