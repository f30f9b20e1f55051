"""Length-prefixed blocks in an append-only file: what a torn tail can't spoil.

Lives here: writing whole blocks, reading them back up to the last whole one, following a file that still grows. Must not
live here: what a block holds (capture_file.py, schedule_file.py).

A block is `<u32 length> <u8 kind> <payload>`, little endian. A file starts with eight bytes that name its format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from phasemeter.errors import FileError

T = TypeVar("T")

BLOCK = struct.Struct("<IB")
LARGEST_BLOCK = 1 << 30


def append(fd: int, data: bytes) -> None:
    """Write `data` whole at the end, or not at all: on a failure (full disk) the file is cut back to where it was.

    Raises OSError as the system gave it.
    """
    before = os.lseek(fd, 0, os.SEEK_CUR)
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, before)
        os.lseek(fd, before, os.SEEK_SET)
        raise


def block(kind: int, payload: bytes) -> bytes:
    return BLOCK.pack(len(payload), kind) + payload


class Torn:
    """How many bytes at a file's end belonged to no whole block (0: the file is whole). Filled in by `blocks`."""

    def __init__(self) -> None:
        self.torn_bytes = 0


def blocks(file: BinaryIO, torn: Torn, only: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Each whole block from the file's position on, as (kind, payload); a torn tail ends the walk and is counted.

    `only`: blocks of another kind are skipped unread, and a torn tail among them is not noticed.
    """
    while True:
        head = file.read(BLOCK.size)
        if len(head) < BLOCK.size:
            torn.torn_bytes = len(head)
            return
        length, kind = BLOCK.unpack(head)
        if only is not None and kind != only and 0 < length <= LARGEST_BLOCK:
            file.seek(length, os.SEEK_CUR)
            continue
        payload = file.read(length) if length <= LARGEST_BLOCK else b""
        if len(payload) < length or length == 0:
            torn.torn_bytes = len(head) + len(payload)
            return
        yield kind, payload


def decoded(path: Path, decode: Callable[[bytes], T], payload: bytes) -> T:
    """What a block of the file at `path` says. Raises FileError where it is damaged."""
    try:
        return decode(payload)
    except msgspec.DecodeError as wrong:
        raise FileError(f"{path}: is damaged: {wrong}") from wrong


def open_checked(path: Path, magic: bytes, buffer: int = 1 << 18) -> BinaryIO:
    """The file at `path`, positioned after its magic; a file cut within its magic reads as empty.

    `buffer`: bytes read ahead; 0 suits one who skips most of them. Raises FileError when it is something else.
    """
    file = path.open("rb", buffering=buffer)
    found = file.read(len(magic))
    if found != magic and not (len(found) < len(magic) and magic.startswith(found)):
        file.close()
        raise FileError(f"{path}: not a file of this kind, or of another version ({found!r}, expected {magic!r})")
    return file
