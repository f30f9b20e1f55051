"""Whether a request succeeded: ok needs a terminal mark of its API; anything else is a failure with a kind.

Lives here: the rules and the names of failures and of stream warnings. Must not live here: reading, times, token counts.
"""

from __future__ import annotations

from typing import NamedTuple

from phasemeter.records.capture import Close
from phasemeter.records.request_row import Outcome
from phasemeter.wire.apis import Api
from phasemeter.wire.events import WORDS, Reading
from phasemeter.wire.stream import StreamReader

# how a connection ended → the kind of failure, where the answer was not whole by then
CLOSE_FAILURES = {
    "reset": "transport",
    "stale": "transport",
    "refused": "connect_failed",
    "timeout_connect": "timeout_connect",
    "timeout_first_byte": "timeout_first_byte",
    "timeout_idle": "timeout_idle",
    "timeout_total": "timeout_total",
    "client_resource": "client_resource",
    "malformed": "malformed_http",
}
# the server gave up; the last three are TensorRT-LLM's, DeepSeek's and Zhipu's words for it
ERROR_FINISHES = {
    "error", "abort", "aborted", "cancelled", "canceled", "timeout", "insufficient_system_resource", "network_error",
}  # fmt: skip


class Verdict(NamedTuple):
    """`failure` and `text` are None unless failed (a cancelled request may have a text)."""

    outcome: Outcome
    failure: str | None = None
    text: str | None = None


def failed(kind: str, text: str) -> Verdict:
    return Verdict("failed", kind, " ".join(text.split())[:WORDS])


def judge(stream: StreamReader, close: Close | None, error: str | None) -> Verdict:
    """The verdict over one response, asked once all its reads were taken.

    `close`: how the connection ended (None: the capture ends before the request did); `error`: the exception, if any.
    """
    reading, http = stream.reading, stream.http
    if close == "unsent":
        return Verdict("unsent", None, error)
    if http.status is not None and http.status >= 300:
        return failed("http_error", f"{http.status} {http.reason}: {_words(stream)}")
    if http.error is not None:
        return failed("content_encoding" if http.coding_broken else "malformed_http", http.error)
    if reading.error is not None:
        return failed(*reading.error)
    finishes = [choice.finish_reason for choice in reading.choices.values()]
    broken = next((reason for reason in finishes if (reason or "").lower() in ERROR_FINISHES), None)
    if broken is not None:
        return failed("finish_reason_error", f"finish_reason is {broken!r}")
    clean = close in ("eof", "complete")
    if reading.complaint is not None and (clean or reading.done_read is not None) and not _finished(reading):
        return failed("server_error_in_stream", reading.complaint)
    if _ended(stream.api, reading) or (clean and _whole(stream)):
        return Verdict("ok")
    if close is None or close == "cancelled":
        return Verdict("cancelled", None, error or ("the capture ends first" if close is None else None))
    if not clean:
        return failed(CLOSE_FAILURES.get(close, "transport"), error or close.replace("_", " "))
    return _incomplete(stream)


def _ended(api: Api, reading: Reading) -> bool:
    """Whether the stream's own last word came: what happens to the connection afterwards is no matter."""
    if reading.terminal_read is not None:
        return True
    answered = any(choice.reads or choice.finish_reason for choice in reading.choices.values())
    return reading.done_read is not None and api.mark == "finish" and answered


def _finished(reading: Reading) -> bool:
    """Whether the answer had come to its end, or had not begun: then odd last words are no reason for its end."""
    choices = reading.choices.values()
    done = bool(choices) and all(choice.finish_reason for choice in choices)
    return reading.terminal_read is not None or done or not reading.known


def _whole(stream: StreamReader) -> bool:
    """Whether an answer that ended with its connection is whole: every choice finished, or one complete document."""
    choices = stream.reading.choices.values()
    if stream.api.mark == "finish" and choices:
        open_ones = [choice for choice in choices if choice.reads and not choice.finish_reason]
        if not open_ones and any(choice.finish_reason for choice in choices):
            return True
    document = stream.form == "json" and not stream.reading.unreadable
    return document and any(choice.reads for choice in choices)


def _incomplete(stream: StreamReader) -> Verdict:
    """A connection that ended cleanly, and no end mark: nothing came, nothing readable came, or not all came."""
    reading = stream.reading
    if stream.http.status is None:
        return failed("transport", "the connection was closed before any response")
    if not reading.data_events and stream.http.undecoded:
        return failed("truncated_stream", f"the {stream.http.coding} body ends before an event of it can be read")
    if not reading.data_events and not reading.unreadable and stream.form in (None, "sse") and not stream.strange:
        return failed("empty_response", f"HTTP {stream.http.status} and no event")
    if not reading.known and not (stream.http.framed and not stream.http.complete):
        return failed("unreadable_response", f"this is no answer I can read; it begins {stream.first_body!r}")
    else_said = f"; beside them stood {stream.strange[:WORDS]!r}" if stream.strange else ""
    return failed(
        "truncated_stream", f"the stream ended without its end mark after {reading.data_events} events{else_said}"
    )


def _words(stream: StreamReader) -> str:
    """The server's own words in an error answer."""
    if stream.reading.error is not None:
        return stream.reading.error[1]
    return stream.first_body.decode("utf-8", "replace")


def stream_warnings(stream: StreamReader, verdict: Verdict, close: Close | None) -> set[str]:
    """Names of what was bent but readable. What was left unsaid is worth a warning only where the request is ok."""
    reading, api = stream.reading, stream.api
    found = set(reading.warnings)
    if stream.http.coding is not None:
        found.add("content_encoding")
    if stream.http.both_lengths:
        found.add("length_beside_chunks")
    if close == "timeout_idle" and verdict.outcome == "ok" and stream.http.framed and not stream.http.complete:
        found.add("left_open")
    if verdict.outcome != "ok":
        return found
    choices = reading.choices.values()
    if not any(choice.reads for choice in choices):
        found.add("no_output")
    if any(choice.reads and not choice.finish_reason for choice in choices):
        found.add("missing_finish_reason")
    if stream.form == "sse" and api.ends_with_done and reading.done_read is None:
        found.add("missing_done")
    if stream.form == "sse" and not api.ends_with_done and api.mark == "finish" and reading.terminal_read is None:
        found.add("missing_message_stop")
    if reading.unreadable:
        found.add("unreadable_event")
    if reading.stream and stream.form == "json" and "missing_data_field" not in found:
        found.add("stream_not_incremental")
    return found
