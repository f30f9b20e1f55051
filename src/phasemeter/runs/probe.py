"""The one explicit probe before a run: is this the API, is there such a model, which fields does the server refuse, how long
are prompts in its tokens?

Lives here: the probe's requests and what is learnt from them. A mistake of the person's (unreachable, wrong path, no such
model, a refused key) ends here with the server's own words; a server that is merely slow or failing does not: that is what
a run is for, and is noted. Must not live here: the run itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from phasemeter.errors import NetworkError, ServerError, UserError
from phasemeter.io.fetch import fetch
from phasemeter.io.target import Limits
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.identify import Asker, Identity, identify
from phasemeter.runs.settings import Settings
from phasemeter.wire.exchange import Exchange, exchange_of
from phasemeter.workload.bodies import BodyOptions, Content, body
from phasemeter.workload.length_model import LengthModel, fit_length_model
from phasemeter.workload.lengths import mean_tokens
from phasemeter.workload.prompts import PromptOptions, prompt_for

PATIENCE_S = 30.0  # for a first byte; a slower server is measured, not refused
TRIES = 3
SHORT_TOKENS, LONGEST_TOKENS = 24, 512
TOKENS = 2
WIDE_IDS = PromptOptions().token_id_range
FEWEST_IDS = 64
REFUSAL = re.compile(rb'"code"\s*:\s*"?(4[0-9]{2})\b')


class UnreachableError(NetworkError):
    """Nothing listens there, or no such host: a mistake of the person's until shown otherwise."""

    exit_code = 2


class RefusedError(ServerError):
    """The server answered the probe with a refusal: nothing was measured."""

    exit_code = 2


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe found. `answered` is False where the server was too slow or failing to learn from."""

    identity: Identity
    models: tuple[tuple[str, float], ...]
    body: BodyOptions
    ignore_eos: bool
    lengths: LengthModel
    answered: bool
    token_id_range: tuple[int, int] = WIDE_IDS
    notes: tuple[str, ...] = ()


class _State(msgspec.Struct, kw_only=True):
    """What the tries have settled so far."""

    body: BodyOptions
    ignore_eos: bool
    ids: tuple[int, int] = WIDE_IDS
    notes: list[str] = msgspec.field(default_factory=list)
    pairs: list[tuple[int, int]] = msgspec.field(default_factory=list)


def probe(settings: Settings) -> Probed:
    """Identify the server, then send it one or two small requests like the run's own.

    Raises UnreachableError, RefusedError or UserError: exit 2, nothing was measured.
    """
    asker = Asker(settings.target)
    identity = identify(asker, settings.endpoint)
    _check_reached(settings, asker)
    models = _models(settings, identity)
    _check_context(settings, identity)
    state = _State(body=settings.body, ignore_eos=settings.ignore_eos is not False)
    model = models[0][0] if models else None
    answered = _try(settings, state, model, SHORT_TOKENS)
    if answered and _needs_lengths(settings):
        asked = settings.spec.input_tokens
        typical = mean_tokens(asked) if asked is not None else None
        _try(settings, state, model, min(LONGEST_TOKENS, max(2 * SHORT_TOKENS, round(typical or 0))))
    if answered and not state.pairs and _needs_lengths(settings):
        state.notes.append("the server tells no prompt_tokens: prompt lengths are assumed at one token a word")
    return Probed(
        identity=identity,
        models=models,
        body=state.body,
        ignore_eos=state.ignore_eos,
        lengths=fit_length_model(state.pairs),
        answered=answered,
        token_id_range=state.ids,
        notes=tuple(state.notes),
    )


def _check_reached(settings: Settings, asker: Asker) -> None:
    """Raises for a wrong host or port, a certificate that nobody vouches for, a key that is refused."""
    capture = asker.first
    if capture is not None and capture.close in {"refused", "timeout_connect"}:
        words = capture.error or "no answer"
        hint = "is the server running, and is this its address?"
        if "certificate" in words.lower():
            hint = "trust it with --ca-file FILE, or don't check it with --insecure"
        raise UnreachableError(f"{settings.url}: can't connect: {words}: {hint}")
    if asker.first_status in {401, 403} and not settings.models:
        raise RefusedError(
            f"{settings.endpoint.url}: the server answers {asker.first_status}{HINTS[asker.first_status]}"
        )


def _needs_lengths(settings: Settings) -> bool:
    asked = settings.asked
    return asked.prompts is None and asked.tokenizer is None and not asked.token_ids


# ---- the model


def _models(settings: Settings, identity: Identity) -> tuple[tuple[str, float], ...]:
    listed = identity.models
    if settings.models:
        missing = [name for name, _ in settings.models if listed and name not in listed]
        if missing:
            raise UserError(f"{settings.url}: no model `{missing[0]}` there: it lists {_some(listed or ())}")
        return settings.models
    if "model" in settings.body.extra:
        return ()
    if listed is not None and len(listed) == 1:
        return ((listed[0], 1.0),)
    if listed:
        names = {name.removesuffix(":latest") for name in listed}
        if len(names) == 1:
            return ((names.pop(), 1.0),)
        raise UserError(f"{settings.url}: which model? It lists {_some(listed)}: say --model NAME")
    if settings.endpoint.api in {"tgi.generate_stream", "sglang.generate", "llamacpp.completion"}:
        return ()
    raise UserError(
        f"{settings.url}: it lists no models: say --model NAME (or check the URL: {settings.endpoint.base}/models)"
    )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _check_context(settings: Settings, identity: Identity) -> None:
    """Lengths that the server's context can't hold in the mean would fail in nearly every request."""
    spec, context = settings.spec, identity.context_tokens
    means = [mean_tokens(lengths) for lengths in (spec.input_tokens, spec.output_tokens) if lengths is not None]
    wanted = sum(mean for mean in means if mean is not None)
    if context is not None and wanted > context:
        raise UserError(
            f"{settings.url}: --input-tokens and --output-tokens ask for {wanted:.0f} tokens a request,"
            f" its context holds {context}: ask for less"
        )


# ---- the request


def _try(settings: Settings, state: _State, model: str | None, tokens: int) -> bool:
    """One probe request, its refused fields dropped one by one, a failing server asked again. Was it answered?"""
    tries = 0
    while True:
        exchange, words = _send(settings, state, model, tokens)
        if exchange.outcome == "ok":
            if exchange.prompt_tokens and words:
                state.pairs.append((words, exchange.prompt_tokens))
            return True
        if settings.asked.token_ids and _beyond_vocabulary(exchange):
            _draw_lower(settings, state, exchange)
            continue
        status = exchange.status or 0
        if 400 <= status < 500 and status not in {408, 429}:
            _adapt(settings, state, exchange)
            continue
        if 300 <= status < 400:
            where = dict(exchange.headers).get("location", "another place")
            raise RefusedError(f"{settings.endpoint.url}: redirects ({status}) to {where}: give that address itself")
        if exchange.failure in {"unreadable_response", "malformed_http"}:
            raise RefusedError(f"{settings.endpoint.url}: this is not {settings.endpoint.api}: {exchange.failure_text}")
        tries += 1
        if tries == TRIES or (exchange.failure or "").startswith("timeout"):
            state.notes.append(
                f"the probe was not answered ({exchange.failure}: {exchange.failure_text}): measured all the same"
            )
            return False


def _send(settings: Settings, state: _State, model: str | None, tokens: int) -> tuple[Exchange, int | None]:
    spec = settings.spec
    planned = PlannedRequest(
        request_id=f"probe{len(state.pairs)}",
        index=len(state.pairs),
        api=spec.api,
        stream=spec.stream,
        phase="probe",
        input_tokens=tokens,
        output_tokens=TOKENS,
        ignore_eos=state.ignore_eos,
        n=spec.n,
        model=model,
    )
    options = PromptOptions(seed=spec.seed, salt="probe", token_ids=settings.asked.token_ids, token_id_range=state.ids)
    prompt = prompt_for(planned, options, LengthModel())
    ids = prompt.token_ids
    if ids:
        ids = (*ids[:-1], state.ids[1] - 1)  # the highest that the run may draw
    content = Content(text=prompt.text, token_ids=ids)
    sent = msgspec.json.encode(body(planned, content, state.body))
    limits = settings.target.limits
    first_s = PATIENCE_S if limits.first_byte_s is None else min(PATIENCE_S, limits.first_byte_s)
    patient = Limits(connect_s=limits.connect_s, first_byte_s=first_s, idle_s=first_s, total_s=2 * PATIENCE_S)
    capture = fetch(msgspec.structs.replace(settings.target, limits=patient), "POST", settings.target.path, sent)
    return _read(planned, capture), prompt.words


def _read(planned: PlannedRequest, capture: Capture) -> Exchange:
    """The answer. An error inside a stream that names a status of its own (vLLM refuses so, under 200) has that status."""
    exchange = exchange_of(planned, capture, [read.user_ns for read in capture.reads])
    code = (
        REFUSAL.search(b"".join([read.data for read in capture.reads]))
        if exchange.failure == "server_error_in_stream"
        else None
    )
    return exchange if code is None else msgspec.structs.replace(exchange, status=int(code[1]))


# ---- token ids that a server's vocabulary does not hold


def _beyond_vocabulary(exchange: Exchange) -> bool:
    """Whether the server says that an id is none of its own (vLLM and SGLang name the vocabulary, llama.cpp the tokens)."""
    words = (exchange.failure_text or "").lower()
    return "vocab" in words or "invalid token" in words


def _draw_lower(settings: Settings, state: _State, exchange: Exchange) -> None:
    """Half the ids of before, or RefusedError when there are too few left to tell prompts apart."""
    low, high = state.ids
    narrower = (min(low, high // 8), high // 2)
    if narrower[1] - narrower[0] < FEWEST_IDS:
        raise RefusedError(f"{settings.endpoint.url}: the server refuses token ids: {exchange.failure_text}")
    if state.ids == WIDE_IDS:
        state.notes.append(
            f"the server's vocabulary is small ({_short(exchange.failure_text or '')}): lower ids are drawn"
        )
    state.ids = narrower


# ---- fields that a server refuses


def _without_usage(state: _State) -> str:
    state.body = msgspec.structs.replace(state.body, include_usage=False)
    return "stream_options: sent without (the server may tell no usage)"


def _without_ignore_eos(state: _State) -> str:
    state.ignore_eos = False
    return "ignore_eos: sent without (answers may be shorter than asked)"


def _other_limit(state: _State) -> str:
    state.body = msgspec.structs.replace(state.body, max_tokens_field="max_completion_tokens")
    return "max_tokens: max_completion_tokens is sent instead"


def _without_min_tokens(state: _State) -> str:
    state.body = msgspec.structs.replace(state.body, min_tokens=False)
    return "min_tokens: sent without"


# field as it stands in the server's words: (is it sent now?, what to do without it)
ADAPTATIONS: dict[str, tuple[Callable[[_State], bool], Callable[[_State], str]]] = {
    "stream_options": (lambda state: state.body.include_usage, _without_usage),
    "ignore_eos": (lambda state: state.ignore_eos, _without_ignore_eos),
    "min_tokens": (lambda state: state.body.min_tokens, _without_min_tokens),
    "max_tokens": (lambda state: state.body.max_tokens_field == "max_tokens", _other_limit),
}


def _adapt(settings: Settings, state: _State, exchange: Exchange) -> None:
    """Drop the field that the server's words name, with a note, or raise RefusedError with those words."""
    words = exchange.failure_text or ""
    if exchange.status in {400, 422}:
        for field, (sent, without) in ADAPTATIONS.items():
            if field in words and sent(state):
                state.notes.append(f"refused by the server ({_short(words)}): {without(state)}")
                return
    hint = HINTS.get(exchange.status or 0, "")
    raise RefusedError(f"{settings.endpoint.url}: the server refuses: {words}{hint}")


HINTS: dict[int, str] = {
    401: ": give a key with --api-key or OPENAI_API_KEY",
    403: ": this key may not do that",
    404: ": wrong path or model? Give the base URL, with or without /v1",
    405: ": wrong path? Give the base URL, with or without /v1",
}


def _short(words: str, most: int = 120) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def facts_of(probed: Probed) -> dict[str, Any]:
    """How words become the server's prompt tokens, as the probe fitted it, for the manifest."""
    return {
        "tokens_per_word": probed.lengths.tokens_per_word,
        "template_overhead": probed.lengths.template_overhead,
        "length_pairs": probed.lengths.pairs,
    }
