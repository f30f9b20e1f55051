"""OpenTelemetry spans as engines send them: OTLP/HTTP bodies (protobuf or JSON), or lines with a decoded body.

Lives here: decoding, and which span of which engine means what. Must not live here: receiving (io/) or joining (joins.py).
Unknown spans are kept as spans and say nothing: engines add new ones between versions.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from phasemeter.errors import NOT_JSON, FileError
from phasemeter.records.evidence import EvidenceInstant, EvidenceValue
from phasemeter.server.exposition import unpacked
from phasemeter.server.timings import Timings, faults_of, number

MAX_SPANS = 500_000
DEEPEST = 32  # lists in lists of an attribute
WHOLE = re.compile(r"-?[0-9]{1,20}")  # of 64 bits


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span. Ids in lower-case hex; instants in Unix ns on the sender's wall clock."""

    name: str
    trace_id: str
    span_id: str = ""
    parent_id: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    resource: dict[str, Any] = msgspec.field(default_factory=dict)


def _hex(value: object, size: int) -> str:
    """An id in hex: OTLP/JSON writes hex, protobuf's own JSON mapping base64, both are met."""
    if not isinstance(value, str) or not value:
        return ""
    if len(value) == 2 * size:
        return value.lower()
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return raw.hex() if len(raw) == size else ""


def _value(told: object, depth: int = 0) -> Any:
    if not isinstance(told, Mapping) or depth > DEEPEST:
        return None
    for kind, value in told.items():
        if kind in {"intValue", "int_value"}:
            return _whole(value)
        if kind in {"doubleValue", "double_value"}:
            return number(value)
        if kind in {"arrayValue", "array_value"} and isinstance(value, Mapping):
            items = value.get("values")
            return [_value(item, depth + 1) for item in items] if isinstance(items, list) else []
        return value
    return None


def _attributes(told: object) -> dict[str, Any]:
    found = {}
    for item in told if isinstance(told, list) else ():
        if isinstance(item, Mapping) and isinstance(item.get("key"), str):
            found[item["key"]] = _value(item.get("value"))
    return found


def _either(data: Mapping[str, Any], camel: str, snake: str) -> Any:
    return data.get(camel, data.get(snake))


def _whole(told: object) -> int | None:
    """An integer as OTLP's JSON writes it: a number, or (64 bits) a string of digits. None for anything else."""
    if isinstance(told, str):
        return int(told) if WHOLE.fullmatch(told) else None
    return told if isinstance(told, int) and not isinstance(told, bool) else None


def _ns(told: object) -> int | None:
    """An instant in Unix ns; None for 0 (not set) and for what no clock shows (64 signed bits end in the year 2262)."""
    found = _whole(told)
    return found if found is not None and 0 < found < 1 << 63 else None


def _items(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def spans_of_json(body: Mapping[str, Any]) -> list[Span]:
    """Spans of one decoded ExportTraceServiceRequest, camelCase or snake_case."""
    spans = []
    for holder in _items(_either(body, "resourceSpans", "resource_spans")):
        resource = holder.get("resource")
        about = _attributes(resource.get("attributes")) if isinstance(resource, Mapping) else {}
        for scope in _items(_either(holder, "scopeSpans", "scope_spans") or holder.get("instrumentationLibrarySpans")):
            for span in _items(scope.get("spans")):
                spans.append(
                    Span(
                        name=str(span.get("name", "")),
                        trace_id=_hex(_either(span, "traceId", "trace_id"), 16),
                        span_id=_hex(_either(span, "spanId", "span_id"), 8),
                        parent_id=_hex(_either(span, "parentSpanId", "parent_span_id"), 8),
                        start_ns=_ns(_either(span, "startTimeUnixNano", "start_time_unix_nano")),
                        end_ns=_ns(_either(span, "endTimeUnixNano", "end_time_unix_nano")),
                        attributes=_attributes(span.get("attributes")),
                        resource=about,
                    )
                )
    return spans


def spans_of_protobuf(request: ExportTraceServiceRequest) -> list[Span]:
    """The same from a decoded protobuf message, without the way through JSON: a flood of spans has to be read in time."""
    spans = []
    for holder in request.resource_spans:
        about = {item.key: _plain(item.value) for item in holder.resource.attributes}
        for scope in holder.scope_spans:
            for span in scope.spans:
                spans.append(
                    Span(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        start_ns=_ns(span.start_time_unix_nano),
                        end_ns=_ns(span.end_time_unix_nano),
                        attributes={item.key: _plain(item.value) for item in span.attributes},
                        resource=about,
                    )
                )
    return spans


def _plain(value: Any) -> Any:
    """An AnyValue's own content; a non-finite number is none, as it would be in JSON."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "double_value":
        return number(value.double_value)
    return getattr(value, kind)


def decode(data: bytes, name: str) -> list[Span]:
    """Spans of one OTLP/HTTP body (protobuf or JSON, gzipped or not), or of JSON lines with such bodies.

    Raises FileError when it is none of these, or holds more than MAX_SPANS spans.
    """
    data = unpacked(data, name)
    if data.lstrip()[:1] != b"{":
        request = ExportTraceServiceRequest()
        try:
            request.ParseFromString(data)
        except DecodeError as broken:
            raise FileError(f"{name}: no OTLP trace request: neither JSON nor its protobuf") from broken
        return _bounded(spans_of_protobuf(request), name)
    spans: list[Span] = []
    for number_, line in enumerate(_documents(data), 1):
        try:
            document = msgspec.json.decode(line)
        except NOT_JSON as broken:
            raise FileError(f"{name}:{number_}: no JSON ({broken}): OTLP lines hold one JSON object each") from broken
        body = document.get("body", document) if isinstance(document, dict) else None
        if isinstance(body, dict):
            spans += spans_of_json(body)
        _bounded(spans, name)
    return spans


def _documents(data: bytes) -> Iterable[bytes]:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except NOT_JSON:
        return [line for line in data.split(b"\n") if line.strip()]
    return [data]


def _bounded(spans: list[Span], name: str) -> list[Span]:
    if len(spans) > MAX_SPANS:
        raise FileError(f"{name}: more than {MAX_SPANS} spans: split the file, or sample the traces")
    return spans


# attribute: (phase, start, end, definition)
_VLLM = {
    "gen_ai.latency.time_to_first_token": ("ttft", "arrival", "first_token", "first output at the frontend − arrival"),
    "gen_ai.latency.e2e": ("e2e", "arrival", "complete", "finished − arrival, at the frontend"),
    "gen_ai.latency.time_in_queue": ("queue", "queue_enter", "prefill_start", "first scheduled − queued"),
    "gen_ai.latency.time_in_model_prefill": (
        "prefill",
        "prefill_start",
        "prefill_end",
        "first token − first scheduled",
    ),
    "gen_ai.latency.time_in_model_decode": ("decode", "first_token", "decode_end", "last token − first token"),
    "gen_ai.latency.time_in_model_inference": (
        "inference",
        "prefill_start",
        "decode_end",
        "last token − first scheduled",
    ),
}
# the same keys mean other things in SGLang: its prefill starts at the API server's dispatch and contains the queue
_SGLANG = {
    "gen_ai.latency.time_to_first_token": ("ttft", "arrival", "first_token", "first token − received"),
    "gen_ai.latency.e2e": ("e2e", "arrival", "complete", "finished − received"),
    "gen_ai.latency.time_in_model_prefill": (
        "dispatch_to_first_token", "dispatched", "first_token", "first token − API dispatch: contains the queue",
    ),
    "gen_ai.latency.time_in_model_decode": ("decode", "first_token", "decode_end", "last − first token"),
    "gen_ai.latency.time_in_model_inference": (
        "dispatch_to_complete", "dispatched", "decode_end", "last token − API dispatch: contains the queue",
    ),
}  # fmt: skip
_SLICES = {
    "prefill_waiting": ("queue", "queue_enter", "prefill_start"),
    "prefill_forward": ("prefill", "prefill_start", "prefill_end"),
    "tokenize": ("tokenize", None, None),
    "api_server_dispatch": ("dispatch", None, None),
    "decode_waiting": ("decode_queue", None, None),
    "decode_transferred": ("kv_transfer", None, None),
    "vllm_queue": ("queue", "queue_enter", "prefill_start"),
    "vllm_prefill": ("prefill", "prefill_start", "prefill_end"),
    "vllm_decode": ("decode", "first_token", "decode_end"),
}


def engine_of(span: Span) -> str | None:
    """The engine that a request's span is from, or None for a span that no table knows (or a start-up span)."""
    if span.name == "llm_request":
        return "vllm"
    if "rid" in span.attributes and ("module" in span.attributes or span.name.lstrip().split(" ")[-2:-1] == ["Req"]):
        return "sglang"
    if span.name in _SLICES:
        return "vllm" if span.name.startswith("vllm_") else "sglang"
    return None


def request_id_of(span: Span) -> str | None:
    told = span.attributes.get("gen_ai.request.id", span.attributes.get("rid"))
    return str(told) if told else None


def timings_of(span: Span) -> Timings | None:
    """What one span tells about its request, or None when it tells nothing we know."""
    engine = engine_of(span)
    if engine is None:
        return None
    request = request_id_of(span)
    values, instants, notes = [], [], []
    if span.name in _SLICES:
        phase, start, end = _SLICES[span.name]
        if span.start_ns is not None and span.end_ns is not None:
            seconds = (span.end_ns - span.start_ns) / 1e9
            values.append(
                EvidenceValue(
                    phase=phase, value_s=seconds, start=start, end=end, source=f"{engine}: span {span.name}",
                    clock="engine_wall", definition="length of the span", request_id=request, warnings=faults_of(seconds),
                )
            )  # fmt: skip
        return Timings(engine=engine, values=tuple(values), request_id=request)
    for key, (phase, start, end, words) in (_VLLM if engine == "vllm" else _SGLANG).items():
        told = number(span.attributes.get(key))
        if told is None:
            if key in span.attributes:
                notes.append(f"unreadable: span `{key}` is no finite number")
            continue
        clock = "engine_wall" if phase in {"ttft", "e2e"} or engine == "sglang" else "engine_monotonic"
        values.append(
            EvidenceValue(
                phase=phase, value_s=told, start=start, end=end, source=f"{engine}: span `{key}`", definition=words,
                clock=clock, request_id=request, warnings=faults_of(told),  # type: ignore[arg-type]
            )
        )  # fmt: skip
    for boundary, at in (("arrival", span.start_ns), ("complete", span.end_ns)):
        if at is not None:
            source = f"{engine}: span {span.name.strip()}"
            instants.append(
                EvidenceInstant(boundary=boundary, at_ns=at, source=source, clock="engine_wall", request_id=request)
            )
    return Timings(
        engine=engine, values=tuple(values), instants=tuple(instants), notes=tuple(notes), request_id=request
    )
