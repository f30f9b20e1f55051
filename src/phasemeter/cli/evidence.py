"""The verb `evidence`: what servers say about their own time, in our boundaries."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import cyclopts

from phasemeter.cli.numbers import number, whole
from phasemeter.errors import UserError
from phasemeter.lazy import load


def evidence(
    *files: Path,
    json_: Annotated[bool, cyclopts.Parameter(name="--json", negative="")] = False,
    seconds: Annotated[float | None, number(1e-9)] = None,
    requests: Annotated[int | None, whole(0)] = None,
    tokens: Annotated[int | None, whole(0)] = None,
    want: Annotated[tuple[str, ...], cyclopts.Parameter(negative="")] = (),
    model: str | None = None,
) -> int:
    """Read a server's own evidence: metrics pages, OTLP spans, response bodies and headers with timings.

    One metrics page gives lifetime values; two or more, in order, the window from the first to the last. Quantiles of
    histograms are bounds, never points.

    Parameters
    ----------
    files
        The files, in order of time; what each one is, is recognised by its content.
    json_
        One JSON document on stdout.
    seconds
        Seconds between the first and the last page: counters are then given per second too.
    requests
        How many requests we finished in the window; a server that counted another number is warned about.
    tokens
        How many output tokens we received in the window.
    want
        A metric's name to look for; if it is absent, that is said, not shown as 0.
    model
        Read only the series of this model.

    Examples:
      phasemeter evidence before.prom after.prom
      phasemeter evidence metrics.txt --json
      phasemeter evidence before.prom after.prom --requests 200 --tokens 25600 --seconds 60
      phasemeter evidence traces.jsonl
    """
    module = load("phasemeter.runs.evidence_files")
    if not files:
        raise UserError("evidence: no file named: give a metrics page, spans, or a timing file")
    asked = module.Asked(requests=requests, output_tokens=tokens, seconds=seconds, want=want, model=model)
    document = module.document(list(files), asked)
    if json_:
        print(json.dumps(document, allow_nan=False))
        return 0
    shown = load("phasemeter.report.plain").plain_tree(document)
    load("phasemeter.report.fold").show(_lines(shown))
    for warning in shown["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _lines(document: dict[str, Any]) -> Iterator[str]:
    for engine, blocks in document["engines"].items():
        mode = "" if "window" not in blocks else ", window" if blocks["window"] else ", lifetime"
        yield f"{engine}{mode}"
        for key, block in blocks.items():
            if isinstance(block, dict) and block.get("status") != "absent":
                yield f"  {key:24} {_words(block)}"
        if blocks.get("absent"):
            yield f"  absent: {', '.join(blocks['absent'])}"
        yield from (f"  warning: {text}" for text in blocks.get("warnings", ()))
        yield ""
    for name, found in document.get("wanted", {}).items():
        yield f"{name}: {'absent' if found['status'] == 'absent' else found['value']}"


def _words(block: dict[str, Any]) -> str:
    if "quantiles" in block:
        parts = [f"n {_number(block.get('n'))}", f"mean {_quantity(block.get('mean'), block['unit'])}"]
        for name in ("p50", "p99"):
            if name in block["quantiles"]:
                bounds = block["quantiles"][name]
                parts.append(f"{name} {_range(bounds['low'], bounds['high'], block['unit'])}")
        said = "  ".join(parts)
    else:
        said = f"{_number(block.get('value', block.get('mean')))} {block.get('unit', '')}"
    if block.get("reason"):
        said += f"  ({block['status']}: {block['reason']})"
    return said


def _range(low: float | None, high: float | None, unit: str) -> str:
    if low == high and low is not None:
        return _quantity(low, unit)
    if high is None:
        return f"> {_quantity(low, unit)}"
    return f"{_quantity(low, unit) if low is not None else '?'} to {_quantity(high, unit)}"


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit != "s":
        return f"{value:g} {unit}"
    return f"{value * 1e3:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
