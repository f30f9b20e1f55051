"""The worker process of a run of conversations: a turn's answer goes into the next turn's body, between polls.

Lives here: the callback that is injected into the sender (which itself reads no answer). `python -m` of this module is the
worker. Must not live here: sending.
"""

from __future__ import annotations

import sys

import msgspec

from phasemeter.io.load_options import NextRequest
from phasemeter.io.worker_main import main
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.prompt_source import PromptSource
from phasemeter.runs.settings import Settings
from phasemeter.wire.exchange import Asked, Received, read_exchange
from phasemeter.workload.arrivals import Arrivals, think_ns
from phasemeter.workload.bodies import BodyOptions, Content, body
from phasemeter.workload.conversations import next_messages
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.prompt_files import FilePrompt
from phasemeter.workload.prompts import PromptOptions


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to make later turns."""

    turns: int
    seed: int
    arrivals: Arrivals
    options: PromptOptions
    body_options: BodyOptions
    lengths: LengthModel
    rows: tuple[FilePrompt, ...]


def told(settings: Settings, source: PromptSource) -> bytes:
    """`Talk` as bytes, for the worker's configuration."""
    return msgspec.msgpack.encode(
        Talk(
            turns=settings.spec.turns,
            seed=settings.spec.seed,
            arrivals=settings.spec.arrivals,
            options=source.options,
            body_options=source.body_options,
            lengths=source.lengths,
            rows=tuple(source.rows),
        )
    )


def next_request_of(options: bytes) -> NextRequest:
    """The callback: a finished turn in, the conversation's next turn (or None) out. A turn that failed ends its conversation."""
    talk = msgspec.msgpack.decode(options, type=Talk)
    source = PromptSource(options=talk.options, body_options=talk.body_options, lengths=talk.lengths, rows=talk.rows)

    def following(planned: PlannedRequest, sent: bytes, capture: Capture) -> tuple[PlannedRequest, bytes] | None:
        if planned.turn + 1 >= talk.turns or planned.phase != "measured":
            return None
        answer = answer_of(planned, capture)
        later = turn_after(planned, talk)
        said = source.user_text(later)
        if answer is None or said is None:
            return None
        history = msgspec.json.decode(sent).get("messages") or []
        content = Content(messages=tuple(next_messages(history, answer, said)))
        return later, msgspec.json.encode(body(later, content, talk.body_options))

    return following


def answer_of(planned: PlannedRequest, capture: Capture) -> str | None:
    """The text that came; None when the turn failed."""
    exchange = read_exchange(
        Asked(api=planned.api, stream=planned.stream, max_tokens=planned.output_tokens, n=planned.n),
        Received(
            reads=[read.data for read in capture.reads],
            times_ns=[read.user_ns for read in capture.reads],
            close=capture.close,
            closed_ns=capture.closed_ns,
            error=capture.error,
        ),
    )
    return exchange.content if exchange.outcome == "ok" else None


def turn_after(planned: PlannedRequest, talk: Talk) -> PlannedRequest:
    """The plan's row of the next turn, which follows its answer and has no due instant of its own."""
    index = planned.index + 1
    return msgspec.structs.replace(
        planned,
        request_id=f"r{index}",
        index=index,
        turn=planned.turn + 1,
        due_offset_ns=None,
        think_ns=think_ns(talk.arrivals, talk.seed, index),
        traceparent=None,
    )


if __name__ == "__main__":
    sys.exit(main(next_request_of))
