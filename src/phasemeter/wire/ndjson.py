"""One JSON document a line (Ollama): bytes in any split → lines, each with the read that completed it.

Lives here: the split. Must not live here: what a line says.
"""

from __future__ import annotations

from phasemeter.wire.lines import LineSplitter
from phasemeter.wire.sse import BOM


class NdjsonDecoder:
    """Feed it reads in order. Blank lines carry nothing."""

    __slots__ = ("_lines", "_read", "_started")

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._started = False
        self._read = 0

    @property
    def pending_bytes(self) -> int:
        return self._lines.pending_bytes

    def feed(self, data: bytes, read: int) -> list[tuple[bytes, int]]:
        """The lines that read number `read` completes, each with that number."""
        if data:
            self._read = read
        found = []
        for line in self._lines.feed(data):
            if not self._started:
                self._started = True
                line = line.removeprefix(BOM)
            if line.strip():
                found.append((line, read))
        return found

    def end(self) -> tuple[bytes, int] | None:
        """The line that never ended, with the read of its last byte."""
        rest = self._lines.rest()
        if not self._started:
            rest = rest.removeprefix(BOM)
        return (rest, self._read) if rest.strip() else None
