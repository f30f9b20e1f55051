"""The server that the tests of whole runs measure: what it leaves behind falls on whichever test comes next."""

from __future__ import annotations

import gc
import socket
import sys
from typing import Any

import pytest

from .served import served


def test_connections_that_come_in_as_the_block_ends_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: left.append(told.exc_value))
    for _ in range(20):
        with served() as server:
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
            for client in clients:
                client.send(b"GET /v1/models HTTP/1.1\r\nHost: here\r\n\r\n")
        for client in clients:
            client.close()
        gc.collect()
    assert left == []
