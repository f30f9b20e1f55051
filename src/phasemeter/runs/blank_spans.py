"""A received span body without anybody's words: `--no-text` holds for what a server exports too.

Instrumented servers put prompts and answers into attributes and events (`gen_ai.prompt`, `gen_ai.content.completion`, OpenTelemetry
semantic conventions for generative AI). Lives here: which strings of a body are structure. Must not live here: files.
"""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from phasemeter.errors import NOT_JSON, FileError
from phasemeter.server.exposition import unpacked

# last part of an attribute's key: values that a server chooses, not people or models
KEPT = frozenset({
    "id", "rid", "model", "system", "name", "version", "module", "type", "kind", "method", "route", "language", "host", "finish_reasons",
    "finish_reason", "status_code", "address", "pid",
})  # fmt: skip


def blanked_spans(data: bytes, name: str) -> bytes:
    """`data` (protobuf, JSON or JSON lines; gzipped or not) unpacked, its text overwritten; what can't be read is all text."""
    try:
        data = unpacked(data, name)
        if data.lstrip()[:1] == b"{":
            return _json(data)
        request = ExportTraceServiceRequest()
        request.ParseFromString(data)
    except (FileError, DecodeError, *NOT_JSON):
        return b"x" * len(data)
    for holder in request.resource_spans:
        _attributes(holder.resource.attributes)
        for scope in holder.scope_spans:
            _attributes(scope.scope.attributes)
            for span in scope.spans:
                span.status.message = _filler(span.status.message)
                span.trace_state = _filler(span.trace_state)
                for part in (span, *span.events, *span.links):
                    _attributes(part.attributes)
    whole: bytes = request.SerializeToString()
    return whole


def _kept(key: str) -> bool:
    return key.rpartition(".")[2].lower() in KEPT


def _filler(text: str) -> str:
    return "x" * len(text.encode())


def _attributes(attributes: Any) -> None:
    for item in attributes:
        if not _kept(item.key):
            _value(item.value)


def _value(value: Any) -> None:
    """Overwrite a protobuf AnyValue's strings and bytes, however deep."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        value.string_value = _filler(value.string_value)
    elif kind == "bytes_value":
        value.bytes_value = b"x" * len(value.bytes_value)
    elif kind == "array_value":
        for each in value.array_value.values:
            _value(each)
    elif kind == "kvlist_value":
        for item in value.kvlist_value.values:
            item.key = _filler(item.key)
            _value(item.value)


def _json(data: bytes) -> bytes:
    try:
        documents = [msgspec.json.decode(data)]
    except ValueError:
        documents = [msgspec.json.decode(line) for line in data.split(b"\n") if line.strip()]
    return b"\n".join(msgspec.json.encode(_walked(document)) for document in documents)


def _walked(told: Any) -> Any:
    """An OTLP JSON document with the values of its attributes overwritten; ids, names, kinds and times are structure."""
    if isinstance(told, list):
        return [_walked(each) for each in told]
    if not isinstance(told, dict):
        return told
    if isinstance(told.get("key"), str) and "value" in told:
        return told if _kept(told["key"]) else told | {"value": _overwritten(told["value"])}
    plain = {name: _walked(value) for name, value in told.items()}
    for name in ("traceState", "message"):  # a state's words; a status' message
        if isinstance(plain.get(name), str):
            plain[name] = _filler(plain[name])
    return plain


def _overwritten(value: Any) -> Any:
    """An AnyValue in JSON: `intValue` is a string that is none."""
    if isinstance(value, list):
        return [_overwritten(each) for each in value]
    if isinstance(value, dict):
        return {
            name: under if name in {"intValue", "doubleValue", "boolValue"} else _overwritten(under)
            for name, under in value.items()
        }
    return _filler(value) if isinstance(value, str) else value
