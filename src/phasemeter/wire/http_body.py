"""Raw HTTP/1 reads → status, headers and body bytes, read by read.

Lives here: framing (head, 1xx, content-length, chunks, until close) and content coding. Must not live here: what a body
means. RFC 9112 sections 6 and 7; the reader is lenient where servers are (bare LF in heads, chunk extensions).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

HEAD_LIMIT = 256 * 1024
DECODED_LIMIT = 64 * 1024 * 1024  # what one read may grow to when decompressed
HEX_DIGITS = b"0123456789abcdefABCDEF"
SIZE_LINE_LIMIT = 4096

HEAD, LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, UNTIL_CLOSE, DONE = range(8)


class HttpReader:
    """Feed it what each read returned; it answers with the body bytes that came in it, content coding undone.

    `error`: what is wrong with the bytes as HTTP, None while nothing is; `coding_broken`: it is the content coding, not the
    framing. `complete`: whether the message ended by its own
    framing. `coding`: the content coding found (gzip, deflate, ...), None for identity.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: tuple[tuple[str, str], ...] = ()
        self.error: str | None = None
        self.coding: str | None = None
        self.coding_broken = False
        self.both_lengths = False  # Content-Length beside chunks: the chunks hold (RFC 9112 section 6.3)
        self._state = HEAD
        self._cut = False
        self._held = b""
        self._left = 0
        self._inflate: _Inflater | None = None

    @classmethod
    def of_head(cls, status: int, headers: Sequence[tuple[str, str]], cut: bool = False) -> HttpReader:
        """A reader whose head is known and whose reads are body bytes, unframed, until the connection closes; with `cut` before
        the end that their framing, undone since, had named."""
        reader = cls()
        reader._cut = cut
        reader.status = status
        reader.headers = tuple((name.lower(), value) for name, value in headers)
        reader._state = UNTIL_CLOSE
        reader._set_coding()
        return reader

    @property
    def complete(self) -> bool:
        return self._state == DONE

    @property
    def framed(self) -> bool:
        """Whether the message says itself where it ends (so that a close before that is a truncation)."""
        return self._cut or self._state not in (HEAD, UNTIL_CLOSE)

    @property
    def at_chunk(self) -> bool:
        """Whether the next byte starts a chunk-size line and no content coding stands between."""
        return self._state == CHUNK_SIZE and not self._held and self._inflate is None

    @property
    def plain(self) -> bool:
        """Whether each read is body bytes as they are."""
        return self._state == UNTIL_CLOSE and self._inflate is None

    @property
    def undecoded(self) -> bool:
        """Whether body bytes came whose content coding is not at its end."""
        return self._inflate is not None and self._inflate.open

    def header(self, name: str) -> str | None:
        """The first header of that (lower-case) name."""
        return next((value for known, value in self.headers if known == name), None)

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`. After an error: nothing."""
        if self.error is not None or self._state == DONE:
            return b""
        if self._state == HEAD:
            data = self._head(data)
        if self._state == HEAD or not data:
            return b""
        if self._state == UNTIL_CLOSE:
            body = data
        elif self._state == LENGTH:
            body = data[: self._left]
            self._left -= len(body)
            if self._left == 0:
                self._state = DONE
        else:
            body = self._one_chunk(data) or self._chunks(data)
        if body and self._inflate is not None:
            return self._decoded(body)
        return body

    def _fail(self, what: str) -> bytes:
        self.error = what
        return b""

    def _head(self, data: bytes) -> bytes:
        """Reads the head, skipping 1xx responses; what stands after it, b"" while it is incomplete."""
        held = self._held + data
        self._held = b""
        while True:
            crlf, lf = held.find(b"\r\n\r\n"), held.find(b"\n\n")
            if not b"HTTP/".startswith(held[:5]):
                return self._fail(f"no HTTP response: it begins {held[:60]!r}")
            if crlf < 0 and lf < 0:
                if len(held) > HEAD_LIMIT:
                    return self._fail(f"the response head is longer than {HEAD_LIMIT} bytes")
                self._held = held
                return b""
            end, skip = (crlf, 4) if lf < 0 or 0 <= crlf < lf else (lf, 2)
            head, held = held[:end], held[end + skip :]
            if not self._parse_head(head):
                return b""
            if self.status is None or not 100 <= self.status < 200 or self.status == 101:
                return held

    def _parse_head(self, head: bytes) -> bool:
        first, headers = _lines_of(head)
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[1].isdecimal() or not parts[1].isascii() or len(parts[1]) != 3:
            self._fail(f"no HTTP status line: {first[:60]!r}")
            return False
        self.status, self.reason = int(parts[1]), parts[2].strip() if len(parts) > 2 else ""
        self.headers = headers
        length = self.header("content-length")
        if self.status in (204, 304):
            self._state = DONE
        elif "chunked" in (self.header("transfer-encoding") or "").lower():
            self._state = CHUNK_SIZE
            self.both_lengths = length is not None
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                self._fail(f"no content-length: {length[:60]!r}")
                return False
            self._left = int(length)
            self._state = LENGTH if self._left else DONE
        else:
            self._state = UNTIL_CLOSE
        if 100 <= self.status < 200 and self.status != 101:
            self._state = HEAD
            return True
        self._set_coding()
        return True

    def _set_coding(self) -> None:
        coding = (self.header("content-encoding") or "identity").strip().lower()
        if coding in ("identity", ""):
            return
        self.coding = coding
        if coding not in ("gzip", "x-gzip", "deflate"):
            self.coding_broken = True
            self._fail(f"content-encoding {coding[:40]!r} is none I can undo: ask the server for identity")
            return
        self._inflate = _Inflater(raw_allowed=coding == "deflate")

    def _one_chunk(self, data: bytes) -> bytes | None:
        """The data of the one whole chunk that a read holds in most streams; None: look at it line by line."""
        if self._state != CHUNK_SIZE or self._held:
            return None
        line, _, rest = data.partition(b"\r\n")
        if not line or len(line) > 15 or line.strip(HEX_DIGITS) or not rest.endswith(b"\r\n"):
            return None
        return rest[:-2] if int(line, 16) == len(rest) - 2 else None

    def _chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        position = 0
        if self._held:
            data = self._held + data
            self._held = b""
        while position < len(data) and self._state != DONE:
            if self._state == CHUNK_DATA:
                piece = data[position : position + self._left]
                body.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._state = CHUNK_END
                continue
            end = data.find(b"\n", position)
            if end < 0:
                self._held = data[position:]
                if len(self._held) > SIZE_LINE_LIMIT:
                    self._fail("a chunk-size line without an end")
                break
            line = data[position:end].rstrip(b"\r")
            position = end + 1
            if not self._chunk_line(line):
                break
        return body[0] if len(body) == 1 else b"".join(body)

    def _chunk_line(self, line: bytes) -> bool:
        """One line of framing: a size, the end of a chunk, a trailer. False once an error was found."""
        if self._state == CHUNK_END:
            self._state = CHUNK_SIZE
            if line:
                self._fail(f"a chunk is followed by {line[:40]!r} instead of a line end")
        elif self._state == TRAILER:
            if not line:
                self._state = DONE
        else:
            size = line.partition(b";")[0].strip()
            if not size or len(size) > 15 or size.strip(HEX_DIGITS):
                self._fail(f"no chunk size: {line[:40]!r}")
                return False
            self._left = int(size, 16)
            self._state = CHUNK_DATA if self._left else TRAILER
        return self.error is None

    def _decoded(self, body: bytes) -> bytes:
        if self._inflate is None:
            return body
        try:
            decoded = self._inflate.feed(body)
        except zlib.error as error:
            self.coding_broken = True
            return self._fail(f"the {self.coding} body is damaged: {error}")
        if decoded is None:
            self.coding_broken = True
            return self._fail(f"one read of the {self.coding} body grows beyond {DECODED_LIMIT} bytes")
        return decoded


@lru_cache(maxsize=64)
def _lines_of(head: bytes) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The first line of a head, and its headers, names in lower case. The answers of one second mostly have the same."""
    first, *rest = head.decode("latin-1").replace("\r\n", "\n").split("\n")
    parts = (line.partition(":") for line in rest)
    return first, tuple((name.strip().lower(), value.strip()) for name, colon, value in parts if colon)


class _Inflater:
    """zlib, gzip (one member or several) and, where allowed, raw deflate, incrementally."""

    def __init__(self, raw_allowed: bool) -> None:
        self._raw_allowed = raw_allowed
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._first = b""
        self._seen = False
        self._fed = False

    @property
    def open(self) -> bool:
        """Whether it was fed and is not at its end."""
        return self._fed and not self._zlib.eof

    def feed(self, data: bytes) -> bytes | None:
        """What `data` adds; None when it is too much. Raises zlib.error."""
        self._fed = True
        if self._raw_allowed and not self._seen:
            data = self._first + data
            if len(data) < 2:  # "deflate" may be zlib or raw (RFC 9110 section 8.4.1.2): its first two bytes tell
                self._first = data
                return b""
            self._seen = True
            if data[0] & 0x0F != 8 or int.from_bytes(data[:2], "big") % 31:
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        out = self._zlib.decompress(data, DECODED_LIMIT)
        while self._zlib.eof and self._zlib.unused_data[:2] == b"\x1f\x8b":
            rest = self._zlib.unused_data
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
            out += self._zlib.decompress(rest, DECODED_LIMIT)
            if len(out) > DECODED_LIMIT:
                return None
        return None if self._zlib.unconsumed_tail else out
