"""What was planned for one request, before anything was sent.

Lives here: the plan's row. Must not live here: bytes of a request (io/ spools them) or anything learnt from an answer.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["warmup", "measured", "probe"]


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of the schedule.

    `due_offset_ns` counts from the run's start instant (open loop); None in a closed loop, where a request is due when
    its slot is free (plus `think_ns`). Lengths are what was asked; what was realised is read from the answer.
    """

    request_id: str
    index: int
    api: str = "openai.chat"
    stream: bool = True
    phase: Phase = "measured"
    due_offset_ns: int | None = None
    think_ns: int = 0
    slot: int | None = None  # closed loop: which of the `concurrency` slots sends it
    input_tokens: int | None = None
    output_tokens: int | None = None  # the asked maximum (max_tokens); None: the server's default
    ignore_eos: bool = False
    n: int = 1
    model: str | None = None
    workload_class: str | None = None
    conversation: str | None = None
    turn: int = 0
    turns: int = 1  # how many the conversation is meant to have
    later: tuple[int, ...] = ()  # a trace's session: the indices of its rows after this one
    prefix_group: str | None = None
    prefix_tokens: int = 0  # how many of `input_tokens` the group shares
    hash_ids: tuple[int, ...] = ()  # a trace's prompt blocks: equal ids are equal text
    traceparent: str | None = None
    sent_id: str | None = None  # what goes out as x-request-id; None: nothing, or a header of the person's own
