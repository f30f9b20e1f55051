"""Spans decode the same from protobuf and JSON, join by identity only, and ambiguity joins nothing."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from phasemeter.errors import FileError
from phasemeter.server.joins import Identity, join, trace_of
from phasemeter.server.otlp import Span, decode, timings_of

TRACE, PARENT = "ab" * 16, "cd" * 8
PARENT_OF = f"00-{TRACE}-{PARENT}-01"


def body(name: str = "llm_request", coded: bool = False, **attributes: Any) -> dict[str, Any]:
    def written(hex_: str) -> str:
        return base64.b64encode(bytes.fromhex(hex_)).decode() if coded else hex_

    told = [
        {"key": k, "value": {"doubleValue" if isinstance(v, float) else "stringValue": v}}
        for k, v in attributes.items()
    ]
    span = {"name": name, "traceId": written(TRACE), "spanId": written("01" * 8), "parentSpanId": written(PARENT),
            "startTimeUnixNano": "1000", "endTimeUnixNano": "5000", "attributes": told}  # fmt: skip
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def span(name: str = "llm_request", trace: str = TRACE, parent: str = PARENT, **attributes: Any) -> Span:
    return Span(name=name, trace_id=trace, span_id=name[:8].ljust(16, "0"), parent_id=parent, attributes=attributes)


def test_protobuf_json_gzip_and_lines_give_the_same_spans() -> None:
    attributes = {"gen_ai.latency.time_in_queue": 0.25}
    raw = ParseDict(body(coded=True, **attributes), ExportTraceServiceRequest()).SerializeToString()
    plain = json.dumps(body(**attributes)).encode()
    line = json.dumps({"path": "/v1/traces", "body": body(coded=True, **attributes)}).encode()
    found = [decode(data, "x") for data in (raw, gzip.compress(raw), plain, line + b"\n" + line)]
    assert found[0] == found[1] == found[2] == found[3][:1] and len(found[3]) == 2
    assert found[0][0].trace_id == TRACE and found[0][0].parent_id == PARENT


@pytest.mark.parametrize("told", ["²", "9" * 5000, "--5", "1e3", "", "99999999999999999999", -1, True, None, [1]])
def test_an_instant_that_is_no_64_bit_number_is_absent_and_costs_nothing_else(told: object) -> None:
    odd = body(**{"gen_ai.latency.time_in_queue": 0.25})
    one = odd["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    one["startTimeUnixNano"] = told
    one["attributes"].append({"key": "gen_ai.request.n", "value": {"intValue": told}})
    (found,) = decode(json.dumps(odd).encode(), "x")
    assert found.start_ns is None and found.end_ns == 5000
    assert found.attributes["gen_ai.latency.time_in_queue"] == 0.25


def test_an_instant_of_protobuf_that_no_clock_shows_is_absent() -> None:
    odd = body(coded=True)
    odd["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"] = str(2**64 - 1)
    (found,) = decode(ParseDict(odd, ExportTraceServiceRequest()).SerializeToString(), "x")
    assert found.start_ns is None and found.end_ns == 5000


def test_lists_in_lists_of_an_attribute_end_where_they_are_no_attribute_any_more() -> None:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(300):
        value = {"arrayValue": {"values": [value]}}
    odd = body()
    odd["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [{"key": "deep", "value": value}]
    assert [one.name for one in decode(json.dumps(odd).encode(), "x")] == ["llm_request"]


def test_vllms_and_sglangs_equal_keys_mean_different_things() -> None:
    key = {"gen_ai.latency.time_in_model_prefill": 0.5}
    vllm, sglang = timings_of(span(**key)), timings_of(span(" Req 1234", rid="1234", module="x", **key))
    assert vllm is not None and vllm.values[0].phase == "prefill"
    assert sglang is not None and sglang.values[0].phase == "dispatch_to_first_token"


def test_whose_clock_a_spans_number_is_of_goes_by_engine_and_phase() -> None:
    """vLLM's queue, prefill and decode are differences of one monotonic clock; what starts at the frontend is of the wall clock."""
    keys = [f"gen_ai.latency.{name}" for name in ("time_to_first_token", "e2e", "time_in_queue", "time_in_model_prefill",
            "time_in_model_decode", "time_in_model_inference")]  # fmt: skip
    told = dict.fromkeys(keys, 0.5)
    vllm, sglang = timings_of(span(**told)), timings_of(span(" Req 1234", rid="1234", module="x", **told))
    assert vllm is not None and sglang is not None
    wall = {value.phase for value in vllm.values if value.clock == "engine_wall"}
    assert wall == {"ttft", "e2e"} and len(vllm.values) == 6
    assert {value.clock for value in sglang.values} == {"engine_wall"}


def test_unknown_spans_say_nothing() -> None:
    assert timings_of(span("startup")) is None


@pytest.mark.parametrize("data", [b"\x01\x02garbage", b'{"a": 1}\n{broken'])
def test_what_is_no_trace_request_is_a_clear_error(data: bytes) -> None:
    with pytest.raises(FileError, match="x"):
        decode(data, "x")


def test_a_request_joins_by_its_traceparent_before_its_id() -> None:
    mine, other = span(**{"gen_ai.request.id": "other"}), span(trace="ee" * 16, **{"gen_ai.request.id": "cmpl-7-0"})
    found = join(
        [Identity(request_id="a", traceparent=PARENT_OF, sent_id="7"), Identity(request_id="b", sent_id="7x")],
        [mine, other],
    )
    assert found.spans == {"a": (mine,)} and found.by == {"a": "traceparent"} and found.unjoined == ("b",)


def test_an_id_joins_in_the_forms_that_vllm_gives_it() -> None:
    found = join([Identity(request_id="a", sent_id="7")], [span(trace="ee" * 16, **{"gen_ai.request.id": "cmpl-7-0"})])
    assert found.by == {"a": "request_id"}


def test_ambiguity_joins_nothing() -> None:
    one, two = span(), span(**{"gen_ai.request.id": "x"})
    assert join([Identity(request_id="a", traceparent=PARENT_OF)], [one, two]).ambiguous == ("a",)
    twins = [Identity(request_id=name, traceparent=PARENT_OF) for name in "ab"]
    assert join(twins, [one]).ambiguous == ("a", "b") and not join(twins, [one]).spans


def test_what_is_no_traceparent_is_none() -> None:
    assert trace_of("00-zz-11-01") is None and trace_of(None) is None and trace_of(PARENT_OF) == (TRACE, PARENT)


def test_a_span_that_came_twice_is_one_span_and_joins() -> None:
    again = span(**{"gen_ai.request.id": "r"})
    found = join([Identity(request_id="a", traceparent=PARENT_OF)], [again, span(**{"gen_ai.request.id": "r"})])
    assert found.spans == {"a": (again,)} and not found.ambiguous


def test_a_gateway_whose_span_was_not_exported_stands_in_nobodys_way() -> None:
    behind = span(parent="77" * 8)
    found = join([Identity(request_id="a", traceparent=PARENT_OF)], [behind])
    assert found.spans == {"a": (behind,)} and found.by == {"a": "trace_id"}
    another = Identity(request_id="b", traceparent=f"00-{TRACE}-{'ef' * 8}-01")
    assert not join([Identity(request_id="a", traceparent=PARENT_OF), another], [behind]).spans
    retried = Span(name="llm_request", trace_id=TRACE, span_id="99" * 8, parent_id="88" * 8)
    assert not join([Identity(request_id="a", traceparent=PARENT_OF)], [behind, retried]).spans


def test_a_latency_that_is_no_number_is_said_and_gives_no_value() -> None:
    told = timings_of(span(**{"gen_ai.latency.time_in_queue": "NaN", "gen_ai.latency.e2e": 1.0}))
    assert told is not None and [value.phase for value in told.values] == ["e2e"]
    assert told.notes == ("unreadable: span `gen_ai.latency.time_in_queue` is no finite number",)


def test_spans_under_the_scopes_former_name_are_read() -> None:
    told = body()
    holder = told["resourceSpans"][0]
    holder["instrumentationLibrarySpans"] = holder.pop("scopeSpans")
    assert len(decode(json.dumps(told).encode(), "x")) == 1
