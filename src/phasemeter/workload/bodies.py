"""The JSON body of a request, for each API.

Lives here: which field says what in which API. Must not live here: sending, addresses (urls.py), or what a server answers.

Each limit on output has one name per API, never two: a server that knows one name refuses the other (`max_tokens` against
`max_completion_tokens`), so the name is an option that a probe before the run may settle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.records.request import PlannedRequest
from phasemeter.workload.urls import PATHS

Messages = list[dict[str, Any]]


class BodyOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every request of a run carries beside prompt and length. None: the field is not sent, the server's default holds."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    min_tokens: bool = False  # also ask for at least as many tokens as at most
    include_usage: bool = True  # stream_options.include_usage, where the API has it
    max_tokens_field: str = "max_tokens"  # openai.chat: or max_completion_tokens
    system: str | None = None
    extra: dict[str, Any] = {}
    drop: tuple[str, ...] = ()  # fields that this server refused in the probe


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: messages (a chat), text, or token ids; exactly one."""

    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None

    def as_messages(self, system: str | None) -> Messages:
        """As a chat. Raises UserError for token ids."""
        if self.token_ids is not None:
            raise UserError("prompts as token ids need an API that takes them: --api openai.completions")
        messages = list(self.messages) if self.messages is not None else [{"role": "user", "content": self.text or ""}]
        return [{"role": "system", "content": system}, *messages] if system else messages

    def as_text(self, system: str | None) -> str:
        """As plain text: a chat becomes its lines, role first, the way a transcript is written."""
        if self.token_ids is not None:
            raise UserError("prompts as token ids need an API that takes them: --api openai.completions")
        if self.messages is None:
            return "\n\n".join(part for part in (system, self.text) if part)
        lines = [f"{message['role']}: {message['content']}" for message in self.as_messages(system)]
        return "\n".join([*lines, "assistant:"])


def body(
    planned: PlannedRequest, content: Content, options: BodyOptions, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The body of one request. `own` are the request's own extra fields; they win over the run's `extra`, which wins over ours.

    A nested object is merged key by key; null removes a field. Raises UserError for an unknown API or an API that
    can't carry the content.
    """
    build = _BUILDERS.get(planned.api)
    if build is None:
        raise UserError(f"`{planned.api}` is no API I know: {', '.join(PATHS)}")
    fields = build(planned, content, options)
    fields = merged(merged(fields, options.extra), own or {})
    for name in options.drop:
        fields.pop(name, None)
    return fields


def merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `extra` over it: objects merge, anything else replaces, null removes. Neither argument changes."""
    result = dict(base)
    for name, value in extra.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            under = result.get(name)
            result[name] = merged(under if isinstance(under, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def _given(**fields: Any) -> dict[str, Any]:
    """Only the fields that say something."""
    return {name: value for name, value in fields.items() if value is not None}


def _stop(options: BodyOptions) -> list[str] | None:
    return list(options.stop) or None


def _model(planned: PlannedRequest, options: BodyOptions) -> str | None:
    return planned.model or options.model


def _minimum(planned: PlannedRequest, options: BodyOptions) -> int | None:
    return planned.output_tokens if options.min_tokens else None


def _openai_shared(planned: PlannedRequest, options: BodyOptions) -> dict[str, Any]:
    """Fields that chat and completions spell alike; `ignore_eos` and `min_tokens` are vLLM's and SGLang's additions."""
    usage = {"include_usage": True} if planned.stream and options.include_usage else None
    return _given(
        stream=planned.stream,
        stream_options=usage,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
        stop=_stop(options),
        n=planned.n if planned.n != 1 else None,
        ignore_eos=planned.ignore_eos or None,
        min_tokens=_minimum(planned, options),
    )


def _chat(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    if options.max_tokens_field not in {"max_tokens", "max_completion_tokens"}:
        raise UserError(f"`{options.max_tokens_field}`: the limit of a chat is max_tokens or max_completion_tokens")
    head = _given(model=_model(planned, options), messages=content.as_messages(options.system))
    limit = _given(**{options.max_tokens_field: planned.output_tokens})
    return {**head, **limit, **_openai_shared(planned, options)}


def _completions(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    prompt = list(content.token_ids) if content.token_ids is not None else content.as_text(options.system)
    head = _given(model=_model(planned, options), prompt=prompt, max_tokens=planned.output_tokens)
    return {**head, **_openai_shared(planned, options)}


def _responses(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    messages = content.as_messages(None)
    single = len(messages) == 1 and messages[0].get("role") == "user"
    return _given(
        model=_model(planned, options),
        input=messages[0]["content"] if single else messages,
        instructions=options.system,
        max_output_tokens=planned.output_tokens,
        stream=planned.stream,
        temperature=options.temperature,
        top_p=options.top_p,
        ignore_eos=planned.ignore_eos or None,
    )


def _anthropic(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    """`max_tokens` is required by this API; a plan without a length is the caller's mistake."""
    if planned.output_tokens is None:
        raise UserError("anthropic.messages needs an output length: give --output-tokens")
    messages = content.as_messages(None)
    system = [m["content"] for m in messages if m.get("role") == "system"]
    return _given(
        model=_model(planned, options),
        messages=[m for m in messages if m.get("role") != "system"],
        system=options.system or ("\n".join(system) if system else None),
        max_tokens=planned.output_tokens,
        stream=planned.stream,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        stop_sequences=_stop(options),
    )


def _ollama_options(planned: PlannedRequest, options: BodyOptions) -> dict[str, Any]:
    return _given(
        num_predict=planned.output_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
        stop=_stop(options),
    )


def _ollama_chat(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    return _given(
        model=_model(planned, options),
        messages=content.as_messages(options.system),
        stream=planned.stream,
        options=_ollama_options(planned, options) or None,
    )


def _ollama_generate(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    return _given(
        model=_model(planned, options),
        prompt=content.as_text(None),
        system=options.system,
        stream=planned.stream,
        options=_ollama_options(planned, options) or None,
    )


def _llamacpp(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    prompt = list(content.token_ids) if content.token_ids is not None else content.as_text(options.system)
    return _given(
        prompt=prompt,
        n_predict=planned.output_tokens,
        stream=planned.stream,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
        stop=_stop(options),
        ignore_eos=planned.ignore_eos or None,
    )


def _tgi(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    """`ignore_eos` has a name of its own here: `ignore_eos_token` is TGI's."""
    parameters = _given(
        max_new_tokens=planned.output_tokens,
        temperature=options.temperature or None,  # TGI refuses 0: greedy is the default
        top_p=options.top_p if options.top_p != 1 else None,  # and 1
        top_k=options.top_k,
        seed=options.seed,
        stop=_stop(options),
        ignore_eos_token=planned.ignore_eos or None,
        details=True,
    )
    return {"inputs": content.as_text(options.system), "parameters": parameters}


def _sglang(planned: PlannedRequest, content: Content, options: BodyOptions) -> dict[str, Any]:
    parameters = _given(
        max_new_tokens=planned.output_tokens,
        min_new_tokens=_minimum(planned, options),
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        stop=_stop(options),
        ignore_eos=planned.ignore_eos or None,
        n=planned.n if planned.n != 1 else None,
    )
    ids = content.token_ids
    prompt: dict[str, Any] = {"text": content.as_text(options.system)} if ids is None else {"input_ids": list(ids)}
    return {**prompt, "sampling_params": parameters, "stream": planned.stream}


Builder = Callable[[PlannedRequest, Content, BodyOptions], dict[str, Any]]
_BUILDERS: dict[str, Builder] = {
    "openai.chat": _chat,
    "openai.completions": _completions,
    "openai.responses": _responses,
    "anthropic.messages": _anthropic,
    "ollama.chat": _ollama_chat,
    "ollama.generate": _ollama_generate,
    "llamacpp.completion": _llamacpp,
    "tgi.generate_stream": _tgi,
    "sglang.generate": _sglang,
}
