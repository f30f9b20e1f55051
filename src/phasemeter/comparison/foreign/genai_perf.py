"""GenAI-Perf: the summary JSON (like AIPerf's) and perf_analyzer's `profile_export.json` with instants in ns."""

from __future__ import annotations

import json
from typing import Any

import phasemeter.comparison.foreign.model as model
from phasemeter.comparison.foreign.model import Imported, Number

_RULES = ((r"timestamp", "ns", "wall clock"), (r"", "", ""))


def detect(document: Any) -> bool:
    """Whether this is a GenAI-Perf summary or a perf_analyzer profile."""
    if not isinstance(document, dict):
        return False
    profile = "experiments" in document and ("service_kind" in document or "endpoint" in document)
    block = document.get("time_to_first_token") or document.get("request_latency")
    summary = isinstance(block, dict) and "avg" in block and "unit" in block and "aiperf_version" not in document
    return profile or summary


def read(document: dict[str, Any]) -> Imported:
    """A summary, or a profile recomputed from its instants."""
    return _profile(document) if "experiments" in document else _summary(document)


def _summary(document: dict[str, Any]) -> Imported:
    dialect = model.dialect_named("genai-perf")
    metrics = {}
    count = model.look(document, "request_count.avg") or 0
    for row in dialect.rows:
        block = document.get(row.key)
        if isinstance(block, dict):
            unit = str(block.get("unit", row.unit))
            metric = model.metric_of(dialect, row, block.get, int(count), unit if unit in model.SECONDS else row.unit)
            if metric is not None:
                metrics[row.key] = metric
    config = document.get("input_config") or {}
    names = config.get("model") or config.get("model_names")
    manifest = model.manifest_of(
        dialect, "GenAI-Perf", model=names[0] if isinstance(names, list) and names else names,
        api=config.get("endpoint_type") or model.look(config, "endpoint.type"),
        streaming=config.get("streaming", model.look(config, "endpoint.streaming")),
        concurrency=config.get("concurrency") or model.look(config, "perf_analyzer.stimulus.concurrency"),
        tokenizer=model.look(config, "tokenizer.name") or config.get("tokenizer"),
    )  # fmt: skip
    numbers: dict[str, Number] = {}
    for key, block in document.items():
        unit = block.get("unit", "") if isinstance(block, dict) else ""
        rules = ((rf"^{key}\.count$", "values", ""), (rf"^{key}\.", str(unit), f"statistic of {key}"))
        numbers |= model.numbers_of({key: block}, rules, dialect.id)
    result = model.result_of(metrics, manifest, model.outcomes_of(count, 0), model.throughput_of(dialect, document))
    return Imported(tool="genai-perf", result=result, numbers=numbers)


def _profile(document: dict[str, Any]) -> Imported:
    dialect = model.dialect_named("genai-perf")
    requests = [r for e in document["experiments"] for r in e.get("requests", ())]
    spoken = [(r["timestamp"], _instants(r, document.get("service_kind") == "openai")) for r in requests]
    answered = [(start, instants) for start, instants in spoken if instants]
    values = {
        "time_to_first_token": [(instants[0] - start) / 1e9 for start, instants in answered],
        "request_latency": [(instants[-1] - start) / 1e9 for start, instants in answered],
    }
    metrics = {key: model.recomputed(dialect, key, "s", got) for key, got in values.items() if got}
    manifest = model.manifest_of(dialect, "perf_analyzer", api=document.get("endpoint"), requests=len(requests))
    result = model.result_of(metrics, manifest, model.outcomes_of(len(answered), len(requests) - len(answered)),
        model.throughput_of(dialect, {}),
    )  # fmt: skip
    return Imported(
        tool="genai-perf", result=result, numbers=model.numbers_of(document, _RULES, dialect.id), values=values
    )


def _instants(request: dict[str, Any], openai: bool) -> list[int]:
    """When its responses came, without the first and last ones that hold no content (a role, usage, `[DONE]`), as GenAI-Perf
    cuts them (llm_profile_data_parser.py, `_preprocess_response`); all of them where the file keeps no text of them."""
    instants: list[int] = request.get("response_timestamps") or []
    outputs = request.get("response_outputs") or []
    if not openai or len(outputs) != len(instants):
        return instants
    told = [i for i, output in enumerate(outputs) if _has_content(str(output.get("response", "")))]
    return instants[told[0] : told[-1] + 1] if told else []


def _has_content(response: str) -> bool:
    """Whether a response, one server-sent event or several (or a whole JSON answer), brings text."""
    for part in response.strip().split("\n\n"):
        try:
            found = json.loads(part.strip().removeprefix("data:"))
        except ValueError:
            continue  # [DONE], a comment
        choices = found.get("choices") if isinstance(found, dict) else None
        for choice in choices if isinstance(choices, list) else []:
            holder = choice.get("delta") or choice.get("message") or {}
            if choice.get("text") or holder.get("content"):
                return True
    return False
