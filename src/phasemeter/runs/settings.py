"""From what was asked (and a contract) to what a run needs: target, workload, bodies, limits. Nothing is sent here.

Lives here: the meaning of every option of `bench`, its defaults and the mistakes that can be found without a server.
Must not live here: anything that a server has to answer (probe.py).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from phasemeter import units
from phasemeter.errors import FileError, UserError
from phasemeter.io.proxy import proxy_for
from phasemeter.io.target import Limits, Target, Tls
from phasemeter.lazy import load
from phasemeter.runs.asked import Asked
from phasemeter.runs.asked_check import refuse
from phasemeter.runs.body_fields import extra_fields
from phasemeter.runs.trace_replay import options_of
from phasemeter.wire.apis import HEARTBEAT, api_of, full_name
from phasemeter.workload import urls
from phasemeter.workload.arrivals import Arrivals, arrivals_of_contract, parse_arrivals, warnings_of
from phasemeter.workload.bodies import BodyOptions
from phasemeter.workload.lengths import Lengths, lengths_of_contract, parse_lengths
from phasemeter.workload.plan import (
    WorkloadClass,
    WorkloadSpec,
    check,
    parse_concurrency,
    parse_models,
    parse_prefix,
)
from phasemeter.workload.think_time import ThinkTime, parse_think_time

Read = TypeVar("Read")
DEFAULT_REQUESTS, DEFAULT_INPUT, DEFAULT_OUTPUT = 100, "256", "64"
ANTHROPIC_VERSION = "2023-06-01"  # the only version header that API has had


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run needs, but for what the probe finds out. `target` holds secrets: it is never written down."""

    url: str  # as given, without user and password
    endpoint: urls.Endpoint
    target: Target
    spec: WorkloadSpec
    body: BodyOptions
    models: tuple[tuple[str, float], ...]
    contract: Any  # contract.model.Contract, or None; that module is slow to load and rarely needed
    contract_file: str | None
    asked: Asked
    ignore_eos: bool | None  # None: where the server takes it
    drain_s: float | None
    header_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# fields of a body that the answer is read by, and how they are asked for


def settings_of(url: str, asked: Asked) -> Settings:
    """What `asked` means for the service at `url`.

    Raises UserError or FileError for any mistake that needs no server to be found.
    """
    contract = _contract(asked.contract)
    replayed = asked.trace is not None
    asked = _with_trace_of(contract, asked)
    refuse(asked)
    workload = contract.workload if contract else None
    declared_api = workload.api if workload else None
    named = _sent_as(asked.api or declared_api or "")
    api = named or urls.api_of_path(url.split("?")[0].rstrip("/")) or "openai.chat"
    endpoint = urls.endpoint(url, api)
    spec = _spec(asked, contract, api, replayed)
    check(spec, bounded=asked.trace is not None)
    headers, secrets = _headers(asked, endpoint)
    if asked.ca_file and not Path(asked.ca_file).is_file():
        raise FileError(f"{asked.ca_file}: no such file of certificates")
    target = Target(
        host=endpoint.host,
        port=endpoint.port,
        path=endpoint.path,
        tls=Tls(insecure=asked.insecure, ca_file=asked.ca_file) if endpoint.scheme == "https" else None,
        headers=headers,
        secret_headers=secrets,
        limits=_limits(asked, api),
    )
    proxy, proxy_note = proxy_for(target, asked.proxy, os.environ)
    target = msgspec.structs.replace(target, proxy=proxy)
    return Settings(
        url=urls.redacted(url),
        endpoint=endpoint,
        target=target,
        spec=spec,
        body=_body(asked, api),
        models=parse_models(asked.model),
        contract=contract,
        contract_file=asked.contract,
        asked=asked,
        ignore_eos=_ignore_eos(asked),
        drain_s=_drain(asked.drain),
        header_names=tuple(sorted({name for name, _ in (*headers, *secrets)})),
        notes=(*warnings_of(spec.arrivals, spec.concurrency), *([proxy_note] if proxy_note else [])),
    )


def _sent_as(name: str) -> str:
    """The API that is known by that name, under the name that requests are sent by; what is unknown as it is."""
    return next((api for api in urls.PATHS if full_name(api) == full_name(name)), name)


def _contract(file: str | None) -> Any:
    if file is None:
        return None
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise FileError(f"{file}: can't be read: {getattr(wrong, 'strerror', None) or wrong}") from wrong
    return load("phasemeter.contract.model").parse(text, file)


def told(option: str, text: str, read: Callable[[str], Read]) -> Read:
    """`text` as `read` understands it. Raises UserError that names the option."""
    try:
        return read(text)
    except UserError as wrong:
        raise UserError(f"--{option}: {wrong}") from wrong


def _limits(asked: Asked, api: str) -> Limits:
    def limit(option: str, text: str | None) -> float | None:
        if text is None or text.strip().lower() in {"none", "off", "inf"}:
            return None
        seconds = told(option, text, units.duration_s)
        if not seconds > 0:
            raise UserError(f'--{option} {text}: has to be longer than 0 ("none" is no limit)')
        return seconds

    return Limits(
        connect_s=limit("timeout-connect", asked.timeout_connect),
        first_byte_s=limit("timeout-first-byte", asked.timeout_first_byte),
        idle_s=limit("timeout-idle", asked.timeout_idle),
        total_s=limit("timeout-total", asked.timeout_total),
        last_word=api_of(api).last_word,
        heartbeat=HEARTBEAT,
    )


# ---- the workload


def _with_trace_of(contract: Any, asked: Asked) -> Asked:
    """The options with the trace that the contract's workload names, where the command line names none.

    A relative name counts from the contract's folder. Raises UserError for two different ones.
    """
    workload = contract.workload if contract else None
    parts = [workload.arrivals, workload.input_tokens, workload.output_tokens] if workload else []
    named = {part["trace"] for part in parts if isinstance(part, dict) and part.get("trace")}
    if asked.trace is not None or not named:
        return asked
    if len(named) > 1:
        raise UserError(f"{asked.contract}: names two traces ({', '.join(sorted(named))}): one run replays one")
    beside = Path(asked.contract or "").parent / min(named)
    return msgspec.structs.replace(asked, trace=str(beside if beside.exists() else min(named)))


def _arrivals(asked: Asked, declared: Any, replayed: bool) -> Arrivals:
    """By rate, by a trace, as the contract declares it, or closed; `replayed`: the command line itself names a trace."""
    if asked.rate is not None or asked.arrivals is not None:
        option = "arrivals" if asked.arrivals is not None else "rate"
        return told(option, asked.arrivals or "", lambda pattern: parse_arrivals(pattern or None, asked.rate))
    by_trace = isinstance(declared, dict) and "trace" in declared
    if asked.concurrency is None and (replayed or by_trace):
        options = options_of(asked)
        return Arrivals(kind="trace", rate_scale=options.rate_scale, max_idle_s=options.max_idle_s)
    if asked.concurrency is None and declared == "measured":
        raise UserError(
            f"{asked.contract}: workload.arrivals is `measured`: say how to offer it: --rate or --concurrency"
        )
    if asked.concurrency is None and declared is not None:
        return arrivals_of_contract(declared)
    return Arrivals(kind="closed")


def _think(asked: Asked) -> ThinkTime | None:
    return told("think-time", asked.think_time, parse_think_time) if asked.think_time else None


def _lengths(asked: str | None, declared: Any, where: str, default: str | None) -> Lengths | None:
    if asked is not None:
        try:
            return parse_lengths(asked)
        except UserError as wrong:
            raise UserError(f"--{where.replace('_', '-')}: {wrong}") from wrong
    if declared is not None:
        return lengths_of_contract(declared, f"workload.{where}")
    return parse_lengths(default) if default is not None else None


def _spec(asked: Asked, contract: Any, api: str, replayed: bool) -> WorkloadSpec:
    workload = contract.workload if contract else None
    declared = workload.arrivals if workload else None
    arrivals, think = _arrivals(asked, declared, replayed), _think(asked)
    if think is not None:  # also over the contract's
        arrivals = msgspec.structs.replace(arrivals, think=think)
    concurrency = None if asked.concurrency is None else told("concurrency", asked.concurrency, parse_concurrency)
    if asked.concurrency is not None and concurrency is None and arrivals.kind == "closed":
        raise UserError(
            f"--concurrency {asked.concurrency}: a closed loop sends when a slot is free, so it needs a number; all at once is --rate inf"
        )
    if concurrency is None and arrivals.kind == "closed":
        concurrency = declared.get("concurrency", 1) if isinstance(declared, dict) else 1
    generated = asked.prompts is None and asked.trace is None
    inputs = _lengths(
        asked.input_tokens, workload and workload.input_tokens, "input_tokens", DEFAULT_INPUT if generated else None
    )
    outputs = _lengths(
        asked.output_tokens, workload and workload.output_tokens, "output_tokens", DEFAULT_OUTPUT if generated else None
    )
    if asked.trace is not None and outputs is None:
        outputs = parse_lengths(DEFAULT_OUTPUT)  # for rows that say none
    duration_s = told("duration", asked.duration, units.duration_s) if asked.duration else None
    requests = told("requests", asked.requests, units.count) if asked.requests else None
    if requests is None and duration_s is None and arrivals.kind != "trace" and asked.trace is None:
        requests = DEFAULT_REQUESTS
    warmup_requests, warmup_s = _warmup(asked.warmup, arrivals, concurrency)
    groups, prefix_tokens = parse_prefix(asked.prefix)
    return WorkloadSpec(
        api=api,
        stream=(workload.stream if workload else True) if asked.stream is None else asked.stream,
        arrivals=arrivals,
        concurrency=concurrency,
        input_tokens=inputs,
        output_tokens=outputs,
        requests=requests,
        duration_s=duration_s,
        warmup_requests=warmup_requests,
        warmup_s=warmup_s,
        seed=asked.seed,
        n=asked.n,
        classes=_classes(contract) if asked.input_tokens is None and asked.output_tokens is None else (),
        prefix_groups=groups,
        prefix_tokens=prefix_tokens,
        turns=told("turns", asked.turns, units.count) if asked.turns else 1,
    )


def _warmup(text: str | None, arrivals: Arrivals, concurrency: int | None) -> tuple[int, float | None]:
    """(requests, seconds). By default each slot of a closed loop sends one, an open loop two."""
    if text is None:
        return (concurrency or 1) if arrivals.kind == "closed" else 2, None
    if text.isascii() and text.strip().isdigit():
        return int(text), None
    seconds = told("warmup", text, units.duration_s)
    if arrivals.kind in {"closed", "trace", "inf"}:
        raise UserError(f"--warmup {text}: a time needs arrivals by rate; give a number of requests instead")
    return 0, seconds


def _classes(contract: Any) -> tuple[WorkloadClass, ...]:
    return tuple(
        WorkloadClass(
            name=each.name or "",
            weight=each.share,
            input_tokens=_lengths(None, each.input_tokens, f"classes.{each.name}.input_tokens", None),
            output_tokens=_lengths(None, each.output_tokens, f"classes.{each.name}.output_tokens", None),
        )
        for each in (contract.classes if contract else ())
    )


def _ignore_eos(asked: Asked) -> bool | None:
    """Asked for, or None (where the server takes it) for generated prompts; real prompts end where they end."""
    if asked.ignore_eos is not None:
        return asked.ignore_eos
    return False if asked.prompts is not None and asked.output_tokens is None else None


def _drain(text: str | None) -> float | None:
    return None if text is None or text.strip().lower() == "all" else told("drain", text, units.duration_s)


# ---- bodies and headers


def _body(asked: Asked, api: str) -> BodyOptions:
    extra = extra_fields(asked.body or (), api)
    for name, value in {"temperature": asked.temperature, "top_p": asked.top_p, "stop": asked.stop}.items():
        if value is not None and name in extra:
            raise UserError(f"--body {name} and --{name.replace('_', '-')}: give one of them")
    return BodyOptions(temperature=asked.temperature, top_p=asked.top_p, stop=tuple(asked.stop or ()), extra=extra)


def _headers(asked: Asked, endpoint: urls.Endpoint) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """(our own, secret ones). Every header that a person gives counts as secret: its value is never written down."""
    own: list[tuple[str, str]] = []
    secret: list[tuple[str, str]] = []
    key = asked.api_key if asked.api_key is not None else os.environ.get("OPENAI_API_KEY") or None
    if key is not None and any(not 0x20 < ord(letter) < 0x7F for letter in key):
        raise UserError("the API key holds a space or a character that a header can't carry")
    if endpoint.user is not None and not key:
        pair = f"{endpoint.user}:{endpoint.password or ''}".encode()
        secret.append(("Authorization", "Basic " + base64.b64encode(pair).decode("ascii")))
    elif key:  # an empty one sends no header at all
        if endpoint.api == "anthropic.messages":
            secret.append(("x-api-key", key))
        # engines that speak Anthropic's API beside others look for a key where the others have it (vLLM)
        if endpoint.api != "anthropic.messages" or not endpoint.host.endswith("anthropic.com"):
            secret.append(("Authorization", f"Bearer {key}"))
    if endpoint.api == "anthropic.messages":
        own.append(("anthropic-version", ANTHROPIC_VERSION))
    for given in asked.header or ():
        name, colon, value = given.partition(":")
        if not colon or not name.strip():
            raise UserError('--header: write it like "Name: value" (the one given has no name or no colon)')
        secret.append((name.strip(), value.strip()))
    return tuple(own), tuple(secret)
