"""A contract in words: commented starters, what would have to be seen to pass, a JSON Schema for editors.

Lives here: text about contracts. Must not live here: reading one (model.py) or judging a run (verdict.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phasemeter.contract import names
from phasemeter.contract.model import (
    KINDS,
    OF_THE_WHOLE,
    PERCENTILES,
    PHASES,
    SERVER_BOUNDARIES,
    SERVICE,
    Capacity,
    Contract,
    Objective,
)
from phasemeter.contract.reading import ARRIVALS, LENGTHS, THINK
from phasemeter.metrics.definitions import BOUNDARIES
from phasemeter.stats.intervals import smallest_n

_LEADS = {
    "chat": "A person waits and reads along: the first token's tail and an even cadence lead.",
    "batch": "Nobody watches: tokens per second, total time and cost lead; latency only bounds the worst.",
    "long-generation": "Long answers: the start once, then cadence, stalls and cost over thousands of tokens.",
}
_STARTERS = {
    "chat": {
        "input": "{lognormal: {median: 512, p95: 2048}}", "output": "{lognormal: {median: 128, p95: 512}}",
        "arrivals": "{poisson: 4 req/s}", "objective": "ttft.p99",
        "slo": ["ttft: {p95: 450 ms, p99: 1 s}", "tpot: {p95: 25 ms}", "jitter: {p95: 50 ms}"],
        "capacity": ["objectives: {ttft: 450 ms, tpot: 25 ms}   # each request, both at once", "attainment: 95 %",
                     "goodput: 3.5 req/s              # good requests a second that are needed", "error_budget: 1 %"],
    },
    "batch": {
        "input": "{lognormal: {median: 6000, p95: 16000}}", "output": "{fixed: 256}",
        "arrivals": "{concurrency: 32}", "objective": "throughput.mean",
        "slo": ["e2e: {p99: 120 s}"],
        "capacity": ["output_tokens_per_s: 1500/s", "requests_per_s: 5/s", "error_budget: 0.5 %"],
    },
    "long-generation": {
        "input": "{fixed: 512}", "output": "{lognormal: {median: 2048, p95: 6000}}",
        "arrivals": "{poisson: 0.5 req/s}", "objective": "tpot.p95",
        "slo": ["ttft: {p95: 2 s}", "tpot: {p95: 40 ms}", "inter_chunk: {p99: 120 ms}   # every gap, all requests pooled",
                "jitter: {p95: 80 ms}"],
        "capacity": ["objectives: {tpot: 40 ms}", "attainment: 95 %", "error_budget: 1 %"],
    },
}  # fmt: skip


def starter(kind: str) -> str:
    """A contract to begin with, commented; `kind` is one of KINDS. It parses as it stands."""
    part = _STARTERS[kind]
    price = kind != "chat"
    lines = [
        f"# {_LEADS[kind]}",
        "# Check a run against it: phasemeter check RUN --contract THIS_FILE",
        "phasemeter: 1",
        "workload:",
        "  api: openai.chat",
        f"  input_tokens: {part['input']}   # or 512, {{uniform: [32, 128]}}, {{normal: {{mean: 512, sd: 64}}}}",
        f"  output_tokens: {part['output']}",
        f"  arrivals: {part['arrivals']}   # or constant, gamma, burst, ramp, steps, concurrency, trace",
        f"  kind: {kind}",
        f"  objective: {part['objective']}   # what leads when runs are ranked",
        "latency_slo:              # limits on percentiles; a failed request counts as one that never answered",
        *(f"  {line}" for line in part["slo"]),
        "# phase_budget:           # needs server evidence (bench --server-metrics)",
        "#   queue:   {p95: 100 ms}",
        "#   prefill: {p95: 250 ms}",
        "capacity:",
        *(f"  {line}" for line in part["capacity"]),
        *(["cost:                     # from the price you pay", "  price_per_hour: 2.50", "  currency: USD",
           "  per_million_output_tokens: 5"] if price else []),
        "observability:",
        "  client: [sent, first_output, last_token]",
        "confidence: 95 %",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def explain(contract: Contract) -> list[str]:
    """What would have to be seen to pass, a line each."""
    percent = f"{100 * contract.confidence:g} %"
    lines = [*_workload_words(contract)]
    lines += [_objective_words(line, contract.confidence) for line in contract.objectives]
    for capacity in contract.capacities:
        lines += _capacity_words(capacity)
    if contract.cost and contract.cost.per_million_output_tokens:
        lines.append(
            f"cost: at {contract.cost.price_per_hour:g} {contract.cost.currency} an hour, a million output tokens cost at"
            f" most {contract.cost.per_million_output_tokens:g} {contract.cost.currency}."
        )
    for side, wanted in (("client", contract.client_boundaries), ("server", contract.server_boundaries)):
        if wanted:
            lines.append(f"on record from the {side}: {', '.join(wanted)}; what is missing is a missed line.")
    lines.append(
        f"met: the whole {percent} interval is on the good side; missed: on the bad side; undecided: between, with the number"
        " of requests that would decide. Missed beats undecided beats met. An invalid run decides nothing."
    )
    return lines


def _workload_words(contract: Contract) -> Iterator[str]:
    for each in contract.classes or (contract.workload,):
        lead = f"workload {each.name} ({100 * each.share:g} % of the load)" if each.name else "workload"
        parts = [f"{name} {_short(value)}" for name, value in (
            ("input tokens", each.input_tokens), ("output tokens", each.output_tokens),
            ("arrivals", None if each.name else each.arrivals),
        ) if value is not None]  # fmt: skip
        leads = f" {_LEADS[each.kind]}" if each.kind else ""
        yield f"{lead}: {', '.join(parts) or 'any'}.{leads}"
    if contract.classes and contract.workload.arrivals is not None:
        yield f"arrivals of all classes together: {_short(contract.workload.arrivals)}."


def _short(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    kind, inner = next(iter(value.items()))
    if isinstance(inner, dict):
        return f"{kind} ({', '.join(f'{k} {v:g}' for k, v in inner.items())})"
    return f"{kind} {inner}"


def seconds(value: float) -> str:
    """Seconds as a person writes them: "450 ms", "4 s"."""
    return f"{1000 * value:.4g} ms" if value < 1 else f"{value:.4g} s"


def _objective_words(line: Objective, confidence: float) -> str:
    of = f" of {line.workload_class}" if line.workload_class else ""
    limit = seconds(line.limit_s)
    if line.statistic == "mean":
        return f"{line.path}: the mean of {line.metric}{of} is at most {limit}."
    share = 100 * PERCENTILES[line.statistic]
    meaning = "server-side phase" if line.phase else names.definition_of(line.metric).line()
    unit = "gaps" if not line.phase and line.metric in names.gaps() else "requests"
    least = smallest_n(PERCENTILES[line.statistic], confidence)
    return (
        f"{line.path}: {share:g} % of {unit}{of} have {line.metric} ({meaning}) at most {limit}; it can be met from about"
        f" {least} {unit} on, if none exceeds it."
    )


def _capacity_words(capacity: Capacity) -> Iterator[str]:
    if capacity.objectives and (capacity.attainment is not None or capacity.goodput_per_s is not None):
        joint = " and ".join(f"{metric} ≤ {seconds(limit)}" for metric, limit in capacity.objectives.items())
        yield f"{capacity.path}: a request is good when {joint}, all at once; a failed one is bad."
    if capacity.attainment is not None:
        yield f"{capacity.path}.attainment: at least {100 * capacity.attainment:g} % of requests are good."
    if capacity.goodput_per_s is not None:
        yield (
            f"{capacity.path}.goodput: at least {capacity.goodput_per_s:g} good requests a second; a run offered less leaves"
            " it undecided."
        )
    if capacity.error_budget is not None:
        yield f"{capacity.path}.error_budget: at most {100 * capacity.error_budget:g} % of requests fail."
    for name, value in (("requests", capacity.requests_per_s), ("output_tokens", capacity.output_tokens_per_s)):
        if value is not None:
            yield f"{capacity.path}.{name}_per_s: at least {value:g} {name.replace('_', ' ')} a second."


def schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of the contract's form, for editors."""
    duration = {
        "type": ["string", "number"],
        "description": 'a duration with its unit, like "450 ms"',
        "examples": ["450 ms"],
    }
    rate = {"type": ["string", "number"], "examples": ["3.5 req/s"]}
    share = {"type": ["string", "number"], "examples": ["99 %", 0.99]}
    limits = _closed(dict.fromkeys([*PERCENTILES, "mean"], duration)) | {"minProperties": 1}
    metrics = [*names.per_request(), *names.gaps()]
    promises = {
        "latency_slo": {
            "type": "object", "properties": dict.fromkeys(metrics, limits),
            "patternProperties": {"^[a-z-]+:[a-z0-9_]+$": limits}, "additionalProperties": False,
        },
        "phase_budget": _closed(dict.fromkeys(PHASES, limits)),
        "capacity": _closed({
            "objectives": {"type": "object", "additionalProperties": duration}, "attainment": share, "goodput": rate,
            "error_budget": share, "requests_per_s": rate, "output_tokens_per_s": rate,
        }),
    }  # fmt: skip
    workload = {
        "api": {"type": "string"}, "stream": {"type": "boolean"}, "input_tokens": _choice(LENGTHS),
        "output_tokens": _choice(LENGTHS), "arrivals": _choice(ARRIVALS, beside=(THINK,)), "kind": {"enum": list(KINDS)},
        "objective": {"type": "string", "examples": ["ttft.p99"]},
    }  # fmt: skip
    of_a_class = {name: form for name, form in workload.items() if name not in OF_THE_WHOLE}
    one_class = _closed({**of_a_class, **promises, "share": share}) | {"required": ["share"]}
    money = {"type": "number", "exclusiveMinimum": 0}
    observability = {
        "client": {"type": "array", "items": {"enum": list(BOUNDARIES)}},
        "server": {"type": "array", "items": {"enum": list(SERVER_BOUNDARIES)}},
    }
    top = {
        "phasemeter": {"const": 1},
        "workload": _closed({**workload, "classes": {"type": "object", "additionalProperties": one_class}}),
        **promises,
        "cost": _closed({"price_per_hour": money, "currency": {"type": "string"}, "per_million_output_tokens": money})
        | {"required": ["price_per_hour"]},
        "observability": _closed(observability),
        "service": _closed({name: {} for name in SERVICE}),
        "confidence": share,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "phasemeter contract", **_closed(top),
            "required": ["phasemeter"]}  # fmt: skip


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _choice(kinds: dict[str, tuple[str, ...]], beside: tuple[str, ...] = ()) -> dict[str, Any]:
    names = (*kinds, *beside)
    one = _closed({name: {} for name in names}) | {"minProperties": 1, "maxProperties": 1 + len(beside)}
    return {"anyOf": [{"type": ["integer", "string"]}, one]}
