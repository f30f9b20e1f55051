"""Timings that a server writes into a response: body fields and headers, each as a value with its own definition.

Lives here: one reader a format, plain dict or headers in, EvidenceValue out. Must not live here: finding them in a stream
(wire/) or subtracting client instants (phases/). Equal names mean different things: never key on the field's name alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from phasemeter.records.evidence import ClockDomain, EvidenceInstant, EvidenceValue

LONGEST_S = 1e6  # twelve days: above it a "duration" is an instant, or a difference of two different clocks
LATEST_S = 1e10  # the year 2286: no instant of a server's is later
FASTEST_PER_S = 1e5  # tokens per second of one request: above it a throughput is a division by nothing

Json = Mapping[str, Any]


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """What one response told. `notes`: fields that were refused, and why."""

    engine: str
    values: tuple[EvidenceValue, ...] = ()
    instants: tuple[EvidenceInstant, ...] = ()
    notes: tuple[str, ...] = ()
    request_id: str | None = None


class _Field(msgspec.Struct, frozen=True):
    """One field: where it stands, the unit it is in, and what it spans."""

    name: str
    phase: str
    factor: float
    start: str | None
    end: str | None
    definition: str


def number(value: object) -> float | None:
    """A finite number from JSON or a header, else None (absent, or NaN or text)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def faults_of(value_s: float) -> tuple[str, ...]:
    """Why a duration can't be one: negative, or so long that two clocks were mixed. The value itself stays as told."""
    if abs(value_s) > LONGEST_S:
        return ("implausible: longer than 12 days: two clocks were mixed",)
    if value_s < 0:
        return ("negative: a clock stepped, or two clocks were mixed",)
    return ()


def _read(engine: str, place: str, fields: Sequence[_Field], data: Json, clock: ClockDomain) -> list[EvidenceValue]:
    values = []
    for field in fields:
        told = number(data.get(field.name))
        if told is None:
            continue
        value = told * field.factor
        values.append(
            EvidenceValue(
                phase=field.phase, value_s=value, start=field.start, end=field.end, clock=clock,
                source=f"{engine}: {place} `{field.name}`", definition=field.definition, warnings=faults_of(value),
            )
        )  # fmt: skip
    return values


def _unreadable(place: str, fields: Sequence[_Field], data: Json) -> list[str]:
    names = [f.name for f in fields if data.get(f.name) is not None and number(data.get(f.name)) is None]
    return [f"unreadable: {place} `{name}` is no finite number" for name in names]


def _simple(
    engine: str, place: str, fields: Sequence[_Field], clock: ClockDomain = "duration_only"
) -> Callable[[Json], Timings]:
    def reader(data: Json) -> Timings:
        values = tuple(_read(engine, place, fields, data, clock))
        return Timings(engine=engine, values=values, notes=tuple(_unreadable(place, fields, data)))

    return reader


MS, NS = 1e-3, 1e-9

VLLM_METRICS = (
    _Field("queue_time_ms", "queue", MS, "queue_enter", "prefill_start", "first scheduled − queued"),
    _Field(
        "time_to_first_token_ms", "prefill", MS, "prefill_start", "first_token",
        "first token − first SCHEDULED: counts from scheduling, so it is prefill and no TTFT",
    ),
    _Field("generation_time_ms", "decode", MS, "first_token", "decode_end", "last token − first token"),
    _Field("mean_itl_ms", "tpot", MS, None, None, "generation time / (tokens − 1)"),
)  # fmt: skip

OLLAMA = (
    _Field("total_duration", "e2e", NS, "arrival", "complete", "whole request"),
    _Field(
        "load_duration",
        "load",
        NS,
        "arrival",
        "prefill_start",
        "whole scheduling wait: load, runner queue, preparation",
    ),
    _Field("prompt_eval_duration", "prefill", NS, "prefill_start", "first_token", "prompt evaluation"),
    _Field("eval_duration", "decode", NS, "first_token", "decode_end", "generation"),
)

GROQ = (
    _Field("queue_time", "queue", 1.0, "queue_enter", "prefill_start", "in the queue; not inside total_time"),
    _Field("prompt_time", "prefill", 1.0, "prefill_start", "first_token", "prompt processing"),
    _Field("completion_time", "decode", 1.0, "first_token", "decode_end", "generation"),
    _Field("total_time", "inference", 1.0, "prefill_start", "decode_end", "prompt + completion; the queue is left out"),
)

CEREBRAS = (
    *GROQ[:3],
    _Field("total_time", "e2e", 1.0, "arrival", "complete", "whole request; exceeds the sum of its parts"),
)

DYNAMO = (
    _Field(
        "prefill_wait_time_ms",
        "queue",
        MS,
        "arrival",
        "prefill_start",
        "received − sent to a prefill worker, at the frontend",
    ),
    _Field(
        "prefill_time_ms",
        "prefill",
        MS,
        "prefill_start",
        "first_token",
        "at the frontend: contains the worker's own queue",
    ),
    _Field("ttft_ms", "ttft", MS, "arrival", "first_token", "first response − received, at the frontend"),
    _Field("total_time_ms", "e2e", MS, "arrival", "complete", "whole request at the frontend"),
)

_LLAMACPP = (
    _Field(
        "prompt_ms",
        "prefill",
        MS,
        "prefill_start",
        "first_token",
        "from the slot's first batch; waiting for a slot excluded",
    ),
    _Field("predicted_ms", "decode", MS, "first_token", "decode_end", "generation after the first token"),
)


def llamacpp(timings: Json) -> Timings:
    """llama.cpp `timings`. TPOT is recomputed as predicted_ms / (predicted_n − 1): builds differ in the divisor they use.

    With one token it is undefined, and left out.
    """
    values = _read("llamacpp", "body timings", _LLAMACPP, timings, "engine_monotonic")
    predicted_ms, tokens = number(timings.get("predicted_ms")), number(timings.get("predicted_n"))
    notes = _unreadable("timings", _LLAMACPP, timings)
    if predicted_ms is not None and tokens is not None and tokens >= 2:
        tpot = predicted_ms * MS / (tokens - 1)
        values.append(
            EvidenceValue(
                phase="tpot", value_s=tpot, clock="engine_monotonic", source="llamacpp: body timings `predicted_ms`",
                definition="predicted_ms / (predicted_n − 1), recomputed", warnings=faults_of(tpot),
            )
        )  # fmt: skip
        told = number(timings.get("predicted_per_token_ms"))
        if told is not None and abs(told - predicted_ms / tokens) < 1e-6 * max(told, 1e-9):
            notes.append("older_build: predicted_per_token_ms divides by predicted_n, not n − 1; recomputed")
    return Timings(engine="llamacpp", values=tuple(values), notes=tuple(notes))


_SGLANG = (
    _Field("e2e_latency", "e2e", 1.0, "arrival", "complete", "finished − received"),
    _Field("queue_time", "queue", 1.0, "queue_enter", "prefill_start", "waits in the queue, re-entries added up"),
    _Field("first_token_latency", "ttft", 1.0, "arrival", "first_token", "first token received − request received"),
)
_SGLANG_INSTANTS = {
    "request_received_ts": "arrival",
    "api_server_dispatch_finish_ts": "dispatched",
    "forward_entry_time": "prefill_start",
    "prefill_finished_time": "prefill_end",
    "response_sent_to_client_ts": "first_chunk_sent",
    "request_finished_ts": "complete",
}


def sglang(meta: Json) -> Timings:
    """SGLang `meta_info`, or a line of its metrics file. Stamps are perf_counter plus an offset calibrated per request.

    `decode_throughput` of impossible size (a division by almost nothing, seen at 3.3e7) is refused with a note.
    """
    values = _read("sglang", "meta_info", _SGLANG, meta, "engine_wall")
    notes = _unreadable("meta_info", _SGLANG, meta)
    stamps = {name: number(meta.get(name)) for name in _SGLANG_INSTANTS}
    request = meta.get("id") or meta.get("rid")
    request = request if isinstance(request, str) else None
    instants = [
        EvidenceInstant(
            boundary=boundary, at_ns=round(stamp * 1e9), source=f"sglang: meta_info `{name}`", clock="engine_wall",
            request_id=request,
        )
        for name, boundary in _SGLANG_INSTANTS.items()
        if (stamp := stamps[name]) is not None and abs(stamp) < LATEST_S
    ]  # fmt: skip
    for phase, start, end, first, last in (
        ("prefill", "prefill_start", "prefill_end", "forward_entry_time", "prefill_finished_time"),
        ("decode", "prefill_end", "complete", "prefill_finished_time", "request_finished_ts"),
    ):
        a, b = stamps[first], stamps[last]
        if a is not None and b is not None:
            values.append(
                EvidenceValue(
                    phase=phase, value_s=b - a, start=start, end=end, clock="engine_wall",
                    source=f"sglang: meta_info `{last}` − `{first}`", definition=f"{last} − {first}", warnings=faults_of(b - a),
                )
            )  # fmt: skip
    throughput = number(meta.get("decode_throughput"))
    if throughput is not None and not 0 < throughput <= FASTEST_PER_S:
        notes.append(f"implausible: decode_throughput {throughput:.3g} token/s: refused")
    if (number(meta.get("num_retractions")) or 0) > 0:
        notes.append("retracted: queue_time adds up several waits, so prefill_start − queue_time is no instant")
    return Timings(
        engine="sglang", values=tuple(values), instants=tuple(instants), notes=tuple(notes), request_id=request
    )


_TRT_PHASES = (
    ("ingress", "server_arrival_time", "arrival_time", "arrival", "queue_enter", "HTTP server to executor"),
    (
        "queue",
        "arrival_time",
        "first_scheduled_time",
        "queue_enter",
        "prefill_start",
        "executor arrival to first schedule",
    ),
    (
        "prefill",
        "first_scheduled_time",
        "first_token_time",
        "prefill_start",
        "prefill_end",
        "first schedule to first token",
    ),
    ("handoff", "first_token_time", "server_first_token_time", "prefill_end", "first_token", "executor to HTTP server"),
    ("decode", "first_token_time", "last_token_time", "first_token", "decode_end", "last − first token"),
    ("ttft", "server_arrival_time", "server_first_token_time", "arrival", "first_token", "at the HTTP server"),
    ("kv_transfer", "kv_cache_transfer_start", "kv_cache_transfer_end", None, None, "KV cache moved between pools"),
)


def trtllm(entry: Json) -> list[Timings]:
    """One entry of TensorRT-LLM's `/perf_metrics`: aggregated, or disaggregated (context and generation servers apart).

    Phases of the generation server carry the prefix `gen_`: the same request crosses two engines, and their e2e never add.
    """
    found = []
    for key, prefix in (("perf_metrics", ""), ("ctx_perf_metrics", ""), ("gen_perf_metrics", "gen_")):
        block = entry.get(key)
        if not isinstance(block, Mapping):
            continue
        inner = block.get("perf_metrics", block)
        timing = inner.get("timing_metrics") if isinstance(inner, Mapping) else None
        request = block.get("request_id", entry.get("request_id"))
        if isinstance(timing, Mapping):
            told = _trt_timing(timing, prefix, None if request is None else str(request))
            if key == "ctx_perf_metrics":  # it makes the first token and no other: its decode is no decode
                told = msgspec.structs.replace(told, values=tuple(v for v in told.values if v.phase != "decode"))
            found.append(told)
    first, arrival = (
        number(entry.get("disagg_server_first_token_time")),
        number(entry.get("disagg_server_arrival_time")),
    )
    if first is not None and arrival is not None:
        value = EvidenceValue(
            phase="disagg_ttft", value_s=first - arrival, start="arrival", end="first_token", clock="engine_monotonic",
            source="trtllm: perf_metrics `disagg_server_*`", definition="at the disaggregated frontend",
            warnings=faults_of(first - arrival),
        )  # fmt: skip
        found.append(Timings(engine="trtllm", values=(value,)))
    return found


def _trt_timing(timing: Json, prefix: str, request: str | None) -> Timings:
    values = []
    for phase, first, last, start, end, words in _TRT_PHASES:
        a, b = number(timing.get(first)), number(timing.get(last))
        if a is None or b is None or (phase == "kv_transfer" and a == b == 0):
            continue
        values.append(
            EvidenceValue(
                phase=prefix + phase, value_s=b - a, start=start, end=end, clock="engine_monotonic", request_id=request,
                source=f"trtllm: perf_metrics `{last}` − `{first}`", definition=words, warnings=faults_of(b - a),
            )
        )  # fmt: skip
    return Timings(engine="trtllm", values=tuple(values), request_id=request)


def vllm_request_metrics(data: Json) -> Timings:
    """vLLM V0 `RequestMetrics`: instants whose clocks are sometimes mixed (arrival monotonic, the rest epoch)."""
    values, notes = [], []
    for phase, first, last, start, end in (
        ("queue", "arrival_time", "first_scheduled_time", "arrival", "prefill_start"),
        ("prefill", "first_scheduled_time", "first_token_time", "prefill_start", "first_token"),
        ("ttft", "arrival_time", "first_token_time", "arrival", "first_token"),
        ("decode", "first_token_time", "last_token_time", "first_token", "decode_end"),
        ("e2e", "arrival_time", "finished_time", "arrival", "complete"),
    ):
        a, b = number(data.get(first)), number(data.get(last))
        if a is None or b is None:
            continue
        values.append(
            EvidenceValue(
                phase=phase, value_s=b - a, start=start, end=end, clock="engine_wall", definition=f"{last} − {first}",
                source=f"vllm: RequestMetrics `{last}` − `{first}`", warnings=faults_of(b - a),
            )
        )  # fmt: skip
    if data.get("last_token_time") is not None and data.get("last_token_time") == data.get("arrival_time"):
        notes.append("stale: last_token_time equals arrival_time: it was never set, so decode is refused")
        values = [value for value in values if value.phase != "decode"]
    return Timings(engine="vllm", values=tuple(values), notes=tuple(notes))


READERS: Mapping[str, Callable[[Json], Timings]] = {
    "vllm": _simple("vllm", "body metrics", VLLM_METRICS, "engine_monotonic"),
    "vllm_request_metrics": vllm_request_metrics,
    "llamacpp": llamacpp,
    "ollama": _simple("ollama", "body", OLLAMA),
    "groq": _simple("groq", "body usage", GROQ),
    "cerebras": _simple("cerebras", "body time_info", CEREBRAS),
    "dynamo": _simple("dynamo", "body nvext.timing", DYNAMO),
    "sglang": sglang,
}


def found_in(body: Json) -> list[Timings]:
    """Every timing in one response body or chunk, by shape. Empty when there is none."""
    found = []
    places: list[tuple[str, object]] = [
        ("vllm", _dict_with(body.get("metrics"), "time_to_first_token_ms", "queue_time_ms", "generation_time_ms")),
        ("vllm_request_metrics", body if "first_scheduled_time" in body and "arrival_time" in body else None),
        ("llamacpp", _dict_with(body.get("timings"), "prompt_ms", "predicted_ms")),
        ("ollama", body if "total_duration" in body or "eval_duration" in body else None),
        ("groq", _dict_with(body.get("usage"), "completion_time", "queue_time", "prompt_time")),
        ("cerebras", _dict_with(body.get("time_info"), "total_time", "completion_time", "queue_time")),
        ("dynamo", _dict_with(_inner(body, "nvext", "timing"), "ttft_ms", "total_time_ms", "request_received_ms")),
        ("sglang", _dict_with(body.get("meta_info"), "e2e_latency", "queue_time", "prefill_finished_time")),
        ("sglang", body if "e2e_latency" in body or "forward_entry_time" in body else None),
    ]
    for kind, data in places:
        if isinstance(data, Mapping):
            found.append(READERS[kind](data))
    if any(key in body for key in ("perf_metrics", "ctx_perf_metrics", "gen_perf_metrics")):
        found += trtllm(body)
    return found


def _dict_with(value: object, *names: str) -> object:
    return value if isinstance(value, Mapping) and any(name in value for name in names) else None


def _inner(body: Json, *path: str) -> object:
    value: object = body
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
