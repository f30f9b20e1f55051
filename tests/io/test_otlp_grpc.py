"""Spans over gRPC are kept as they came, bounded, and an address that can't be had is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.io.emulator_spans import RequestSpan, encode
from phasemeter.runs.gather import gathering
from phasemeter.server.otlp import decode

grpc = pytest.importorskip("grpc")
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def body(name: str) -> bytes:
    return encode(
        [RequestSpan(request_id=name, traceparent=None, start_unix_ns=1, end_unix_ns=2, seconds={}, counts={})]
    )


def export(address: str, sent: bytes) -> bytes:
    with grpc.insecure_channel(address.removeprefix("grpc://")) as channel:
        answer: bytes = channel.unary_unary(METHOD)(sent, timeout=60)
        return answer


def test_an_exported_request_is_kept_byte_by_byte_and_reads_as_over_http(tmp_path: Path) -> None:
    with gathering(tmp_path, None, "grpc://:0") as found:
        assert found.receiver is not None and found.receiver.address.startswith("grpc://127.0.0.1:")
        assert export(found.receiver.address, body("chatcmpl-a")) == b""
        assert export(found.receiver.address, body("chatcmpl-b")) == b""
    kept = sorted((tmp_path / "evidence").glob("spans-*.pb"))
    assert [decode(path.read_bytes(), path.name)[0].attributes["gen_ai.request.id"] for path in kept] == [
        "chatcmpl-a", "chatcmpl-b",
    ]  # fmt: skip


def test_what_is_over_a_runs_bound_is_refused_and_counted(tmp_path: Path) -> None:
    with gathering(tmp_path, None, "grpc://:0") as found:
        assert found.receiver is not None
        found.receiver.max_total_bytes = 10
        with pytest.raises(grpc.RpcError) as refused:
            export(found.receiver.address, body("chatcmpl-a"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and found.receiver.refused == 1


@pytest.mark.parametrize("listen", ["ftp://:4317", "grpc://nowhere", "grpc://:99999"])
def test_an_address_that_is_none_is_said_before_anything_is_sent(tmp_path: Path, listen: str) -> None:
    with pytest.raises(UserError, match="--otlp-listen"), gathering(tmp_path, None, listen):
        pass


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with gathering(tmp_path, None, "grpc://:0") as found:
        assert found.receiver is not None
        with pytest.raises(UserError, match="choose another port"), gathering(tmp_path, None, found.receiver.address):
            pass
