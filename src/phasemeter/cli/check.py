"""`phasemeter check`: a verdict a line, the whole one as exit code, and the forms that a CI reads."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any
from xml.sax.saxutils import quoteattr

from cyclopts import Parameter

from phasemeter.cli.contract import read_contract
from phasemeter.errors import UserError
from phasemeter.lazy import load


def check(
    run: Path,
    /,
    *,
    contract: Path,
    baseline: Path | None = None,
    worse: str = "5 %",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    junit: Path | None = None,
    github: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check a run against its contract. Exit code: 0 met, 1 missed, 3 undecided, 2 for a mistake in the command.

    Parameters
    ----------
    run
        The run directory.
    contract
        The contract, a YAML file (`phasemeter contract new` writes a starter).
    baseline
        An earlier run: no promised latency may be worse than there by more than --worse.
    worse
        How much worse than the baseline is still accepted, as a share.
    as_json
        One JSON document on stdout.
    junit
        Also write JUnit XML there.
    github
        Also print GitHub annotations, to stderr.

    Examples:
        phasemeter check runs/today --contract contract.yaml
        phasemeter check runs/today --contract contract.yaml --junit check.xml --github
        phasemeter check runs/new --contract contract.yaml --baseline runs/old --worse "3 %"
    """
    accepted = load("phasemeter.units").share(worse)
    document = verdict_document(run, contract, baseline, accepted)
    if junit is not None:
        junit.write_text(junit_xml(run.name, document["lines"]), encoding="utf-8")
    if github:
        for line in document["lines"]:
            print(annotation(line), file=sys.stderr)
    if as_json:
        print(json.dumps(document, allow_nan=False, ensure_ascii=False))
    else:
        load("phasemeter.report.fold").show(words(document))
    return exit_code(document)


def verdict_document(run: Path, contract: Path, baseline: Path | None = None, accepted: float = 0.05) -> dict[str, Any]:
    """A run held to a contract, in the form of `check --json`."""
    verdict = load("phasemeter.contract.verdict")
    promised = read_contract(contract)
    facts = facts_of(run)
    answer = verdict.check(promised, facts)
    lines = list(answer.lines)
    if baseline is not None:
        lines += baseline_lines(promised, facts.rows, facts_of(baseline).rows, accepted)
    overall = verdict.overall([line.verdict for line in lines])
    return {"verdict": overall, "lines": [as_document(line) for line in lines], "warnings": list(answer.warnings)}


def words(document: dict[str, Any]) -> list[str]:
    """A verdict for a person: a table, its warnings, the whole in one word."""
    return [
        *table(document["lines"], load("phasemeter.report.fold").columns()),
        *(f"warning: {warning}" for warning in document["warnings"]),
        f"the contract is {document['verdict']}",
    ]


def exit_code(document: dict[str, Any]) -> int:
    """0 met, 1 missed, 3 undecided."""
    return int(load("phasemeter.contract.verdict").EXIT[document["verdict"]])


def facts_of(run: Path) -> Any:
    """What is known of a run directory, for a verdict. Raises UserError where there is none."""
    if not run.is_dir():
        raise UserError(f"{run}: no run directory: name one that `phasemeter bench` or `simulate` wrote")
    analysis = load("phasemeter.runs.analysis")
    result = result_in(run)
    manifest = result.get("run") or {}
    rate = manifest.get("rate_per_s")
    validity = result.get("validity") or {}
    checks = [check["id"] for check in validity.get("checks", ()) if check.get("verdict") == "invalid"]
    evidence = server_evidence(run)
    return load("phasemeter.contract.verdict").Facts(
        rows=list(analysis.rows(run)),
        validity=validity.get("verdict", "valid"),
        invalid_checks=tuple(checks),
        offered_per_s=rate if isinstance(rate, int | float) and math.isfinite(rate) else None,
        manifest=manifest,
        phases=evidence.phases,
        server_boundaries=evidence.boundaries,
    )


def baseline_lines(promised: Any, now: list[Any], before: list[Any], accepted: float) -> list[Any]:
    """Each promised latency against the earlier run: the interval of the ratio has to lie within 1 + `accepted`."""
    samples, difference = load("phasemeter.contract.samples"), load("phasemeter.comparison.difference")
    line, names, decided = (load("phasemeter.contract.lines"), load("phasemeter.contract.names"),
                            load("phasemeter.contract.lines").decided)  # fmt: skip
    generator = load("numpy").random.default_rng(0)
    found = []
    for objective in promised.objectives:
        if objective.phase or objective.metric in names.gaps():
            continue
        path = f"baseline.{objective.path}"
        new, old = (
            samples.of_metric(objective.metric, samples.measured(rows, objective.workload_class)).ok_only
            for rows in (now, before)
        )
        tested = [d for d in difference.between(objective.metric, [old], [new], generator, distribution=False)
                  if d.statistic == objective.statistic]  # fmt: skip
        if not tested or tested[0].ci95[0] is None or not tested[0].a:
            found.append(
                line.Line(
                    path=path,
                    verdict="undecided",
                    reason="too_few_samples",
                    n=len(new),
                    limit=1 + accepted,
                    unit="× baseline",
                )
            )
            continue
        one = tested[0]
        bounds = tuple(1 + bound / one.a for bound in one.ci95)
        verdict = decided(bounds, 1 + accepted)
        reason = "interval_spans_limit" if verdict == "undecided" else None
        found.append(line.Line(path=path, verdict=verdict, value=one.b / one.a, ci95=bounds, n=len(new), unit="× baseline",
                               limit=1 + accepted, reason=reason))  # fmt: skip
    return found


def server_evidence(run: Path) -> Any:
    """`phases` and `boundaries` as far as the run's server evidence gives them."""
    return load("phasemeter.runs.server_view").on_record(run)


def result_in(run: Path) -> dict[str, Any]:
    """A run's result: result.json, or read anew from its capture where there is none."""
    file = run / "result.json"
    if file.exists():
        return _json(file)
    found: dict[str, Any] = load("phasemeter.metrics.document").document(load("phasemeter.runs.analysis").analyse(run))
    return found


def _json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as trouble:
        raise UserError(f"{file}: {trouble.strerror}: is this a run directory?") from trouble
    except ValueError as trouble:
        raise UserError(f"{file}: no JSON: {trouble}") from trouble
    if not isinstance(document, dict):
        raise UserError(f"{file}: should hold one result")
    return document


def as_document(line: Any) -> dict[str, Any]:
    """A line in the form of `check --json`."""
    low, high = line.ci95
    return {
        "path": line.path, "verdict": line.verdict, "value": line.value, "ci95": [low, high], "n": line.n,
        "n_to_decide": line.n_to_decide, "limit": line.limit, "comparison": "<=" if line.at_most else ">=",
        "unit": line.unit, "ok_only": line.ok_only, "reason": line.reason, "notes": list(line.notes),
    }  # fmt: skip


def shown(value: float | None, unit: str) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if unit == "s":
        return f"{1000 * value:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"
    if unit == "share":
        return f"{100 * value:.4g} %"
    return f"{value:.4g} {unit}".rstrip()


def table(lines: list[dict[str, Any]], wide: int | None = None) -> list[str]:
    """The lines as text columns, the missed ones first; where those pass `wide` columns, a block of words a line."""
    order = {"missed": 0, "undecided": 1, "met": 2}
    rows = [("verdict", "line", "promised", "seen", "95 % interval", "n", "")]
    for line in sorted(lines, key=lambda line: order[line["verdict"]]):
        unit, (low, high) = line["unit"], line["ci95"]
        interval = "" if low is None and high is None else f"{shown(low, unit)} … {shown(high, unit)}"
        promise = line["path"].rpartition(".")[2] not in ("input_tokens", "output_tokens", "arrivals")
        sign = line["comparison"] if promise else "declared"
        promised = "" if line["limit"] is None else f"{sign} {shown(line['limit'], unit)}"
        rows.append(
            (line["verdict"], line["path"], promised, shown(line["value"], unit), interval, str(line["n"]), why(line))
        )
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    laid = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[6]]).rstrip() for row in rows
    ]
    if wide is None or max(map(len, laid)) <= wide:
        return laid
    return [line for row in rows[1:] for line in _block(row)]


def _block(row: tuple[str, ...]) -> list[str]:
    verdict, path, promised, seen, interval, n, why_so = row
    said = [f"promised {promised}".replace("promised declared", "declared") if promised else "", f"seen {seen}",
            f"95 % {interval}" if interval else "", f"n {n}", why_so]  # fmt: skip
    return [f"{verdict:<9}  {path}", f"{'':<9}  " + " · ".join(part for part in said if part)]


def why(line: dict[str, Any]) -> str:
    """What a person has to know beside the verdict."""
    parts = [line["reason"]] if line["reason"] else []
    if line["verdict"] == "undecided" and line["n_to_decide"]:
        parts.append(f"about {line['n_to_decide']} requests would decide")
    return "; ".join([*parts, *line["notes"]])


def junit_xml(name: str, lines: list[dict[str, Any]]) -> str:
    """JUnit XML: a test case a line; missed is a failure, undecided an error (a build must not pass on it)."""
    cases = []
    for line in lines:
        text = quoteattr(f"{line['path']}: {shown(line['value'], line['unit'])} {why(line)}".strip())
        inner = {"missed": f"<failure message={text}/>", "undecided": f"<error message={text}/>"}.get(
            line["verdict"], ""
        )
        cases.append(f'  <testcase classname="phasemeter.check" name={quoteattr(line["path"])}>{inner}</testcase>')
    missed = sum(line["verdict"] == "missed" for line in lines)
    undecided = sum(line["verdict"] == "undecided" for line in lines)
    head = f'<testsuite name={quoteattr(name)} tests="{len(lines)}" failures="{missed}" errors="{undecided}">'
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, *cases, "</testsuite>", ""])


def annotation(line: dict[str, Any]) -> str:
    """A line as a GitHub workflow command."""
    level = {"missed": "error", "undecided": "warning", "met": "notice"}[line["verdict"]]
    promised = "" if line["limit"] is None else f", promised {line['comparison']} {shown(line['limit'], line['unit'])}"
    text = f"{line['path']} {line['verdict']}: {shown(line['value'], line['unit'])}{promised} {why(line)}".strip()
    return f"::{level} title=phasemeter {line['verdict']}::" + text.replace("%", "%25").replace("\r", "").replace(
        "\n", "%0A"
    )
