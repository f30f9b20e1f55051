"""`phasemeter compare`: comparable or not and why, then differences with intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter.cli.check import result_in, server_evidence
from phasemeter.cli.import_ import as_document, read_foreign
from phasemeter.cli.numbers import whole
from phasemeter.errors import UserError
from phasemeter.lazy import load

REFUSED = 3


def compare(
    a: Path,
    b: Path,
    /,
    *,
    varying: Annotated[list[str] | None, Parameter(negative="")] = None,
    metric: str | None = None,
    seed: Annotated[int, whole(0)] = 0,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    html: Path | None = None,
) -> int:
    """Compare B with A: runs, directories of repeated runs, or other tools' files. Exit code 3: can't be compared.

    Parameters
    ----------
    a
        The run, directory of runs, or result file to compare with.
    b
        The one that is compared with it.
    varying
        A field of the manifest that is under test, so that it may differ (repeat the option, or separate with commas).
    metric
        Compare only this metric: its name in A, "=", its name in B; a single name where both use the same.
    seed
        Seed of the resampling: the same seed gives the same intervals.
    as_json
        One JSON document on stdout.
    html
        Also write the comparison as one HTML file.

    Examples:
        phasemeter compare runs/old runs/new --varying engine.version
        phasemeter compare profile_export_aiperf.json bench.json --metric inter_token_latency=tpot
        phasemeter compare runs/a runs/b --json
        phasemeter compare runs/a runs/b --html comparison.html
    """
    fields = [name for item in varying or () for name in item.split(",") if name.strip()]
    foreign = [None if path.is_dir() else read_one(path) for path in (a, b)]
    dialects = [None if one is None else one.result.definitions for one in foreign]
    sides = [
        [foreign_run(path, one)] if one is not None else measured_runs(path, dialects[1 - i])
        for i, (path, one) in enumerate(zip((a, b), foreign, strict=True))
    ]
    asked = None
    if metric is not None:
        first, equals, second = metric.partition("=")
        asked = (first.strip(), (second if equals else first).strip())
    generator = load("numpy").random.default_rng(seed)
    report = load("phasemeter.comparison.report").compare(*sides, generator, fields, asked)
    if html is not None:
        text = load("phasemeter.report.html.compare_page").compare_page(report, *sides)
        load("phasemeter.report.html.write").write_page(text, html)
    if as_json:
        print(json.dumps(document_of(report), allow_nan=False, ensure_ascii=False))
    else:
        load("phasemeter.report.fold").show(shown(report))
    return 0 if report.answer.comparable else REFUSED


def read_one(path: Path) -> Any:
    """The one result of another tool's file. Raises UserError where it holds several."""
    if not path.exists():
        raise UserError(f"{path}: no such run directory or result file")
    found = read_foreign(path)
    if len(found) != 1:
        raise UserError(f"{path}: holds {len(found)} results: `phasemeter import {path} -o DIR` makes a run of each")
    return found[0]


def foreign_run(path: Path, imported: Any) -> Any:
    """Another tool's result as a side."""
    numpy = load("numpy")
    lengths = {
        name: numpy.array([v for v in imported.numbers[key].value if v])
        for name, key in (("input_tokens", "input_lens"), ("output_tokens", "output_lens"))
        if key in imported.numbers
    }
    return load("phasemeter.comparison.comparable").Run(
        name=path.name,
        document=as_document(imported),
        values={name: numpy.array(values) for name, values in imported.values.items()},
        lengths=lengths,
    )


def measured_runs(path: Path, dialect: str | None) -> list[Any]:
    """The run in a directory, or each of the runs below it; re-read under another tool's definitions where one is compared."""
    directories = (
        [path] if (path / "manifest.json").exists() else sorted(m.parent for m in path.glob("*/manifest.json"))
    )
    if not directories:
        raise UserError(f"{path}: no run directory, and none below it: name one that `phasemeter bench` wrote")
    return [_measured(directory, dialect) for directory in directories]


def _measured(directory: Path, dialect: str | None) -> Any:
    analysis = load("phasemeter.runs.analysis")
    document = result_in(directory)
    run = load("phasemeter.comparison.comparable").Run
    if (document.get("run") or {}).get("kind") == "imported":
        return run(name=directory.name, document=document)
    values, lengths = load("phasemeter.comparison.report").values_of(analysis.rows(directory), dialect)
    if dialect is not None:  # its own metrics are read anew, so the house's summaries must not stand beside them
        document = {**document, "definitions": dialect, "metrics": {}}
    phases = {phase: load("numpy").asarray(got) for phase, got in server_evidence(directory).phases.items()
              if not hasattr(got, "edges_s")}  # fmt: skip
    return run(name=directory.name, document=document, values=values, lengths=lengths, phases=phases)


def document_of(report: Any) -> dict[str, Any]:
    """The form of `compare --json`."""
    builtins = load("msgspec").to_builtins
    answer = report.answer
    return {
        "comparable": answer.comparable,
        "refusals": list(answer.refusals),
        "refused_metrics": list(answer.refused_metrics),
        "warnings": list(answer.warnings),
        "differences": builtins(report.differences),
        "phases": builtins(report.phases),
        "causes": list(report.causes),
        "pairs": [{"a": mine.name, "b": other.name, "definition": mine.line} for mine, other in answer.pairs],
    }


def shown(report: Any) -> list[str]:
    """The comparison for a person: what moved first, never a bare percentage."""
    answer = report.answer
    lines = [f"refused: {text}" for text in answer.refusals]
    lines += [f"not compared: {text}" for text in answer.refused_metrics]
    lines += [f"warning: {text}" for text in answer.warnings]
    if not answer.comparable:
        return [*lines, "not comparable"]
    for d in sorted((*report.differences, *report.phases), key=lambda d: not d.significant):
        lines.append(_line(d))
    moved = [d for d in report.differences if d.significant]
    lines += list(report.causes)
    lines.append("differences that chance doesn't explain (5 %, all tests together): " + (
        ", ".join(dict.fromkeys(d.metric for d in moved)) or "none"))  # fmt: skip
    return lines


def _line(d: Any) -> str:
    factor, unit = (1000.0, "ms") if d.unit == "s" else (1.0, d.unit)
    head = f"{'*' if d.significant else ' '} {d.metric} {d.statistic}:"
    if d.statistic == "distribution":
        return f"{head} largest gap of shares {d.difference:.3f} (p {d.p_adjusted:.3g})"
    text = f"{head} {factor * d.a:.4g} → {factor * d.b:.4g} {unit}"
    if d.difference is None or d.ci95[0] is None:
        return f"{text}   ({d.reason})"
    relative = "" if d.relative is None else f", {100 * d.relative:+.1f} %"
    low, high = (factor * bound for bound in d.ci95)
    return (
        f"{text}   ({factor * d.difference:+.4g} {unit}{relative}; 95 % {low:+.4g} … {high:+.4g}, p {d.p_adjusted:.3g})"
    )
