"""One request of the probe: like the run's own, but short, and waited for.

Lives here: what the tries have settled so far, and one try. Must not live here: what a refusal means (probe.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from phasemeter.io.fetch import fetch
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.settings import Settings
from phasemeter.wire.exchange import Exchange, exchange_of
from phasemeter.workload.bodies import BodyOptions, Content, body
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.prompts import PromptOptions, balanced_text, prompt_for

PATIENCE_S = 30.0  # for a first byte; a slower server is measured, not refused
SHORT_TOKENS = 24
TOKENS = 2
WIDE_IDS = PromptOptions().token_id_range
REFUSAL = re.compile(rb'"code"\s*:\s*"?(4[0-9]{2})\b')

# (what is said, how many words that is where they are counted); made anew for each try
Said = Callable[["State"], tuple[Content, int | None]]


class State(msgspec.Struct, kw_only=True):
    """What the tries have settled so far."""

    body: BodyOptions
    ignore_eos: bool
    model: str | None = None
    ids: tuple[int, int] = WIDE_IDS
    sent: int = 0
    notes: list[str] = msgspec.field(default_factory=list)
    pairs: list[tuple[int, int]] = msgspec.field(default_factory=list)  # (words, the server's prompt tokens)
    never_spoke: bool = False  # the server's own pages brought not a byte
    nothing_came: bool = False  # nor did the last try


def send(settings: Settings, state: State, said: Said) -> tuple[Exchange, int | None]:
    """The answer to one try, and the words that were sent."""
    content, words = said(state)
    planned = _planned(settings, state)
    state.sent += 1
    sent = msgspec.json.encode(body(planned, content, state.body))
    limits = settings.target.limits
    first_s = PATIENCE_S if limits.first_byte_s is None else min(PATIENCE_S, limits.first_byte_s)
    patient = msgspec.structs.replace(limits, first_byte_s=first_s, idle_s=first_s, total_s=2 * PATIENCE_S)
    capture = fetch(msgspec.structs.replace(settings.target, limits=patient), "POST", settings.target.path, sent)
    state.nothing_came = not capture.reads
    return _read(planned, capture), words


def _planned(settings: Settings, state: State, tokens: int = SHORT_TOKENS) -> PlannedRequest:
    spec = settings.spec
    return PlannedRequest(
        request_id=f"probe{state.sent}", index=state.sent, api=spec.api, stream=spec.stream, phase="probe",
        input_tokens=tokens, output_tokens=TOKENS, ignore_eos=state.ignore_eos, n=spec.n, model=state.model,
    )  # fmt: skip


def _read(planned: PlannedRequest, capture: Capture) -> Exchange:
    """The answer. An error inside a stream that names a status of its own (vLLM refuses so, under 200) has that status."""
    exchange = exchange_of(planned, capture, [read.user_ns for read in capture.reads])
    code = (
        REFUSAL.search(b"".join([read.data for read in capture.reads]))
        if exchange.failure == "server_error_in_stream"
        else None
    )
    return exchange if code is None else msgspec.structs.replace(exchange, status=int(code[1]))


# ---- what is said


def asked(settings: Settings, tokens: int = SHORT_TOKENS, lengths: LengthModel = LengthModel()) -> Said:  # noqa: B008  # frozen
    """A prompt like the run's own, `tokens` long as far as `lengths` knows."""

    def said(state: State) -> tuple[Content, int | None]:
        options = PromptOptions(
            seed=settings.spec.seed, salt="probe", token_ids=settings.asked.token_ids, token_id_range=state.ids
        )
        prompt = prompt_for(_planned(settings, state, tokens), options, lengths)
        ids = prompt.token_ids
        if ids:
            ids = (*ids[:-1], state.ids[1] - 1)  # the highest that the run may draw
        return Content(text=prompt.text, token_ids=ids), prompt.words

    return said


def repeated(settings: Settings, words: int, times: int) -> Said:
    """`words` different words, said `times` over."""
    options = PromptOptions(seed=settings.spec.seed, salt="probe")
    text = " ".join([balanced_text(options, words)] * times)
    return lambda state: (Content(text=text), words * times)
