"""Spans received beside a run: where they are listened for, and how long they are waited for.

Lives here: what only a run with `--otlp-listen` needs (it is slow to load). Must not live here: what a span means (server/).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phasemeter.errors import FileError, UserError
from phasemeter.io.otlp_receiver import OtlpReceiver, address_of, otlp_receiver
from phasemeter.lazy import load
from phasemeter.server.otlp import decode, engine_of

SPAN_PATIENCE_S = 8.0  # exporters send in batches, every 5 s by default (OpenTelemetry SDK specification)


def awaited(receiver: OtlpReceiver, requests: int) -> list[str]:
    """Wait until the spans of `requests` requests are here, or patience ends; what a person should know."""
    warnings: list[str] = []
    until, read, known = time.monotonic() + SPAN_PATIENCE_S, 0, 0
    while known < requests and time.monotonic() < until:
        for path in sorted(receiver.evidence.glob("spans-*"))[read:]:
            read += 1
            known += request_spans(path)
            if time.monotonic() >= until:
                break
        time.sleep(0.1)
    if receiver.refused:
        warnings.append(
            f"span_flood: {receiver.refused} exports of spans were refused after {receiver.bytes / 1e6:.0f} MB: sample them"
        )
    if not known:
        warnings.append(
            f"no_spans: no request's span came: point the server's OTLP traces at {receiver.address} (vLLM: "
            "--otlp-traces-endpoint; it speaks gRPC unless OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf)"
        )
    return warnings


def request_spans(path: Path) -> int:
    """How many spans of requests a body holds; none in a damaged one."""
    try:
        spans = decode(path.read_bytes(), str(path))
    except (FileError, OSError):
        return 0
    return sum(span.name == "llm_request" or engine_of(span) is not None for span in spans)


@contextmanager
def listening(listen: str, evidence: Path) -> Iterator[OtlpReceiver]:
    """OTLP over HTTP, or over gRPC where the address starts with grpc:// ."""
    scheme, marked, rest = listen.partition("://")
    if not marked or scheme in {"http", ""}:
        with otlp_receiver(rest.partition("/")[0] if marked else listen, evidence) as over_http:
            yield over_http
        return
    if scheme != "grpc":
        raise UserError(f"--otlp-listen {listen}: write :PORT for OTLP/HTTP, grpc://:PORT for OTLP/gRPC")
    host, port = address_of(rest, listen)
    evidence.mkdir(parents=True, exist_ok=True)
    with load("phasemeter.io.otlp_grpc").grpc_receiver(OtlpReceiver(evidence), host, port) as over_grpc:
        yield over_grpc
