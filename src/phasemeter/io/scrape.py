"""Metrics pages fetched beside a run, kept as received. Bounded in size and in time, whatever the endpoint does.

Lives here: fetching and saving. Must not live here: what a page means (server/).
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import msgspec

from phasemeter.errors import NetworkError, ServerError, UserError

MAX_BYTES = 64_000_000
PIECE_BYTES = 1 << 16


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


def _connection(url: str, timeout_s: float, *, insecure: bool) -> tuple[http.client.HTTPConnection, str]:
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError as fault:
        raise UserError(f"{url}: {fault}: write http://HOST:PORT/metrics") from fault
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UserError(f"{url}: no address of a metrics page: write http://HOST:PORT/metrics")
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s), path
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(parts.hostname, port, timeout=timeout_s, context=context), path


def scrape(url: str, *, timeout_s: float = 5.0, max_bytes: int = MAX_BYTES, insecure: bool = False) -> Scrape:
    """One GET within `timeout_s` altogether.

    Raises NetworkError when nothing usable came in time, ServerError for a status other than 2xx or a page over `max_bytes`.
    """
    connection, path = _connection(url, timeout_s, insecure=insecure)
    asked_ns = time.monotonic_ns()
    try:
        connection.request(
            "GET", path, headers={"Accept": "text/plain", "Accept-Encoding": "identity", "Connection": "close"}
        )
        answer = connection.getresponse()
        body = _bounded(connection, answer, url, asked_ns + round(timeout_s * 1e9), max_bytes)
    except TimeoutError as late:
        raise NetworkError(f"{url}: no whole metrics page within {timeout_s:g} s") from late
    except (OSError, http.client.HTTPException) as fault:
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


def _bounded(
    connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, url: str, until_ns: int, max_bytes: int
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        left_s = (until_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        piece = answer.read1(PIECE_BYTES)
        if not piece:
            return b"".join(parts)
        parts.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise ServerError(f"{url}: the metrics page is over {max_bytes / 1e6:g} MB: point at one server's own page")


def scrape_when(
    url: str, ready: Callable[[Scrape], bool], *, patience_s: float = 10.0, every_s: float = 0.2, insecure: bool = False
) -> tuple[Scrape, bool]:
    """Scrapes until `ready` says so (idle, or a counter has reached the warm-up's requests), for `patience_s` at most.

    The last page, and whether it was ready. Raises as `scrape` does.
    """
    until = time.monotonic() + patience_s
    while True:
        page = scrape(url, insecure=insecure)
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
