"""From plan and capture to a row: every boundary on one clock, every failure with what came before it."""

from __future__ import annotations

from typing import Any

from phasemeter.metrics.boundaries import row_and_exchange, row_of
from phasemeter.metrics.receive_clock import ReceiveClock
from phasemeter.records.capture import Capture, ClockPair, Close, Read
from phasemeter.records.request import PlannedRequest
from tests.wire.streams import chunk, event, finished, usage

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OFFSET = 10**18
CLOCK = [ClockPair(0, OFFSET), ClockPair(10**10, OFFSET + 10**10)]


def framed(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def captured(
    *reads: tuple[int, bytes], close: Close | None = "complete", closed_ns: int | None = 9000, **more: Any
) -> Capture:
    """A request due at 900 and sent at 1000; each read stamped 50 ns before it returned."""
    return Capture(
        request_id="r", worker=2, due_ns=900, connect_start_ns=910, tcp_connected_ns=950, connected_ns=950, send_start_ns=1000,
        sent_ns=1010, reads=tuple(Read(at + 50, OFFSET + at, data) for at, data in reads), closed_ns=closed_ns, close=close, **more,
    )  # fmt: skip


PLAN = PlannedRequest(request_id="r", index=4, output_tokens=8, input_tokens=7, phase="warmup", workload_class="chat")
WHOLE = (
    (2000, HEAD),
    (3000, framed(event(chunk(delta={"role": "assistant"})))),
    (4000, framed(event(chunk(delta={"reasoning": "hm"})))),
    (5000, framed(event(chunk("a")))),
    (6000, framed(event(chunk("b"))) + framed(event(chunk("c")))),
    (7000, framed(finished(4)) + b"0\r\n\r\n"),
)


def test_every_boundary_is_on_the_monotonic_clock() -> None:
    row = row_of(PLAN, captured(*WHOLE), ReceiveClock(CLOCK))
    told = {
        name: getattr(row, name)
        for name in row.__struct_fields__
        if name.endswith("_ns") and isinstance(getattr(row, name), int)
    }
    assert told == {
        "due_ns": 900, "connect_start_ns": 910, "tcp_connected_ns": 950, "connected_ns": 950, "send_start_ns": 1000, "sent_ns": 1010,
        "headers_ns": 2000, "first_read_ns": 2000, "first_chunk_ns": 3000, "first_token_ns": 4000, "first_output_ns": 5000,
        "last_token_ns": 6000, "stream_end_ns": 7000, "usage_ns": 7000, "observer_lag_ns": 50,
    }  # fmt: skip
    assert (row.bare_times_ns, row.silent_times_ns) == ((3000, 7000), ())  # a role alone, a finish reason alone
    assert (row.outcome, row.output_tokens, row.output_tokens_source, row.input_tokens) == ("ok", 4, "usage", 7)
    assert (row.phase, row.worker, row.workload_class, row.asked_output_tokens) == ("warmup", 2, "chat", 8)


def test_events_of_one_read_share_their_read_and_reasoning_leads() -> None:
    (choice,) = row_of(PLAN, captured(*WHOLE), ReceiveClock(CLOCK)).choices
    assert (choice.times_ns, choice.reads) == ((4000, 5000, 6000, 6000), (2, 3, 4, 4))
    assert (choice.reasoning_events, choice.output_tokens, choice.finish_reason) == (1, 4, "stop")


def test_a_failure_keeps_what_came_before_it() -> None:
    row = row_of(
        PLAN, captured(*WHOLE[:4], close="reset", error="ConnectionResetError: [Errno 104]"), ReceiveClock(CLOCK)
    )
    assert (row.outcome, row.failure, row.failure_text) == ("failed", "transport", "ConnectionResetError: [Errno 104]")
    assert (row.first_token_ns, row.stream_end_ns, row.output_tokens) == (4000, 9000, None)


def test_a_request_that_never_connected_or_was_never_sent_has_a_row() -> None:
    refused = Capture(
        request_id="r", due_ns=5, connect_start_ns=6, closed_ns=7, close="refused", error="ConnectionRefusedError"
    )
    row = row_of(PLAN, refused, ReceiveClock())
    assert (row.outcome, row.failure, row.first_read_ns, row.send_start_ns) == ("failed", "connect_failed", None, None)
    unsent = row_of(PLAN, Capture(request_id="r", due_ns=5, close="unsent"), ReceiveClock())
    assert (unsent.outcome, unsent.choices) == ("unsent", ())


def test_a_capture_that_was_cut_off_is_cancelled_with_its_tokens_on_record() -> None:
    row = row_of(PLAN, captured(*WHOLE[:5], close=None, closed_ns=None), ReceiveClock(CLOCK))
    assert (row.outcome, row.first_token_ns, row.stream_end_ns, len(row.choices[0].reads)) == (
        "cancelled",
        4000,
        None,
        4,
    )


def test_the_exchange_keeps_text_and_raw_timings() -> None:
    end = framed(event(chunk(finish="stop", timings={"prompt_ms": 1.5}, usage=usage(1)))) + framed(finished())
    row, exchange = row_and_exchange(PLAN, captured(WHOLE[0], WHOLE[3], (6000, end)), ReceiveClock(CLOCK))
    assert (exchange.content, exchange.timings, row.http_status) == ("a", {"timings": {"prompt_ms": 1.5}}, 200)


def test_usage_that_grows_before_any_text_is_a_second_first_token() -> None:
    early = framed(event(chunk("", usage=usage(1))))
    text = framed(event(chunk("a", usage=usage(2))))
    row = row_of(
        PLAN, captured(WHOLE[0], (3000, early), (5000, text), (6000, framed(finished(2)))), ReceiveClock(CLOCK)
    )
    assert (row.first_token_by_usage_ns, row.first_token_ns) == (3000, 5000)
    late = row_of(PLAN, captured(*WHOLE), ReceiveClock(CLOCK))
    assert late.first_token_by_usage_ns is None


def test_a_refusal_is_an_answer_that_can_be_counted_apart() -> None:
    no = framed(event(chunk(delta={"refusal": "No."})))
    row = row_of(PLAN, captured(WHOLE[0], (4000, no), (6000, framed(finished(2)))), ReceiveClock(CLOCK))
    assert (row.outcome, row.refusal, row.first_output_ns) == ("ok", True, 4000)
    assert not row_of(PLAN, captured(*WHOLE), ReceiveClock(CLOCK)).refusal


def test_one_read_with_everything_is_a_single_arrival() -> None:
    row = row_of(
        PLAN, captured((2000, HEAD + framed(event(chunk("a")) + event(chunk("b")) + finished(2)))), ReceiveClock(CLOCK)
    )
    assert row.single_arrival and row.warnings == ("stream_not_incremental",)
