"""Raw HTTP reads give the body's bytes in any split, and say what is wrong with them otherwise."""

from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.wire.exchange import Asked, Received, read_exchange
from phasemeter.wire.http_body import DECODED_LIMIT, HttpReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def feed(reader: HttpReader, *pieces: bytes) -> bytes:
    return b"".join(reader.feed(piece) for piece in pieces)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=8), st.lists(st.integers(0, 500), max_size=10))
def test_chunked_bodies_come_out_in_any_split(chunks: list[bytes], cuts: list[int]) -> None:
    raw = CHUNKED + b"".join(b"%X;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nx: y\r\n\r\n"
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    reader = HttpReader()
    assert feed(reader, *(raw[a:b] for a, b in itertools.pairwise(edges))) == b"".join(chunks)
    assert reader.complete and reader.error is None and reader.status == 200


@pytest.mark.parametrize("length", [b"", b"Content-Length: 3\r\n"])
def test_a_length_beside_chunks_is_a_warning_and_no_failure(length: bytes) -> None:
    document = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(document), document)
    raw = HEAD + length + b"Transfer-Encoding: chunked\r\n\r\n" + body
    received = Received(reads=[raw], times_ns=[5], close="complete", closed_ns=6)
    found = read_exchange(Asked(api="openai.chat"), received)
    assert (found.outcome, found.content) == ("ok", "hi")
    assert ("length_beside_chunks" in found.warnings) == bool(length)


def test_interim_responses_are_skipped() -> None:
    reader = HttpReader()
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + HEAD
        + b"Content-Length: 2\r\n\r\nok"
    )
    assert feed(reader, *(raw[at : at + 7] for at in range(0, len(raw), 7))) == b"ok"
    assert reader.complete and reader.header("link") is None


def test_without_length_or_chunks_the_body_lasts_until_the_close() -> None:
    reader = HttpReader()
    assert feed(reader, HEAD + b"\r\nab", b"c") == b"abc"
    assert not reader.complete and not reader.framed and reader.plain


def test_a_length_cut_short_is_not_complete() -> None:
    reader = HttpReader()
    assert feed(reader, HEAD + b"Content-Length: 9\r\n\r\nabc") == b"abc"
    assert reader.framed and not reader.complete


def test_bytes_after_a_complete_message_are_no_body() -> None:
    reader = HttpReader()
    assert feed(reader, HEAD + b"Content-Length: 1\r\n\r\nabc", b"d") == b"a"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\x16\x03\x01\x02",
        b"HTTP/1.1 xx\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"1\r\nab\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        CHUNKED + b"1" * 5000,
        HEAD + b"Content-Encoding: br\r\n\r\nxx",
        HEAD + b"Content-Encoding: gzip\r\n\r\nnot gzip at all",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60_000,
    ],
)
def test_what_is_no_http_is_an_error_that_says_so(raw: bytes) -> None:
    reader = HttpReader()
    feed(reader, raw)
    assert reader.error
    assert reader.feed(b"more") == b""


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(b"hello")),
        ("gzip", gzip.compress(b"hel") + gzip.compress(b"lo")),
        ("x-gzip", gzip.compress(b"hello")),
        ("deflate", zlib.compress(b"hello")),
        ("deflate", raw_deflate(b"hello")),
    ],
)
def test_content_codings_are_undone_byte_by_byte(coding: str, packed: bytes) -> None:
    reader = HttpReader.of_head(200, [("Content-Encoding", coding)])
    assert feed(reader, *(packed[at : at + 1] for at in range(len(packed)))) == b"hello"
    assert reader.coding == coding


def test_a_read_that_grows_without_bound_is_refused() -> None:
    reader = HttpReader.of_head(200, [("content-encoding", "gzip")])
    reader.feed(gzip.compress(b"\0" * (DECODED_LIMIT + 1), compresslevel=1))
    assert reader.error is not None and "grows" in reader.error


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    for reader in (HttpReader(), HttpReader.of_head(200, [("content-encoding", "deflate")])):
        feed(reader, *pieces)
    chunked = HttpReader()
    feed(chunked, CHUNKED, *pieces)
