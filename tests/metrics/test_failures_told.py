"""Every failure is told, with whose words and how often."""

from phasemeter.metrics.summary import Summary
from phasemeter.records.request_row import RequestRow


def test_each_distinct_failure_is_told_once_with_the_servers_words_and_how_often() -> None:
    summary = Summary()
    for number in range(12):
        status, text = (400, "400 Bad Request: no such field") if number < 10 else (None, "ECONNRESET")
        failure = "http_error" if status else "transport"
        summary.add(
            RequestRow(
                request_id=str(number),
                outcome="failed",
                failure=failure,
                failure_text=text,
                http_status=status,
                due_ns=0,
            )
        )
    told = [(error.kind, error.status, error.message, error.count) for error in summary.result().errors]
    assert told == [("http_error", 400, "no such field", 10), ("transport", None, "ECONNRESET", 2)]


def test_a_request_of_two_choices_may_be_twice_as_long_as_one() -> None:
    summary = Summary()
    for number in range(40):
        start = number * 10**9
        summary.add(
            RequestRow(
                request_id=str(number), outcome="ok", due_ns=start, send_start_ns=start, first_token_ns=start + 10**6,
                last_token_ns=start + 10**8, stream_end_ns=start + 10**8, asked_output_tokens=16, n=2, output_tokens=32,
            )
        )  # fmt: skip
    lengths = {check.id: check.verdict for check in summary.result().validity.checks}
    assert lengths["output_lengths"] == "ok"
