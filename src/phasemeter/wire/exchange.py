"""One exchange, read: bytes and their times in, boundaries, output events, usage, outcome and warnings out.

Lives here: the one door to wire/ for the floors above. Must not live here: metrics, token counting by a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from phasemeter.records.capture import Capture, Close
from phasemeter.records.reads import data_of
from phasemeter.records.request import PlannedRequest
from phasemeter.records.request_row import Outcome
from phasemeter.wire.apis import api_of
from phasemeter.wire.events import CONTENT, REASONING, REFUSAL, TOOL, Choice, Reading, Usage, mended, strict
from phasemeter.wire.http_body import HttpReader
from phasemeter.wire.outcome import judge, stream_warnings
from phasemeter.wire.stream import LINE_LIMIT, StreamReader


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request its answer is read by. `echo_prompt`: the prompt, where `echo` was asked for."""

    api: str = "openai.chat"
    stream: bool = True
    max_tokens: int | None = None
    n: int = 1
    echo_prompt: str | None = None


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What came back: `reads[i]` at `times_ns[i]`. With `status` the reads are body bytes, `headers_ns` their head's time and
    `cut` whether their framing said that more was to come; without it raw HTTP.

    `close` None: the capture ends before the request did.
    """

    reads: Sequence[bytes]
    times_ns: Sequence[int]
    close: Close | None
    closed_ns: int | None
    error: str | None = None
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    headers_ns: int | None = None
    cut: bool = False


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What one exchange says. Instants in ns on the clock of its reads; None is absent. Counts are the server's own."""

    asked: Asked
    outcome: Outcome
    failure: str | None
    failure_text: str | None
    warnings: frozenset[str]
    status: int | None
    headers: tuple[tuple[str, str], ...]
    times_ns: Sequence[int]
    choices: tuple[Choice, ...]

    headers_ns: int | None
    first_read_ns: int | None
    first_chunk_ns: int | None
    first_token_ns: int | None
    first_output_ns: int | None
    last_token_ns: int | None
    stream_end_ns: int | None

    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    usage_ns: int | None
    first_usage_ns: int | None
    usage_told: int  # how many usage objects with tokens came
    usage_alone: bool  # the last one stood in a chunk of no choice: it counts the whole answer

    silent_ns: tuple[int, ...]  # chunks with a choice whose text is empty, without a role
    bare_ns: tuple[int, ...]  # chunks with a choice but no text at all
    reasoning_field: str | None
    sealed_reasoning: bool  # signed or encrypted reasoning went by
    summarised_reasoning: bool
    reasoning_apart: bool  # the server counts reasoning beside its completion tokens, not in them
    response_id: str | None
    model: str | None
    timings: dict[str, Any]  # the engine's own times, raw
    data_events: int
    fast_events: int
    body_form: str | None

    def text(self, channel: str) -> str:
        """All text of one channel of the first choice."""
        return self.choices[0].text_of(channel) if self.choices else ""

    @property
    def silent_chunks(self) -> int:
        return len(self.silent_ns)

    @property
    def first_silent_ns(self) -> int | None:
        return min(self.silent_ns, default=None)

    @property
    def last_silent_ns(self) -> int | None:
        return max(self.silent_ns, default=None)

    @property
    def content(self) -> str:
        return self.text(CONTENT)

    @property
    def reasoning(self) -> str:
        return self.text(REASONING)

    @property
    def refusal(self) -> str:
        return self.text(REFUSAL)

    @property
    def tool(self) -> str:
        return self.text(TOOL)

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None

    def times_of(self, choice: Choice) -> tuple[int, ...]:
        """The instants of a choice's output events."""
        return tuple(map(self.times_ns.__getitem__, choice.reads))


def exchange_of(
    planned: PlannedRequest, capture: Capture, times_ns: Sequence[int], echo_prompt: str | None = None
) -> Exchange:
    """What a captured request says. `times_ns`: the instant of each of its reads, on the clock that the caller chose."""
    return read_exchange(
        Asked(
            api=planned.api,
            stream=planned.stream,
            max_tokens=planned.output_tokens,
            n=planned.n,
            echo_prompt=echo_prompt,
        ),
        Received(
            reads=data_of(capture.reads),
            times_ns=times_ns,
            close=capture.close,
            closed_ns=capture.closed_ns,
            error=capture.error,
        ),
    )


def read_exchange(asked: Asked, received: Received, *, fast: bool = True, line_limit: int = LINE_LIMIT) -> Exchange:
    """Reads one exchange under its API's rules. `fast` False reads every event in full.

    Raises UserError for an API that is not known; whatever the bytes are, they raise nothing.
    """
    reading = Reading(asked.stream, asked.echo_prompt)
    http = (
        HttpReader() if received.status is None else HttpReader.of_head(received.status, received.headers, received.cut)
    )
    stream = StreamReader(api_of(asked.api), http, reading, line_limit)
    stream.read_all(received.reads, fast=fast)
    stream.end()
    return _exchange(asked, received, stream)


def _exchange(asked: Asked, received: Received, stream: StreamReader) -> Exchange:
    reading, http, times = stream.reading, stream.http, received.times_ns
    verdict = judge(stream, received.close, received.error)

    def at(read: int | None) -> int | None:
        return None if read is None else times[read]

    choices = tuple(reading.choices[index] for index in sorted(reading.choices))
    for choice in choices:
        choice.finish_reason = choice.finish_reason and mended(choice.finish_reason)
    firsts = [choice.reads[0] for choice in choices if choice.reads]
    lasts = [choice.reads[-1] for choice in choices if choice.reads]
    outputs = [read for choice in choices if (read := first_outside_reasoning(choice)) is not None]
    usage = reading.usage or Usage()
    return Exchange(
        asked=asked,
        outcome=verdict.outcome,
        failure=verdict.failure,
        failure_text=verdict.text and mended(verdict.text),
        warnings=frozenset(stream_warnings(stream, verdict, received.close)),
        status=http.status,
        headers=http.headers,
        times_ns=times,
        choices=choices,
        headers_ns=at(stream.headers_read) if received.status is None else received.headers_ns,
        first_read_ns=times[0] if times else None,
        first_chunk_ns=at(reading.first_chunk_read),
        first_token_ns=at(min(firsts, default=None)),
        first_output_ns=at(min(outputs, default=None)),
        last_token_ns=at(max(lasts, default=None)),
        stream_end_ns=_stream_end(stream, received),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.generated,
        reasoning_tokens=usage.reasoning_tokens,
        cached_tokens=usage.cached_tokens,
        usage_ns=at(reading.usage_read),
        first_usage_ns=at(reading.first_usage_read),
        usage_told=reading.usage_told,
        usage_alone=reading.usage_alone,
        silent_ns=tuple(times[read] for read in reading.silent_reads),
        bare_ns=tuple(times[read] for read in reading.bare_reads),
        reasoning_field=reading.reasoning_field,
        sealed_reasoning=reading.sealed,
        summarised_reasoning=reading.summarised,
        reasoning_apart=usage.apart,
        response_id=reading.response_id and mended(reading.response_id),
        model=reading.model and mended(reading.model),
        timings=strict(reading.timings),
        data_events=reading.data_events,
        fast_events=stream.fast_events,
        body_form=stream.form,
    )


def first_outside_reasoning(choice: Choice) -> int | None:
    """The read of a choice's first output that is no reasoning, None if there is none."""
    for position, (start, channel) in enumerate(choice.runs):
        if channel == "":
            end = choice.runs[position + 1][0] if position + 1 < len(choice.runs) else len(choice.reads)
            found = [event for event in range(start, end) if choice.channel_at(event) != REASONING]
            if found:
                return choice.reads[found[0]]
        elif channel != REASONING:
            return choice.reads[start]
    return None


def _stream_end(stream: StreamReader, received: Received) -> int | None:
    """The instant of the end mark ([DONE], the completed event), else of the close."""
    reading = stream.reading
    mark = reading.done_read if reading.done_read is not None else reading.terminal_read
    if mark is not None:
        return received.times_ns[mark]
    return received.closed_ns
