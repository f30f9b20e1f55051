"""`phasemeter import`: another tool's result file as a result, with its own definitions attached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter.errors import UserError
from phasemeter.lazy import load


def import_(
    file: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Import a result file of vLLM, SGLang, AIPerf, GuideLLM, inference-perf, GenAI-Perf or evalscope.

    Parameters
    ----------
    file
        A result file; the tool that wrote it is recognised by the content.
    output
        Write a run directory there that `report` and `compare` read.
    as_json
        One JSON document: the result and every number of the file with its unit and definition.

    Examples:
        phasemeter import benchmarks.json
        phasemeter import profile_export_aiperf.json -o runs/aiperf
        phasemeter import bench.jsonl --json
    """
    found = read_foreign(file)
    documents = [as_document(one) for one in found]
    if output is not None:
        for i, document in enumerate(documents):
            write_run(output if len(documents) == 1 else output / f"{i + 1:03d}", document)
    if as_json:
        one = documents[0] if len(documents) == 1 else {"phasemeter": 1, "results": documents}
        print(json.dumps(one, allow_nan=False, ensure_ascii=False))
        return 0
    for document in documents:
        load("phasemeter.report.fold").show(shown(document))
    return 0


def read_foreign(file: Path) -> Any:
    """Every result of another tool in `file`. Raises UserError where it can't be read, FileError for an unknown form."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as trouble:
        raise UserError(f"{file}: {trouble.strerror}: name a result file") from trouble
    except UnicodeDecodeError as trouble:
        raise UserError(f"{file}: no text: a result file is JSON or JSONL") from trouble
    return load("phasemeter.comparison.foreign").read(text, file.name)


def as_document(imported: Any) -> dict[str, Any]:
    """A result in the form that all results have (percentiles flat beside the mean), and the file's numbers."""
    document: dict[str, Any] = load("phasemeter.metrics.document").document(imported.result)
    document["imported"] = {"tool": imported.tool, "numbers": load("msgspec").to_builtins(imported.numbers)}
    return document


def write_run(directory: Path, document: dict[str, Any]) -> None:
    """A run directory of what can't be re-read: manifest and result. Raises UserError where one stands already."""
    if (directory / "manifest.json").exists():
        raise UserError(f"{directory}: holds a run already: name a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("manifest.json", document["run"]), ("result.json", document)):
        (directory / name).write_text(json.dumps(part, allow_nan=False, ensure_ascii=False), encoding="utf-8")


def shown(document: dict[str, Any]) -> list[str]:
    """The result for a person: the tool's names with what they mean."""
    lines = [
        f"{document['definitions']}: {document['outcomes']['ok']} ok, {len(document['imported']['numbers'])} numbers"
    ]
    lines += [f"  note: {words}" for words in document["run"]["notes"][1:]]  # the first names the tool
    for name, metric in document["metrics"].items():
        tail = metric.get("p99") or metric.get("p95") or {}
        cells = (("mean", metric["mean"]), ("p50", (metric.get("p50") or {}).get("value")), ("tail", tail.get("value")))
        text = "  ".join(f"{label} {_shown(value, metric['unit'])}" for label, value in cells if value is not None)
        lines.append(f"  {name:34} {text}   n {metric['n']}   [{metric['definition']}]")
    return lines


def _shown(value: float, unit: str) -> str:
    return f"{1000 * value:.2f} ms" if unit == "s" else f"{value:.4g} {unit}"
