"""How long prompts are in the server's tokens: measured, checked at the run's own length, and said where it won't fit.

The same words once and twice over: the difference is what the words cost, the rest is the template's, exactly, whatever a
word costs. With other words the second time the words' own spread would pass for template (it did: 59 tokens for 48 asked).

Lives here: which lengths are tried, and when to stop. Must not live here: the line itself (workload/length_model).
"""

from __future__ import annotations

import statistics
from threading import Thread

import msgspec

from phasemeter.errors import PhasemeterError
from phasemeter.runs.probe_request import Said, State, asked, repeated, send
from phasemeter.runs.settings import Settings
from phasemeter.runs.trace_replay import trace_of
from phasemeter.wire.exchange import Exchange
from phasemeter.workload.length_model import TEMPLATE_MAX_TOKENS, LengthModel, fit_length_model
from phasemeter.workload.lengths import mean_tokens

FEW_WORDS, MANY_WORDS = 64, 128
LONG_TOKENS = 256  # from here on the words are many
ORDINARY = 2.0  # tokens a word, of tokenizers that know words: a check would cost every run a wait
SHARE, FEW_TOKENS = 0.05, 2  # how far off a length may be
SPREAD = (
    0.45  # of a word's cost, by the words of ordinary tokenizers: one prompt is off by that times the root of its words
)
CHECKS = 4


def needed(settings: Settings) -> bool:
    """Whether prompts are made of words that the server alone can count."""
    wanted = settings.asked
    return wanted.prompts is None and wanted.tokenizer is None and not wanted.token_ids


def typical_tokens(settings: Settings) -> int | None:
    """The run's mean prompt length, None where nothing tells it."""
    lengths, trace = settings.spec.input_tokens, trace_of(settings.asked)
    mean = mean_tokens(lengths) if lengths is not None else None
    if trace is not None and trace.input_tokens is not None and len(trace.input_tokens):
        mean = statistics.fmean(trace.input_tokens)
    return None if mean is None else max(1, round(mean))


def once(settings: Settings) -> Said:
    """The first try's words."""
    return repeated(settings, _words(settings), 1)


def _words(settings: Settings) -> int:
    return FEW_WORDS if (typical_tokens(settings) or 0) < LONG_TOKENS else MANY_WORDS


class Twice:
    """The second length, asked beside the first: a probe costs a prefill, and two at once cost one wait."""

    def __init__(self, settings: Settings, state: State) -> None:
        self._settings, self._said = settings, repeated(settings, _words(settings), 2)
        self._state = msgspec.structs.replace(state, notes=[], pairs=[])
        self._got: tuple[Exchange, int | None] | None = None
        self._thread = Thread(target=self._ask, name="probe", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._got = send(self._settings, self._state, self._said)
        except PhasemeterError:
            self._got = None  # the first try says the same

    def answered(self) -> bool:
        """Wait for it."""
        self._thread.join()
        return self._got is not None and self._got[0].outcome == "ok"

    def take(self, state: State) -> None:
        """Put the pair on `state`; where it was not answered (a field refused, a busy server), ask once more as `state` has it."""
        got = self._got if self.answered() else send(self._settings, state, self._said)
        if got is not None:
            keep(state, *got)


def keep(state: State, exchange: Exchange, words: int | None) -> int | None:
    """The prompt tokens of an answer, put on `state`; None where it tells none."""
    if exchange.outcome != "ok" or not exchange.prompt_tokens or not words:
        return None
    state.pairs.append((words, exchange.prompt_tokens))
    return exchange.prompt_tokens


def fitted(settings: Settings, state: State) -> LengthModel:
    """The words that a length takes. Where that is out of the ordinary, up to 4 prompts of the run's own length check and
    correct it."""
    if not state.pairs:
        state.notes.append("the server tells no prompt_tokens: prompt lengths are assumed at one token a word")
        return LengthModel()
    lengths, wanted = fit_length_model(state.pairs), typical_tokens(settings)
    ordinary = lengths.tokens_per_word <= ORDINARY and lengths.template_overhead <= TEMPLATE_MAX_TOKENS
    if wanted is None or (ordinary and len(state.pairs) > 1):
        return lengths
    came: list[int] = []
    for check in range(CHECKS):
        got = keep(state, *send(settings, state, asked(settings, wanted, lengths)))
        if got is None:
            return lengths
        came.append(got)
        miss = statistics.fmean(came) - wanted
        if abs(miss) <= _tolerance(lengths, wanted, len(came)):
            return msgspec.structs.replace(lengths, pairs=len(state.pairs))
        if check % 2 and check < CHECKS - 1:  # two say the same: where this length comes out right is what counts
            overhead = max(0, lengths.template_overhead + round(miss))
            lengths, came = msgspec.structs.replace(lengths, template_overhead=overhead), []
    state.notes.append(
        f"prompts of {wanted} tokens came out {miss:+.0f} in the probe, words cost this server's tokenizer so differently:"
        " see the realised lengths, or give --tokenizer"
    )
    return msgspec.structs.replace(lengths, pairs=len(state.pairs))


def _tolerance(lengths: LengthModel, wanted: int, prompts: int) -> float:
    """How far the mean of so many prompts may lie off before it is more than the words' own spread (three deviations)."""
    deviation: float = SPREAD * lengths.tokens_per_word * (lengths.words_for(wanted) / prompts) ** 0.5
    return max(FEW_TOKENS, SHARE * wanted, 3 * deviation)
