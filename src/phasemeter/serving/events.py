"""What an engine tells: who was admitted, got tokens, was preempted, ended, and the truth about each request.

Lives here: frozen records, outside the garbage collector (they hold no cycles, and there are millions of them); every instant is
integer ns on the caller's clock, every duration integer ns.
"""

from __future__ import annotations

import msgspec


class Truth(msgspec.Struct, frozen=True, gc=False):
    """What happened to one request, as only the engine can know it.

    `queue_enter_ns` equals `arrival_ns` inside one engine (a cluster may queue before it). `prefill_end_ns` is the end of the step
    that computed the prompt's last token; the first token is emitted at that same instant, so first-token hand-off is 0, but for a
    split whose decode side hands it out.
    Stalls are parts of finish − first token: `stall_prefill_ns` (steps that ran others' prompts and left it out),
    `stall_mixed_ns` (what others' chunks added to steps it was in), `stall_preempted_ns` (from each preemption to the next token).
    It emitted its first token at the end of step `spans[0][0]` and one at the end of each decode step up to `spans[0][1]`; a
    further span for each resumption. Step numbers are those of the segment log.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    samples: int
    cached_tokens: int
    arrival_ns: int
    queue_enter_ns: int
    prefill_start_ns: int
    prefill_end_ns: int
    first_token_ns: int
    finish_ns: int
    stall_prefill_ns: int
    stall_mixed_ns: int
    stall_preempted_ns: int
    preemptions: int
    spans: tuple[tuple[int, int], ...]


class Admitted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The request's first prefill token (or, where KV was pulled, its first decode step) was scheduled at `at_ns`."""

    at_ns: int
    request_id: str


class Tokens(msgspec.Struct, frozen=True, tag=True, gc=False):
    """One step ended at `at_ns` and gave each of these requests one token per sample (`first`: its first).

    Only in an engine made with `tokens=True`; `start_ns` is when the step started.
    """

    start_ns: int
    at_ns: int
    first: tuple[str, ...]
    more: tuple[str, ...]


class Preempted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The request lost its KV (`recompute`) or had it moved to the host (`swap`) at `at_ns`."""

    at_ns: int
    request_id: str
    how: str


class Prefilled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A prefill-only engine has finished this prompt and holds its KV until `release`. Its first token is out.

    `truth` is the request's so far: its finish is its first token's instant.
    """

    at_ns: int
    request_id: str
    truth: Truth


class Pull(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A decode-only engine has made room for this request and starts to pull `tokens` of KV; answer with `delivered`."""

    at_ns: int
    request_id: str
    tokens: int


class Finished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The request's last token came out at `at_ns`."""

    at_ns: int
    request_id: str
    truth: Truth


class Aborted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The request was called off: at `at_ns`, a step's start, its memory came back."""

    at_ns: int
    request_id: str


Event = Admitted | Tokens | Preempted | Prefilled | Pull | Finished | Aborted
