"""A request is ok only with a terminal mark of its API; every other end is a failure with a kind, its partial times kept."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from phasemeter.errors import UserError
from phasemeter.records.capture import Close
from phasemeter.wire.exchange import Asked, Received, read_exchange
from tests.wire.streams import DONE, MS, chunk, event, finished, read

PARTIAL = (5, event(chunk("a")))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (event({"message": "worker lost"}, name="error"), "worker lost"),
        (event({"error": {"message": "too long", "code": 400}}), "too long"),
        (event({"error": "overloaded", "error_type": "overloaded"}), "overloaded"),
        (event({"error": ["a", "b"]}) + DONE, "a"),
        (event({"error": {"code": 500}}), "500"),
        (event({"error": True}), "True"),
        (event({"object": "error", "message": "gone"}), "gone"),
        (event("plain words", name="error"), "plain words"),
        (b'error: {"code":500,"message":"slot"}\n\n', "slot"),
        (event({"error": {"message": "late"}}) + event(chunk(finish="stop")) + DONE, "late"),
    ],
)
def test_an_error_under_http_200_is_a_failure_in_the_servers_own_words(last: bytes, words: str) -> None:
    found = read([PARTIAL, (6, last)])
    assert (found.outcome, found.failure, found.failure_text) == ("failed", "server_error_in_stream", words)
    assert found.first_token_ns == 5 * MS and found.warnings == frozenset()


@pytest.mark.parametrize("falsy", [None, False, "", {}, 0])
def test_a_falsy_error_is_none(falsy: Any) -> None:
    assert read([(1, event(chunk("a", error=falsy))), (2, finished(1))]).outcome == "ok"


def test_a_json_error_body_to_a_stream_request_fails() -> None:
    body = json.dumps({"error": {"message": "no such model"}}).encode()
    found = read([(3, body)], headers=(("content-type", "application/json"),))
    assert (found.outcome, found.failure, found.failure_text) == ("failed", "server_error_in_stream", "no such model")
    assert found.first_token_ns is None


@pytest.mark.parametrize(
    "body",
    [
        {"id": "r", "choices": None, "base_resp": {"status_code": 1008, "status_msg": "no balance"}},
        {"error_code": 336003, "error_msg": "no balance", "id": "r"},
        {"result": None, "success": False, "errors": [{"code": 7003, "message": "no balance"}], "messages": []},
    ],
)
def test_gateways_with_error_fields_of_their_own_fail_in_their_words(body: dict[str, Any]) -> None:
    for data in (event(body), event(body) + DONE, json.dumps(body).encode()):
        found = read([(3, data)])
        assert (found.failure, found.failure_text) == ("server_error_in_stream", "no balance")
    fine = {"base_resp": {"status_code": 0, "status_msg": ""}, "error_code": 0, "error_msg": "", "success": True}
    assert read([(1, event(chunk("a", **fine))), (2, finished(1))]).outcome == "ok"


@pytest.mark.parametrize(
    "reason", ["error", "ERROR", "abort", "cancelled", "timeout", "insufficient_system_resource", "network_error"]
)
def test_a_finish_reason_of_error_fails(reason: str) -> None:
    found = read([PARTIAL, (6, finished(1, reason))])
    assert (found.outcome, found.failure) == ("failed", "finish_reason_error")


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls"])
def test_every_other_finish_reason_is_an_end(reason: str) -> None:
    assert read([PARTIAL, (6, finished(1, reason))]).outcome == "ok"


@pytest.mark.parametrize("body", [b"", b"\n\n", b": ping\n\n", DONE])
def test_an_answer_without_an_event_is_empty_not_fast(body: bytes) -> None:
    found = read([(8, body)] if body else [], at=18)
    assert (found.outcome, found.failure, found.first_token_ns) == ("failed", "empty_response", None)
    assert found.warnings == frozenset()


def test_an_error_inside_a_choice_fails() -> None:
    broken = {"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "upstream"}}]}
    found = read([PARTIAL, (6, event(broken))])
    assert (found.failure, found.failure_text) == ("server_error_in_stream", "upstream")


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_an_error_body_written_bare_into_the_stream_fails_in_its_own_words(end: bytes) -> None:
    found = read([PARTIAL, (6, b'{"error": {"message": "worker lost"}}' + end)])
    assert (found.failure, found.failure_text, found.content) == ("server_error_in_stream", "worker lost", "a")


def test_a_compressed_answer_cut_before_its_first_event_is_truncated_not_empty() -> None:
    headers = (("content-encoding", "gzip"),)
    whole, nothing = gzip.compress(PARTIAL[1] * 9), gzip.compress(b"")
    assert read([(8, whole[:40])], headers=headers).failure == "truncated_stream"
    assert read([(8, nothing)], headers=headers).failure == "empty_response"


def test_a_clean_close_without_an_end_mark_is_a_truncation() -> None:
    found = read([PARTIAL], at=90)
    assert (found.outcome, found.failure, found.stream_end_ns) == ("failed", "truncated_stream", 90 * MS)


def test_a_role_and_done_without_finish_reason_or_text_is_no_success() -> None:
    found = read([(5, event(chunk(delta={"role": "assistant"})) + DONE)])
    assert (found.outcome, found.failure) == ("failed", "truncated_stream")


def test_text_and_done_without_a_finish_reason_is_ok_with_a_warning() -> None:
    found = read([PARTIAL, (6, DONE)])
    assert (found.outcome, found.warnings) == ("ok", {"missing_finish_reason"})


COMPLAINTS = [
    (
        b"data: {'error': {'message': 'worker lost'}}\n\n",
        "{'error': {'message': 'worker lost'}}",
    ),  # as Python writes it
    (b"data: Internal Server Error\n\n", "Internal Server Error"),
    (b"data: [ERROR] engine is gone\n\n", "[ERROR] engine is gone"),
    (event('"engine is gone"'), "engine is gone"),
    (event({"detail": "engine is gone"}), "engine is gone"),
    (event({"code": 50501, "message": "engine is gone"}), "engine is gone"),
]


@pytest.mark.parametrize(("last", "words"), COMPLAINTS)
@pytest.mark.parametrize("after", [b"", DONE])
def test_an_answer_that_stops_at_a_complaint_of_no_known_shape_fails_in_its_words(
    last: bytes, words: str, after: bytes
) -> None:
    found = read([PARTIAL, (6, last + after)])
    assert (found.outcome, found.failure, found.failure_text) == ("failed", "server_error_in_stream", words)
    assert found.first_token_ns == 5 * MS


def test_an_error_that_python_wrote_counts_without_its_blank_line_too() -> None:
    found = read([PARTIAL, (6, b"data: {'error': 'worker lost'}")])
    assert (found.failure, found.failure_text) == ("server_error_in_stream", "{'error': 'worker lost'}")


@pytest.mark.parametrize(("words", "_"), COMPLAINTS[1:])
def test_odd_words_beside_an_answer_that_goes_on_to_its_end_are_no_failure(words: bytes, _: str) -> None:
    assert read([PARTIAL, (6, words), (7, event(chunk("b"))), (8, finished(2))]).outcome == "ok"
    assert read([PARTIAL, (6, words), (7, event(chunk("b"))), (8, DONE)]).outcome == "ok"
    assert read([PARTIAL, (6, event(chunk(finish="stop")) + words + DONE)]).outcome == "ok"


@pytest.mark.parametrize(
    "last", ["END", "[END]", {"status": "completed", "message": "all"}, {"code": 200, "message": "ok"}]
)
def test_a_last_word_of_a_servers_own_is_no_complaint(last: object) -> None:
    assert read([PARTIAL, (6, event(last) + DONE)]).outcome == "ok"


@pytest.mark.parametrize("beat", ["ping", "[PING]", ": keep-alive", "HEARTBEAT"])
def test_a_heartbeat_in_a_data_line_carries_nothing(beat: str) -> None:
    found = read([(1, event(beat)), PARTIAL, (6, event(beat)), (7, finished(1))])
    assert (found.outcome, found.warnings, found.first_chunk_ns) == ("ok", frozenset(), 5 * MS)


def test_a_finish_reason_and_a_clean_close_is_ok_without_done() -> None:
    found = read([PARTIAL, (6, event(chunk(finish="stop")))], at=30)
    assert (found.outcome, found.warnings, found.stream_end_ns) == ("ok", {"missing_done"}, 30 * MS)


def test_an_immediate_end_of_sequence_is_ok_without_output() -> None:
    found = read([(3, event(chunk(delta={"role": "assistant", "content": ""}))), (4, finished(1))])
    assert (found.outcome, found.warnings, found.first_token_ns) == ("ok", {"no_output"}, None)


CLOSES: list[tuple[Close, str]] = [
    ("reset", "transport"),
    ("stale", "transport"),
    ("refused", "connect_failed"),
    ("timeout_connect", "timeout_connect"),
    ("timeout_first_byte", "timeout_first_byte"),
    ("timeout_idle", "timeout_idle"),
    ("timeout_total", "timeout_total"),
    ("client_resource", "client_resource"),
    ("malformed", "malformed_http"),
]


@pytest.mark.parametrize(("close", "kind"), CLOSES)
def test_each_way_a_connection_ends_has_its_own_kind_and_keeps_what_came(close: Close, kind: str) -> None:
    found = read([PARTIAL], close=close, at=9)
    assert (found.outcome, found.failure, found.first_token_ns, found.content) == ("failed", kind, 5 * MS, "a")


def test_a_reset_after_the_finish_reason_but_before_done_is_still_a_reset() -> None:
    assert read([PARTIAL, (6, event(chunk(finish="stop")))], close="reset").failure == "transport"


def test_a_cut_by_us_is_cancelled_unless_the_answer_was_whole() -> None:
    assert read([PARTIAL], close="cancelled").outcome == "cancelled"
    assert read([PARTIAL], close=None).outcome == "cancelled"
    assert read([PARTIAL, (6, finished(1))], close="cancelled").outcome == "ok"


def test_an_unsent_request_is_unsent() -> None:
    found = read_exchange(Asked(), Received(reads=[], times_ns=[], close="unsent", closed_ns=None))
    assert (found.outcome, found.failure) == ("unsent", None)


@pytest.mark.parametrize("status", [301, 400, 404, 429, 500, 503])
def test_an_error_status_is_a_failure_with_the_status_and_the_words(status: int) -> None:
    found = read([(2, b'{"error":{"message":"slow down"}}')], status=status, headers=())
    assert (found.outcome, found.failure, found.status) == ("failed", "http_error", status)
    assert found.failure_text is not None and "slow down" in found.failure_text and str(status) in found.failure_text


def test_a_page_of_html_fails_showing_its_first_bytes() -> None:
    found = read([(2, b"<!DOCTYPE html>\n<html>Sign in</html>\n")], headers=(("content-type", "text/html"),))
    assert (found.outcome, found.failure) == ("failed", "unreadable_response")
    assert found.failure_text is not None and "<!DOCTYPE html>" in found.failure_text


@pytest.mark.parametrize(
    "body", [b"[1,2]", b'{"detail":"x"}', b'{"choices', b"\x00\x01\x02", b'{"a":1}\n{"b":2}', b'"text"', b"17"]
)
def test_a_body_of_no_known_shape_fails_showing_its_first_bytes(body: bytes) -> None:
    found = read([(2, body)], headers=())
    assert (found.outcome, found.failure) == ("failed", "unreadable_response")
    assert found.failure_text is not None and repr(body[:2])[2:-1] in found.failure_text


def test_another_apis_stream_is_not_a_truncated_one() -> None:
    found = read([(2, event({"type": "message_start"}, name="message_start"))])
    assert found.failure == "unreadable_response"


def test_an_unreadable_event_in_a_whole_stream_is_a_warning() -> None:
    found = read([PARTIAL, (6, event("not json")), (7, finished(1))])
    assert (found.outcome, found.warnings) == ("ok", {"unreadable_event"})


def test_raw_http_is_judged_by_its_own_framing() -> None:
    def exchange(raw: bytes, close: Close) -> tuple[str, str | None]:
        found = read_exchange(Asked(stream=False), Received(reads=[raw], times_ns=[1], close=close, closed_ns=2))
        return found.outcome, found.failure

    answer = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    assert exchange(head + answer, "complete") == ("ok", None)
    assert exchange(head + answer[:-4], "eof") == ("failed", "truncated_stream")
    assert exchange(b"", "eof") == ("failed", "transport")
    assert exchange(b"not http", "eof") == ("failed", "malformed_http")
    assert exchange(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", "complete") == ("failed", "http_error")


@pytest.mark.parametrize(
    ("headers", "body", "kind"),
    [
        (b"transfer-encoding: chunked", b"zz\r\n", "malformed_http"),
        (b"content-length: many", b"x", "malformed_http"),
        (b"content-encoding: br", b"x", "content_encoding"),
        (b"content-encoding: gzip", b"no gzip at all", "content_encoding"),
    ],
)
def test_broken_framing_and_a_broken_coding_are_told_apart(headers: bytes, body: bytes, kind: str) -> None:
    raw = b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n\r\n" + body
    received = Received(reads=[raw], times_ns=[5], close="eof", closed_ns=9)
    assert read_exchange(Asked(), received).failure == kind


def test_an_unknown_api_is_named_with_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"openai\.chat"):
        read([], asked=Asked(api="grpc.magic"))


@pytest.mark.parametrize(("close", "found"), [("timeout_idle", {"left_open"}), ("eof", set())])
def test_a_stream_that_said_its_end_in_a_message_left_open_is_ok_with_a_warning(close: Close, found: set[str]) -> None:
    body = event(chunk("a")) + finished(1)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body)
    exchange = read_exchange(Asked(), Received(reads=[raw], times_ns=[MS], close=close, closed_ns=900 * MS))
    assert (exchange.outcome, exchange.warnings, exchange.stream_end_ns) == ("ok", found, MS)
