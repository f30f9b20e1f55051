"""Servers that answer early, close early, close half, say much or say nothing: what came is kept, the rest goes on."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from phasemeter.io.addresses import resolve
from phasemeter.io.connection import route_to
from phasemeter.io.fetch import fetch
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.pool import Pool
from phasemeter.io.target import Limits, Target, target_of
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.wire.apis import HEARTBEAT
from phasemeter.wire.http_body import HttpReader

from .loopback import PATIENCE_S, Line, answers, loopback
from .test_load import ONE_AFTER_ANOTHER, at, closed_plan, closes, plan, raw, send
from .test_lost_workers import worker_pid

LARGE = b"x" * 8_000_000
REFUSAL = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large"


def by_due(captures: list[Capture]) -> list[Capture]:
    return sorted(captures, key=lambda c: c.due_ns)


def refuses_and_resets(line: Line) -> None:
    line.head()
    threading.Event().wait(0.05)
    line.say(REFUSAL)
    threading.Event().wait(0.05)
    line.reset()


def refuses_and_waits(line: Line) -> None:
    line.head()
    line.say(REFUSAL)
    threading.Event().wait(0.5)


@pytest.mark.parametrize("speak", [refuses_and_resets, refuses_and_waits])
def test_an_answer_that_comes_before_the_body_was_taken_is_the_answer(tmp_path: Path, speak: object) -> None:
    with loopback(speak) as server:  # type: ignore[arg-type]
        _, captures = send(tmp_path, at(server), plan(1, body=LARGE))
    assert closes(captures) == {"complete": 1}
    assert raw(captures[0]) == REFUSAL
    assert captures[0].sent_ns is None, "the body never went out whole"


def test_an_answer_is_not_lost_when_the_connection_broke_before_we_looked(tmp_path: Path) -> None:
    def while_we_sleep(line: Line) -> None:
        line.head()
        sender = worker_pid(tmp_path / "run")
        os.kill(sender, signal.SIGSTOP)
        line.say(REFUSAL)
        line.reset()
        threading.Event().wait(0.05)
        os.kill(sender, signal.SIGCONT)

    with loopback(while_we_sleep) as server:
        _, captures = send(tmp_path, at(server), plan(1, body=LARGE))
    assert closes(captures) == {"complete": 1} and raw(captures[0]) == REFUSAL


def test_an_answer_that_came_while_we_slept_past_a_limit_was_in_time(tmp_path: Path) -> None:
    def while_we_sleep(line: Line) -> None:
        line.request()
        sender = worker_pid(tmp_path / "run")
        os.kill(sender, signal.SIGSTOP)
        line.answer()
        threading.Event().wait(2.2)
        os.kill(sender, signal.SIGCONT)
        line.until_left()

    with loopback(while_we_sleep) as server:
        _, captures = send(tmp_path, at(server, first_byte_s=1.5), plan(1))
    assert closes(captures) == {"complete": 1}


def test_nothing_of_a_long_answer_is_lost_though_its_request_never_went_out_whole(tmp_path: Path) -> None:
    part, over = b"HTTP/1.1 200 OK\r\nContent-Length: 90000000\r\n\r\n" + b"y" * 6_000_000, threading.Event()

    def half(line: Line) -> None:
        line.head()
        line.say(part)
        line.sock.shutdown(socket.SHUT_WR)
        over.wait(PATIENCE_S)

    with loopback(half) as server:
        _, captures = send(tmp_path, at(server), plan(1, body=b"x" * 20_000_000))
        over.set()
    assert closes(captures) == {"eof": 1} and captures[0].sent_ns is None
    assert raw(captures[0]) == part


def test_a_connection_that_broke_in_the_body_without_an_answer_is_a_reset(tmp_path: Path) -> None:
    def leaves(line: Line) -> None:
        line.head()
        line.reset()

    with loopback(leaves) as server:
        _, captures = send(tmp_path, at(server), plan(1, body=LARGE))
    assert closes(captures) == {"reset": 1}
    assert captures[0].error and ("ECONNRESET" in captures[0].error or "EPIPE" in captures[0].error)


def test_a_server_that_closes_after_each_answer_costs_no_request_and_no_resend(tmp_path: Path) -> None:
    def once(line: Line) -> None:
        if line.request() is not None:
            line.answer(extra=b"Connection: close\r\n")

    with loopback(once) as server:
        _, captures = send(tmp_path, at(server), plan(30, gap_ms=10), LoadOptions(prewarm=4))
    assert closes(captures) == {"complete": 30}
    assert not any(c.resent or c.reused_connection for c in captures)


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
def test_an_older_http_is_understood_and_its_connections_are_kept_only_where_it_says_so(
    tmp_path: Path, keep: bytes
) -> None:
    def old(line: Line) -> None:
        while line.request() is not None:
            line.say(b"HTTP/1.0 200 OK\r\n%bContent-Length: 2\r\n\r\nok" % keep)
            if not keep:
                return

    with loopback(old) as server:
        _, captures = send(tmp_path, at(server), closed_plan(8), ONE_AFTER_ANOTHER)
    assert closes(captures) == {"complete": 8}
    assert any(c.reused_connection for c in captures) == bool(keep)


def test_an_older_http_without_a_length_ends_with_its_connection(tmp_path: Path) -> None:
    def old(line: Line) -> None:
        if line.request() is not None:
            line.say(b"HTTP/1.0 200 OK\r\n\r\nall")

    with loopback(old) as server:
        _, captures = send(tmp_path, at(server), plan(2, gap_ms=40))
    assert closes(captures) == {"eof": 2}
    assert all(raw(c).endswith(b"all") for c in captures)


@pytest.mark.parametrize(
    "heads",
    [(b"Content-Length: 2", b"Transfer-Encoding: chunked"), (b"Transfer-Encoding: chunked", b"Content-Length: 2")],
)
def test_chunks_hold_where_a_length_stands_beside_them_and_that_connection_is_not_used_again(
    tmp_path: Path, heads: tuple[bytes, bytes]
) -> None:
    """RFC 9112 section 6.3: Transfer-Encoding overrides, and the two together may be an attack on whoever shares the connection."""

    def both(line: Line) -> None:
        while line.request() is not None:
            line.say(b"HTTP/1.1 200 OK\r\n%b\r\n%b\r\n\r\n" % heads)
            line.say(b"3\r\nall\r\n")
            line.say(b"4\r\n of \r\n2\r\nit\r\n0\r\n\r\n")

    with loopback(both) as server:
        _, captures = send(tmp_path, at(server), closed_plan(6), ONE_AFTER_ANOTHER)
    assert closes(captures) == {"complete": 6} and not any(c.reused_connection for c in captures)
    for capture in captures:
        reader = HttpReader()
        assert b"".join([reader.feed(read.data) for read in capture.reads]) == b"all of it" and reader.complete


def test_trailers_belong_to_the_answer_and_the_connection_goes_on(tmp_path: Path) -> None:
    def trailing(line: Line) -> None:
        while line.request() is not None:
            line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-time\r\n\r\n2\r\nok\r\n0\r\n")
            threading.Event().wait(0.03)
            line.say(b"x-time: 7\r\nx-more: 99\r\n\r\n")

    with loopback(trailing) as server:
        _, captures = send(tmp_path, at(server), closed_plan(3), ONE_AFTER_ANOTHER)
    assert closes(captures) == {"complete": 3}
    assert all(raw(c).endswith(b"99\r\n\r\n") for c in captures)
    assert by_due(captures)[2].reused_connection


def test_very_large_headers_are_taken_whole(tmp_path: Path) -> None:
    much = b"".join(b"X-Filler-%d: %b\r\n" % (i, b"y" * 4000) for i in range(150))

    def wordy(line: Line) -> None:
        while line.request() is not None:
            line.answer(extra=much)

    with loopback(wordy) as server:
        _, captures = send(tmp_path, at(server), plan(2, gap_ms=50))
    assert closes(captures) == {"complete": 2}
    assert all(much in raw(c) for c in captures)


def test_a_server_that_closes_its_half_after_the_answer_is_not_asked_again_on_it(tmp_path: Path) -> None:
    def half(line: Line) -> None:
        if line.request() is not None:
            line.answer(last=True)
            line.request()

    with loopback(half) as server:
        _, captures = send(tmp_path, at(server), plan(4, gap_ms=60))
    assert closes(captures) == {"complete": 4}
    assert not any(c.resent for c in captures)


def test_a_server_that_closes_its_half_within_the_answer_has_truncated_it(tmp_path: Path) -> None:
    def half(line: Line) -> None:
        if line.request() is not None:
            line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart")
            line.sock.shutdown(socket.SHUT_WR)
            line.until_left()

    with loopback(half) as server:
        _, captures = send(tmp_path, at(server), plan(1))
    assert closes(captures) == {"eof": 1} and raw(captures[0]).endswith(b"part")


def test_a_reader_that_is_slow_with_one_body_delays_no_other_request(tmp_path: Path) -> None:
    def slow(line: Line) -> None:
        if line.sock.recv(4, socket.MSG_PEEK) and line.serial == 0:
            while len(server.requests) < 20:  # it is not taken before all others are answered
                threading.Event().wait(0.05)
        answers(line)

    def requests() -> object:
        yield PlannedRequest(request_id="large", index=0, due_offset_ns=0), LARGE
        yield from plan(20, gap_ms=15)

    with loopback(slow) as server:
        _, captures = send(tmp_path, at(server), requests(), LoadOptions(prewarm=1))  # type: ignore[arg-type]
    small = [c for c in captures if c.request_id != "large"]
    large = next(c for c in captures if c.request_id == "large")
    assert closes(small) == {"complete": 20}
    assert large.close == "complete" and large.closed_ns is not None
    assert all(c.closed_ns is not None and c.closed_ns < large.closed_ns for c in small)


def test_a_silence_in_the_schedule_ends_with_a_fresh_connection_made_before_it_was_needed(tmp_path: Path) -> None:
    def requests() -> object:
        for i, due_ms in enumerate((0, 50, 2000, 2050)):
            yield PlannedRequest(request_id=f"r{i}", index=i, due_offset_ns=due_ms * 1_000_000), b"{}"

    options = LoadOptions(prewarm=1, worker_module="tests.io.hasty_worker")
    with loopback() as server:
        outcome, captures = send(tmp_path, at(server), requests(), options)  # type: ignore[arg-type]
    found = by_due(captures)
    assert [round((c.due_ns - outcome.start_ns) / 1e6) for c in found] == [0, 50, 2000, 2050]
    assert closes(captures) == {"complete": 4}
    after = found[2]
    assert not after.reused_connection and not after.resent
    assert after.connected_ns is not None and after.connected_ns < after.due_ns
    assert found[1].closed_ns is not None and after.connect_start_ns is not None
    assert after.connect_start_ns > found[1].closed_ns


def test_no_more_connections_are_being_made_at_once_than_allowed() -> None:
    with loopback() as server:
        target = target_of(f"http://127.0.0.1:{server.port}/")
        pool = Pool(route_to(target, resolve("127.0.0.1", server.port), False), 7, lambda c: None, lambda c, k, e: None)
        opened = 0
        while opened < 40:
            pool.ensure(40 - opened)
            assert 0 < len(pool.connecting) <= 7
            for fd, _ in pool.poll.poll(1, 32):
                pool.progress(pool.by_fd[fd])
            opened = len(pool.by_fd) - len(pool.connecting)
        pool.close()


def test_only_the_first_connection_after_a_name_was_looked_up_carries_the_look_up(tmp_path: Path) -> None:
    with loopback() as server:
        _, named = send(
            tmp_path, target_of(f"http://localhost:{server.port}/"), plan(6, gap_ms=0), LoadOptions(prewarm=1)
        )
        _, numbered = send(tmp_path / "b", at(server), plan(3, gap_ms=0))
    with_stamps = [c for c in named if c.dns_start_ns is not None]
    assert len(with_stamps) == 1 and not with_stamps[0].reused_connection
    first = with_stamps[0]
    assert first.dns_start_ns and first.dns_done_ns and first.connect_start_ns
    assert first.dns_start_ns <= first.dns_done_ns <= first.connect_start_ns
    assert all(c.dns_start_ns is None and c.dns_done_ns is None for c in numbered)


def says_done_and_stays(line: Line) -> None:
    while line.request() is not None:
        body = b"data: {}\n\ndata: [DONE]\n\n"
        line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body))


def test_an_answer_left_open_after_its_last_word_holds_its_slot_no_longer_than_told(tmp_path: Path) -> None:
    limits = {"after_end_s": 0.1, "last_word": rb"\[DONE\]\s*\Z", "idle_s": 30.0}
    with loopback(says_done_and_stays) as server:
        target = at(server, **limits)  # type: ignore[arg-type]
        _, captures = send(tmp_path, target, plan(2, gap_ms=0), ONE_AFTER_ANOTHER)
        probed = fetch(target, "POST", "/v1/x", b"{}")
    assert closes(captures) == {"timeout_idle": 2} and probed.close == "timeout_idle"
    assert all(capture.error == "left open for 0.1 s after its last word" for capture in captures)
    assert (probed.closed_ns or 0) - probed.reads[-1].user_ns < 25e9, "it did not wait for the idle limit"


def answers_at_once(line: Line) -> None:
    while line.request() is not None:
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


def test_a_limit_of_many_years_is_waited_for_like_any_other() -> None:
    years = {"connect_s": 1e9, "first_byte_s": 1e9, "idle_s": 1e9, "total_s": 1e9}
    with loopback(answers_at_once) as server:
        probed = fetch(at(server, **years), "POST", "/v1/x", b"{}")
    assert probed.close == "complete" and probed.error is None


def test_silence_before_the_last_word_is_still_waited_for(tmp_path: Path) -> None:
    def pauses(line: Line) -> None:
        line.request()
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\ndata: {}\n\n")
        threading.Event().wait(0.5)
        line.say(b"data: {}")

    with loopback(pauses) as server:
        target = at(server, after_end_s=0.1, last_word=rb"\[DONE\]\s*\Z", idle_s=5.0)  # type: ignore[arg-type]
        _, captures = send(tmp_path, target, plan(1))
    assert closes(captures) == {"complete": 1}


CRLF_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ODD_FORMS = {
    "bare line feeds in the head": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "spaces after a chunk size": CRLF_HEAD + b"0005  \r\nhello\r\n0\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nX-Long: a\r\n  b\r\nContent-Length: 5\r\n\r\nhello",
    "a control character": b"HTTP/1.1 200 OK\r\nX-Odd: a\x01b\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("form", ODD_FORMS)
def test_odd_framing_that_other_clients_read_is_read_to_its_end(tmp_path: Path, form: str) -> None:
    def says(line: Line) -> None:
        while line.request() is not None:
            line.say(ODD_FORMS[form])

    with loopback(says) as server:
        _, captures = send(tmp_path, at(server), plan(2, gap_ms=50))
    assert closes(captures) == {"complete": 2}
    for capture in captures:
        reader = HttpReader()
        assert b"".join(reader.feed(read.data) for read in capture.reads) == b"hello"
        assert reader.complete and reader.error is None


def pings(line: Line, seconds: float) -> None:
    line.say(CRLF_HEAD)
    hums(line, seconds)


def hums(line: Line, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        line.say(b"8\r\n: ping\n\n\r\n")
        threading.Event().wait(0.05)


def test_an_answer_of_nothing_but_heartbeats_is_one_that_never_began(tmp_path: Path) -> None:
    def hangs(line: Line) -> None:
        line.request()
        pings(line, 60.0)  # the client leaves before

    with loopback(hangs) as server:
        target = at(server, first_byte_s=1.5, heartbeat=HEARTBEAT)  # type: ignore[arg-type]
        _, captures = send(tmp_path, target, plan(1))
        probed = fetch(target, "POST", "/v1/x", b"{}")
    assert closes(captures) == {"timeout_first_byte": 1} and probed.close == "timeout_first_byte"
    assert captures[0].error == "nothing but heartbeats within 1.5 s" and b": ping" in raw(captures[0])


def test_heartbeats_before_a_late_answer_are_waited_through(tmp_path: Path) -> None:
    def thinks(line: Line) -> None:
        line.request()
        pings(line, 0.3)
        line.say(b"9\r\ndata: 1\n\n\r\n")
        threading.Event().wait(1.0)
        hums(line, 1.0)  # past the limit
        line.say(b"0\r\n\r\n")

    with loopback(thinks) as server:
        _, captures = send(tmp_path, at(server, first_byte_s=2.0, heartbeat=HEARTBEAT), plan(1))  # type: ignore[arg-type]
    assert closes(captures) == {"complete": 1}


def test_an_answer_that_began_goes_on_through_heartbeats_however_soon_they_follow(tmp_path: Path) -> None:
    def says_one_word(line: Line) -> None:
        line.request()
        line.say(CRLF_HEAD)
        line.say(b"9\r\ndata: 1\n\n\r\n")
        hums(line, 1.5)  # past the limit
        line.say(b"0\r\n\r\n")

    with loopback(says_one_word) as server:
        _, captures = send(tmp_path, at(server, first_byte_s=1.0, heartbeat=HEARTBEAT), plan(1))  # type: ignore[arg-type]
    assert closes(captures) == {"complete": 1}


@pytest.mark.parametrize(
    ("read", "silent"),
    [
        (b": ping\n\n", True),
        (b"8\r\n: ping\n\n\r\n" * 3, True),
        (CRLF_HEAD, True),
        (CRLF_HEAD + b"3\r\n:\n\n\r\n", True),
        (b"data: 1\n\n", False),
        (b"9\r\ndata: 1\n\n\r\n8\r\n: ping\n\n\r\n", False),
        (b'{"a":1}', False),
        (CRLF_HEAD + b'5\r\n{"a":', False),
    ],
)
def test_a_heartbeat_is_told_from_what_says_something(read: bytes, silent: bool) -> None:
    assert Limits(heartbeat=HEARTBEAT).is_heartbeat(read) == silent


def nobody() -> Target:
    """Where a server was and is no more."""
    with loopback() as server:
        return at(server)


def test_slots_of_a_loop_by_time_wait_longer_and_longer_where_nobody_is_there(tmp_path: Path) -> None:
    options = LoadOptions(mode="closed", concurrency=2, prewarm=1, duration_s=1.0)
    _, captures = send(tmp_path, nobody(), closed_plan(20_000), options)
    assert closes(captures) == {"refused": len(captures)}
    assert 4 <= len(captures) <= 40, "10, 20, 40, … ms between rounds of two"
    ends = sorted(c.closed_ns or 0 for c in captures)
    freed = {end + (10_000_000 << at // 2) for at, end in enumerate(ends)}
    assert {c.due_ns for c in by_due(captures)[2:]} <= freed


def test_a_loop_by_number_fails_all_the_same_without_a_wait(tmp_path: Path) -> None:
    outcome, captures = send(tmp_path, nobody(), closed_plan(200), LoadOptions(mode="closed", concurrency=2, prewarm=1))
    assert closes(captures) == {"refused": 200}
    assert {c.due_ns for c in captures} <= {c.closed_ns for c in captures} | {outcome.start_ns}
