"""Other tools' result files, one file a tool: what they hold, under their own definitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from phasemeter.comparison.foreign import aiperf, evalscope, genai_perf, guidellm, inference_perf, sglang, vllm
from phasemeter.comparison.foreign.model import Imported
from phasemeter.errors import NOT_JSON, FileError

Detect = Callable[[Any], bool]
Read = Callable[[Any], list[Imported]]

# tool: (does a document look like it, its results, the files it writes). Asked in order: the more special first.
TOOLS: Mapping[str, tuple[Detect, Read, str]] = {
    "vllm": (vllm.detect, lambda d: [vllm.read(d)], "`vllm bench serve` JSON"),
    "sglang": (sglang.detect, lambda d: [sglang.read(d)], "`bench_serving` JSONL"),
    "aiperf": (aiperf.detect, lambda d: [aiperf.read(d)], "profile_export_aiperf.json or profile_export.jsonl"),
    "guidellm": (guidellm.detect, guidellm.read_all, "benchmarks.json"),
    "inference-perf": (inference_perf.detect, lambda d: [inference_perf.read(d)], "*_lifecycle_metrics.json"),
    "genai-perf": (
        genai_perf.detect,
        lambda d: [genai_perf.read(d)],
        "profile_export_genai_perf.json or profile_export.json",
    ),
    "evalscope": (
        evalscope.detect,
        lambda d: [evalscope.read(d)],
        "benchmark_percentile.json or benchmark_summary.json",
    ),
}


def read(text: str, file: str) -> list[Imported]:
    """Every result in another tool's file (one a run), found by what it holds, not by its name.

    Raises FileError for no JSON, and for a file of no tool known here (the line lists them).
    """
    found: list[Imported] = []
    for document in documents(text, file):
        tool = next((name for name, (detect, _, _) in TOOLS.items() if detect(document)), None)
        if tool is None:
            known = "; ".join(f"{name}: {files}" for name, (_, _, files) in TOOLS.items())
            raise FileError(f"{file}: no result of a tool I know ({known})")
        try:
            results = TOOLS[tool][1](document)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as trouble:
            raise FileError(f"{file}: looks like {tool}'s, but its form is another: {trouble!r}") from trouble
        if not results:
            raise FileError(f"{file}: {tool}'s, and no run is in it")
        found += results
    return found


def documents(text: str, file: str) -> list[Any]:
    """One document of a JSON file; of JSONL either each line (runs) or all lines as one list (records)."""
    text = text.removeprefix("\ufeff")  # as PowerShell and Excel save it
    try:
        return [json.loads(text)]
    except NOT_JSON as whole:
        lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2:
            raise FileError(f"{file}: no JSON: {whole}") from whole
    records = []
    for number, line in lines:
        try:
            records.append(json.loads(line))
        except NOT_JSON as trouble:
            raise FileError(f"{file}: line {number}: no JSON: {trouble}") from trouble
    as_records = any(detect(records) for detect, _, _ in TOOLS.values())
    return [records] if as_records else records
