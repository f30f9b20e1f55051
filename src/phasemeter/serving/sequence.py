"""What is served: a request as it came, and the sequence that a scheduler moves about.

Lives here: `Request` (what a client asks, and how long its answer will be) and `Sequence` (its state inside the engine).
Must not live here: who runs when (policies/), where its KV lives (kv_cache).
"""

from __future__ import annotations

import msgspec

from phasemeter.errors import UserError


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request for the engine. Lengths in tokens, `arrival_ns` on the caller's clock.

    `output_tokens` is how many tokens it will generate: the engine's secret, no policy may look at it. `max_tokens` is the
    cap that the client declared, which a scheduler does know (None: it declared none).
    `block_hashes` chain over the full KV blocks of prompt and answer, first block first; equal hashes mean equal content up
    to and with that block. Empty: nothing of it is ever shared. `samples` sequences share the prompt and are equally long.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrival_ns: int
    max_tokens: int | None = None
    block_hashes: tuple[int, ...] = ()
    samples: int = 1

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1 or self.samples < 1:
            raise UserError(
                f"request {self.request_id}: prompt_tokens, output_tokens and samples have to be 1 or more "
                f"(they are {self.prompt_tokens}, {self.output_tokens}, {self.samples})"
            )


class Sequence(msgspec.Struct, eq=False, gc=False):
    """A request's state between admission and end. Instants are engine ticks (`step_shape.TICKS_PER_NS`).

    A policy may read `order` (0 for the first submitted), `prompt_tokens`, `max_tokens`, `samples`, `block_hashes`,
    `generated` (tokens emitted before it last joined or left the decodes), `target` (tokens whose KV it needs before it
    can emit the next one: prompt + generated), `computed` (how many of them it has), `cached` and `blocks`.
    """

    _request: Request
    order: int
    _enter_ns: int
    prompt_tokens: int
    target: int
    max_tokens: int | None
    samples: int
    block_hashes: tuple[int, ...]
    table: list[int]  # block ids, where the KV cache keeps names
    forks: list[list[int]]  # those of the other samples, once they differ
    generated: int = 0
    computed: int = 0
    cached: int = 0  # of `computed`, how many tokens came from the prefix cache at the last admission
    blocks: int = 0
    preemptions: int = 0
    offset: int = 0  # KV tokens held before decode step d are offset + d (block_demand)
    _finish_at: int = -1  # the decode step after which it has all its tokens; -1 while it doesn't decode
    _first_step: int = -1  # of the span that is open
    _spans: tuple[tuple[int, int], ...] = ()
    _start_cached: int = 0
    _prefill_start_t: int = -1
    _first_token_t: int = -1
    _preempted_t: int = -1  # since when it has been without its KV; -1: it isn't, or had emitted nothing
    _prefill_mark: int = 0
    _mixed_mark: int = 0
    _prefill_stall: int = 0
    _mixed_stall: int = 0
    _preempted_stall: int = 0

    @property
    def _left(self) -> int:
        """Tokens still to be emitted when it last joined or left the decodes."""
        return self._request.output_tokens - self.generated


NO_TABLE: list[
    int
] = []  # shared by all whose blocks have no names yet: a KV cache that keeps names puts its own list there
NO_FORKS: list[list[int]] = []
