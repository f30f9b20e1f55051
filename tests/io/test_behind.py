"""Blocks reach the file in order though their writer never waits for the disk; a disk that takes no more is said."""

from __future__ import annotations

import errno
import threading

import pytest

from phasemeter.io.behind import Behind


def test_blocks_are_written_in_the_order_they_were_handed_over() -> None:
    written: list[bytes] = []
    behind = Behind(written.append)
    blocks = [str(n).encode() for n in range(500)]
    for block in blocks:
        behind.put(block)
    behind.close()
    assert written == blocks


def test_handing_over_does_not_wait_for_a_slow_disk() -> None:
    may_write, written = threading.Event(), []

    def slow(block: bytes) -> None:
        may_write.wait()
        written.append(block)

    behind = Behind(slow)
    for _ in range(3):
        behind.put(b"x")
    assert not written
    may_write.set()
    behind.close()
    assert len(written) == 3


def test_a_full_disk_is_raised_at_the_next_block_or_at_the_end_and_nothing_is_written_after_it() -> None:
    tried: list[bytes] = []

    def full(block: bytes) -> None:
        tried.append(block)
        raise OSError(errno.ENOSPC, "No space left on device")

    behind = Behind(full)
    behind.put(b"a")
    with pytest.raises(OSError, match="No space"):
        behind.close()
    with pytest.raises(OSError, match="No space"):
        behind.put(b"b")
    assert tried == [b"a"]
