"""A capture is readable whatever byte it was cut at, and gives back what went in."""

from __future__ import annotations

import errno
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import FileError
from phasemeter.io import framing
from phasemeter.io.capture_file import COLUMNS, CaptureWriter, Closed, Header, Started, encoded
from phasemeter.io.capture_reader import CaptureReader
from phasemeter.records.capture import Capture, Read
from phasemeter.records.reads import data_of

HEADER = Header(worker=3, processes=4, start_ns=77, stamps="kernel", pid=1)


def started(number: int) -> Started:
    return Started(
        number=number, request_id=f"r{number}", row=number, own=False, due_ns=number, dns_start_ns=None, dns_done_ns=None,
        connect_start_ns=1, tcp_connected_ns=2, connected_ns=3, send_start_ns=4, sent_ns=None, reused=False, resent=False,
        local_port=5, peer="127.0.0.1:1", request_bytes=6,
    )  # fmt: skip


Steps = list[tuple[int, bytes]]
steps = st.lists(st.tuples(st.integers(0, 5), st.binary(min_size=1, max_size=40)), max_size=40)


def write(path: Path, reads: Steps, flush_every: int) -> dict[int, bytes]:
    """Six requests whose reads are interleaved; even ones close. What each request got."""
    writer = CaptureWriter(path, HEADER)
    got = dict.fromkeys(range(6), b"")
    writer.starts.extend(started(number) for number in range(6))
    for at, (number, data) in enumerate(reads):
        writer.numbers.append(number)
        writer.reads.append((at, None if at % 3 else at + 10**18, data))
        got[number] += data
        if at % flush_every == 0:
            writer.flush()
    writer.closes.extend(Closed(number, 99, "complete", None, 50) for number in (0, 2, 4))
    writer.close("done")
    return got


def bytes_of(capture: Capture) -> bytes:
    return b"".join(read.data for read in capture.reads)


@settings(deadline=None, max_examples=60)
@given(steps, st.integers(1, 10))
def test_what_was_written_is_read_back_and_the_unclosed_come_last(reads: Steps, flush_every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker-3.capture"
        got = write(path, reads, flush_every)
        reader = CaptureReader(path)
        captures = [capture for _, capture in reader.requests()]
    assert {c.request_id: bytes_of(c) for c in captures} == {f"r{n}": data for n, data in got.items()}
    assert [c.close for c in captures] == ["complete"] * 3 + [None] * 3
    assert all(c.sent_ns == 50 and c.worker == 3 for c in captures[:3])
    assert reader.end is not None and reader.end.reason == "done" and reader.torn_bytes == 0
    assert reader.header == HEADER


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 90), st.integers(0, 2**32), st.integers(150, 700))
def test_a_long_streams_reads_are_what_was_written_however_they_were_moved(flush: int, seed: int, many: int) -> None:
    draw = random.Random(seed)
    written: dict[int, list[Read]] = {number: [] for number in range(3)}
    with tempfile.TemporaryDirectory() as folder:
        writer = CaptureWriter(Path(folder) / "worker-3.capture", HEADER)
        writer.starts.extend(started(number) for number in written)
        for at in range(many):
            number = draw.choice([0, 0, 0, 0, 1, 2])
            read = Read(at, draw.choice([None, at + 10**18, at - 10**18]), draw.randbytes(draw.randrange(9)))
            written[number].append(read)
            writer.numbers.append(number)
            writer.reads.append((read.user_ns, read.kernel_realtime_ns, read.data))
            if at % flush == 0:
                writer.flush()
        writer.closes.extend(Closed(number, 99, "complete", None, 50) for number in (0, 2))
        writer.close("done")
        captures = {
            capture.request_id: capture for _, capture in CaptureReader(Path(folder) / "worker-3.capture").requests()
        }
    for number, reads in written.items():
        found = captures[f"r{number}"].reads
        assert found == tuple(reads) and len(found) == len(reads) and data_of(found) == [read.data for read in reads]
        assert found[-1:] == tuple(reads[-1:]) and (not reads or found[0] == reads[0])


@settings(deadline=None, max_examples=150)
@given(steps, st.integers(1, 10), st.floats(0, 1))
def test_a_file_cut_anywhere_reads_up_to_its_last_whole_block(reads: Steps, flush_every: int, share: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker-3.capture"
        got = write(path, reads, flush_every)
        whole = path.read_bytes()
        cut = round(share * len(whole))
        path.write_bytes(whole[:cut])
        reader = CaptureReader(path)
        captures = [capture for _, capture in reader.requests()]
        torn = reader.torn_bytes
    assert all(got[int(c.request_id[1:])].startswith(bytes_of(c)) for c in captures)
    assert torn < cut or cut == 0
    assert (reader.end is not None) == (cut == len(whole))
    assert sum(len(bytes_of(c)) for c in captures) <= cut


def test_another_kind_of_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.capture"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(FileError, match=r"worker-0\.capture"):
        CaptureReader(path)


def test_a_full_disk_is_an_error_and_what_was_written_stays_readable(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "worker-3.capture"
    path.symlink_to(full)
    with pytest.raises(OSError):
        CaptureWriter(path, HEADER)


def test_a_disk_that_is_full_at_the_end_is_an_error_that_the_writer_can_be_left_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, append = tmp_path / "worker-3.capture", framing.append
    left = ["the header"]  # and nothing after it

    def filling(fd: int, data: bytes) -> None:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()
        append(fd, data)

    monkeypatch.setattr(framing, "append", filling)
    writer = CaptureWriter(path, HEADER)
    with pytest.raises(OSError, match="No space"):
        writer.close("done")
    writer.abandon()
    assert CaptureReader(path).header == HEADER


def test_a_second_start_of_a_request_leaves_the_reads_that_came_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phasemeter.io.capture_reader.TOGETHER_READS", 1)
    writer = CaptureWriter(tmp_path / "worker-3.capture", HEADER)
    for data in (b"one", b"two"):
        writer.starts.append(started(0))
        writer.numbers.append(0)
        writer.reads.append((5, None, data))
        writer.flush()
    writer.close("done")
    ((_, capture),) = CaptureReader(tmp_path / "worker-3.capture").requests()
    assert b"".join(data_of(capture.reads)) == b"onetwo"


def test_an_instant_that_no_clock_shows_is_one_line_about_the_file(tmp_path: Path) -> None:
    path = tmp_path / "worker-3.capture"
    writer = CaptureWriter(path, HEADER)
    writer.starts.append(started(0))
    for _ in range(100):
        writer.numbers.append(0)
        writer.reads.append((2**63, None, b"x"))
    writer.close("done")
    with pytest.raises(FileError, match="64 bits"):
        list(CaptureReader(path).requests())


@settings(deadline=None, max_examples=150)
@given(steps, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_file_is_read_or_refused_in_one_line(reads: Steps, damage: list[tuple[float, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker-3.capture"
        write(path, reads, 7)
        whole = bytearray(path.read_bytes())
        for share, byte in damage:
            whole[8 + int(share * (len(whole) - 8))] = byte
        path.write_bytes(whole)
        try:
            reader = CaptureReader(path)
            list(reader.requests())
            list(reader.clock_pairs())
        except FileError as refused:
            assert "worker-3.capture: is damaged" in str(refused)


def test_columns_of_differing_length_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "worker-3.capture"
    CaptureWriter(path, HEADER).close("done")
    with path.open("ab") as file:
        file.write(framing.block(COLUMNS, encoded(([started(0)], [0, 0], [1], [2], [b"x"], []))))
    with pytest.raises(FileError, match="differ in length"):
        list(CaptureReader(path).requests())
