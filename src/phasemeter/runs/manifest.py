"""What is on record before the first request: asked, told by the server, or unrecorded.

Lives here: filling records/manifest from settings and probe. Must not live here: a guess, or a secret.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import msgspec

from phasemeter import __version__
from phasemeter.io.precedence import NORMAL, available, cores
from phasemeter.io.proxy import is_loopback, shown
from phasemeter.records.manifest import Manifest
from phasemeter.runs.prepare import Prepared
from phasemeter.runs.privacy import DROPPING
from phasemeter.runs.probe import Probed, facts_of
from phasemeter.runs.settings import Settings
from phasemeter.workload.plan import WorkloadSpec

SERVICE_FIELDS = frozenset(Manifest.__struct_fields__)


def client_machine() -> dict[str, Any]:
    """The machine that the client runs on, as far as it bears on times."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": cores(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _rate(spec: WorkloadSpec) -> float | str | None:
    return "inf" if spec.arrivals.kind == "inf" else spec.arrivals.rate_per_s


def _service(contract: Any, probed: Probed) -> tuple[dict[str, Any], dict[str, str]]:
    """What the contract declares of the service, and over it what the server itself says; each with its source."""
    fields: dict[str, Any] = {}
    sources: dict[str, str] = {}
    declared = contract.service if contract else {}
    for source, told in (("contract", declared), (None, probed.identity.fields)):
        for name, value in told.items():
            if name in SERVICE_FIELDS:
                fields[name] = value
                sources[name] = source or probed.identity.sources.get(name, "server")
    return fields, sources


def manifest_of(ready: Prepared, run_id: str, started_utc: str) -> Manifest:
    """The manifest of a measured run. Holds header names, never their values."""
    settings, probed = ready.settings, ready.probed
    spec, asked = settings.spec, settings.asked
    service, sources = _service(settings.contract, probed)
    models = probed.models
    if models:
        service["model"] = (
            models[0][0] if len(models) == 1 else ", ".join(f"{name}={weight:g}" for name, weight in models)
        )
        sources["model"] = "asked" if settings.models else "GET /models"
    limits = settings.target.limits
    known = Manifest(
        version=__version__,
        run_id=run_id,
        started_utc=started_utc,
        url=settings.url,
        api=spec.api,
        input_tokens=_told(spec.input_tokens, spec, "input_tokens"),
        output_tokens=_told(spec.output_tokens, spec, "output_tokens"),
        arrivals=spec.arrivals.words(),
        rate_per_s=_rate(spec),
        concurrency=spec.concurrency,
        requests=spec.requests,
        duration_s=spec.duration_s,
        warmup={"requests": spec.warmup_requests, "seconds": spec.warmup_s},
        repetitions=asked.repeat,
        seed=spec.seed,
        prompt_set_hash=ready.prompt_set,
        sampling=_sampling(settings, probed),
        streaming=spec.stream,
        body={
            "prompts": ready.source.words(),
            "extra": probed.body.extra,
            "headers": list(settings.header_names),
            "prefix": f"{spec.prefix_groups}:{spec.prefix_tokens}" if spec.prefix_groups else None,
            "turns": spec.turns,
        },
        prompt_lengths=facts_of(probed),
        network_path="loopback" if is_loopback(settings.target.host) else None,
        proxy=shown(settings.target.proxy) or "none",
        protocol="https/1.1" if settings.target.tls else "http/1.1",
        processes=asked.processes,
        timeouts_s={
            "connect": limits.connect_s, "first_byte": limits.first_byte_s, "idle": limits.idle_s, "total": limits.total_s,
        },
        tokenizer=asked.tokenizer,
        client=client_machine() | {"scheduling": available(asked.processes) if asked.real_time else NORMAL},
        text=DROPPING if asked.no_text else None,
        notes=(*settings.notes, *probed.notes),
        sources=sources,
    )  # fmt: skip
    return msgspec.structs.replace(known, **service)


def _told(lengths: Any, spec: WorkloadSpec, which: str) -> Any:
    """A distribution in words, by class where there are classes."""
    if spec.classes:
        return {each.name: getattr(each, which).words() if getattr(each, which) else None for each in spec.classes}
    return None if lengths is None else lengths.words()


def _sampling(settings: Settings, probed: Probed) -> dict[str, Any]:
    body = probed.body
    return {
        "temperature": body.temperature, "top_p": body.top_p, "stop": list(body.stop), "n": settings.spec.n,
        "ignore_eos": probed.ignore_eos,
    }  # fmt: skip
