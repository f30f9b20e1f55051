"""What every metric is: start, end, divisor, who is left out. The house dialect `phasemeter/1` as data that computes.

Lives here: the rows, the boundaries and exclusions they name, and the one function that reads a row off a request. Dialects
of other tools are rows of the same shape (dialects/). Must not live here: statistics over requests (summary).

A definition is data: `phasemeter define` prints the same rows that compute. Two numbers are comparable when their rows are
equal. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Literal

import msgspec

from phasemeter.errors import Undefined
from phasemeter.metrics import gaps
from phasemeter.records.request_row import RequestRow

DIALECT = "phasemeter/1"
IMPOSSIBLE_USAGE = frozenset({"usage_exceeds_max_tokens", "usage_cumulative_sum"})

Kind = Literal["request", "gap"]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: (`end` − `start`) / `divisor`, for the requests that no exclusion names.

    `start`, `end`: keys of BOUNDARIES. `divisor`: a key of DIVISORS, None for 1. `excluded`: keys of EXCLUSIONS, asked in
    order; each is the reason that stands beside the null. `special`: a key of SPECIAL for what is no plain difference.
    `kind` "gap" yields many values a request (a key of GAP_FUNCTIONS in `special`).
    """

    name: str
    start: str | None = None
    end: str | None = None
    divisor: str | None = None
    excluded: tuple[str, ...] = ()
    special: str | None = None
    kind: Kind = "request"
    unit: str = "s"
    words: str
    source: str = "phasemeter"

    def line(self) -> str:
        """The definition as one line of arithmetic: `(last_token − first_token) / (output_tokens − 1)`."""
        if self.start is None or self.end is None:
            return self.words
        difference = f"{self.end} − {self.start}"
        return difference if self.divisor is None else f"({difference}) / ({self.divisor})"


def _of(name: str) -> Callable[[RequestRow], int | None]:
    return attrgetter(f"{name}_ns")


def connected_after_due(row: RequestRow) -> bool:
    """Whether this request had to open its own connection, after it was due (a pre-warmed one was open before)."""
    return row.connect_start_ns is not None and row.connect_start_ns >= row.due_ns and not row.reused_connection


def _dispatch(row: RequestRow) -> int | None:
    return row.connect_start_ns if connected_after_due(row) else row.send_start_ns


def _tcp_start(row: RequestRow) -> int | None:
    if row.dns_done_ns is None or row.connect_start_ns is None:
        return row.connect_start_ns
    return max(row.dns_done_ns, row.connect_start_ns)


def _with_silent_first(row: RequestRow) -> int | None:
    """vLLM's first: an empty content chunk without a role counts, reasoning under the name `reasoning_content` doesn't."""
    first = row.first_output_ns if row.reasoning_field == "reasoning_content" else row.first_token_ns
    known = [instant for instant in (first, row.first_silent_chunk_ns) if instant is not None]
    return min(known) if known else None


def _with_silent_last(row: RequestRow) -> int | None:
    known = [instant for instant in (row.last_token_ns, row.last_silent_chunk_ns) if instant is not None]
    return max(known) if known else None


def _choice_chunks(row: RequestRow) -> list[int]:
    """The known ends of what has choices: output, empty text, a role or a finish reason alone."""
    single = (row.first_token_ns, row.last_token_ns, row.first_silent_chunk_ns, row.last_silent_chunk_ns)
    return [*(instant for instant in single if instant is not None), *row.bare_times_ns]


def _usage_or_last(row: RequestRow) -> int | None:
    return row.usage_ns if row.usage_ns is not None else row.last_token_ns


# name: the instant of a request, or None. `define` draws them in this order on its time line.
BOUNDARIES: Mapping[str, Callable[[RequestRow], int | None]] = {
    "due": _of("due"),
    "dispatch": _dispatch,  # connect_start if the request had to connect after it was due, else send_start
    "connect_start": _of("connect_start"),
    "dns_done": _of("dns_done"),
    "tcp_start": _tcp_start,  # DNS done, or connect_start where there was none
    "tcp_connected": _of("tcp_connected"),
    "connected": _of("connected"),
    "send_start": _of("send_start"),
    "sent": _of("sent"),
    "headers": _of("headers"),
    "first_read": _of("first_read"),
    "first_chunk": _of("first_chunk"),
    "first_token": _of("first_token"),
    "first_output": _of("first_output"),
    "first_token_or_empty": _with_silent_first,  # vLLM's rule, see there
    "last_token_or_empty": _with_silent_last,
    "first_choice_chunk": lambda row: min(_choice_chunks(row), default=None),  # vLLM's rule up to 0.32
    "last_choice_chunk": lambda row: max(_choice_chunks(row), default=None),
    "last_token": _of("last_token"),
    "usage": _of("usage"),
    "usage_or_last_token": _usage_or_last,
    "stream_end": _of("stream_end"),
}

# boundary: the reason given where it is missing
MISSING = {
    "first_token": "no_output",
    "last_token": "no_output",
    "first_token_or_empty": "no_output",
    "last_token_or_empty": "no_output",
    "first_choice_chunk": "no_output",
    "last_choice_chunk": "no_output",
    "usage_or_last_token": "no_output",
    "first_output": "no_final_output",
    "send_start": "not_sent",
    "dispatch": "not_sent",
    "sent": "not_sent",
    "stream_end": "no_stream_end",
}

DIVISORS: Mapping[str, Callable[[RequestRow], float | None]] = {
    "output_tokens": lambda row: row.output_tokens,
    "output_tokens − 1": lambda row: None if row.output_tokens is None else row.output_tokens - 1,
    "visible_tokens − 1": lambda row: None if visible_tokens(row) is None else (visible_tokens(row) or 0) - 1,
}


def visible_tokens(row: RequestRow) -> int | None:
    """Output tokens that were streamed: all but hidden reasoning. None where a part of that is not known."""
    if row.visible_tokens is not None:
        return row.visible_tokens
    if row.output_tokens is None:
        return None
    if not row.hidden_reasoning:
        return row.output_tokens
    return None if row.reasoning_tokens is None else row.output_tokens - row.reasoning_tokens


def impossible_usage(row: RequestRow) -> bool:
    """Usage that can't be true (over the maximum asked for, a sum of running counts), with no local count in its place."""
    return row.output_tokens_source == "usage" and not IMPOSSIBLE_USAGE.isdisjoint(row.warnings)


def single_arrival(row: RequestRow) -> bool:
    """All output came at one instant: its cadence could not be seen."""
    return row.single_arrival or (row.first_token_ns is not None and row.first_token_ns == row.last_token_ns)


# reason: whether it leaves the request out
EXCLUSIONS: Mapping[str, Callable[[RequestRow], bool]] = {
    "not_streamed": lambda row: not row.stream,
    "no_output": lambda row: row.first_token_ns is None,
    "unknown_tokens": lambda row: row.output_tokens is None,
    "fewer_than_2_tokens": lambda row: row.output_tokens is not None and row.output_tokens < 2,
    "hidden_reasoning": lambda row: row.hidden_reasoning,
    "no_hidden_reasoning": lambda row: not row.hidden_reasoning,
    "unknown_visible_tokens": lambda row: visible_tokens(row) is None,
    "fewer_than_2_visible_tokens": lambda row: (visible_tokens(row) or 0) < 2,
    "impossible_usage": impossible_usage,
    "single_arrival": single_arrival,
    "connection_was_open": lambda row: not connected_after_due(row),
    "no_name_lookup": lambda row: row.dns_done_ns is None,
    "no_tls": lambda row: row.connected_ns is None or row.connected_ns == row.tcp_connected_ns,
}


def _tpot(row: RequestRow) -> float:
    """One choice: last − first over tokens − 1. Several: each choice's own, and their mean. The row's exclusions came first."""
    if row.n == 1 and len(row.choices) <= 1:
        if row.first_token_ns is None or row.last_token_ns is None or row.output_tokens is None:
            raise Undefined("no_output")
        return tpot_s(row.first_token_ns, row.last_token_ns, row.output_tokens)
    if not gaps.has_events(row):
        raise Undefined("no_events")
    values = []
    for choice in row.choices:
        if not choice.times_ns:
            raise Undefined("choice_without_output")
        tokens = sum(choice.tokens) if choice.output_tokens is None and choice.tokens else choice.output_tokens
        if tokens is None:
            raise Undefined("unknown_choice_tokens")
        values.append(tpot_s(choice.times_ns[0], choice.times_ns[-1], tokens))
    return sum(values) / len(values)


def tpot_s(first_token_ns: int, last_token_ns: int, output_tokens: int) -> float:
    """Time per output token after the first, in seconds: (last − first) / (output_tokens − 1).

    Raises Undefined for fewer than two tokens, or when all came at one instant: absent is not zero.
    Source: vLLM `bench serve` TPOT; NVIDIA AIPerf calls the same quantity `inter_token_latency`.
    """
    if output_tokens < 2:
        raise Undefined("fewer_than_2_tokens")
    if last_token_ns == first_token_ns:
        raise Undefined("single_arrival")
    return (last_token_ns - first_token_ns) / 1e9 / (output_tokens - 1)


_TPOT_EXCLUDED = (
    "not_streamed", "no_output", "unknown_tokens", "fewer_than_2_tokens", "hidden_reasoning", "impossible_usage",
    "single_arrival",
)  # fmt: skip

SPECIAL: Mapping[str, Callable[[RequestRow], float]] = {
    "tpot_per_choice": _tpot,
    "decode_per_token": gaps.decode_per_token_s,
    "jitter": gaps.jitter_s,
}
GAP_FUNCTIONS: Mapping[str, Callable[[RequestRow], gaps.Gaps]] = {
    "inter_chunk": gaps.inter_chunk,
    "between_events": gaps.between_events,
    "between_choice_chunks": gaps.between_choice_chunks,
    "itl": gaps.itl,
    "itl_spread": gaps.itl_spread,
    "stall": gaps.stalls,
}


def compute(definition: Definition, row: RequestRow) -> float:
    """The value of `definition` for one request, in seconds. Raises Undefined with the first reason that applies."""
    value = teller(definition)(row)
    if isinstance(value, str):
        raise Undefined(value)
    return value


@cache
def teller(definition: Definition) -> Callable[[RequestRow], float | str]:
    """What computes a definition: the value in seconds, or the first reason that there is none. What it names is looked up once."""
    excluded = tuple((reason, EXCLUSIONS[reason]) for reason in definition.excluded)
    value = _value_of(definition)

    def tell(row: RequestRow) -> float | str:
        for reason, holds in excluded:
            if holds(row):
                return reason
        return value(row)

    return tell if excluded else value


def _value_of(definition: Definition) -> Callable[[RequestRow], float | str]:
    """The same where nothing excludes the request."""
    if definition.special is not None:
        return _told(SPECIAL[definition.special])
    if definition.start is None or definition.end is None:
        return lambda _: "no_boundaries"
    start_of, end_of = BOUNDARIES[definition.start], BOUNDARIES[definition.end]
    no_start, no_end = (MISSING.get(name, f"no_{name}") for name in (definition.start, definition.end))

    def seconds(row: RequestRow) -> float | str:
        end = end_of(row)
        if end is None:
            return no_end
        start = start_of(row)
        return no_start if start is None else (end - start) / 1e9

    return seconds if definition.divisor is None else _shared(seconds, DIVISORS[definition.divisor])


def _shared(
    seconds: Callable[[RequestRow], float | str], divisor_of: Callable[[RequestRow], float | None]
) -> Callable[[RequestRow], float | str]:
    def each(row: RequestRow) -> float | str:
        whole = seconds(row)
        if isinstance(whole, str):
            return whole
        divisor = divisor_of(row)
        if divisor is None:
            return "unknown_tokens"
        return whole / divisor if divisor > 0 else "fewer_than_2_tokens"

    return each


def _told(read: Callable[[RequestRow], float]) -> Callable[[RequestRow], float | str]:
    def tell(row: RequestRow) -> float | str:
        try:
            return read(row)
        except Undefined as absent:
            return absent.reason

    return tell


def _difference(name: str, start: str, end: str, words: str, *excluded: str) -> Definition:
    return Definition(name=name, start=start, end=end, excluded=excluded, words=words)


_ROWS = (
    _difference("ttft", "send_start", "first_token", "from just before the first byte's write to the first output of any"
                " channel: reasoning, content, tool call, refusal", "not_streamed"),
    _difference("ttft_from_due", "due", "first_token", "from the schedule's instant to the first output: what a user waits in"
                " a rate-driven run, our own queue included", "not_streamed"),
    _difference("ttfo", "send_start", "first_output", "from the write to the first output outside reasoning", "not_streamed",
                "no_output"),
    _difference("e2e", "send_start", "last_token", "from the write to the last output"),
    _difference("e2e_from_due", "due", "last_token", "from the schedule's instant to the last output"),
    _difference("stream_e2e", "send_start", "stream_end", "from the write to the stream's end: usage, [DONE] or close included"),
    _difference("generation", "first_token", "last_token", "from the first output to the last", "not_streamed"),
    Definition(name="tpot", start="first_token", end="last_token", divisor="output_tokens − 1", excluded=_TPOT_EXCLUDED,
               special="tpot_per_choice", words="time per output token after the first; for n > 1 the mean over the choices",
               source="vLLM bench serve TPOT; AIPerf inter_token_latency"),
    Definition(name="visible_tpot", start="first_output", end="last_token", divisor="visible_tokens − 1",
               excluded=("not_streamed", "no_output", "no_hidden_reasoning", "unknown_visible_tokens",
                         "fewer_than_2_visible_tokens", "single_arrival"),
               words="time per streamed token where reasoning was counted but hidden"),
    Definition(name="decode_per_token", special="decode_per_token",
               words="the gaps after the first chunk over the tokens that came in them: free of a bundled first chunk"),
    Definition(name="jitter", special="jitter", words="p99 − p50 of a request's gaps between output events"),
    _difference("client_queue", "due", "dispatch", "our own lateness: from due until we began to connect, or to send where a"
                " connection was open"),
    _difference("connect", "connect_start", "send_start", "opening a connection: name lookup, TCP, TLS", "connection_was_open"),
    _difference("upload", "send_start", "sent", "from the first byte's write until the kernel took the last"),
    _difference("dns", "connect_start", "dns_done", "name lookup", "connection_was_open", "no_name_lookup"),
    _difference("tcp", "tcp_start", "tcp_connected", "TCP handshake", "connection_was_open"),
    _difference("tls", "tcp_connected", "connected", "TLS handshake", "connection_was_open", "no_tls"),
    Definition(name="inter_chunk", kind="gap", special="inter_chunk", words="observed gaps between output events"),
    Definition(name="itl", kind="gap", special="itl",
               words="inter_chunk where every chunk is known to hold one token, else null and inter_chunk stands alone"),
    Definition(name="itl_spread", kind="gap", special="itl_spread",
               words="each gap shared evenly among its chunk's tokens, 0 inside the first chunk; it smooths"),
    Definition(name="stall", kind="gap", special="stall", words="the gaps over 5 times the median gap of their request"),
)  # fmt: skip

HOUSE: Mapping[str, Definition] = {row.name: row for row in _ROWS}


def _reader(definition: Definition) -> Callable[[RequestRow], float]:
    return lambda row: compute(definition, row)


PER_REQUEST: Mapping[str, Callable[[RequestRow], float]] = {
    row.name: _reader(row) for row in _ROWS if row.kind == "request"
}
VALUE_OR_REASON: Mapping[str, Callable[[RequestRow], float | str]] = {name: teller(HOUSE[name]) for name in PER_REQUEST}
GAPS: Mapping[str, Callable[[RequestRow], Sequence[float] | gaps.Gaps]] = {
    row.name: GAP_FUNCTIONS[row.special or ""] for row in _ROWS if row.kind == "gap"
}


def value_or_reason(name: str, row: RequestRow) -> tuple[float | None, str | None]:
    """(seconds, None), or (None, the reason it is undefined)."""
    value = VALUE_OR_REASON[name](row)
    return (None, value) if isinstance(value, str) else (value, None)
