"""One connection: attempts over the known addresses, proxy, TLS, then bytes both ways. Never blocks.

Lives here: sockets and their stamps. Must not live here: which request goes where (load.py) or how long anything may take.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from typing import Any

import msgspec

from phasemeter import lazy
from phasemeter.io.addresses import Address, Resolved
from phasemeter.io.target import Target
from phasemeter.records.capture import Close

# Linux: the same number names the socket option and the control message (asm-generic/socket.h)
SO_TIMESTAMPNS = 35
KERNEL_STAMPS = sys.platform == "linux"
CONTROL_BYTES = socket.CMSG_SPACE(16) if KERNEL_STAMPS else 0
TIMESPEC = struct.Struct("@qq") if struct.calcsize("@l") == 8 else struct.Struct("@ll")
READ_BYTES = 1 << 18

CLIENT_RESOURCE = {
    errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EADDRINUSE,
}  # fmt: skip
CONNECTING, TUNNEL, HANDSHAKE, OPEN, CLOSED = range(5)


class Route(msgspec.Struct):
    """What all connections of a run share: target, addresses (of the proxy where there is one), the TLS context."""

    target: Target
    resolved: Resolved
    context: Any = None  # ssl.SSLContext
    kernel_stamps: bool = KERNEL_STAMPS


def route_to(target: Target, resolved: Resolved, kernel_stamps: bool) -> Route:
    """Raises UserError for a CA file that can't be read."""
    context = lazy.load("phasemeter.io.tls").context_of(target.tls) if target.tls else None
    return Route(target, resolved, context, kernel_stamps)


def stamps_available() -> socket.socket | None:
    """Switch the kernel's receive stamps on and keep them on for as long as the returned socket stays open.

    They are off until some socket asks, and begin a few milliseconds after: a socket of no other use asks first, so that
    the first reads carry stamps too. None: this system gives no such stamps.
    """
    if not KERNEL_STAMPS:
        return None
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        sock.close()
        return None
    return sock


def reader_of(sock: socket.socket) -> Any:
    """`recvmsg_into`, or what does as much of it as a system without it can: no control messages, no stamps."""
    if hasattr(sock, "recvmsg_into"):
        return sock.recvmsg_into

    def receive(buffers: list[memoryview], control_bytes: int) -> tuple[int, list[tuple[int, int, bytes]], int, None]:
        return sock.recv_into(buffers[0]), [], 0, None

    return receive


def close_kind(error: OSError, connecting: bool) -> Close:
    if error.errno in CLIENT_RESOURCE and not type(error).__module__.startswith("ssl"):
        return "client_resource"
    return "refused" if connecting else "reset"


class Connection:
    """`open_attempt` until it does not raise, `advance` on each event until OPEN, then `send`; reading is the loop's."""

    __slots__ = (
        "address_at", "connect_start_ns", "connected_ns", "exchange", "failure", "fd", "follows_look_up", "gone", "idle_since_ns",
        "interest", "local_port", "outgoing", "peer", "recvmsg_into", "reserved_for", "route", "sock", "state",
        "tcp_connected_ns", "tls", "tunnel", "used",
    )  # fmt: skip

    def __init__(self, route: Route) -> None:
        self.route = route
        self.sock: socket.socket | None = None
        self.fd = -1
        self.state = CONNECTING
        self.address_at = -1
        self.tls: Any = None
        self.exchange: Any = None
        self.failure: OSError | None = None  # of a write; an answer may have come before it
        self.reserved_for: Any = None
        self.outgoing = b""  # not all with the kernel yet
        self.gone = 0  # how much of it is
        self.tunnel = b""
        self.used = 0
        self.follows_look_up = False  # the name was looked up for this one; later ones use what it stood for
        self.interest = 0
        self.connect_start_ns: int | None = None
        self.tcp_connected_ns: int | None = None
        self.connected_ns: int | None = None
        self.idle_since_ns = 0
        self.local_port: int | None = None
        self.peer: str | None = None
        self.recvmsg_into: Any = None

    @property
    def addresses_left(self) -> int:
        return len(self.route.resolved.addresses) - 1 - self.address_at

    def open_attempt(self) -> None:
        """Begin a connection to the next address. Raises OSError when that one failed at once."""
        self.close()
        self.leave()
        self.address_at += 1
        address: Address = self.route.resolved.addresses[self.address_at]
        if self.connect_start_ns is None:
            self.connect_start_ns = time.monotonic_ns()
        self.state = CONNECTING
        self.peer = str(address)
        sock = self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.route.kernel_stamps:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.fd = sock.fileno()
        self.recvmsg_into = reader_of(sock)
        code = sock.connect_ex(address.sockaddr)
        if code not in (0, errno.EINPROGRESS):
            # Linux says EAGAIN when no local port is left for a non-blocking connect
            raise OSError(errno.EADDRNOTAVAIL if code == errno.EAGAIN else code, "connect")

    def advance(self) -> bool:
        """Go on after an event; whether the connection is OPEN now. Raises OSError (ssl.SSLError is one)."""
        if self.sock is None:
            return False
        if self.state == CONNECTING:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "connect")
            self.tcp_connected_ns = time.monotonic_ns()
            self.local_port = self.sock.getsockname()[1]
            self._begin()
        if self.state == TUNNEL and self.flush():
            self._read_tunnel()
        if self.state == HANDSHAKE:
            self._handshake()
        if self.state == OPEN and self.connected_ns is None:
            self.connected_ns = time.monotonic_ns()
        return self.state == OPEN

    def _begin(self) -> None:
        target = self.route.target
        if target.proxy is not None and target.tls is not None:
            self.state = TUNNEL
            where = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
            lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
            if target.proxy.authorization:
                lines.append(f"Proxy-Authorization: {target.proxy.authorization}")
            self.outgoing = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        elif target.tls is not None:
            self._begin_tls()
        else:
            self.state = OPEN

    def _begin_tls(self) -> None:
        self.state = HANDSHAKE
        self.tls = lazy.load("phasemeter.io.tls").TlsChannel(self.route.context, self.route.target.host)

    def _read_tunnel(self) -> None:
        data = self._receive()
        if data is None:
            return
        self.tunnel += data
        head, mark, _ = self.tunnel.partition(b"\r\n\r\n")
        if mark:
            status = head.split(b"\r\n", 1)[0].decode("latin-1")
            if status.split(" ")[1:2] != ["200"]:
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"proxy: {status}")
            self._begin_tls()

    def _handshake(self) -> None:
        while True:
            done = self.tls.handshake()
            self.outgoing += self.tls.pending()
            self.flush()
            if done:
                self.state = OPEN
                return
            data = self._receive()
            if data is None:
                return
            self.tls.feed(data)

    def _receive(self) -> bytes | None:
        if self.sock is None:
            return None
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed while the connection was being made")
        return data

    def send(self, data: bytes) -> bool:
        """Hand `data` to the kernel as far as it takes it; whether it took all. Raises OSError."""
        self.outgoing, self.gone = self.tls.encrypt(data) if self.tls is not None else data, 0
        return self.flush()

    def flush(self) -> bool:
        """Go on with what is left; whether nothing is."""
        if self.sock is None:
            return False
        while self.outgoing:
            try:
                if self.gone:  # not cut off: a long body that is taken in small pieces would be copied at each
                    self.gone += self.sock.send(memoryview(self.outgoing)[self.gone :])
                else:
                    self.gone = self.sock.send(self.outgoing)
            except BlockingIOError:
                return False
            if self.gone == len(self.outgoing):
                self.leave()
        return True

    def leave(self) -> None:
        """Nothing is left to send."""
        self.outgoing, self.gone = b"", 0

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        self.fd = -1
        self.state = CLOSED
        self.recvmsg_into = None
