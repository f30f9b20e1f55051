"""The grammar of event streams holds for any split of the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.wire.sse import SseDecoder


def decode(pieces: list[bytes]) -> list[tuple[bytes, bytes, list[int]]]:
    decoder = SseDecoder()
    found = []
    for number, piece in enumerate(pieces):
        found.extend((event.name, event.data, event.reads) for event in decoder.feed(piece, number))
    return found


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    stream = end.join([b"data: a", b"", b"event: x", b"data:b", b"data:  c", b"", b""])
    assert [(name, data) for name, data, _ in decode([stream])] == [(b"", b"a"), (b"x", b"b\n c")]


def test_a_crlf_split_over_two_reads_is_one_line_end_and_the_event_is_complete_at_the_cr() -> None:
    assert decode([b"data: a\r\n\r", b"\ndata: b\r\n\r\n"]) == [(b"", b"a", [0]), (b"", b"b", [1])]


def test_an_events_time_is_the_read_that_completed_its_last_data_line_not_its_blank_line() -> None:
    assert decode([b"data: a", b"\n", b"\n"]) == [(b"", b"a", [1])]


def test_one_byte_order_mark_is_stripped_even_split_over_reads_and_a_second_is_not() -> None:
    mark = b"\xef\xbb\xbf"
    assert decode([mark[:2], mark[2:], b"data: a\n\n"]) == [(b"", b"a", [2])]
    assert decode([mark + mark + b"data: a\n\n"]) == []


def test_a_comment_or_a_blank_line_without_data_dispatches_nothing() -> None:
    assert decode([b": ping\n\n", b":\n\nid: 3\n\nevent: x\n\n", b"data\n\n"]) == [(b"", b"", [2])]


def test_an_id_with_a_null_is_ignored_and_retry_takes_digits_only() -> None:
    decoder = SseDecoder()
    decoder.feed(b"id: 1\nid: 2\x00\nretry: 50\nretry: 5x\n", 0)
    assert (decoder.last_event_id, decoder.retry_ms) == (b"1", 50)


def test_unknown_fields_are_counted_and_carry_nothing() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"<html>\n\n", 0) == [] and (decoder.strange_lines, decoder.strange) == (1, b"<html>\n")


def test_what_is_left_at_the_end_is_given_when_asked_for() -> None:
    decoder = SseDecoder()
    decoder.feed(b"event: x\nda", 0)
    decoder.feed(b"ta: [1", 1)
    left = decoder.end()
    assert left is not None and (left.name, left.data, left.reads) == (b"x", b"[1", [1])
    assert decoder.end() is None


LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b": c",
        b"event: e",
        b"id: 1",
        b"retry: 9",
        b"",
        b"",
        b"x: y",
        b"data: \xe6\xb5\xb7",
    ]
)


@given(st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=30), st.lists(st.integers(0, 999)))
def test_any_split_of_the_bytes_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines) + b"\n"
    whole = [(name, data) for name, data, _ in decode([stream])]
    assert [(name, data) for name, data, _ in decode(split(stream, cuts))] == whole


@given(st.lists(st.integers(0, 200), max_size=12))
def test_each_data_line_carries_the_read_that_completed_it(cuts: list[int]) -> None:
    stream = b"".join(b"data: %d\n\n" % number for number in range(12))
    pieces = split(stream, cuts)
    ends = [stream.index(b"data: %d\n" % number) + len(b"data: %d\n" % number) for number in range(12)]
    reach = [sum(len(piece) for piece in pieces[: number + 1]) for number in range(len(pieces))]
    oracle = [next(number for number, total in enumerate(reach) if total >= end) for end in ends]
    assert [reads for _, _, reads in decode(pieces)] == [[read] for read in oracle]
