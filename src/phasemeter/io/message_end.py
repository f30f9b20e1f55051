"""Where an HTTP response ends, and nothing else about it.

Lives here: the one question that the sender has about the bytes. Must not live here: bodies, header values beyond framing,
events (wire/ reads all that from the capture).
"""

from __future__ import annotations

from typing import Any

import httptools

MALFORMED = (httptools.HttpParserError, httptools.HttpParserUpgrade)

# What curl, Python's http.client and Go read, and llhttp alone refuses: both lengths (chunks hold, RFC 9112 section 6.3), a bare LF as
# the end of a header line (2.2), white space after a chunk size (7.1.1), odd or folded header values (5). A server is measured here,
# not guarded against.
AS_CLIENTS_READ = {
    "lenient_chunked_length": True, "lenient_headers": True, "lenient_optional_cr_before_lf": True, "lenient_spaces_after_chunk_size": True,
}  # fmt: skip

LENGTH, CHUNKS = 1, 2  # what a head says of its body's end


class MessageEnd:
    """Fed with what comes; `complete` turns true with the final response's last byte.

    Interim (1xx) responses are skipped: llhttp reports each as a complete message. A response with neither
    Content-Length nor chunked coding ends when the peer closes (RFC 9112 section 6.3): `until_close`.
    `feed` raises one of MALFORMED when the bytes are no HTTP response.
    """

    __slots__ = (
        "_framed",
        "_head_only",
        "_interim",
        "_parser",
        "complete",
        "excess",
        "feed",
        "keep_alive",
        "until_close",
    )

    def __init__(self, head_only: bool = False) -> None:
        self.complete = False
        self.keep_alive = False
        self.until_close = False
        self.excess = False  # bytes after the end: the connection can't be trusted with another request
        self._framed = 0
        self._interim = False
        self._head_only = head_only
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(**AS_CLIENTS_READ)
        self.feed: Any = self._parser.feed_data

    def on_message_begin(self) -> None:
        if self.complete:
            self.excess = True

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-length":
            self._framed |= LENGTH
        elif lower == b"transfer-encoding" and value.lower().endswith(b"chunked"):
            self._framed |= CHUNKS

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            self._framed = 0
            return
        self.until_close = not self._framed and status not in (204, 304) and not self._head_only
        odd = self._framed == LENGTH | CHUNKS  # may be an attack on whoever asks next (RFC 9112 section 6.1)
        self.keep_alive = not self.until_close and not odd and self._parser.should_keep_alive()
        if self._head_only:
            self.complete = True

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self.complete = True

    def release(self) -> None:
        """Break the circle of references with the parser, so that no garbage collection is needed."""
        self._parser = self.feed = None
