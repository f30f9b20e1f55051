"""The emulator's truth: a JSON line a request, with what was planned and when it was written.

Lives here: the record and its file. Must not live here: what a client saw.
All instants are CLOCK_MONOTONIC ns of this machine, so that a client on it can be held against them.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `planned_ns[i]` is when the engine's step with token i ended by plan; `written_ns[i]` is the clock just
    before the write that carried it (None: never written). Tokens of one chunk share one `written_ns`."""

    request_id: str | None  # the client's X-Request-Id
    response_id: str
    traceparent: str | None
    stream: bool
    arrival_ns: int  # the request's last byte was read
    scheduled_ns: int | None  # planned start of its first step
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    planned_ns: tuple[int, ...]
    written_ns: tuple[int | None, ...]
    end_ns: int
    outcome: str  # stop | length | truncated | error | client_gone
    preemptions: int
    faults: dict[str, object]
    choices: int = 1  # every planned instant gave one token of each
    steps: int = 0  # of the emulator, for any request, while this one was there
    late_steps: int = (
        0  # how many of them began over 1 ms or ended over 10 ms after plan: it didn't keep up if over 1 in 100
    )


class TruthFile:
    """Appends; each line is whole or absent once `flush` has run."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("ab", buffering=1 << 20)
        self.encoder = msgspec.json.Encoder()

    def write(self, truth: Truth) -> None:
        self.file.write(self.encoder.encode(truth) + b"\n")

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def read_truth(path: Path) -> list[Truth]:
    """Every request of a truth file."""
    decoder = msgspec.json.Decoder(Truth)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
