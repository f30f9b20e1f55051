"""TLS over bytes that we read ourselves, so that each read keeps its stamp.

Lives here: the context and a channel between two memory buffers. Must not live here: a socket.
"""

from __future__ import annotations

import ssl

from phasemeter.errors import UserError
from phasemeter.io.target import Tls


def context_of(options: Tls) -> ssl.SSLContext:
    """Certificates and names are checked unless `insecure`; ALPN offers http/1.1 only: a server could pick h2 otherwise.

    Raises UserError for a CA file that can't be read.
    """
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
    except (OSError, ssl.SSLError) as wrong:
        raise UserError(f"--ca-file {options.ca_file}: {wrong}: give a file of PEM certificates") from wrong
    context.set_alpn_protocols(["http/1.1"])
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class TlsChannel:
    """Ciphertext in, plaintext out, and back."""

    __slots__ = ("_incoming", "_object", "_outgoing", "ended")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.ended = False  # the peer said close_notify

    def handshake(self) -> bool:
        """Whether it is done; what has to be sent is in `pending`. Raises ssl.SSLError."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def feed(self, ciphertext: bytes) -> None:
        self._incoming.write(ciphertext)

    def received(self, ciphertext: bytes) -> bytes:
        """The plaintext that `ciphertext` released: empty for session tickets or a part of a record. Raises ssl.SSLError."""
        self._incoming.write(ciphertext)
        parts = []
        while True:
            try:
                part = self._object.read(1 << 16)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:
                self.ended = True
                break
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, plaintext: bytes) -> bytes:
        if plaintext:
            self._object.write(plaintext)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """What TLS itself wants sent (handshake, key updates)."""
        return self._outgoing.read()
