"""The worker process of a run of conversations: a turn's answer goes into the next turn's body, between polls.

Lives here: the callback that is injected into the sender (which itself reads no answer). `python -m` of this module is the
worker. Must not live here: sending, or anything that is slow to import.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from phasemeter.io.load_options import NextRequest
from phasemeter.io.worker_main import main
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.prompt_source import PromptSource
from phasemeter.runs.tokenizer import load_tokenizer
from phasemeter.runs.traced import named, traced
from phasemeter.wire.exchange import exchange_of
from phasemeter.workload.bodies import BodyOptions
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.plan import WorkloadSpec, following_turn
from phasemeter.workload.prompt_files import FilePrompt
from phasemeter.workload.prompts import PromptOptions

WITH_MESSAGES = ("openai.chat", "openai.responses", "anthropic.messages", "ollama.chat")


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to make later turns."""

    run_id: str
    tag: str | None
    spec: WorkloadSpec
    options: PromptOptions
    body_options: BodyOptions
    lengths: LengthModel
    rows: tuple[FilePrompt, ...]
    tokenizer: str | None = None


def source_of(talk: Talk) -> PromptSource:
    """What makes the bodies, as in the parent."""
    return PromptSource(
        options=talk.options, body_options=talk.body_options, lengths=talk.lengths, rows=talk.rows,
        tokenizer=load_tokenizer(Path(talk.tokenizer)) if talk.tokenizer else None,
    )  # fmt: skip


def talk_of(run_id: str, tag: str | None, spec: WorkloadSpec, source: PromptSource, tokenizer: str | None) -> Talk:
    """What a run's workers are told."""
    return Talk(
            run_id=run_id, tag=tag, spec=spec, options=source.options, body_options=source.body_options, lengths=source.lengths,
            rows=tuple(source.rows), tokenizer=tokenizer,
        )  # fmt: skip


def next_request_of(options: bytes) -> NextRequest:
    """The callback: a finished turn in, the conversation's next turn (or None) out. A turn that failed ends its conversation."""
    talk = msgspec.msgpack.decode(options, type=Talk)
    source = source_of(talk)

    def following(planned: PlannedRequest, sent: bytes, capture: Capture) -> tuple[PlannedRequest, bytes] | None:
        later = following_turn(talk.spec, planned)
        answer = answer_of(planned, capture) if later is not None else None
        if later is None or answer is None:
            return None
        [later] = source.asked([named(traced(later, talk.run_id), talk.tag)])
        body = source.following(later, sent, answer)
        return None if body is None else (later, body)

    return following


def answer_of(planned: PlannedRequest, capture: Capture) -> str | None:
    """The text that came; None when the turn failed."""
    exchange = exchange_of(planned, capture, [read.user_ns for read in capture.reads])
    return exchange.content if exchange.outcome == "ok" else None


if __name__ == "__main__":
    sys.exit(main(next_request_of))
