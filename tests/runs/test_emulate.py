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
from phasemeter.io.emulator import Emulator
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
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=60) as sock:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            while sock.recv(65536):
                pass
    finally:
        server.stop()
        thread.join(60)
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
        with socket.create_connection(("127.0.0.1", server.server.port), timeout=60) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            while b"data:" not in sock.recv(4096):
                pass
            assert server.engine.load()[0] == 1
        for _ in range(6000):
            if server.engine.load()[:2] == (0, 0):
                break
            time.sleep(0.01)
        assert server.engine.load() == (0, 0, 0.0) and server.metrics.success["abort"] == 1
    finally:
        server.stop()
        thread.join(60)


def test_an_unknown_fault_in_a_plan_is_named() -> None:
    with pytest.raises(UserError, match=r"emulate.*explode"):
        emulator(parse_plan(PLAN + "emulate: {explode: 1}\n"), "plan.yaml", host="127.0.0.1", port=0)


def served(plan: str, *bodies: dict[str, object]) -> tuple[list[bytes], Emulator]:
    """The answers to bodies sent one after the other to a server of `plan`, and that server, idle."""
    server = emulator(parse_plan(plan), "plan.yaml", host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    answers = []
    try:
        for one in bodies:
            body = json.dumps({"messages": [{"role": "user", "content": "a b c " * 20}], **one}).encode()
            with socket.create_connection(("127.0.0.1", server.server.port), timeout=60) as sock:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                sock.sendall(head.encode() + body)
                got = b""
                try:
                    while data := sock.recv(65536):
                        got += data
                except ConnectionResetError:
                    got += b"<reset>"
                answers.append(got)
        for _ in range(6000):
            if server.engine.load()[:2] == (0, 0):
                break
            time.sleep(0.01)
    finally:
        server.stop()
        thread.join(60)
    return answers, server


@pytest.mark.parametrize("fault", [{"truncate_after_tokens": 3, "reset": True}, {"error_after_tokens": 3}])
def test_a_stream_that_a_fault_ends_frees_its_blocks(fault: dict[str, object]) -> None:
    plan = PLAN.replace("{fixed: 8}", "{fixed: 4000}").replace("hardware: H100", "hardware: H100\n  kv_tokens: 8000")
    _, server = served(plan, {"stream": True, "emulate": fault})
    assert server.engine.load() == (0, 0, 0.0) and not server.streams and not server.leaving


@pytest.mark.parametrize("policy", ["vllm_v0", "vllm_v1", "sglang"])
def test_choices_are_samples_of_the_engine(policy: str) -> None:
    with_samples = PLAN.replace("hardware: H100", f"hardware: H100\n  policy: {policy}")
    (answer,), server = served(with_samples, {"n": 3})
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert [one["index"] for one in document["choices"]] == [0, 1, 2]
    assert document["usage"]["completion_tokens"] == 24 and server.metrics.success["stop"] == 3


def test_choices_are_refused_where_the_policy_has_one_sample_a_request() -> None:
    (refused,), _ = served(PLAN.replace("hardware: H100", "hardware: H100\n  policy: sarathi"), {"n": 3})
    assert refused.startswith(b"HTTP/1.1 400") and b"has no `n`" in refused


def test_usage_tells_what_came_from_the_prefix_cache_where_there_is_one() -> None:
    plan = PLAN.replace("hardware: H100", "hardware: H100\n  prefix_cache: true")
    answers, _ = served(plan, {}, {})
    usages = [json.loads(answer.partition(b"\r\n\r\n")[2])["usage"] for answer in answers]
    assert [one["prompt_tokens_details"]["cached_tokens"] for one in usages] == [0, 48]
    (plain,), _ = served(PLAN, {})
    assert "prompt_tokens_details" not in json.loads(plain.partition(b"\r\n\r\n")[2])["usage"]
