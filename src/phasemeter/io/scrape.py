"""Metrics pages fetched beside a run, kept as received. Bounded in size and in time, whatever the endpoint does.

Lives here: fetching and saving. Must not live here: what a page means (server/).
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from phasemeter.errors import NetworkError, ServerError, UserError
from phasemeter.io.target import Tls
from phasemeter.io.tls import context_of

MAX_BYTES = 64_000_000
PIECE_BYTES = 1 << 16


class LateError(NetworkError):
    """The endpoint took the connection and kept silent, or did not come to an end in time."""


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """One page as received. `asked_ns`, `answered_ns`: monotonic, before the request and after the last byte."""

    url: str
    asked_ns: int
    answered_ns: int
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def as_http(self) -> bytes:
        """The page with its head, so that what headers tell (a process's start) is kept; framing is already undone."""
        dropped = {"transfer-encoding", "content-length", "set-cookie"}
        lines = [f"{name}: {value}" for name, value in self.headers if name.lower() not in dropped]
        head = "\r\n".join([f"HTTP/1.1 {self.status} OK", *lines, f"Content-Length: {len(self.body)}"])
        return head.encode("latin-1", "replace") + b"\r\n\r\n" + self.body


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How a page is reached: what vouches for its certificate, and secret headers (a key), which are kept nowhere."""

    tls: Tls = Tls()
    secret_headers: tuple[tuple[str, str], ...] = ()


PLAIN = Access()


def _connection(url: str, timeout_s: float, access: Access) -> tuple[http.client.HTTPConnection, str]:
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as fault:
        raise UserError(f"{url}: {fault}: write http://HOST:PORT/metrics") from fault
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UserError(f"{url}: no address of a metrics page: write http://HOST:PORT/metrics")
    host = urllib.parse.unquote(parts.hostname)  # the zone of a link-local address stands behind %25
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s), path
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context_of(access.tls)), path


def scrape(url: str, *, timeout_s: float = 5.0, max_bytes: int = MAX_BYTES, access: Access = PLAIN) -> Scrape:
    """One GET within `timeout_s` altogether.

    Raises LateError when the page did not come in time, NetworkError when nothing usable came, ServerError for a status other
    than 2xx or a page over `max_bytes`.
    """
    connection, path = _connection(url, timeout_s, access)
    headers = {name.lower(): value for name, value in access.secret_headers}
    headers |= {"accept": "text/plain", "accept-encoding": "identity", "connection": "close"}
    asked_ns = time.monotonic_ns()
    until_ns = asked_ns + round(timeout_s * 1e9)
    try:
        connection.request("GET", path, headers=headers)
        with _cut_off(connection.sock, until_ns):
            answer = connection.getresponse()
            body = _bounded(answer, url, until_ns, max_bytes)
    except (OSError, http.client.HTTPException) as fault:
        if isinstance(fault, TimeoutError) or time.monotonic_ns() >= until_ns:
            raise LateError(f"{url}: no whole metrics page within {timeout_s:g} s") from fault
        raise NetworkError(f"{url}: no metrics page: {type(fault).__name__}: {fault}") from fault
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        words = body[:120].decode("utf-8", "replace").strip().replace("\n", " ")
        raise ServerError(f"{url}: the server answered {answer.status}: {words!r}: are metrics turned on there?")
    return Scrape(
        url=url, asked_ns=asked_ns, answered_ns=time.monotonic_ns(), status=answer.status,
        headers=tuple(answer.getheaders()), body=body,
    )  # fmt: skip


@contextmanager
def _cut_off(sock: socket.socket, until_ns: int) -> Iterator[None]:
    """Ends whatever is being read from `sock` at `until_ns`: a socket's own timeout begins anew with each byte of a trickle."""

    def cut() -> None:
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which may be in the middle of a read

    timer = threading.Timer((until_ns - time.monotonic_ns()) / 1e9, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _bounded(answer: http.client.HTTPResponse, url: str, until_ns: int, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        piece = answer.read1(PIECE_BYTES)
        if time.monotonic_ns() >= until_ns:
            raise TimeoutError
        if not piece:
            return b"".join(parts)
        parts.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise ServerError(f"{url}: the metrics page is over {max_bytes / 1e6:g} MB: point at one server's own page")


def scrape_when(
    fetched: Callable[[], Scrape], ready: Callable[[Scrape], bool], *, patience_s: float = 10.0, every_s: float = 0.2
) -> tuple[Scrape, bool]:
    """Pages of `fetched` until `ready` says so (idle, or a counter has reached the warm-up's requests), for `patience_s` at most.

    The last page, and whether it was ready. Raises as `fetched` does.
    """
    until = time.monotonic() + patience_s
    while True:
        page = fetched()
        if ready(page):
            return page, True
        if time.monotonic() + every_s > until:
            return page, False
        time.sleep(every_s)


def save(page: Scrape, evidence: Path, name: str) -> Path:
    """Writes a page to RUN/evidence/NAME.http, whole or not at all."""
    evidence.mkdir(parents=True, exist_ok=True)
    path, beside = evidence / f"{name}.http", evidence / f".{name}.new"
    beside.write_bytes(page.as_http())
    beside.rename(path)
    return path
