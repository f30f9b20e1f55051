"""The worker process of a trace whose sessions are conversations: a row's answer goes into the next row's body, between polls.

Lives here: the callback for sessions. `python -m` of this module is the worker. Must not live here: the rule (workload/sessions).
"""

from __future__ import annotations

import sys

import msgspec

from phasemeter.io.load_options import NextRequest
from phasemeter.io.worker_main import main
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.conversation_turns import WITH_MESSAGES, Talk, source_of
from phasemeter.runs.traced import named, traced
from phasemeter.wire.exchange import exchange_of
from phasemeter.workload.sessions import LaterTurn, next_in_session, next_message_tokens


class SessionTalk(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to go on with each session."""

    talk: Talk
    sessions: dict[str, tuple[LaterTurn, ...]]


def next_request_of(options: bytes) -> NextRequest:
    """The callback: a finished row in, its session's next row (or None) out. A row that failed ends its session."""
    told = msgspec.msgpack.decode(options, type=SessionTalk)
    talk, source = told.talk, source_of(told.talk)
    overhead = talk.lengths.template_overhead

    def following(planned: PlannedRequest, sent: bytes, capture: Capture) -> tuple[PlannedRequest, bytes] | None:
        later = next_in_session(talk.spec, planned, told.sessions.get(planned.conversation or "", ()))
        if later is None:
            return None
        exchange = exchange_of(planned, capture, [read.user_ns for read in capture.reads])
        if exchange.outcome != "ok":
            return None
        later = named(traced(later, talk.run_id), talk.tag)
        asked, came = exchange.prompt_tokens or planned.input_tokens or 0, exchange.completion_tokens
        history = asked + (came if came is not None else planned.output_tokens or 0)
        tokens = next_message_tokens(later, history) if talk.spec.api in WITH_MESSAGES else None
        if tokens is None:
            return later, source.serialised(later)
        message = msgspec.structs.replace(
            later, input_tokens=tokens + overhead
        )  # its length counts no template of its own
        body = source.answered(later, message, sent, exchange.content)
        return later, body

    return following


if __name__ == "__main__":
    sys.exit(main(next_request_of))
