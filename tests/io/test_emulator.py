"""The emulator over a raw socket: honest streaming, OpenAI's words for mistakes, faults on request, and a truth that joins."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from phasemeter.io.emulator import Emulator, Settings
from phasemeter.io.emulator_http import Connection
from phasemeter.io.emulator_lag import Lag
from phasemeter.io.emulator_spans import SpanExporter
from phasemeter.io.emulator_truth import Truth, TruthFile, read_truth
from phasemeter.serving.events import Admitted, Event, Finished, Preempted, Tokens
from phasemeter.serving.events import Truth as EngineTruth
from phasemeter.serving.sequence import Request

STEP_NS = 4_000_000
PATIENCE_S = 60.0  # an end for what never should take so long, however busy the machine is


class Metronome:
    """An engine whose every request gets a token at each beat: the emulator's tests need no scheduler."""

    def __init__(self) -> None:
        self.left: dict[str, Request] = {}
        self.made: dict[str, int] = {}
        self.next_ns: int | None = None

    def submit(self, now_ns: int, request: Request) -> None:
        self.left[request.request_id], self.made[request.request_id] = request, 0
        self.next_ns = self.next_ns or now_ns + STEP_NS

    def due_ns(self) -> int | None:
        return self.next_ns if self.left else None

    def abort(self, now_ns: int, request_id: str) -> bool:
        known = self.left.pop(request_id, None) is not None
        self.next_ns = self.next_ns if self.left else None
        return known

    def load(self) -> tuple[int, int, float]:
        return len(self.left), 0, 0.25

    def advance(self, now_ns: int) -> list[Event]:
        events: list[Event] = []
        while self.left and self.next_ns is not None and self.next_ns <= now_ns:
            at, first = self.next_ns, [one for one in self.left if self.made[one] == 0]
            more = [one for one in self.left if self.made[one]]
            events += [Admitted(at - STEP_NS, one) for one in first]
            events.append(Tokens(at - STEP_NS, at, tuple(first), tuple(more)))
            for one in [*first, *more]:
                self.made[one] += 1
                if self.made[one] == self.left[one].output_tokens:
                    events.append(Finished(at, one, self._truth(self.left.pop(one), at)))
            self.next_ns = at + STEP_NS if self.left else None
        return events

    def _truth(self, request: Request, at: int) -> EngineTruth:
        arrival = request.arrival_ns
        numbers = (
            request.prompt_tokens,
            request.output_tokens,
            1,
            0,
            arrival,
            arrival,
            arrival,
            at,
            at,
            at,
            0,
            0,
            0,
            0,
        )
        return EngineTruth(request.request_id, *numbers, ((0, 0),))


class PreemptingOnce(Metronome):
    """Its first step is followed by a preemption."""

    told = False

    def advance(self, now_ns: int) -> list[Event]:
        inside = list(self.left)  # on a busy machine all of it is over with this one call
        events = super().advance(now_ns)
        if events and not self.told:
            self.told = True
            events.insert(2, Preempted(now_ns, inside[0], "recompute"))
        return events


@contextmanager
def serving(
    truth: Path | None = None, spans: SpanExporter | None = None, engine: Metronome | None = None
) -> Iterator[Emulator]:
    settings = Settings(models=("llama-3.1-8b",), max_context_tokens=4096, output_tokens=lambda index: 6)
    emulator = Emulator(engine or Metronome(), settings, "127.0.0.1", 0)
    emulator.truth = TruthFile(truth) if truth is not None else None
    emulator.spans = spans
    thread = threading.Thread(target=emulator.run)
    thread.start()
    try:
        yield emulator
    finally:
        emulator.stop()
        thread.join(PATIENCE_S)


def talk(port: int, raw: bytes) -> bytes:
    """Send bytes, read until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(raw)
        got = b""
        while True:
            try:
                data = sock.recv(65536)
            except ConnectionResetError:
                return got + b"<reset>"
            if not data:
                return got
            got += data


def post(path: str, body: Any, *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "one two three"}], **more}


def dechunk(response: bytes) -> tuple[bytes, bytes, bool]:
    """(head, body, whether the last chunk came): an independent reading of the framing."""
    head, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            return head, body, True
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return head, body, False


def events(response: bytes) -> list[Any]:
    _, body, _ = dechunk(response)
    lines = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def text_of(parts: list[Any], field: str = "content") -> str:
    return "".join(c["delta"].get(field, "") for p in parts if isinstance(p, dict) for c in p.get("choices", ()))


def test_a_stream_is_role_then_one_token_a_chunk_then_finish_then_done() -> None:
    with serving() as emulator:
        response = talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True, max_tokens=4)))
    head, _, ended = dechunk(response)
    parts = events(response)
    assert head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head and ended
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [len(p["choices"][0]["delta"]["content"].split()) for p in parts[1:-1]] == [1] * 4
    assert [p["choices"][0]["finish_reason"] for p in parts[:-1]] == [None] * 4 + ["length"]
    assert parts[-1] == "[DONE]"


def test_a_server_that_has_ended_may_be_stopped_again() -> None:
    with serving() as emulator:
        emulator.stopping = True  # seen at the end of a turn, as where a step ends just when it is told to stop
        until = time.monotonic() + PATIENCE_S
        while not emulator.closed or emulator.server.wake_fd >= 0:
            assert time.monotonic() < until
            time.sleep(0.01)
        emulator.stop()


def test_usage_comes_when_asked_and_only_then() -> None:
    with serving() as emulator:
        asked = chat(stream=True, stream_options={"include_usage": True})
        parts = events(talk(emulator.server.port, post("/v1/chat/completions", asked)))
        without = events(talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True))))
    assert parts[-2]["choices"] == [] and parts[-2]["usage"]["completion_tokens"] == 6
    assert parts[-2]["usage"]["prompt_tokens"] == 3 and parts[-3]["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in part for part in without if isinstance(part, dict))


def test_completions_stream_text_and_have_no_role() -> None:
    with serving() as emulator:
        body = {"model": "llama-3.1-8b", "prompt": [5, 6, 7], "stream": True, "max_tokens": 3}
        parts = events(talk(emulator.server.port, post("/v1/completions", body)))
    assert len(parts) == 4 and all("delta" not in part["choices"][0] for part in parts[:-1])
    assert len("".join(part["choices"][0]["text"] for part in parts[:-1]).split()) == 3


def test_an_answer_without_a_stream_is_whole() -> None:
    with serving() as emulator:
        response = talk(emulator.server.port, post("/v1/chat/completions", chat(max_tokens=5), "X-Request-Id: abc"))
    head, _, body = response.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert b"x-request-id: abc" in head and document["id"] == "chatcmpl-abc"
    assert len(document["choices"][0]["message"]["content"].split()) == 5
    assert document["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/chat/completions", b"{", 400, "JSON"),
        ("/v1/chat/completions", b'{"messages":' + b"[" * 50_000, 400, "JSON"),
        ("/v1/chat/completions", [], 400, "object"),
        ("/v1/chat/completions", {"model": "llama-3.1-8b"}, 400, "messages"),
        ("/v1/chat/completions", chat(model="gpt-9"), 404, "does not exist"),
        ("/v1/chat/completions", chat(max_tokens=0), 400, "max_tokens"),
        ("/v1/chat/completions", chat(max_tokens="many"), 400, "max_tokens"),
        ("/v1/chat/completions", chat(max_tokens=5000), 400, "maximum context length"),
        ("/v1/chat/completions", chat(n=0), 400, "n"),
        ("/v1/chat/completions", chat(stream=True, emulate={"explode": 1}), 400, "explode"),
        ("/v1/chat/completions", chat(emulate={"error_status": 503}), 503, "asked to fail"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v2/none", {}, 404, "not served"),
    ],
)
def test_a_mistake_gets_an_openai_error(path: str, body: Any, status: int, word: str) -> None:
    with serving() as emulator:
        response = talk(emulator.server.port, post(path, body))
    head, _, text = response.partition(b"\r\n\r\n")
    error = json.loads(text)["error"]
    assert head.startswith(f"HTTP/1.1 {status} ".encode()) and error["code"] == status
    assert word in error["message"] and {"message", "type", "param", "code"} == set(error)


def test_bytes_that_are_no_http_get_a_400_and_a_close() -> None:
    with serving() as emulator:
        assert talk(emulator.server.port, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_connection_serves_one_request_after_another_in_pieces_and_pipelined() -> None:
    one = post("/v1/chat/completions", chat(max_tokens=2)).replace(b"Connection: close", b"Connection: keep-alive")
    with serving() as emulator:
        response = talk(emulator.server.port, one + one.replace(b"keep-alive", b"close"))
        with socket.create_connection(("127.0.0.1", emulator.server.port), timeout=PATIENCE_S) as sock:
            for i in range(len(one)):
                sock.sendall(one[i : i + 1])
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    assert response.count(b"HTTP/1.1 200 OK") == 2


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "truncation": ({"truncate_after_tokens": 3}, "truncated"),
    "reset": ({"truncate_after_tokens": 3, "reset": True}, "truncated"),
    "error": ({"error_after_tokens": 3}, "error"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_that_breaks_breaks_where_it_was_asked_to(fault: str, tmp_path: Path) -> None:
    asked, outcome = FAULTS[fault]
    with serving(tmp_path / "truth.jsonl") as emulator:
        response = talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True, emulate=asked)))
    truth = read_truth(tmp_path / "truth.jsonl")[0]
    whole = response.removesuffix(b"<reset>")
    parts = events(whole)
    assert len(text_of(parts).split()) == 3 == sum(one is not None for one in truth.written_ns)
    assert truth.outcome == outcome and truth.faults == asked
    assert dechunk(whole)[2] is (fault == "error")
    assert any("error" in part for part in parts) is (fault == "error")


def test_several_tokens_a_chunk_and_a_reasoning_phase_keep_every_token() -> None:
    with serving() as emulator:
        faults = {"tokens_per_chunk": 4, "reasoning_tokens": 3}
        body = chat(stream=True, max_tokens=6, emulate=faults, stream_options={"include_usage": True})
        parts = events(talk(emulator.server.port, post("/v1/chat/completions", body)))
    assert len(text_of(parts, "reasoning_content").split()) == 3 and len(text_of(parts).split()) == 3
    assert parts[-2]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert parts[-2]["usage"]["completion_tokens"] == 6


def test_an_early_role_comes_before_the_first_token_is_due() -> None:
    with (
        serving() as emulator,
        socket.create_connection(("127.0.0.1", emulator.server.port), timeout=PATIENCE_S) as sock,
    ):
        sock.sendall(post("/v1/chat/completions", chat(stream=True, emulate={"role_early": True})))
        got = b""
        while b"\r\n\r\n" not in got or not got.endswith(b"\r\n"):
            got += (part := sock.recv(65536))
            assert part
    assert dechunk(got)[1].startswith(b"data: ") and b'"role":"assistant"' in got


def test_a_stall_and_a_slow_network_delay_writes_and_not_the_plan(tmp_path: Path) -> None:
    with serving(tmp_path / "truth.jsonl") as emulator:
        stall = {"stall_after_tokens": 2, "stall_s": 0.2}
        assert talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True, emulate=stall))).endswith(
            b"0\r\n\r\n"
        )
        slow = {"delay_s": 0.1}
        assert talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True, emulate=slow))).endswith(
            b"0\r\n\r\n"
        )
    stalled, slowed = read_truth(tmp_path / "truth.jsonl")
    gaps = [
        written - planned for planned, written in zip(stalled.planned_ns, stalled.written_ns, strict=True) if written
    ]
    assert gaps[2] >= 0.2e9 - 2 * STEP_NS
    assert stalled.written_ns[2] - stalled.written_ns[1] >= 0.2e9 - 2 * STEP_NS  # the ones before were not held up
    assert {b - a for a, b in zip(stalled.planned_ns, stalled.planned_ns[1:], strict=False)} == {STEP_NS}
    late = [written - planned for planned, written in zip(slowed.planned_ns, slowed.written_ns, strict=True) if written]
    assert min(late) >= 0.1e9


def test_the_truth_says_what_was_planned_and_written_and_joins_by_id(tmp_path: Path) -> None:
    with serving(tmp_path / "truth.jsonl") as emulator:
        before = time.monotonic_ns()
        body = chat(stream=True, max_tokens=5)
        talk(emulator.server.port, post("/v1/chat/completions", body, "X-Request-Id: join-me"))
        after = time.monotonic_ns()
    (truth,) = read_truth(tmp_path / "truth.jsonl")
    assert (truth.request_id, truth.response_id, truth.outcome) == ("join-me", "chatcmpl-join-me", "length")
    assert len(truth.planned_ns) == len(truth.written_ns) == truth.output_tokens == 5
    instants = [before, truth.arrival_ns, *[one for one in truth.written_ns if one]]
    assert instants == sorted(instants) and instants[-1] <= min(truth.end_ns, after)
    assert all(w is not None and w >= p for p, w in zip(truth.planned_ns, truth.written_ns, strict=True))


def test_a_client_that_leaves_is_on_record(tmp_path: Path) -> None:
    with serving(tmp_path / "truth.jsonl") as emulator:
        with socket.create_connection(("127.0.0.1", emulator.server.port), timeout=PATIENCE_S) as sock:
            sock.sendall(post("/v1/chat/completions", chat(stream=True, max_tokens=1000)))
            sock.recv(4096)
        until = time.monotonic() + PATIENCE_S
        while not emulator.metrics.success["abort"] or emulator.streams:
            assert time.monotonic() < until, "nobody noticed"
            time.sleep(0.01)
        assert emulator.metrics.success["abort"] == 1
    assert read_truth(tmp_path / "truth.jsonl")[0].outcome == "client_gone"


def decode_bounds_s(truths: list[Truth]) -> tuple[float, float]:
    """Between which two sums the decode times lie: a step is over after its plan and before its tokens were written."""
    pairs = [(one.planned_ns, one.written_ns) for one in truths]
    least = sum(max(0, planned[-1] - (written[0] or 0)) for planned, written in pairs)
    return least / 1e9, sum((written[-1] or 0) - planned[0] for planned, written in pairs) / 1e9


def test_metrics_have_vllms_names_and_count_what_happened(tmp_path: Path) -> None:
    with serving(tmp_path / "truth.jsonl") as emulator:
        for _ in range(3):
            talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True, max_tokens=5)))
        get = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        page = talk(emulator.server.port, get).partition(b"\r\n\r\n")[2].decode()
    samples = {
        (one.name, one.labels.get("le"), one.labels.get("finished_reason")): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }
    assert samples["vllm:generation_tokens_total", None, None] == 15
    assert samples["vllm:prompt_tokens_total", None, None] == 9
    assert samples["vllm:request_success_total", None, "length"] == 3
    assert samples["vllm:time_to_first_token_seconds_count", None, None] == 3
    assert samples["vllm:inter_token_latency_seconds_count", None, None] == 12
    assert samples["vllm:inter_token_latency_seconds_bucket", "0.01", None] == 12
    assert samples["vllm:e2e_request_latency_seconds_bucket", "+Inf", None] == 3
    decode = samples["vllm:request_decode_time_seconds_sum", None, None]
    least, most = decode_bounds_s(read_truth(tmp_path / "truth.jsonl"))  # as it was, not as planned
    assert least <= decode <= most and decode > 0
    assert samples["vllm:kv_cache_usage_perc", None, None] == 0.25
    assert samples["vllm:request_num_preemptions_count", None, None] == 3
    assert samples["vllm:request_num_preemptions_sum", None, None] == 0


def test_each_request_tells_how_often_it_was_preempted() -> None:
    with serving(engine=PreemptingOnce()) as emulator:
        talk(emulator.server.port, post("/v1/chat/completions", chat(stream=True, max_tokens=5)))
        get = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        page = talk(emulator.server.port, get).partition(b"\r\n\r\n")[2].decode()
    found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line[0] != "#"}
    labels = emulator.metrics.labels
    assert found[f"vllm:num_preemptions_total{{{labels}}}"] == 1
    assert found[f"vllm:request_num_preemptions_sum{{{labels}}}"] == 1
    assert found[f'vllm:request_num_preemptions_bucket{{{labels},le="1.0"}}'] == 1


def test_models_and_health_answer() -> None:
    with serving() as emulator:
        get = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        listed = json.loads(talk(emulator.server.port, get % b"/v1/models").partition(b"\r\n\r\n")[2])
        assert [one["id"] for one in listed["data"]] == ["llama-3.1-8b"]
        assert talk(emulator.server.port, get % b"/health").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v2/none"])
def test_a_head_request_gets_the_head_alone(path: str) -> None:
    with serving() as emulator:
        response = talk(emulator.server.port, f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"content-length: " in head and b"content-length: 0" not in head and not body


def test_a_null_stream_is_none() -> None:
    with serving() as emulator:
        response = talk(emulator.server.port, post("/v1/chat/completions", chat(max_tokens=2, stream=None)))
    assert json.loads(response.partition(b"\r\n\r\n")[2])["object"] == "chat.completion"


class Collector(BaseHTTPRequestHandler):
    received: list[bytes]

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_span_joins_the_clients_trace_and_carries_vllms_attributes(tmp_path: Path) -> None:
    Collector.received = []
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        exporter = SpanExporter(f"http://127.0.0.1:{collector.server_port}")
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with serving(tmp_path / "truth.jsonl", spans=exporter) as emulator:
            talk(
                emulator.server.port,
                post("/v1/chat/completions", chat(stream=True), f"traceparent: {parent}", "X-Request-Id: q"),
            )
        collector.shutdown()
        thread.join(PATIENCE_S)
    spans = ExportTraceServiceRequest.FromString(Collector.received[0]).resource_spans[0].scope_spans[0].spans
    values = {one.key: one.value for one in spans[0].attributes}
    assert spans[0].name == "llm_request" and spans[0].trace_id.hex() == parent[3:35]
    assert spans[0].parent_span_id.hex() == parent[36:52]
    assert values["gen_ai.request.id"].string_value == "chatcmpl-q"
    assert values["gen_ai.usage.completion_tokens"].int_value == 6
    decode = values["gen_ai.latency.time_in_model_decode"].double_value
    least, most = decode_bounds_s(read_truth(tmp_path / "truth.jsonl"))
    assert least <= decode <= most and decode > 0


def test_an_emulator_that_lags_says_so_and_one_that_does_not_stays_silent() -> None:
    good, bad = Lag(), Lag()
    for step in range(200):
        good.note(step * 10**9, step * 10**9 + 500_000, step * 10**9 + 4_000_000)
        bad.note(step * 10**9, step * 10**9 + 500_000, step * 10**9 + 14_000_000)
    assert good.complaint() is None
    assert "can't keep up" in (bad.complaint() or "")


def test_truth_survives_its_file(tmp_path: Path) -> None:
    truth = Truth(
        request_id=None, response_id="r", traceparent=None, stream=True, arrival_ns=1, scheduled_ns=None, prompt_tokens=1,
        cached_tokens=0, output_tokens=2, planned_ns=(5,), written_ns=(None,), end_ns=9, outcome="error", preemptions=0, faults={},
    )  # fmt: skip
    file = TruthFile(tmp_path / "t.jsonl")
    file.write(truth)
    file.close()
    assert read_truth(tmp_path / "t.jsonl") == [truth]


def test_logprobs_come_with_each_token_of_a_chat_and_of_a_completion() -> None:
    with serving() as emulator:
        asked = chat(stream=True, max_tokens=3, logprobs=True, top_logprobs=2)
        parts = events(talk(emulator.server.port, post("/v1/chat/completions", asked)))
        body = {"prompt": [[5, 6, 7]], "stream": True, "max_tokens": 3, "logprobs": 1}
        texts = events(talk(emulator.server.port, post("/v1/completions", body)))
        whole = talk(emulator.server.port, post("/v1/completions", {"prompt": "a b", "max_tokens": 3, "logprobs": 2}))
    tokens = [part["choices"][0] for part in parts[1:-1]]
    assert [one["logprobs"]["content"][0]["token"] for one in tokens] == [one["delta"]["content"] for one in tokens]
    assert all(len(one["logprobs"]["content"][0]["top_logprobs"]) == 2 for one in tokens)
    assert [part["choices"][0]["logprobs"]["tokens"] for part in texts[:-1]] == [
        [p["choices"][0]["text"]] for p in texts[:-1]
    ]
    choice = json.loads(whole.partition(b"\r\n\r\n")[2])["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] and len(choice["logprobs"]["text_offset"]) == 3


def test_usage_in_every_chunk_grows_by_what_the_chunk_brings() -> None:
    with serving() as emulator:
        options = {"include_usage": True, "continuous_usage_stats": True}
        asked = chat(stream=True, max_tokens=4, stream_options=options)
        parts = events(talk(emulator.server.port, post("/v1/chat/completions", asked)))
    assert [part["usage"]["completion_tokens"] for part in parts[:-1]] == [0, 1, 2, 3, 4, 4]


def test_choices_come_side_by_side_under_their_own_index(tmp_path: Path) -> None:
    with serving(tmp_path / "truth.jsonl") as emulator:
        asked = chat(stream=True, n=3, max_tokens=4, stream_options={"include_usage": True})
        parts = events(talk(emulator.server.port, post("/v1/chat/completions", asked)))
        whole = json.loads(
            talk(emulator.server.port, post("/v1/chat/completions", chat(n=2))).partition(b"\r\n\r\n")[2]
        )
        generated = emulator.metrics.counters["generation_tokens"]
    by_index: dict[int, list[Any]] = {}
    for part in parts[:-2]:
        by_index.setdefault(part["choices"][0]["index"], []).append(part["choices"][0])
    assert sorted(by_index) == [0, 1, 2]
    for choices in by_index.values():
        assert len("".join(one["delta"].get("content", "") for one in choices).split()) == 4
        assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
    assert parts[-2]["usage"]["completion_tokens"] == 12 and [one["index"] for one in whole["choices"]] == [0, 1]
    assert generated == 12 + 12 and [one.choices for one in read_truth(tmp_path / "truth.jsonl")] == [3, 2]


def test_models_tell_their_root_and_a_version_is_told() -> None:
    with serving() as emulator:
        get = b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        listed = json.loads(talk(emulator.server.port, get % b"/v1/models").partition(b"\r\n\r\n")[2])["data"][0]
        version = json.loads(talk(emulator.server.port, get % b"/version").partition(b"\r\n\r\n")[2])
    assert {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"} == set(listed)
    assert "emulator" in version["version"]


class Racing(Metronome):
    """Its next step is always due already: nobody could keep up with it."""

    def due_ns(self) -> int | None:
        return 1 if self.left else None

    def advance(self, now_ns: int) -> list[Event]:
        time.sleep(0.001)
        self.next_ns = now_ns - 20_000_000 if self.left else None
        return super().advance(now_ns - 20_000_000)


def test_a_server_that_cannot_keep_up_still_hears_and_says_so_everywhere_and_once(tmp_path: Path) -> None:
    said: list[str] = []
    get = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with serving(tmp_path / "truth.jsonl", engine=Racing()) as emulator:
        emulator.complain = said.append
        with socket.create_connection(("127.0.0.1", emulator.server.port), timeout=PATIENCE_S) as sock:
            sock.sendall(post("/v1/chat/completions", chat(stream=True, max_tokens=4000, ignore_eos=True)))
            sock.recv(4096)
            for _ in range(200):
                page = talk(emulator.server.port, get)
                if said:
                    break
            page = talk(emulator.server.port, get)
            served = emulator.streams.copy()
    (truth,) = read_truth(tmp_path / "truth.jsonl")
    assert b"phasemeter_emulator_keeps_up 0.0" in page and served  # while the steps went on
    assert len(said) == 1 and "can't keep up" in said[0]
    assert truth.late_steps == truth.steps > 100


def test_a_client_found_gone_while_a_step_is_written_leaves_the_others_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writes = Connection.write, 0

    def failing(self: Connection, data: bytes) -> None:
        """The sixth write to the one who leaves fails, and takes so long that the next step is due already."""
        nonlocal writes
        if self.request is not None and self.request.headers.get("x-request-id") == "leaver":
            writes += 1
            if writes == 6:
                time.sleep(3 * STEP_NS / 1e9)
                self.server.drop(self)
                return
        write(self, data)

    monkeypatch.setattr(Connection, "write", failing)
    body = chat(stream=True, max_tokens=40, ignore_eos=True)
    with serving(tmp_path / "truth.jsonl") as emulator:
        leaver = post("/v1/chat/completions", body, "X-Request-Id: leaver")
        with socket.create_connection(("127.0.0.1", emulator.server.port), timeout=PATIENCE_S) as sock:
            sock.sendall(leaver)
            assert talk(emulator.server.port, post("/v1/chat/completions", body)).endswith(b"0\r\n\r\n")
    gone, stayed = read_truth(tmp_path / "truth.jsonl")
    assert gone.outcome == "client_gone" and stayed.outcome == "length"
    assert list(stayed.planned_ns) == sorted(set(stayed.planned_ns)) and len(stayed.planned_ns) == 40
    assert len(gone.written_ns) == len(gone.planned_ns) < 40
