"""A small HTTP/1.1 server on one poller: whole requests in, raw bytes out.

Lives here: sockets, framing, keep-alive, writes that the kernel takes in part. Must not live here: what a request asks for.
One write a call: `Connection.write` hands its bytes to the kernel at once, so that a token's instant is the write's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

import httptools
import msgspec

from phasemeter.errors import ClientResourceError, UserError
from phasemeter.io import readiness
from phasemeter.io.readiness import READ, WRITE

MAX_BODY_BYTES = 64 * 2**20
SERVING_NS = 200_000  # about what a short request costs from its read to the engine
REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Payload Too Large",
    429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


class HttpRequest(msgspec.Struct, frozen=True):
    """One whole request. Header names are in lower case; `arrived_ns` is CLOCK_MONOTONIC when its last byte was read."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None  # None: larger than MAX_BODY_BYTES
    arrived_ns: int
    keep_alive: bool


class Connection:
    """One client. `request` is being answered until `done()`; pipelined requests wait their turn."""

    def __init__(self, server: HttpServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.fd = sock.fileno()
        self.pending = bytearray()  # what the kernel has not taken yet
        self.waiting: list[HttpRequest] = []
        self.request: HttpRequest | None = None
        self.close_when_sent = False
        self.open = True
        self.parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    # httptools calls these
    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self.waiting.append(
            HttpRequest(
                self.parser.get_method().decode("latin-1"),
                self._url.decode("latin-1").partition("?")[0],
                self._headers,
                b"".join(self._body) if self._size <= MAX_BODY_BYTES else None,
                time.monotonic_ns(),
                bool(self.parser.should_keep_alive()),
            )
        )

    def write(self, data: bytes) -> None:
        """Hand `data` to the kernel now; what it doesn't take goes out as it makes room. Nothing after a close."""
        if not self.open:
            return
        if self.pending:
            self.pending += data
            return
        try:
            taken = self.sock.send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            self.server.drop(self)
            return
        if taken < len(data):
            self.pending += data[taken:]
            self.server.watch(self, writing=True)

    def answer(self, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> None:
        """A whole response with a length; `done` is still to be called. HEAD gets the length alone (RFC 9110, 9.3.2)."""
        keep = self.request is not None and self.request.keep_alive
        bare = self.request is not None and self.request.method == "HEAD"
        whole = head(status, content_type, length=len(body), keep_alive=keep, extra=headers)
        self.write(whole if bare else whole + body)

    def respond(self, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> None:
        """A whole response with a length, then on to the next request."""
        self.answer(status, body, content_type, **headers)
        self.done()

    def done(self) -> None:
        """The current response is complete."""
        if not self.open:
            return
        if self.request is not None and not self.request.keep_alive:
            self.close_when_sent = True
        self.request = None
        if self.close_when_sent and not self.pending:
            self.server.drop(self)
        elif self.waiting:
            self.server.ready.append(self)


def head(
    status: int,
    content_type: str,
    *,
    length: int | None = None,
    keep_alive: bool = True,
    extra: dict[str, str] | None = None,
) -> bytes:
    """A response head; without a length the body comes in chunks."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", "server: phasemeter-emulator"]
    lines.append(f"content-type: {content_type}")
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    lines += [f"{name}: {value}" for name, value in (extra or {}).items()]
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HttpServer:
    """Listens and reads; `handle` gets each whole request, `gone` each connection that a client left mid-answer."""

    def __init__(self, host: str, port: int, handle: Callable[[Connection, HttpRequest], None]) -> None:
        """Raises UserError when the port can't be had."""
        self.handle = handle
        self.gone: Callable[[Connection], None] = lambda connection: None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind((host, port))
        except OSError as error:
            self.listener.close()
            raise UserError(f"can't listen on {host}:{port}: {error.strerror}: choose another --port") from error
        self.listener.listen(4096)
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]
        self.poller = readiness.poller()
        self.poller.register(self.listener.fileno(), READ)
        self.woken_fd, self.wake_fd = os.pipe()
        self._waking = threading.RLock()  # who wakes must not write into another file that got the descriptor's number
        os.set_blocking(self.woken_fd, False)
        os.set_blocking(self.wake_fd, False)
        self.poller.register(self.woken_fd, READ)
        self.connections: dict[int, Connection] = {}
        self.ready: list[Connection] = []  # pipelined requests whose turn has come
        self.buffer = bytearray(256 * 1024)
        self.put_off = False  # the last poll left its traffic to a step that was due

    def poll(self, until_ns: int | None) -> None:
        """Wait for traffic until an instant of CLOCK_MONOTONIC (None: one second at most) and serve what came.

        What comes just before that instant is left to the next poll, but never twice: steps that are always due (a server that
        can't keep up, a pace finer than a request's parsing) must not keep new requests and closes out for ever.
        """
        ready, self.ready = self.ready, []
        for connection in ready:
            if connection.open and connection.request is None and connection.waiting:
                self.begin(connection)
        if ready:
            return  # what they asked for may be due at once
        wait_s = 1.0 if until_ns is None else max(0.0, min(1.0, (until_ns - time.monotonic_ns()) / 1e9))
        if not readiness.ready_within(self.poller, wait_s):
            return
        hurry = until_ns is not None and not self.put_off and until_ns - time.monotonic_ns() < SERVING_NS
        self.put_off = hurry
        if hurry:
            return
        for fd, event in self.poller.poll(0, 64):
            if fd == self.listener.fileno():
                self._accept()
            elif fd == self.woken_fd:
                os.read(fd, 4096)
            elif (client := self.connections.get(fd)) is not None:
                self._serve(client, event)
            if until_ns is not None and time.monotonic_ns() > until_ns - SERVING_NS:
                return  # what was not served is reported again by the next poll

    def wake(self) -> None:
        """Make a waiting `poll` return. From any thread, or a signal's handler, also when it is closed meanwhile."""
        with self._waking, contextlib.suppress(BlockingIOError):  # a full pipe wakes it too
            if self.wake_fd >= 0:
                os.write(self.wake_fd, b"\0")

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it left before it was taken (accept(2): to be treated like a missing one)
            except OSError as error:
                raise ClientResourceError(f"can't accept a connection: {error.strerror}: raise `ulimit -n`") from error
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, sock)
            self.connections[connection.fd] = connection
            self.poller.register(connection.fd, READ)

    def _serve(self, connection: Connection, event: int) -> None:
        if event & WRITE:
            self._flush(connection)
        if connection.open and event & ~WRITE:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        try:
            size = connection.sock.recv_into(self.buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size == 0:
            self.drop(connection)
            return
        try:
            connection.parser.feed_data(memoryview(self.buffer)[:size])
        except httptools.HttpParserError:
            connection.close_when_sent = True
            connection.respond(400, b'{"error":{"message":"not HTTP/1.1","type":"BadRequestError","code":400}}')
            return
        if connection.request is None and connection.waiting:
            self.begin(connection)

    def begin(self, connection: Connection) -> None:
        request = connection.request = connection.waiting.pop(0)
        self.handle(connection, request)

    def _flush(self, connection: Connection) -> None:
        try:
            taken = connection.sock.send(connection.pending)
        except BlockingIOError:
            return
        except OSError:
            self.drop(connection)
            return
        del connection.pending[:taken]
        if not connection.pending:
            self.watch(connection, writing=False)
            if connection.close_when_sent and connection.request is None:
                self.drop(connection)

    def watch(self, connection: Connection, *, writing: bool) -> None:
        self.poller.modify(connection.fd, READ | (WRITE if writing else 0))

    def drop(self, connection: Connection, *, reset: bool = False) -> None:
        """Close a connection; `reset` sends RST instead of FIN. A request being answered is reported as gone."""
        if not connection.open:
            return
        connection.open = False
        del self.connections[connection.fd]
        readiness.forget(self.poller, connection.fd)
        if reset:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.sock.close()
        if connection.request is not None:
            self.gone(connection)

    def close(self) -> None:
        for connection in list(self.connections.values()):
            self.drop(connection)
        self.poller.close()
        os.close(self.woken_fd)
        with self._waking:
            wake_fd, self.wake_fd = self.wake_fd, -1
            os.close(wake_fd)
        self.listener.close()
