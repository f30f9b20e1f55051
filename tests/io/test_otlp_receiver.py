"""Spans are written as they came; what is too much is counted and refused."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.io import otlp_receiver as module
from phasemeter.io.otlp_receiver import OtlpReceiver, otlp_receiver


def post(
    receiver: OtlpReceiver, body: bytes, path: str = "/v1/traces", kind: str = "application/x-protobuf", times: int = 1
) -> list[int]:
    connection = http.client.HTTPConnection(receiver.address.split("/")[2], timeout=60)
    found = []
    for _ in range(times):
        connection.request("POST", path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        answer.read()
        found.append(answer.status)
    connection.close()
    return found


def test_bodies_are_written_as_they_came(tmp_path: Path) -> None:
    with otlp_receiver(":0", tmp_path / "evidence") as receiver:
        assert receiver.address.startswith("http://127.0.0.1:")
        assert post(receiver, b"\n\x00abc", times=2) == [200, 200]
        assert post(receiver, b"{}", kind="application/json") == [200]
    written = {path.name: path.read_bytes() for path in (tmp_path / "evidence").iterdir()}
    assert written == {"spans-000001.pb": b"\n\x00abc", "spans-000002.pb": b"\n\x00abc", "spans-000003.json": b"{}"}
    assert (receiver.bodies, receiver.refused) == (3, 0)


def test_a_flood_is_refused_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 100)
    with otlp_receiver("127.0.0.1:0", tmp_path, max_total_bytes=100) as receiver:
        assert post(receiver, b"x" * 60, times=2) == [200, 503]
        assert post(receiver, b"x" * 101) == [413]
    assert (receiver.bodies, receiver.refused) == (1, 2)


def test_another_path_is_not_taken_for_spans(tmp_path: Path) -> None:
    with otlp_receiver(":0", tmp_path) as receiver:
        assert post(receiver, b"x", path="/v1/metrics") == [404]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("listen", ["", "host", ":port", ":99999"])
def test_what_is_no_address_is_a_users_mistake(listen: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="otlp-listen"), otlp_receiver(listen, tmp_path):
        pass


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with otlp_receiver(":0", tmp_path) as receiver:
        again = otlp_receiver(receiver.address.split("/")[2], tmp_path)
        with pytest.raises(UserError, match="choose another port"):
            again.__enter__()
