"""Timings in response headers: TGI, OpenAI, Envoy, Fireworks, Server-Timing.

Lives here: header names and what each spans. Must not live here: HTTP parsing (wire/).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from phasemeter.records.evidence import EvidenceValue
from phasemeter.server.timings import Timings, faults_of, number

# header: (engine, phase, factor to seconds, start, end, definition)
Span = tuple[str, str, float, str | None, str | None, str]
KNOWN: Mapping[str, Span] = {
    "x-validation-time": ("tgi", "ingress", 1e-3, "arrival", "queue_enter", "validation; whole ms, truncated"),
    "x-queue-time": ("tgi", "queue", 1e-3, "queue_enter", "prefill_start", "in the router's queue; whole ms, truncated"),
    "x-inference-time": ("tgi", "inference", 1e-3, "prefill_start", "complete", "prefill and decode; whole ms, truncated"),
    "x-time-per-token": ("tgi", "time_per_token", 1e-3, None, None, "inference / tokens, prefill included; whole ms, truncated"),
    "x-total-time": ("tgi", "e2e", 1e-3, "arrival", "complete", "whole request; whole ms, truncated"),
    "openai-processing-ms": (
        "openai", "processing", 1e-3, None, None, "undocumented; neither contains nor is inside the gateway's upstream time",
    ),
    "x-envoy-upstream-service-time": (
        "envoy", "upstream", 1e-3, None, None, "the gateway's wait for response headers, its network included",
    ),
    "fireworks-server-time-to-first-token": ("fireworks", "ttft", 1.0, None, "first_token", "server TTFT"),
    "fireworks-prefill-queue-duration": ("fireworks", "queue", 1.0, "queue_enter", "prefill_start", "before prefill"),
    "fireworks-prefill-duration": ("fireworks", "prefill", 1.0, "prefill_start", "first_token", "prefill"),
    "fireworks-generation-queue-duration": ("fireworks", "decode_queue", 1.0, None, None, "before generation"),
    "fireworks-server-processing-time": ("fireworks", "processing", 1.0, None, None, "server processing"),
}  # fmt: skip

# Server-Timing names whose meaning an engine documents; any other name is the origin's own
SERVER_TIMING: Mapping[str, tuple[str, str, str | None, str | None]] = {
    "server_queue": ("trtllm", "queue", "queue_enter", "prefill_start"),
    "server_ttft": ("trtllm", "ttft", "arrival", "first_token"),
    "server_e2e": ("trtllm", "e2e", "arrival", "complete"),
}

_PARAMETER = re.compile(r';\s*([^\s;,="]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?')
_METRIC = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)")


def server_timing(value: str) -> list[tuple[str, float | None]]:
    """`name;dur=ms;desc="…"` entries as (name, seconds or None without a readable `dur`). W3C Server Timing."""
    entries, at = [], 0
    while match := _METRIC.match(value, at):
        name, at, duration = match[1], match.end(), None
        while parameter := _PARAMETER.match(value, at):
            at = parameter.end()
            if parameter[1].lower() == "dur" and duration is None and parameter[2]:
                told = number(parameter[2].strip('"'))
                duration = None if told is None else told / 1e3
        entries.append((name, duration))
        comma = value.find(",", at)
        if comma < 0:
            break
        at = comma + 1
    return entries


def timings_in_headers(headers: Sequence[tuple[str, str]] | Mapping[str, str]) -> list[Timings]:
    """Every timing in one response's headers, by engine. Underscores count as hyphens (extracted headers are often so)."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    values: dict[str, list[EvidenceValue]] = {}
    notes: dict[str, list[str]] = {}
    for raw_name, text in pairs:
        name = raw_name.lower().replace("_", "-")
        if name == "server-timing":
            for metric, seconds in server_timing(text):
                engine, phase, start, end = SERVER_TIMING.get(metric, ("origin", metric, None, None))
                if seconds is None:
                    notes.setdefault(engine, []).append(f"no_duration: Server-Timing `{metric}` has no readable dur")
                    continue
                meaning = (
                    "as the engine documents it" if metric in SERVER_TIMING else "the origin alone says what it means"
                )
                values.setdefault(engine, []).append(
                    EvidenceValue(
                        phase=phase, value_s=seconds, start=start, end=end, clock="duration_only", definition=meaning,
                        source=f"{engine}: header Server-Timing `{metric}`", warnings=faults_of(seconds),
                    )
                )  # fmt: skip
        elif name in KNOWN:
            engine, phase, factor, start, end, definition = KNOWN[name]
            told = number(text)
            if told is None:
                if text not in {None, ""}:
                    notes.setdefault(engine, []).append(f"unreadable: header {name} is no finite number: {text[:20]!r}")
                continue
            values.setdefault(engine, []).append(
                EvidenceValue(
                    phase=phase, value_s=told * factor, start=start, end=end, clock="duration_only", definition=definition,
                    source=f"{engine}: header {name}", warnings=faults_of(told * factor),
                )
            )  # fmt: skip
    engines = dict.fromkeys([*values, *notes])
    return [Timings(engine=e, values=tuple(values.get(e, ())), notes=tuple(notes.get(e, ()))) for e in engines]
