"""A calibration for a person, and as the file that a plan names.

Lives here: words. Must not live here: the fit or its document (runs/calibrate.py).
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import yaml

NAMES = {
    "decode.constant": "decode, a step",
    "decode.per_context_token": "  a token of context",
    "decode.per_sequence": "  a sequence",
    "prefill.constant": "prefill, a step",
    "prefill.per_token": "  a token",
    "prefill.per_token_squared": "  a token²",
    "outside": "outside, a request",
}
WHAT = {
    "decode": "decode steps",
    "mixed": "steps with prompts",
    "prefill": "prefills",
    "alone": "first tokens alone",
    "answers": "answers",
}
METRICS = ("ttft", "tpot", "e2e")
DIGITS = 9
DIFFERS = 0.1  # of a mixed step's constant, before it is said that the form has another one


def dumps(document: dict[str, Any]) -> str:
    """One strict JSON document."""
    return json.dumps(document, allow_nan=False, ensure_ascii=False)


def exit_code(document: dict[str, Any]) -> int:
    """0, or 3 where the runs don't tell a whole step time."""
    return 0 if document["linear"] is not None else 3


def model_yaml(document: dict[str, Any]) -> str:
    """The file: `step_time: {file: THIS}` in a plan takes its `linear`."""
    head = (
        "# Step time fitted by `phasemeter calibrate`. In a plan: `step_time: {file: this file}`.\n"
        "# linear.prefill_s: [a step, a token, a token squared]; linear.decode_s: [a step, a token of context, a sequence]; seconds.\n"
        "# outside_s is what a request spends outside the engine before its first token; plans leave it out.\n"
    )
    ordered = {name: document[name] for name in ("phasemeter", "linear", "outside_s", "calibration")}
    body: str = yaml.safe_dump(
        _rounded(ordered), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
    return head + body


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def words(document: dict[str, Any], width: int = 100) -> list[str]:
    """The constants, then how far the model's predictions are off, then what to beware of and what would tell more.

    `width`: columns, which only tables of errors and commands may pass.
    """
    told = document["calibration"]
    engine = " ".join(part for part in (told["engine"], told["engine_version"]) if part) or "an engine unrecorded"
    where = [
        told["model"] or "model unrecorded",
        "on",
        engine,
        f"({told['accelerator']})" if told["accelerator"] else "",
    ]
    lines = [" ".join(part for part in where if part), _counts(told), ""]
    lines += _constants(told["constants"], width)
    lines += ["", *_errors(told)]
    for text in warnings(document):
        lines += textwrap.wrap(f"warning: {text}", max(40, width), subsequent_indent="  ")
    asked: dict[str, list[str]] = {}
    for one in told["constants"]:
        if one["measure"]:
            asked.setdefault(one["measure"], []).append(_name(one["name"]))
    if asked:
        lines += ["", "to tell more, measure and add to the runs:"]
        for command, names in asked.items():
            lines += [f"  {command}", f"    ({'; '.join(names)})"]
    return lines


def warnings(document: dict[str, Any]) -> list[str]:
    """What a reader has to know before the constants are used."""
    told, found = document["calibration"], []
    if document["linear"] is None:
        found.append("no step time: a plan needs both a decode and a prefill")
    for run in told["by_answers"]:
        found.append(
            f"{run}: its tokens came several at a time, or without times, so that no step can be seen: it is fitted by whole answers,"
            " which tell less, and with less certainty than the intervals say"
        )
    mixed = told["mixed_constant"]
    if (
        mixed is not None
        and mixed["taken"] is not None
        and abs(mixed["value"] - mixed["taken"]) > DIFFERS * mixed["value"]
    ):
        low, high = mixed["ci95"]
        if low is None or high is None or not low <= mixed["taken"] <= high:
            found.append(
                f"a step with prompts and decodes has a constant of {time(mixed['value'])}, the model takes the larger of the two, "
                f"{time(mixed['taken'])}: TTFT and stalls under load are off by the difference"
            )
    for bend in told["bends"]:
        low, middle, high = (f"{100 * bend[part]:+.0f} %" for part in ("low", "middle", "high"))
        kind = WHAT[bend["kind"]]
        if bend["along"] == "time":
            found.append(
                f"{kind} drift: {low}, {middle}, {high} of the fit in the first, second and last third of the time"
            )
        else:
            found.append(
                f"{kind} are no line in {bend['along']}: {low}, {middle}, {high} of the fit where those are few, some, many"
            )
    return found


def _counts(told: dict[str, Any]) -> str:
    rows = [f"{one['n']} {WHAT[kind]}" for kind, one in told["rows"].items()]
    out = told["left_out"]
    left = f"; {out['n']} stand too far off to count (longest {time(out['longest_s'])})" if out["n"] else ""
    fitted = [one for one in told["runs"] if one["fitted"]]
    requests, seen = sum(one["requests"] for one in fitted), sum(one["with_server_prefill"] for one in fitted)
    server = f", the server's own prefill time of {seen}" if seen else ", no word of the server's"
    runs = f"{len(fitted)} run{'s' if len(fitted) > 1 else ''}"
    return f"{runs}, {requests} requests{server}\n{', '.join(rows)}{left}"


def _name(name: str) -> str:
    """`decode, a sequence` of `decode.per_sequence`."""
    return f"{name.partition('.')[0]}, {NAMES[name].rpartition(',')[2].strip()}"


def _constants(constants: list[dict[str, Any]], width: int) -> list[str]:
    rows = [("constant", "value", "95 % interval", "")]
    for one in constants:
        low, high = one["ci95"]
        interval = "–" if low is None or high is None else f"{time(low)} … {time(high)}"
        said = one["by"] if one["status"] == "identified" else f"{one['status']}: {one['by']}"
        if one["status"] == "unidentified":
            interval = ""
        elif one["status"] == "identified" and low is None:
            said += " (one stretch of one run: no interval)"
        rows.append((NAMES[one["name"]], "–" if one["value"] is None else time(one["value"]), interval, said))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lines, margin = [], sum(widths) + 3 * 2
    for row in rows:
        start = f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  "
        said = textwrap.wrap(row[3], max(30, width - margin)) or [""]
        lines += [(start + said[0]).rstrip(), *(" " * margin + more for more in said[1:])]
    return lines


def _short(told: dict[str, Any]) -> dict[str, str]:
    """Runs by the last part of their path, where that tells them apart."""
    runs = [one["run"] for one in told["runs"]]
    last = [run.rstrip("/").rpartition("/")[2] for run in runs]
    return dict(zip(runs, last if len(set(last)) == len(last) else runs, strict=True))


def _errors(told: dict[str, Any]) -> list[str]:
    lines = [
        f"predicted by simulating each run's arrivals and lengths again ({told['predicted_with']}); error of the mean,",
        "then median and p95 of each request's own, without sign:",
    ]
    rows: list[tuple[str, ...]] = []
    names = _short(told)
    for one in told["errors"]:
        if one["reason"] is not None:
            lines.append(f"{one['run']}, fitted on {one['fitted_on']}: no prediction: {one['reason']}")
            continue
        cells = [names[one["run"]], one["fitted_on"], str(one["ttft"]["n"])]
        for name in METRICS:
            cells += [_share(one[name][what], sign=what == "mean") for what in ("mean", "median", "p95")]
        rows.append(tuple(cells))
    if rows:
        lines += _error_table(rows)
    return [*lines, *_schedulers(told)]


def _error_table(rows: list[tuple[str, ...]]) -> list[str]:
    table = [("run", "fitted on", "n", *("mean", "p50", "p95") * len(METRICS)), *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    groups = [sum(widths[at : at + 3]) + 2 for at in range(3, len(widths), 3)]
    head = " " * (sum(widths[:3]) + 2 * 2)
    lines = [head + "".join(f"  {name.upper():>{wide}}" for name, wide in zip(METRICS, groups, strict=True))]
    for row in table:
        text = "  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2])])
        for at in range(3, len(row)):
            text += ("  " if at % 3 == 0 else " ") + row[at].rjust(widths[at])
        lines.append(text)
    return lines


def _schedulers(told: dict[str, Any]) -> list[str]:
    """The scheduler that the predictions took, where no plan says it: one line for all runs that show the same."""
    seen: dict[str, list[str]] = {}
    for one in told["errors"]:
        if (scheduler := one["scheduler"]) is not None:
            seats = f"{scheduler['seats']} seats" if scheduler["seats"] else "no limit of seats seen"
            runs = seen.setdefault(f"{scheduler['policy']}, {seats}", [])
            if (name := _short(told)[one["run"]]) not in runs:
                runs.append(name)
    whose = [text if len(seen) == 1 else f"{text} ({', '.join(runs)})" for text, runs in seen.items()]
    return [f"scheduler taken as {'; '.join(whose)}: --plan knows better"] if whose else []


def _share(value: float | None, *, sign: bool) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def time(seconds: float) -> str:
    """A constant in the unit that leaves it readable: s, ms, µs, ns."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0"
