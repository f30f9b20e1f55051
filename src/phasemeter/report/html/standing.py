"""Whether to believe a run, and whether it keeps its contract: outcomes, verdicts, validity, manifest.

Lives here: layout of what the result document says. Must not live here: judging.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from phasemeter.metrics.document import error_rate
from phasemeter.records.manifest import Manifest
from phasemeter.records.result import Outcomes
from phasemeter.report.html.latency import Document
from phasemeter.report.html.markup import Markup, figure, table, tag, words
from phasemeter.report.words import DASH, number

MARK = {
    "valid": "✓",
    "met": "✓",
    "ok": "✓",
    "suspect": "!",
    "undecided": "?",
    "unknown": "?",
    "invalid": "✗",
    "missed": "✗",
}
ORDER = {"missed": 0, "undecided": 1, "met": 2}
SOFT = frozenset({"phasemeter", "sources", "notes"})


def pill(verdict: str, words: str) -> Markup:
    """A verdict: a colour, and never the colour alone."""
    known = verdict if verdict in MARK else "unknown"
    return tag("span", f"{MARK[known]} {words}", class_=f"pill {known}")


def contract_of(document: Document) -> Mapping[str, Any] | None:
    """The contract's verdict in the form of `check --json`, where the result carries one."""
    for key in ("contract", "check"):
        found = document.get(key)
        if isinstance(found, Mapping) and found.get("verdict") in ORDER:
            return found
    return None


def headline(document: Document) -> Markup:
    """The pills and the balance of requests."""
    verdict = (document.get("validity") or {}).get("verdict") or "unknown"
    pills = [pill(verdict, f"run {verdict}")]
    kept = contract_of(document)
    if kept is not None:
        pills.insert(0, pill(kept["verdict"], f"contract {kept['verdict']}"))
    if document.get("partial"):
        pills.append(pill("suspect", "partial: the run was cut off"))
    return tag("div", tag("p", pills), tag("p", balance(document), class_="facts"))


def balance(document: Document) -> str:
    """scheduled = ok + failed + cancelled + unsent, in words."""
    seen = msgspec.convert({k: v for k, v in document["outcomes"].items() if k != "error_rate"}, Outcomes)
    failed = sum(seen.failed.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in seen.failed.items())
    told = f"{seen.scheduled:,} scheduled = {seen.ok:,} ok + {failed:,} failed{f' ({kinds})' if kinds else ''}"
    told += f" + {seen.cancelled:,} cancelled + {seen.unsent:,} unsent"
    rate = error_rate(seen)
    return told + (f"; error rate {rate:.2%}" if failed and rate is not None else "")


def contract(document: Document) -> Markup | None:
    """A line a promise, the missed ones first."""
    kept = contract_of(document)
    if kept is None:
        return None
    rows = []
    for line in sorted(kept.get("lines") or (), key=lambda line: ORDER.get(line["verdict"], 1)):
        unit = line.get("unit") or "s"
        value = _quantity(line.get("value"), unit)
        low, high = line.get("ci95") or (None, None)
        interval = "" if low is None and high is None else f"[{_quantity(low, unit)}, {_quantity(high, unit)}]"
        limit = line.get("limit")
        sign = line.get("comparison", "≤").replace("<=", "≤").replace(">=", "≥")
        sign = "declared" if str(line["path"]).startswith("workload.") else sign
        promised = "" if limit is None else f"{sign} {_quantity(limit, unit)}"
        told = f"{line['path']}: {line['verdict']}, {value} {interval}, promised {promised}, n = {line.get('n')}"
        why = [str(line["reason"])] if line.get("reason") else []
        if line["verdict"] == "undecided" and line.get("n_to_decide"):
            why.append(f"about {line['n_to_decide']:,} requests would decide")
        rows.append([
            line["path"], pill(line["verdict"], line["verdict"]), promised, figure(value, told), interval, str(line.get("n", "")),
            "; ".join([*why, *(line.get("notes") or ())]),
        ])  # fmt: skip
    warnings = [tag("p", f"! {text}", class_="note") for text in kept.get("warnings") or ()]
    head = ["promise", "verdict", "promised", "seen", "95 % interval", "n", ""]
    return tag("div", tag("h3", "Contract"), table(head, rows, "The contract, line by line", "words"), warnings)


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return DASH
    if unit == "s":
        return f"{number(value * 1e3)} ms" if abs(value) < 1 else f"{number(value)} s"
    return f"{number(100 * value)} %" if unit == "share" else f"{number(value)} {unit}".rstrip()


def validity(document: Document) -> Markup:
    """Each check: what was seen, and what to do."""
    judged = document.get("validity") or {}
    order = {"invalid": 0, "suspect": 1, "unknown": 2, "ok": 3}
    rows = [
        [
            check["id"],
            pill(check["verdict"], check["verdict"]),
            words(check.get("evidence")),
            words(check.get("remedy")),
        ]
        for check in sorted(judged.get("checks") or (), key=lambda check: order.get(check["verdict"], 2))
    ]
    warned = document.get("warnings") or {}
    return tag(
        "div",
        table(
            ["check", "verdict", "what was seen", "what to do"],
            rows,
            "Checks of the run's own soundness",
            "words stack",
        ),
        tag("p", "Where replies bent their standard: ", ", ".join(f"{k} {v}" for k, v in sorted(warned.items())) + ".")
        if warned
        else None,
    )


def manifest(run: Mapping[str, Any]) -> Markup:
    """What was run, field by field, with where each came from; what is not on record is named as that."""
    sources = run.get("sources") or {}
    known, missing = [], []
    for name in [field.name for field in msgspec.structs.fields(Manifest)]:
        if name in SOFT:
            continue
        value = run.get(name)
        if value is None or value == "":
            missing.append(name)
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        source = f" ({sources[name]})" if name in sources else ""
        known.append(
            [
                tag("dt", name),
                tag("dd", figure(text[:600], f"{name} = {text[:600]}{source}"), tag("span", source, class_="note")),
            ]
        )
    return tag(
        "div",
        tag("dl", known, class_="pairs"),
        tag("p", tag("strong", "Unrecorded: "), ", ".join(missing) + ".", class_="note") if missing else None,
        [tag("p", str(note), class_="note") for note in run.get("notes") or ()],
    )


def title_of(run: Mapping[str, Any]) -> str:
    """What was measured, in a few words."""
    return str(run.get("model") or run.get("url") or run.get("run_id") or run.get("kind") or "run")


def facts_of(document: Document) -> str:
    """Engine, address, load, when."""
    run = document.get("run") or {}
    engine = " ".join(str(run[key]) for key in ("engine", "engine_version") if run.get(key))
    load = (document.get("workload") or {}).get("load") or {}
    how = None
    if load.get("mode") == "open":
        how = f"{number(load['rate_per_s'])} req/s on a schedule" if load.get("rate_per_s") else "on a schedule"
    elif load.get("mode") == "closed":
        how = f"{load.get('concurrency')} at a time"
    elif load.get("mode") == "inf":
        how = "all at once"
    parts = [
        engine,
        run.get("url"),
        how,
        run.get("started_utc"),
        run.get("run_id"),
        f"definitions {document.get('definitions')}",
    ]
    return " · ".join(str(part) for part in parts if part)
