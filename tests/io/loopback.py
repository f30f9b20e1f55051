"""A small server in a thread whose answers, and faults, a test writes itself."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Speak = Callable[["Line"], None]
PATIENCE_S = 60.0  # an end for what never should take so long, however busy the machine is


class Line:
    """One accepted connection, from the server's side."""

    def __init__(self, sock: socket.socket, serial: int) -> None:
        self.sock = sock
        self.serial = serial  # how many connections were accepted before
        self.requests: list[bytes] = []

    def request(self) -> bytes | None:
        """The next whole request; None when the client left."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = self._read()
            if not part:
                return None
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        while found and len(body) < int(found[1]):
            part = self._read()
            if not part:
                return None
            body += part
        self.requests.append(head + b"\r\n\r\n" + body)
        return self.requests[-1]

    def _read(self) -> bytes:
        try:
            return self.sock.recv(1 << 16)
        except OSError:
            return b""

    def head(self) -> None:
        """Read no further than the next request's head."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.sock.recv(1024)
            if not part:
                raise ConnectionError("the client left within its request's head")
            data += part

    def until_left(self) -> None:
        """Say nothing more, until the client has had enough."""
        while self._read():
            continue

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, body: bytes = b"ok", extra: bytes = b"", *, last: bool = False) -> None:
        say = self.last if last else self.say
        say(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (extra, len(body), body))

    def last(self, data: bytes) -> None:
        """Say it and close our half in one packet, so that nobody can find the one without the other."""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        self.say(data)
        self.sock.shutdown(socket.SHUT_WR)

    def stream(self, parts: list[bytes], pause_s: float = 0.0) -> None:
        self.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            self.say(b"%x\r\n%b\r\n" % (len(part), part))
            time.sleep(pause_s)
        self.say(b"0\r\n\r\n")

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def answers(line: Line) -> None:
    """Answer every request in full and keep the connection."""
    while line.request() is not None:
        line.answer()


class Loopback:
    def __init__(self, port: int) -> None:
        self.port = port
        self.lines: list[Line] = []

    @property
    def requests(self) -> list[bytes]:
        return [request for line in list(self.lines) for request in list(line.requests)]


@contextmanager
def loopback(speak: Speak = answers, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Loopback]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, 0))
    listener.listen(512)
    listener.settimeout(0.05)
    server = Loopback(listener.getsockname()[1])
    leaving = threading.Event()
    threads: list[threading.Thread] = []

    def serve(line: Line) -> None:
        try:
            if tls is not None:
                line.sock = secured = tls.wrap_socket(line.sock, server_side=True, do_handshake_on_connect=False)
                secured.do_handshake()
            speak(line)
        except OSError:
            pass  # the client left, as many tests want it to
        finally:
            line.sock.close()

    def accept() -> None:
        while not leaving.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                continue
            sock.settimeout(PATIENCE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(sock, len(server.lines))
            server.lines.append(line)
            thread = threading.Thread(target=serve, args=(line,), daemon=True)
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield server
    finally:
        leaving.set()
        acceptor.join()
        for line in server.lines:
            try:
                line.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in threads:
            thread.join(PATIENCE_S)
        listener.close()
