"""What is served: a request as it came, and the sequence that a scheduler moves about.

Lives here: `Request` (what a client asks, and how long its answer will be) and `Sequence` (its state inside the engine).
Must not live here: who runs when (policies/), where its KV lives (kv_cache).
"""

from __future__ import annotations

import msgspec

from phasemeter.errors import UserError


class Request(msgspec.Struct, frozen=True, kw_only=True):
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


class Sequence:
    """A request's state between admission and end. Instants are engine ticks (`step_shape.TICKS_PER_NS`).

    A policy may read `order` (0 for the first submitted), `prompt_tokens`, `max_tokens`, `samples`, `block_hashes`,
    `generated` (tokens emitted before it last joined or left the decodes), `target` (tokens whose KV it needs before it
    can emit the next one: prompt + generated), `computed` (how many of them it has), `cached` and `blocks`.
    """

    __slots__ = (
        "_enter_ns", "_finish_at", "_first_step", "_first_token_t", "_left", "_mixed_mark", "_mixed_stall",
        "_preempted_stall", "_preempted_t", "_prefill_end_t", "_prefill_mark", "_prefill_stall", "_prefill_start_t",
        "_request", "_spans", "_start_cached", "block_hashes", "blocks", "cached", "computed", "forks", "generated",
        "max_tokens", "offset", "order", "preemptions", "prompt_tokens", "samples", "table", "target",
    )  # fmt: skip

    def __init__(self, request: Request, order: int, enter_ns: int) -> None:
        self._request = request
        self._left = request.output_tokens  # tokens still to be emitted when it last joined or left the decodes
        self._enter_ns = enter_ns
        self._finish_at = -1  # the decode step after which it has all its tokens; -1 while it doesn't decode
        self._prefill_start_t = -1
        self._first_token_t = -1
        self._prefill_stall = self._mixed_stall = self._preempted_stall = 0
        self._spans: tuple[tuple[int, int], ...] = ()
        self.order = order
        self.prompt_tokens = self.target = request.prompt_tokens
        self.max_tokens = request.max_tokens
        self.samples = request.samples
        self.block_hashes = request.block_hashes
        self.generated = self.computed = self.blocks = self.preemptions = 0
        self.cached = 0  # of `computed`, how many tokens came from the prefix cache at the last admission
        self.table: list[int] = []  # block ids, where the KV cache keeps names
        self.forks: list[list[int]] = []  # those of the other samples, once they differ
        # set when it starts, joins the decodes, or is preempted
        self._prefill_end_t = self._prefill_mark = self._mixed_mark = 0
        self._preempted_t = -1  # since when it has been without its KV; -1: it isn't, or had emitted nothing
        self._first_step = -1  # of the span that is open
        self._start_cached = 0
        self.offset = 0  # KV tokens held before decode step d are offset + d (block_demand)
