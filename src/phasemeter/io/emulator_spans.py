"""OTLP spans as vLLM makes them: one `llm_request` a request, exported over HTTP/protobuf.

Lives here: the span and its delivery. Must not live here: a request's times (emulator.py tells).
Attributes: vLLM `v1/engine/output_processor.py`. Exported from a thread: the serving loop never waits for a collector.
"""

from __future__ import annotations

import http.client
import queue
import secrets
import threading
from urllib.parse import urlsplit

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from phasemeter.errors import UserError


class RequestSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Instants are CLOCK_REALTIME ns, durations seconds."""

    request_id: str
    traceparent: str | None
    start_unix_ns: int
    end_unix_ns: int
    seconds: dict[str, float]  # gen_ai.latency.*
    counts: dict[str, int]  # gen_ai.usage.*, gen_ai.request.*


def _ids(traceparent: str | None) -> tuple[bytes, bytes]:
    """(trace id, parent span id) of a W3C traceparent; a fresh trace without a valid one."""
    parts = (traceparent or "").split("-")
    if len(parts) >= 4 and len(parts[1]) == 32 and len(parts[2]) == 16:
        try:
            return bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
        except ValueError:
            pass  # not hexadecimal: as if there were none (W3C Trace Context 3.2.2)
    return secrets.token_bytes(16), b""


def encode(spans: list[RequestSpan], service: str = "phasemeter-emulator") -> bytes:
    """An ExportTraceServiceRequest."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(KeyValue(key="service.name", value=AnyValue(string_value=service)))
    scope = resource.scope_spans.add()
    scope.scope.name = "vllm.llm_engine"
    for one in spans:
        trace_id, parent = _ids(one.traceparent)
        span = scope.spans.add()
        span.name = "llm_request"
        span.kind = Span.SPAN_KIND_SERVER
        span.trace_id, span.span_id, span.parent_span_id = trace_id, secrets.token_bytes(8), parent
        span.start_time_unix_nano, span.end_time_unix_nano = one.start_unix_ns, one.end_unix_ns
        span.status.code = Status.STATUS_CODE_UNSET
        add = span.attributes.append
        add(KeyValue(key="gen_ai.request.id", value=AnyValue(string_value=one.request_id)))
        for name, value in one.seconds.items():
            add(KeyValue(key=name, value=AnyValue(double_value=value)))
        for name, count in one.counts.items():
            add(KeyValue(key=name, value=AnyValue(int_value=count)))
    return bytes(request.SerializeToString())


class SpanExporter:
    """Sends spans in batches; `failed` counts those that no collector took."""

    def __init__(self, endpoint: str) -> None:
        """Raises UserError for an endpoint that is no http URL."""
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise UserError(f"--otlp `{endpoint}` is no http URL: write http://127.0.0.1:4318/v1/traces")
        self.host, self.port = parts.hostname, parts.port or 4318
        self.path = parts.path if parts.path not in {"", "/"} else "/v1/traces"
        self.failed = 0
        self.queue: queue.SimpleQueue[RequestSpan | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self.thread.start()

    def send(self, span: RequestSpan) -> None:
        self.queue.put(span)

    def _run(self) -> None:
        going = True
        while going:
            batch: list[RequestSpan] = []
            first = self.queue.get()
            going = first is not None
            if first is not None:
                batch.append(first)
            while going and len(batch) < 512 and not self.queue.empty():
                following = self.queue.get()
                going = following is not None
                if following is not None:
                    batch.append(following)
            if batch:
                self._post(batch)

    def _post(self, batch: list[RequestSpan]) -> None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        try:
            connection.request("POST", self.path, encode(batch), {"content-type": "application/x-protobuf"})
            if connection.getresponse().status >= 300:
                self.failed += len(batch)
        except (OSError, http.client.HTTPException):
            self.failed += len(batch)
        finally:
            connection.close()

    def close(self) -> None:
        """Send what is left, then stop."""
        self.queue.put(None)
        self.thread.join(timeout=10)
