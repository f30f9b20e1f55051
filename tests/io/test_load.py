"""Runs against a server whose faults we wrote: every request is accounted for, each end under its own name."""

from __future__ import annotations

import gc
import os
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from phasemeter.errors import NetworkError
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.target import Limits, Target, target_of
from phasemeter.io.workers import Load, LoadOutcome, run_load
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest

from .loopback import PATIENCE_S, Line, Loopback, Speak, answers, loopback


def plan(count: int, gap_ms: float = 5, body: bytes = b'{"a":1}') -> Iterator[tuple[PlannedRequest, bytes]]:
    for i in range(count):
        yield PlannedRequest(request_id=f"r{i}", index=i, due_offset_ns=round(i * gap_ms * 1e6)), body


def closed_plan(count: int) -> Iterator[tuple[PlannedRequest, bytes]]:
    for i in range(count):
        yield PlannedRequest(request_id=f"r{i}", index=i), b"{}"


ONE_AFTER_ANOTHER = LoadOptions(mode="closed", concurrency=1, prewarm=1)


def send(
    folder: Path, target: Target, requests: Iterator[tuple[PlannedRequest, bytes]], options: LoadOptions | None = None
) -> tuple[LoadOutcome, list[Capture]]:
    directory = RunDirectory.create(folder / "run")
    outcome = run_load(directory, Load(requests=requests, target=target, options=options or LoadOptions(prewarm=1)))
    return outcome, list(RunDirectory.open(folder / "run").captures())


def at(server: Loopback, **limits: float) -> Target:
    return target_of(f"http://127.0.0.1:{server.port}/v1/x", limits=Limits(**limits))


def closes(captures: list[Capture]) -> dict[str | None, int]:
    return dict(Counter(c.close for c in captures))


def raw(capture: Capture) -> bytes:
    return b"".join(read.data for read in capture.reads)


def test_what_was_planned_arrives_and_what_came_is_kept_byte_for_byte(tmp_path: Path) -> None:
    with loopback() as server:
        outcome, captures = send(tmp_path, at(server), plan(20))
    assert outcome.whole and outcome.scheduled == 20
    assert closes(captures) == {"complete": 20}
    assert {c.request_id for c in captures} == {f"r{i}" for i in range(20)}
    assert all(raw(c) == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" for c in captures)
    assert len(server.requests) == 20
    assert all(request.endswith(b'\r\n\r\n{"a":1}') for request in server.requests)


def test_the_instants_of_a_request_are_in_order_and_none_leaves_before_it_is_due(tmp_path: Path) -> None:
    with loopback() as server:
        outcome, captures = send(tmp_path, at(server), plan(10))
    for c in captures:
        assert c.send_start_ns is not None and c.sent_ns is not None and c.closed_ns is not None
        assert c.due_ns <= c.send_start_ns <= c.sent_ns <= c.reads[0].user_ns <= c.closed_ns
    assert sorted(c.due_ns - outcome.start_ns for c in captures) == [round(i * 5e6) for i in range(10)]


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="kernel stamps are read on Linux")
def test_every_read_carries_a_kernel_stamp_even_the_first(tmp_path: Path) -> None:
    with loopback() as server:
        _, captures = send(tmp_path, at(server), plan(5))
    assert RunDirectory.open(tmp_path / "run").stamps == "kernel"
    assert all(read.kernel_realtime_ns is not None for c in captures for read in c.reads)


def fault(line: Line) -> None:
    """One kind of end a request, by its number in the path of no header: the n-th connection's fault."""
    request = line.request()
    if request is None:
        return
    kind = request.rsplit(b"\r\n\r\n", 1)[1]
    if kind == b"reset":
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart")
        threading.Event().wait(0.1)
        line.reset()
    elif kind == b"truncated":
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart")
    elif kind == b"until_close":
        line.say(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    elif kind == b"garbage":
        line.say(b"SSH-2.0-OpenSSH_9.6\r\n")
        line.until_left()
    elif kind == b"silent":
        line.until_left()
    elif kind == b"stall":
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart")
        line.until_left()
    elif kind == b"interim":
        line.say(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        line.answer()
    elif kind == b"empty":
        line.say(b"HTTP/1.1 204 No Content\r\n\r\n")
    elif kind == b"drip":
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
        for _ in range(4000):  # until the client has had enough
            line.say(b"x")
            threading.Event().wait(0.05)
    elif kind == b"chunked":
        line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n0\r\n\r\n")
        threading.Event().wait(0.05)
        line.say(b"\r\n0\r\n\r\n")


ENDS = {
    "reset": "reset", "truncated": "eof", "until_close": "eof", "garbage": "malformed", "silent": "timeout_first_byte",
    "stall": "timeout_idle", "interim": "complete", "empty": "complete", "drip": "timeout_total", "chunked": "complete",
}  # fmt: skip


def test_each_end_of_a_request_has_its_own_name_and_what_came_before_it_is_kept(tmp_path: Path) -> None:
    requests = (
        (PlannedRequest(request_id=name, index=i, due_offset_ns=0), name.encode()) for i, name in enumerate(ENDS)
    )
    with loopback(fault) as server:
        outcome, captures = send(tmp_path, at(server, first_byte_s=2.0, idle_s=2.0, total_s=2.5), requests)
    assert {c.request_id: c.close for c in captures} == ENDS
    got = {c.request_id: raw(c) for c in captures}
    assert got["stall"].endswith(b"part") and got["truncated"].endswith(b"part") and got["until_close"].endswith(b"it")
    assert got["interim"].startswith(b"HTTP/1.1 100 ") and got["interim"].endswith(b"ok")
    assert got["chunked"].endswith(b"5\r\n0\r\n\r\n\r\n0\r\n\r\n"), "what looks like the last chunk was data"
    assert got["silent"] == b""
    assert outcome.whole


def dying(deaths: int) -> Speak:
    """Answers every request, until a kept connection brings its second: then it closes without a byte, as it does with each new
    connection's first one until `deaths` requests have found it so."""
    died = 0

    def speak(line: Line) -> None:
        nonlocal died
        while line.request() is not None:
            if died < deaths and (died or len(line.requests) > 1):
                died += 1
                return
            line.answer()

    return speak


def test_a_kept_connection_that_dies_before_any_byte_gets_one_marked_resend_with_its_due(tmp_path: Path) -> None:
    with loopback(dying(1)) as server:
        _, captures = send(tmp_path, at(server), closed_plan(5), ONE_AFTER_ANOTHER)
    assert closes(captures) == {"complete": 5} and len(server.requests) == 6
    (again,) = (c for c in captures if c.resent)
    assert again.due_ns in {c.closed_ns for c in captures}
    assert again.reused_connection is False and again.connect_start_ns is not None


def test_a_resend_that_dies_too_is_stale_and_not_sent_a_third_time(tmp_path: Path) -> None:
    with loopback(dying(2)) as server:
        _, captures = send(tmp_path, at(server), closed_plan(5), ONE_AFTER_ANOTHER)
    assert closes(captures) == {"complete": 4, "stale": 1} and len(server.requests) == 6


def closes_idle(line: Line) -> None:
    if line.request() is not None:
        line.answer(last=True)


def test_an_idle_connection_that_the_server_closed_is_replaced_before_it_is_needed(tmp_path: Path) -> None:
    with loopback(closes_idle) as server:
        _, captures = send(tmp_path, at(server), plan(5, gap_ms=150))
    assert closes(captures) == {"complete": 5}
    assert not any(c.resent for c in captures)


def test_a_server_that_is_not_there_fails_every_request_as_refused(tmp_path: Path) -> None:
    with loopback() as server:
        port = server.port
    outcome, captures = send(tmp_path, target_of(f"http://127.0.0.1:{port}/"), plan(5))
    assert closes(captures) == {"refused": 5}
    assert all(c.error and "ECONNREFUSED" in c.error and c.send_start_ns is None for c in captures)
    assert outcome.progress.failed == 5


def test_a_name_without_an_address_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"no-such-host\.invalid"):
        send(tmp_path, target_of("http://no-such-host.invalid/"), plan(1))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_localhost_finds_a_server_on_either_family(tmp_path: Path, host: str) -> None:
    with loopback(host=host) as server:
        _, captures = send(tmp_path, target_of(f"http://localhost:{server.port}/"), plan(4))
    assert closes(captures) == {"complete": 4}


def test_a_bracketed_ipv6_address_works_and_is_named_so_in_the_host_header(tmp_path: Path) -> None:
    with loopback(host="::1") as server:
        _, captures = send(tmp_path, target_of(f"http://[::1]:{server.port}/v1"), plan(1))
    assert closes(captures) == {"complete": 1}
    assert b"Host: [::1]:%d\r\n" % server.port in server.requests[0]


class Gauge:
    """How many requests a server holds at once, at most. The first ones are held until they are `expected`."""

    def __init__(self, expected: int = 1) -> None:
        self.now = self.peak = 0
        self.expected = expected
        self.changed = threading.Condition()

    def speak(self, hold_s: float) -> Speak:
        def speak(line: Line) -> None:
            while line.request() is not None:
                with self.changed:
                    self.now += 1
                    self.peak = max(self.peak, self.now)
                    self.changed.notify_all()
                    self.changed.wait_for(lambda: self.peak >= self.expected, PATIENCE_S / 2)
                threading.Event().wait(hold_s)
                with self.changed:
                    self.now -= 1
                line.answer()

        return speak


def test_a_closed_loop_keeps_its_slots_and_dues_a_request_when_a_slot_is_free(tmp_path: Path) -> None:
    gauge = Gauge(3)
    with loopback(gauge.speak(0.03)) as server:
        outcome, captures = send(
            tmp_path, at(server), closed_plan(15), LoadOptions(mode="closed", concurrency=3, prewarm=3)
        )
    assert closes(captures) == {"complete": 15}
    assert gauge.peak == 3
    ends = {c.closed_ns for c in captures} | {outcome.start_ns}
    assert all(c.due_ns in ends for c in captures)


def test_a_cap_delays_sends_and_leaves_dues_where_the_schedule_has_them(tmp_path: Path) -> None:
    gauge = Gauge(2)
    with loopback(gauge.speak(0.05)) as server:
        outcome, captures = send(
            tmp_path, at(server), plan(8, gap_ms=1), LoadOptions(mode="open", concurrency=2, prewarm=2)
        )
    assert gauge.peak == 2
    assert sorted(c.due_ns - outcome.start_ns for c in captures) == [round(i * 1e6) for i in range(8)]
    assert max((c.send_start_ns or 0) - c.due_ns for c in captures) > 100_000_000


def test_more_than_a_hundred_requests_are_open_at_once_when_the_plan_says_so(tmp_path: Path) -> None:
    gauge = Gauge(160)
    with loopback(gauge.speak(0.0)) as server:
        _, captures = send(tmp_path, at(server), plan(160, gap_ms=0), LoadOptions(prewarm=1))
    assert closes(captures) == {"complete": 160}
    assert gauge.peak == 160


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_union_over_workers_is_the_same_schedule(tmp_path: Path, processes: int) -> None:
    with loopback() as server:
        outcome, captures = send(tmp_path, at(server), plan(14), LoadOptions(processes=processes, prewarm=1))
    assert sorted((c.request_id, c.due_ns - outcome.start_ns) for c in captures) == sorted(
        (f"r{i}", round(i * 5e6)) for i in range(14)
    )
    assert {c.worker for c in captures} == set(range(processes))


def test_what_is_still_running_after_the_drain_is_cancelled_with_its_bytes(tmp_path: Path) -> None:
    requests = ((PlannedRequest(request_id="s", index=0, due_offset_ns=0), b"stall") for _ in range(1))
    with loopback(fault) as server:
        outcome, captures = send(tmp_path, at(server), requests, LoadOptions(prewarm=1, drain_s=1.5))
    assert closes(captures) == {"cancelled": 1}
    assert raw(captures[0]).endswith(b"part")
    assert outcome.whole


def test_a_closed_loop_with_a_duration_counts_only_what_a_slot_took(tmp_path: Path) -> None:
    with loopback(Gauge().speak(0.05)) as server:
        outcome, captures = send(
            tmp_path, at(server), closed_plan(500),
            LoadOptions(mode="closed", concurrency=2, duration_s=0.4, prewarm=2),
        )  # fmt: skip
    assert outcome.reasons == ("duration",) and outcome.whole
    assert set(closes(captures)) == {"complete"} and 2 <= len(captures) < 100
    assert len(captures) == len(server.requests)


def test_secret_headers_are_sent_and_lie_in_no_file(tmp_path: Path) -> None:
    with loopback() as server:
        base = at(server)
        target = Target(
            host=base.host, port=base.port, path=base.path,
            secret_headers=(("Authorization", "Bearer sk-very-secret"),),
        )  # fmt: skip
        send(tmp_path, target, plan(3))
    assert all(b"Authorization: Bearer sk-very-secret\r\n" in request for request in server.requests)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not any(b"very-secret" in path.read_bytes() for path in files)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_runs_leave_no_descriptor_behind(tmp_path: Path) -> None:
    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    counts = []
    for number in range(3):
        with loopback() as server:
            send(tmp_path / str(number), at(server), plan(2))
        counts.append(opened())
    assert counts[2] <= counts[0]


def test_a_large_body_is_sent_whole_through_a_slow_reader(tmp_path: Path) -> None:
    body = bytes(range(256)) * 20_000

    with loopback(sipping) as server:
        _, captures = send(tmp_path, at(server), plan(3, body=body), LoadOptions(mode="closed", concurrency=1))
    assert closes(captures) == {"complete": 3}
    assert [request.endswith(body) for request in server.requests] == [
        True
    ] * 3  # on one connection, each from its beginning
    assert captures[1].reused_connection
    assert (captures[0].sent_ns or 0) - (captures[0].send_start_ns or 0) > 50_000_000


def sipping(line: Line) -> None:
    """Takes nothing of the first request for a while: more than the buffers hold has to wait."""
    select.select([line.sock], [], [], PATIENCE_S)
    threading.Event().wait(0.2)
    answers(line)
