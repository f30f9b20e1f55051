"""Bytes as they come → complete lines.

Lives here: where a line ends, whatever the split of the bytes. Must not live here: what a line means (sse, ndjson).
"""

from __future__ import annotations

LF, CR = 10, 13


class LineSplitter:
    """Lines end in LF, CR or CRLF; a CRLF split over two reads is one end (HTML standard, event streams: `end-of-line`).

    A CR that ends a read completes its line at once: waiting for a possible LF would move the line to a later read.
    """

    __slots__ = ("_after_cr", "_parts", "pending_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._after_cr = False
        self.pending_bytes = 0

    @property
    def clean(self) -> bool:
        """Whether the next byte starts a line, and no LF is left over from a CRLF."""
        return not self._parts and not self._after_cr

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, in order, without their ends."""
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == LF:
                data = data[1:]
        if not data:
            return []
        lines = data.splitlines()  # of bytes: LF, CR and CRLF only
        last = data[-1]
        rest = lines.pop() if last not in (LF, CR) else b""
        self._after_cr = last == CR
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self.pending_bytes = 0
        if rest:
            self._parts.append(rest)
            self.pending_bytes += len(rest)
        return lines

    def rest(self) -> bytes:
        """What stands after the last line end: the line that never ended. Empties the splitter."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self.pending_bytes = 0
        return rest
