"""Receives OTLP/gRPC spans (an exporter's default in several engines) and keeps each request's bytes as OTLP/HTTP would bring them.

Needs the extra `grpc`. Understands none of them: the message is not even parsed. Bounds are the receiver's own (otlp_receiver.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from phasemeter.errors import UserError
from phasemeter.io.otlp_receiver import MAX_BODY_BYTES, OtlpReceiver
from phasemeter.lazy import load_extra

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
THREADS = 4
MAX_CALLS = 64  # at once; what is over is refused as RESOURCE_EXHAUSTED
LINGER_S = 1.0


@contextmanager
def grpc_receiver(receiver: OtlpReceiver, host: str, port: int) -> Iterator[OtlpReceiver]:
    """Serves TraceService.Export on HOST:PORT while the block runs; answers are the empty ExportTraceServiceResponse.

    Raises UserError without the extra, and for an address that can't be had.
    """
    grpc = load_extra("grpc", "grpc")

    def export(body: bytes, context: Any) -> bytes:
        if not receiver.keep(body, "pb"):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this run has enough spans")
        return b""

    server = grpc.server(
        ThreadPoolExecutor(THREADS, thread_name_prefix="otlp"),
        maximum_concurrent_rpcs=MAX_CALLS,
        options=[("grpc.max_receive_message_length", MAX_BODY_BYTES), ("grpc.so_reuseport", 0)],
    )
    method = grpc.unary_unary_rpc_method_handler(export)  # without a deserializer: bytes in, bytes out
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Export": method}),))
    where = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{where}:{port}")
    except RuntimeError as taken:
        raise UserError(f"--otlp-listen grpc://{where}:{port}: can't listen there: choose another port") from taken
    server.start()
    receiver.address = f"grpc://{where}:{bound}"
    try:
        yield receiver
    finally:
        server.stop(LINGER_S).wait(LINGER_S + 1)
