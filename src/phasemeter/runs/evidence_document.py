"""The evidence document's shape: `engines.<engine>.<phase>` with source, clock, unit, definition, n, sum, mean, quantiles.

Lives here: blocks of JSON. Must not live here: recognising files (evidence_files.py) or any engine's meaning (server/).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.records.evidence import EvidenceValue
from phasemeter.server.exposition import Page
from phasemeter.server.histograms import quantile_bounds
from phasemeter.server.prometheus import EngineReading, Reading
from phasemeter.server.timings import Timings
from phasemeter.server.windows import window_mismatches

QUANTILES = {
    "p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p99.9": 0.999,
}  # fmt: skip
RANK_RULE = "the ⌈q·n⌉-th smallest; bounds, never interpolated"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the reader of the evidence knows besides: our own counts, the time between two pages, names to look for."""

    requests: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None
    want: tuple[str, ...] = ()
    model: str | None = None


def phases_of(timings: Sequence[Timings]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per-request values by engine and phase; several sources of one phase stand beside each other, never added."""
    grouped: dict[str, dict[str, dict[str, list[EvidenceValue]]]] = {}
    for timing in timings:
        for value in timing.values:
            source = value.source
            grouped.setdefault(timing.engine, {}).setdefault(value.phase, {}).setdefault(source, []).append(value)
    answer: dict[str, dict[str, dict[str, Any]]] = {}
    for engine, phases in grouped.items():
        answer[engine] = {}
        for phase, sources in phases.items():
            blocks = [_exact(values) for values in sources.values()]
            answer[engine][phase] = blocks[0] | ({"also": blocks[1:]} if len(blocks) > 1 else {})
    return answer


def _exact(values: Sequence[EvidenceValue]) -> dict[str, Any]:
    """Per-request values of one source: exact order statistics, so low and high are equal. Impossible ones are left out."""
    good = sorted(v.value_s for v in values if not any(w.startswith("implausible") for w in v.warnings))
    left_out = len(values) - len(good)
    first = values[0]
    warnings = sorted({warning for value in values for warning in value.warnings})
    quantiles = {
        name: {
            "low": good[max(0, math.ceil(q * len(good) - 1e-9) - 1)],
            "high": good[max(0, math.ceil(q * len(good) - 1e-9) - 1)],
        }
        for name, q in QUANTILES.items()
        if good
    }
    return {
        "status": "present" if good else "implausible", "source": first.source, "clock": first.clock, "unit": "s",
        "start": first.start, "end": first.end, "definition": first.definition, "n": len(good),
        "sum": math.fsum(good) if good else None, "mean": math.fsum(good) / len(good) if good else None,
        "quantiles": quantiles, "left_out": left_out, "warnings": warnings,
    }  # fmt: skip


def engine_block(reading: EngineReading, asked: Asked) -> dict[str, Any]:
    """All quantities of one engine's pages, with what follows from them and what is absent."""
    answer: dict[str, Any] = {"window": reading.window, "models": list(reading.models)}
    absent = []
    for key, found in reading.readings.items():
        if found.status == "absent":
            absent.append(key)
        answer[key] = _reading(found, asked, window=reading.window)
    answer["absent"] = absent
    answer |= _derived(answer)
    warnings = list(reading.warnings)
    if asked.requests is not None or asked.output_tokens is not None:
        warnings += window_mismatches(reading, asked.requests, asked.output_tokens)
    answer["warnings"] = warnings
    return answer


def _reading(found: Reading, asked: Asked, *, window: bool) -> dict[str, Any]:
    row = found.row
    block: dict[str, Any] = {
        "status": found.status, "reason": found.reason, "source": found.metric, "definition": row.definition, "unit": row.unit,
        "warnings": list(found.warnings),
    }  # fmt: skip
    if row.name:
        block["name"] = row.name
    if row.kind in {"histogram", "sum_and_count"}:
        block |= {"clock": row.clock, "start": row.start, "end": row.end, "canonical": _without_prefix(row.aliases[0])}
        block |= {
            "n": _whole(found.n),
            "sum": _finite(found.total),
            "mean": _finite(found.mean),
            "per_series": found.parts,
        }
        block["quantiles"] = _quantiles(found)
        return block
    block["value"] = _finite(found.value)
    block["per_series"] = {name: _finite(value) for name, value in found.parts.items()}
    if row.kind == "counter" and window:
        block["delta"] = block["value"]
        if asked.seconds and found.value is not None:
            block["per_s"] = found.value / asked.seconds
    if row.kind == "share_gauge" and found.parts and found.value is not None:
        block |= {"mean": found.value, "max": max(found.parts.values())}
    return block


def _quantiles(found: Reading) -> dict[str, Any]:
    if found.hist is None or found.status != "present":
        return {}
    safe = found.row.clock not in {"engine_wall", "server_wall"}
    answer = {}
    for name, q in QUANTILES.items():
        bounds = quantile_bounds(found.hist, q, clock_safe=safe)
        entry: dict[str, Any] = {"low": bounds.low, "high": bounds.high}
        if bounds.open_bucket:
            entry |= {"flag": "open_bucket", "open_bucket": True, "high_from_sum": bounds.high_from_sum}
        answer[name] = entry
    return answer


def _derived(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios of two windows of one engine, each said to be one: tokens an output, time a token, tokens a second."""
    answer: dict[str, Any] = {}
    tokens = _present(blocks, "generated_tokens", "value")
    outputs, total = _present(blocks, "itl", "n"), _present(blocks, "itl", "sum")
    if tokens and outputs and total is not None and blocks["itl"].get("name") == "inter_output":
        after_first = tokens - (_present(blocks, "ttft", "n") or 0)
        answer["per_token"] = {
            "mean": total / after_first if after_first > 0 else None, "tokens_per_output": after_first / outputs, "unit": "s",
            "definition": "summed gaps between outputs / generated tokens (each request's first left out where known)",
        }  # fmt: skip
    for key, count, seconds in (
        ("decode_rate", "generated_tokens", "decode"),
        ("prefill_rate", "prompt_tokens", "prefill"),
    ):
        n, time = _present(blocks, count, "value"), _present(blocks, seconds, "sum")
        if n is not None and time and blocks[seconds].get("n") is None:
            answer[key] = {
                "value": n / time,
                "unit": "token/s",
                "definition": f"{count} / summed {seconds} time, from counters",
            }
    queries, hits = _present(blocks, "prefix_cache_queries", "value"), _present(blocks, "prefix_cache_hits", "value")
    if queries and hits is not None:
        answer["prefix_cache_hit_share"] = {
            "value": hits / queries,
            "unit": "share",
            "definition": "hit tokens / looked-up tokens",
        }
    return answer


def _present(blocks: Mapping[str, Any], key: str, field: str) -> float | None:
    block = blocks.get(key)
    if not isinstance(block, dict) or block.get("status") != "present":
        return None
    value = block.get(field)
    return float(value) if isinstance(value, int | float) else None


def wanted_value(name: str, pages: Sequence[Page]) -> dict[str, Any]:
    """A metric looked for by its own name, with or without the engine's prefix, on the last page."""
    if not pages:
        raise UserError(f"--want {name}: there is no metrics page among the files")
    plain = name.replace(":", "_")
    values = [
        sample.value
        for sample in pages[-1].samples
        if (spelt := sample.name.replace(":", "_")) in {plain, plain + "_total"} or spelt.split("_", 1)[-1] == plain
    ]
    finite = [value for value in values if math.isfinite(value)]
    if not values:
        return {"value": None, "status": "absent"}
    return {"value": math.fsum(finite) if finite else None, "status": "present", "series": len(values)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _whole(value: float | None) -> float | int | None:
    found = _finite(value)
    return int(found) if found is not None and found == int(found) else found


def _without_prefix(alias: str) -> str:
    return alias.split("_", 1)[1] if "_" in alias else alias
