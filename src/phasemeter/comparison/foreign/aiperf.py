"""NVIDIA AIPerf: the summary JSON (schema 1.x) and the JSONL of one record a request; each number names its own unit."""

from __future__ import annotations

from typing import Any

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported, Number
from phasemeter.metrics.dialects.model import Dialect, Row
from phasemeter.records.manifest import Manifest

_RULES = (
    (r"^input_config\..*\.(isl|osl)\.", "tokens", "length asked for"),
    (r"^input_config\.", "", "configuration"),
    (r"^run_info\.", "", "run"),
    (r"_ns$", "ns", "wall clock"),
)


def detect(document: Any) -> bool:
    """Whether this is AIPerf's summary, or (a list) its records."""
    if isinstance(document, list):
        return bool(document) and all(
            isinstance(record, dict) and "metadata" in record and ("metrics" in record or "error" in record)
            for record in document[:3]
        ) and "benchmark_phase" in document[0]["metadata"]  # fmt: skip
    if not isinstance(document, dict):
        return False
    older = {"was_cancelled", "error_summary", "input_config"} <= set(document)  # before it wrote its version (2025)
    return older or {"aiperf_version", "schema_version"} <= set(document)


def read(document: Any) -> Imported:
    """The summary of one run, or its records."""
    return _records(document) if isinstance(document, list) else _summary(document)


def _summary(document: dict[str, Any]) -> Imported:
    dialect = model.dialect_named("aiperf")
    kind = model.look(document, "metadata.aggregation_type")
    if kind is not None:
        raise ValueError(f"an aggregate ({kind}) of several runs: import the profile_export_aiperf.json of each")
    metrics = {}
    completed = model.look(document, "request_count.avg") or 0
    for row in dialect.rows:
        block = document.get(row.key)
        if isinstance(block, dict):
            n = int(completed) if row.definition.kind == "request" else None
            metric = model.metric_of(dialect, row, block.get, n, _time_unit(block, row))
            if metric is not None:
                metrics[row.key] = metric
    failed = sum(int(error.get("count", 0)) for error in document.get("error_summary") or [] if isinstance(error, dict))
    result = model.result_of(metrics, _manifest(dialect, document), model.outcomes_of(completed, failed),
        model.throughput_of(dialect, document), _counting(document),
    )  # fmt: skip
    return Imported(tool="aiperf", result=result, numbers=_numbers(document, dialect))


def _counting(document: dict[str, Any]) -> model.Counting:
    """Its local count is as good as the server's where the file holds both and they agree."""
    local = model.look(document, "output_sequence_length.sum")
    usage = model.look(document, "usage_completion_tokens.sum")
    first, visible = (model.look(document, f"time_to_first_{kind}token.sum") for kind in ("", "output_"))
    reasoned = bool(model.look(document, "reasoning_token_count.sum")) or (visible is not None and visible != first)
    return model.Counting(tokens=model.USAGE if local is not None and local == usage else None, reasoned=reasoned)


def _time_unit(block: dict[str, Any], row: Row) -> str:
    unit = str(block.get("unit", row.unit))
    return unit if unit in model.SECONDS else row.unit


def _numbers(document: dict[str, Any], dialect: Dialect) -> dict[str, Number]:
    """Each block says its unit beside its statistics; the rest is configuration."""
    found: dict[str, Number] = {}
    for key, block in document.items():
        if isinstance(block, dict) and isinstance(block.get("unit"), str):
            rules = ((r"^count$", "values", "how many values"), (r"", block["unit"], f"statistic of {key}"))
            inner = model.numbers_of(block, rules, f"{dialect.id}:{key}", f"{key}.")
        else:
            inner = model.numbers_of({key: block}, _RULES, dialect.id)
        found |= inner
    return found


def _manifest(dialect: Dialect, document: dict[str, Any]) -> Manifest:
    config = document.get("input_config") or {}
    items = model.look(config, "models.items") or []
    datasets, phases = config.get("datasets") or [{}], config.get("phases") or [{}]
    prompts = datasets[0].get("prompts") or {}
    prompts = prompts or {
        own[0] + "sl": model.look(config, f"input.prompt.{own}_tokens") for own in ("input", "output")
    }
    phase = phases[-1] or _load(config.get("loadgen") or {})
    names = model.look(config, "endpoint.model_names") or [None]
    return model.manifest_of(
        dialect, f"AIPerf {document.get('aiperf_version') or 'of 2025'}",
        model=items[0].get("name") if items else names[0],
        api=model.look(config, "endpoint.type"), streaming=model.look(config, "endpoint.streaming"),
        body=model.look(config, "endpoint.extra"), tokenizer=model.look(config, "tokenizer.name"),
        input_tokens=_length(prompts.get("isl")), output_tokens=_length(prompts.get("osl")),
        requests=phase.get("requests"), concurrency=phase.get("concurrency"),
        rate_per_s=model.rate_of(phase.get("rate")), started_utc=document.get("start_time"),
        duration_s=model.look(document, "benchmark_duration.avg"),
    )  # fmt: skip


def _load(loadgen: dict[str, Any]) -> dict[str, Any]:
    """The load as older files name it."""
    return {"requests": loadgen.get("request_count"), "rate": loadgen.get("request_rate"), **loadgen}


def _length(block: Any) -> Any:
    if not isinstance(block, dict) or "mean" not in block:
        return None
    spread = block.get("stddev")
    return {"fixed": block["mean"]} if not spread else {"normal": {"mean": block["mean"], "sd": spread}}


def _records(records: list[dict[str, Any]]) -> Imported:
    """Metrics recomputed from its records' own values (linear on n − 1), profiling phase only, as AIPerf does."""
    dialect = model.dialect_named("aiperf")
    values: dict[str, list[float]] = {}
    failed = cancelled = ok = 0
    numbers: dict[str, Number] = {}
    for i, record in enumerate(records):
        numbers |= _record_numbers(record, i, dialect)
        meta = record.get("metadata") or {}
        if meta.get("benchmark_phase") != "profiling":
            continue
        if meta.get("was_cancelled"):
            cancelled += 1
        elif record.get("error"):
            failed += 1
        else:
            ok += 1
            for row in dialect.rows:
                block = (record.get("metrics") or {}).get(row.key)
                if isinstance(block, dict):
                    factor = model.SECONDS.get(str(block.get("unit")), 1.0)
                    value = block["value"]
                    many = value if isinstance(value, list) else [value]
                    values.setdefault(row.key, []).extend(factor * v for v in many)
    units = {row.key: "s" if row.unit in model.SECONDS else row.unit for row in dialect.rows}
    metrics = {key: model.recomputed(dialect, key, units[key], got) for key, got in values.items() if got}
    manifest = model.manifest_of(dialect, "AIPerf, its records")
    result = model.result_of(
        metrics,
        manifest,
        model.outcomes_of(ok, failed, cancelled),
        model.throughput_of(dialect, {}),
        model.Counting(tokens=model.USAGE if _agree(records) else None),
    )
    one_each = {key: got for key, got in values.items() if len(got) == ok}
    return Imported(tool="aiperf", result=result, numbers=numbers, values=one_each)


def _agree(records: list[dict[str, Any]]) -> bool:
    """Whether the local count is the server's in every record that holds both, and some do."""
    counts = [
        (model.look(r, "metrics.output_sequence_length.value"), model.look(r, "metrics.usage_completion_tokens.value"))
        for r in records
    ]
    both = [pair for pair in counts if None not in pair]
    return bool(both) and all(local == usage for local, usage in both)


def _record_numbers(record: dict[str, Any], i: int, dialect: Dialect) -> dict[str, Number]:
    found: dict[str, Number] = {}
    for key, block in (record.get("metrics") or {}).items():
        unit = str(block.get("unit", "")) if isinstance(block, dict) else ""
        found |= model.numbers_of(block, ((r"", unit, f"{key} of one request"),), dialect.id, f"[{i}].metrics.{key}.")
    rest = {key: value for key, value in record.items() if key != "metrics"}
    return found | model.numbers_of(rest, (*_RULES, (r"^trace_data", "ns", "HTTP trace")), dialect.id, f"[{i}].")
