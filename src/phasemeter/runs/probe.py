"""The one explicit probe before a run: is this the API, is there such a model, which fields does the server refuse, how long
are prompts in its tokens (probe_lengths.py)?

Lives here: what is learnt from the probe's requests. A mistake of the person's (unreachable, wrong path, no such
model, a refused key) ends here with the server's own words; a server that is merely slow or failing does not: that is what
a run is for, and is noted. Must not live here: the run itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from phasemeter.errors import NetworkError, ServerError, UserError
from phasemeter.io.proxy import shown
from phasemeter.runs import probe_lengths
from phasemeter.runs.identify import Asker, Identity, identify
from phasemeter.runs.other_scheme import other_scheme
from phasemeter.runs.probe_request import WIDE_IDS, Said, State, asked, send
from phasemeter.runs.settings import Settings
from phasemeter.wire.exchange import Exchange
from phasemeter.workload.bodies import BodyOptions
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.lengths import mean_tokens
from phasemeter.workload.urls import PATHS, is_version

TRIES = 3
FEWEST_IDS = 64
NO_PAGE = "/no-such-path/models"


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


def probe(settings: Settings) -> Probed:
    """Identify the server, then send it one or two small requests like the run's own.

    Raises UnreachableError, RefusedError or UserError: exit 2, nothing was measured.
    """
    asker = Asker(settings.target)
    identity = identify(asker, settings.endpoint)
    _check_reached(settings, asker)
    models = _models(settings, identity)
    _check_context(settings, identity)
    state = State(
        body=settings.body,
        ignore_eos=settings.ignore_eos is not False,
        model=models[0][0] if models else None,
        never_spoke=asker.first is not None and not asker.first.reads,
    )
    lengths = LengthModel()
    if probe_lengths.needed(settings):
        answered = _try_both(settings, state)
        lengths = probe_lengths.fitted(settings, state) if answered else lengths
    else:
        answered = _try(settings, state, asked(settings))
    state.notes.extend(_about_the_path(settings, asker, identity, answered))
    return Probed(
        identity=identity,
        models=models,
        body=state.body,
        ignore_eos=state.ignore_eos,
        lengths=lengths,
        answered=answered,
        token_id_range=state.ids,
        notes=tuple(state.notes),
    )


def _check_reached(settings: Settings, asker: Asker) -> None:
    """Raises for a wrong host or port, a certificate that nobody vouches for, a key that is refused."""
    capture = asker.first
    instead = None if capture is None else other_scheme(settings, capture, asker.first_status)
    if instead is not None:
        raise UnreachableError(f"{settings.url}: no answer to an {settings.endpoint.scheme.upper()} request: {instead}")
    if capture is not None and capture.close in {"refused", "timeout_connect"}:
        words = capture.error or "no answer"
        proxy, way = shown(settings.target.proxy), "can't connect"
        hint = "is the server running, and is this its address?"
        if "certificate" in words.lower():
            hint = "trust it with --ca-file FILE, or don't check it with --insecure"
        elif proxy is not None:
            way, hint = f"can't connect through the proxy {proxy}", "is that the proxy's address, and may it be used?"
        raise UnreachableError(f"{settings.url}: {way}: {words}: {PROXY_KEY if '407' in words and proxy else hint}")
    if asker.first_status == 407 and settings.target.proxy is not None:
        raise RefusedError(f"{settings.url}: the proxy {shown(settings.target.proxy)} answers 407: {PROXY_KEY}")
    if asker.first_status in {401, 403} and not settings.models:
        raise RefusedError(
            f"{settings.endpoint.url}: the server answers {asker.first_status}{_hint(settings, asker.first_status)}"
        )


def _about_the_path(settings: Settings, asker: Asker, identity: Identity, answered: bool) -> list[str]:
    """What speaks against a base path of the person's own, though it was answered: no list of models beside it, or a server that
    answers anything."""
    endpoint = settings.endpoint
    base = endpoint.base if PATHS[endpoint.api][1] else endpoint.root
    if not answered or base in {"", "/v1"}:
        return []
    question = f"is `{base}` the server's base path?"
    if identity.models is None:
        return [f"{endpoint.url} answered, but there is no list of models at {base}/models: {question}"]
    if asker.page(NO_PAGE) is not None:
        return [f"{endpoint.url} answered, but the server answers under any path (200 to {NO_PAGE}): {question}"]
    return []


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
    to = settings.endpoint
    lacking = PATHS[to.api][1] and not is_version(to.base.rpartition("/")[2])
    here = f"{to.base}/models" + (f"; is it {to.scheme}://{to.authority}{to.base}/v1?" if lacking else "")
    raise UserError(f"{settings.url}: it lists no models: say --model NAME (or check the URL: {here})")


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


def _try_both(settings: Settings, state: State) -> bool:
    """The two lengths at once. Was the first answered?"""
    twice = probe_lengths.Twice(settings, state)
    answered = _try(settings, state, probe_lengths.once(settings))
    if not answered and twice.answered():  # it was in its way
        state.notes.pop()
        answered = _try(settings, state, probe_lengths.once(settings))
    if answered:
        twice.take(state)
    return answered


def _try(settings: Settings, state: State, said: Said) -> bool:
    """One probe request, its refused fields dropped one by one, a failing server asked again. Was it answered?"""
    tries = 0
    while True:
        exchange, words = send(settings, state, said)
        if exchange.outcome == "ok":
            probe_lengths.keep(state, exchange, words)
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
            _check_http(settings, state, exchange)
            state.notes.append(
                f"the probe was not answered ({exchange.failure}: {exchange.failure_text}): measured all the same"
            )
            return False


def _check_http(settings: Settings, state: State, exchange: Exchange) -> None:
    """Raises UnreachableError where no byte of HTTP ever came: not of the server's own pages, nor of any answer to a request."""
    if state.never_spoke and state.nothing_came and not (exchange.failure or "").startswith("timeout"):
        raise UnreachableError(
            f"{settings.url}: connects, and closes before it answers an HTTP request ({exchange.failure_text}): is this"
            " its port, and is it http or https?"
        )


# ---- token ids that a server's vocabulary does not hold


def _beyond_vocabulary(exchange: Exchange) -> bool:
    """Whether the server says that an id is none of its own (vLLM and SGLang name the vocabulary, llama.cpp the tokens)."""
    words = (exchange.failure_text or "").lower()
    return "vocab" in words or "invalid token" in words


def _draw_lower(settings: Settings, state: State, exchange: Exchange) -> None:
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


def _without_usage(state: State) -> str:
    state.body = msgspec.structs.replace(state.body, include_usage=False)
    return "stream_options: sent without (the server may tell no usage)"


def _without_ignore_eos(state: State) -> str:
    state.ignore_eos = False
    return "ignore_eos: sent without (answers may be shorter than asked)"


def _other_limit(state: State) -> str:
    state.body = msgspec.structs.replace(state.body, max_tokens_field="max_completion_tokens")
    return "max_tokens: max_completion_tokens is sent instead"


def _without_min_tokens(state: State) -> str:
    state.body = msgspec.structs.replace(state.body, min_tokens=False)
    return "min_tokens: sent without"


# field as it stands in the server's words: (is it sent now?, what to do without it)
ADAPTATIONS: dict[str, tuple[Callable[[State], bool], Callable[[State], str]]] = {
    "stream_options": (lambda state: state.body.include_usage, _without_usage),
    "ignore_eos": (lambda state: state.ignore_eos, _without_ignore_eos),
    "min_tokens": (lambda state: state.body.min_tokens, _without_min_tokens),
    "max_tokens": (lambda state: state.body.max_tokens_field == "max_tokens", _other_limit),
}


def _adapt(settings: Settings, state: State, exchange: Exchange) -> None:
    """Drop the field that the server's words name, with a note, or raise RefusedError with those words."""
    words = exchange.failure_text or ""
    if exchange.status in {400, 422}:
        for field, (sent, without) in ADAPTATIONS.items():
            if field in words and sent(state):
                state.notes.append(f"refused by the server ({_short(words)}): {without(state)}")
                return
    raise RefusedError(f"{settings.endpoint.url}: the server refuses: {words}{_hint(settings, exchange.status)}")


def _hint(settings: Settings, status: int | None) -> str:
    """What to do about a refusal: a key that was given is the wrong one."""
    if status == 401 and settings.target.secret_headers:
        return ": not with this key: is it the server's? (--api-key, OPENAI_API_KEY or --header)"
    return HINTS.get(status or 0, "")


PROXY_KEY = "it wants a user and a password: --proxy http://USER:PASSWORD@HOST:PORT"
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
