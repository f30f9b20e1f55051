"""JSON lines come out whole, whatever the split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phasemeter.wire.lines import LineSplitter
from phasemeter.wire.ndjson import NdjsonDecoder


def test_each_line_carries_its_completing_read_and_blank_lines_carry_nothing() -> None:
    decoder = NdjsonDecoder()
    assert decoder.feed(b'{"a":', 0) == []
    assert decoder.feed(b'1}\n\n{"b":2}\n{"c"', 1) == [(b'{"a":1}', 1), (b'{"b":2}', 1)]
    assert decoder.end() == (b'{"c"', 1)


@given(st.lists(st.binary(max_size=5), max_size=20))
def test_lines_of_any_split_equal_the_lines_of_the_whole(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    whole = b"".join(pieces)
    assert [*lines, *([rest] if (rest := splitter.rest()) else [])] == whole.splitlines()


def test_a_line_of_ten_megabytes_in_small_reads_comes_out_whole() -> None:
    splitter = LineSplitter()
    piece = b"x" * 4096
    for _ in range(2560):
        assert splitter.feed(piece) == []
    assert [len(line) for line in splitter.feed(b"\n")] == [10 * 1024 * 1024]
