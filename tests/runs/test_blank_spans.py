"""`--no-text` holds for received spans: their times, ids and counts stay, their words don't."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from phasemeter.runs.blank_spans import blanked_spans
from phasemeter.server.otlp import decode

SECRET = "the prompt that nobody may read"


def body() -> dict[str, Any]:
    said = {"stringValue": SECRET}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm"}}, {"key": "note", "value": said}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "vllm.engine"},
                        "spans": [
                            {
                                "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "llm_request",
                                "startTimeUnixNano": "1000", "endTimeUnixNano": "2000", "kind": 2,
                                "attributes": [
                                    {"key": "gen_ai.request.id", "value": {"stringValue": "cmpl-1"}},
                                    {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "12"}},
                                    {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 0.5}},
                                    {"key": "gen_ai.prompt", "value": said},
                                    {"key": "gen_ai.input.messages", "value": {"arrayValue": {"values": [
                                        {"kvlistValue": {"values": [{"key": "content", "value": said}]}}]}}},
                                ],
                                "events": [{"name": "gen_ai.content.completion", "timeUnixNano": "1500",
                                            "attributes": [{"key": "gen_ai.completion", "value": said}]}],
                                "status": {"message": SECRET},
                            }
                        ],
                    }
                ],
            }
        ]
    }  # fmt: skip


def as_protobuf(document: dict[str, Any]) -> bytes:
    request = ExportTraceServiceRequest()
    (holder,) = document["resourceSpans"]
    resource = request.resource_spans.add()
    scope = resource.scope_spans.add()
    span = scope.spans.add()
    told = holder["scopeSpans"][0]["spans"][0]
    span.name, span.trace_id, span.span_id = told["name"], bytes.fromhex(told["traceId"]), bytes.fromhex(told["spanId"])
    span.start_time_unix_nano, span.end_time_unix_nano = 1000, 2000
    for where in (resource.resource, span, span.events.add(name="gen_ai.content.completion")):
        for key in ("gen_ai.prompt", "gen_ai.completion"):
            where.attributes.add(key=key).value.string_value = SECRET
    kept = span.attributes.add(key="gen_ai.request.id")
    kept.value.string_value = "cmpl-1"
    span.attributes.add(key="gen_ai.latency.e2e").value.double_value = 0.5
    deep = span.attributes.add(key="messages").value.kvlist_value.values.add(key="content")
    deep.value.array_value.values.add().string_value = SECRET
    span.attributes.add(key="raw").value.bytes_value = SECRET.encode()
    span.status.message = SECRET
    whole: bytes = request.SerializeToString()
    return whole


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(body()).encode(),
        b"\n".join([json.dumps(body()).encode()] * 2),
        gzip.compress(json.dumps(body()).encode()),
        as_protobuf(body()),
        gzip.compress(as_protobuf(body())),
    ],
    ids=["json", "json lines", "json.gz", "protobuf", "protobuf.gz"],
)
def test_words_go_and_times_ids_and_counts_stay(data: bytes) -> None:
    left = blanked_spans(data, "spans-000001")
    assert SECRET.encode() not in left and b"prompt that" not in left
    before, after = decode(data, "before"), decode(left, "after")
    assert [(span.name, span.trace_id, span.span_id, span.start_ns, span.end_ns) for span in before] == [
        (span.name, span.trace_id, span.span_id, span.start_ns, span.end_ns) for span in after
    ]
    for key in ("gen_ai.request.id", "gen_ai.latency.e2e"):
        assert [span.attributes[key] for span in after] == [span.attributes[key] for span in before]
    assert blanked_spans(left, "again") == left


def test_what_cannot_be_read_is_all_text() -> None:
    assert blanked_spans(b"\xff\xfe" + SECRET.encode(), "spans") == b"x" * (2 + len(SECRET))
    assert SECRET.encode() not in blanked_spans(b"{" + SECRET.encode(), "spans")
