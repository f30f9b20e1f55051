"""Receives OTLP/HTTP spans during a run and writes each body as it came to RUN/evidence. Understands none of them.

Bounded: so many connections, so many bytes a body, so many bytes altogether; what is over is counted and refused, so that
a flood of spans costs the run nothing but its evidence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from phasemeter.errors import UserError

MAX_BODY_BYTES = 16_000_000
MAX_TOTAL_BYTES = 500_000_000  # some hundred thousand spans of requests
MAX_BODIES = 100_000
MAX_CONNECTIONS = 32
IDLE_S = 30.0


class OtlpReceiver:
    """Counts of what came. `address` is what exporters are pointed at (`http://127.0.0.1:PORT/v1/traces`)."""

    def __init__(self, evidence: Path, *, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.evidence = evidence
        self.max_total_bytes = max_total_bytes
        self.bodies = self.bytes = self.refused = 0
        self.address = ""
        self._lock = threading.Lock()

    def keep(self, body: bytes, suffix: str) -> bool:
        """Writes one body; False when the run has enough. Numbered in order of arrival."""
        with self._lock:
            if self.bytes + len(body) > self.max_total_bytes or self.bodies >= MAX_BODIES:
                self.refused += 1
                return False
            self.bodies += 1
            self.bytes += len(body)
            number = self.bodies
        path = self.evidence / f"spans-{number:06}.{suffix}"
        unfinished = path.with_name(f".{path.name}")  # whoever looks for bodies meanwhile finds whole ones
        unfinished.write_bytes(body)
        unfinished.replace(path)
        return True

    def refuse(self) -> None:
        with self._lock:
            self.refused += 1


def _handler(receiver: OtlpReceiver, places: threading.BoundedSemaphore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_S

        def handle(self) -> None:
            if not places.acquire(blocking=False):
                receiver.refuse()
                return
            try:
                super().handle()
            except (ConnectionError, TimeoutError):
                receiver.refuse()
            finally:
                places.release()

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not self.path.split("?")[0].endswith("/v1/traces"):
                self._answer(404)
            elif not (length.isdecimal() and len(length) < 19):
                self._answer(411)
            elif int(length) > MAX_BODY_BYTES:
                receiver.refuse()
                self._answer(413)
            else:
                body = self.rfile.read(int(length))
                kind = "json" if "json" in self.headers.get("Content-Type", "") else "pb"
                whole = len(body) == int(length)
                self._answer(200 if whole and receiver.keep(body, kind) else 503, drained=True)

        def _answer(self, status: int, *, drained: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if not drained:  # the body is still in the pipe: this connection can't go on
                self.close_connection = True
                self.send_header("Connection", "close")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: the counts are in the receiver."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True


def address_of(listen: str, shown: str) -> tuple[str, int]:
    """(host, port) of ":4318", "127.0.0.1:4318" or "4318"; no host means 127.0.0.1. Raises UserError for what is none."""
    host, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"--otlp-listen {shown}: write HOST:PORT or :PORT, like :4318 (gRPC: grpc://:4317)")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def otlp_receiver(listen: str, evidence: Path, *, max_total_bytes: int = MAX_TOTAL_BYTES) -> Iterator[OtlpReceiver]:
    """Listens on `listen` (":4318", "127.0.0.1:4318" or "4318"; no host means 127.0.0.1) while the block runs.

    Raises UserError for an address that is none, or is taken.
    """
    host, port = address_of(listen, listen)
    evidence.mkdir(parents=True, exist_ok=True)
    receiver = OtlpReceiver(evidence, max_total_bytes=max_total_bytes)
    handler = _handler(receiver, threading.BoundedSemaphore(MAX_CONNECTIONS))
    try:
        server = _Server((host, port), handler)
    except OSError as taken:
        raise UserError(
            f"--otlp-listen {listen}: can't listen there ({taken.strerror or taken}): choose another port"
        ) from taken
    receiver.address = f"http://{server.server_address[0]!s}:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="otlp", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
