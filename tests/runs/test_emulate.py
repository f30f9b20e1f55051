"""The emulator keeps the simulator's schedule: one engine, two clocks."""

from __future__ import annotations

import json
import socket
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.io.emulator_truth import TruthFile, read_truth
from phasemeter.runs.emulate import emulator
from phasemeter.serving.plan import parse_plan

PLAN = """
workload: {input_tokens: 3, output_tokens: {fixed: 8}, arrivals: {poisson: 1/s}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  step_time: {linear: {prefill_s: [0.02, 0, 0], decode_s: [0.005, 0, 0]}}
"""


def test_what_is_planned_on_the_wall_clock_is_what_the_plan_says(tmp_path: Path) -> None:
    server = emulator(parse_plan(PLAN), "plan.yaml", host="127.0.0.1", port=0)
    server.truth = TruthFile(tmp_path / "truth.jsonl")
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "a b c"}], "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=5) as sock:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            while sock.recv(65536):
                pass
    finally:
        server.stop()
        thread.join(10)
    (truth,) = read_truth(tmp_path / "truth.jsonl")
    assert truth.outcome == "stop" and truth.output_tokens == 8 and truth.scheduled_ns is not None
    assert truth.planned_ns[0] - truth.scheduled_ns == 20_000_000
    assert {b - a for a, b in pairwise(truth.planned_ns)} == {5_000_000}
    assert all(w is not None and w >= p for p, w in zip(truth.planned_ns, truth.written_ns, strict=True))


def test_a_client_that_leaves_frees_its_blocks_at_the_next_step() -> None:
    plan = PLAN.replace("{fixed: 8}", "{fixed: 4000}").replace("hardware: H100", "hardware: H100\n  kv_tokens: 8000")
    server = emulator(parse_plan(plan), "plan.yaml", host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        body = json.dumps({"messages": [{"role": "user", "content": "a b c"}], "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=5) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            while b"data:" not in sock.recv(4096):
                pass
            assert server.engine.load()[0] == 1
        for _ in range(500):
            if server.engine.load()[:2] == (0, 0):
                break
            time.sleep(0.01)
        assert server.engine.load() == (0, 0, 0.0) and server.metrics.success["abort"] == 1
    finally:
        server.stop()
        thread.join(10)


def test_an_unknown_fault_in_a_plan_is_named() -> None:
    with pytest.raises(UserError, match=r"emulate.*explode"):
        emulator(parse_plan(PLAN + "emulate: {explode: 1}\n"), "plan.yaml", host="127.0.0.1", port=0)
