"""Spans received beside a run: where they are listened for, and how long they are waited for.

Lives here: what only a run with `--otlp-listen` needs (it is slow to load). Must not live here: what a span means (server/).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from phasemeter.errors import FileError, UserError
from phasemeter.io.otlp_receiver import OtlpReceiver, address_of, otlp_receiver
from phasemeter.io.run_directory import RunDirectory
from phasemeter.lazy import load
from phasemeter.server.otlp import decode, engine_of

SPAN_PATIENCE_S = 8.0  # exporters send in batches, every 5 s by default (OpenTelemetry SDK specification)
LONGEST_PATIENCE_S = 30.0


def awaited(receiver: OtlpReceiver, requests: int, ours: Set[str], others: int) -> list[str]:
    """Wait until the spans of `requests` requests are here, or none has come for a while; what a person should know.

    A server tells of the probe's and the warm-up's requests too, in traces of its own: those of `ours` count. Where it heeds no
    traceparent none is ours, and as many traces as there were requests, `others` included, are waited for.
    """
    warnings: list[str] = []
    now = time.monotonic()
    until, last = now + SPAN_PATIENCE_S, now + max(LONGEST_PATIENCE_S, SPAN_PATIENCE_S)
    read, known = set[Path](), set[str]()
    while not _enough(known, ours, requests, others) and time.monotonic() < min(until, last):
        for path in sorted(set(receiver.evidence.glob("spans-*")) - read):
            read.add(path)
            before = len(known)
            known |= requests_of(path)
            if len(known) > before:
                until = time.monotonic() + SPAN_PATIENCE_S
            if time.monotonic() >= last:
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


def _enough(known: Set[str], ours: Set[str], requests: int, others: int) -> bool:
    found = len(known & ours)
    return found >= min(requests, len(ours)) if found else len(known) >= requests + others


def traces_of(run: Path) -> set[str]:
    """The trace ids under which a run's requests went out (W3C Trace Context, section 3.2.2)."""
    sent = (planned.traceparent for planned in RunDirectory(run).planned())
    return {parent.split("-")[1] for parent in sent if parent is not None}


def requests_of(path: Path) -> set[str]:
    """The traces of a body that hold a span of a request, however many each: ours have one for each request."""
    try:
        spans = decode(path.read_bytes(), str(path))
    except (FileError, OSError):
        return set()
    return {span.trace_id for span in spans if engine_of(span) is not None}


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
