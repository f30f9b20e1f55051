"""What a word means to each tool, side by side, from the same rows that compute.

Lives here: choosing rows for a word, drawing their boundaries on a time line, measuring on a run's rows how far the choice moves
the number. Must not live here: any definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from phasemeter.errors import UserError
from phasemeter.metrics.definitions import DIALECT, HOUSE, Definition
from phasemeter.metrics.dialects import DIALECTS
from phasemeter.metrics.dialects.reading import Reading
from phasemeter.metrics.summary import Summary
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Metric
from phasemeter.report.words import DASH, number

# the axis, and which boundaries stand at which mark of it
AXIS = ("due", "connect", "send", "sent", "headers", "first", "output", "last", "usage", "end")
AT = {
    "due": 0, "dispatch": 1, "connect_start": 1, "dns_done": 1, "tcp_start": 1, "tcp_connected": 1, "connected": 1,
    "send_start": 2, "sent": 3, "headers": 4, "first_read": 4, "first_chunk": 4, "first_token": 5,
    "first_token_or_empty": 5, "first_output": 6, "last_token": 7, "last_token_or_empty": 7, "usage": 8, "first_choice_chunk": 4,
    "last_choice_chunk": 7,
    "usage_or_last_token": 8, "stream_end": 9,
}  # fmt: skip
STEP, SHORTEST = 8, 4  # columns between two marks
BOUNDARY_WORDS = {
    "due": "the schedule's instant (closed loop: the moment its slot was free)",
    "dispatch": "the start of connecting if a request had to connect, else just before the first byte's write",
    "connect_start": "the start of opening a connection",
    "send_start": "just before the first byte's write",
    "sent": "when the kernel took the last byte of the request",
    "first_token": "the first non-empty output of any channel: reasoning, content, tool call, refusal",
    "first_token_or_empty": "the same, but an empty content chunk without a role counts and `reasoning_content` does not",
    "first_output": "the first output outside reasoning",
    "last_token": "the last non-empty output",
    "last_token_or_empty": "the last output or empty content chunk",
    "first_choice_chunk": "the first chunk with choices, be it a role alone",
    "last_choice_chunk": "the last chunk with choices, be it a finish reason alone",
    "usage_or_last_token": "the chunk with the usage, else the last output",
    "stream_end": "the terminal mark ([DONE], completed event) or the close",
}
OTHER_WORDS = {"goodput", "max_goodput", "output_tokens", "throughput"}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tool's meaning of a word."""

    tool: str  # phasemeter/1, vllm@0.33, ...
    name: str  # as the tool calls it
    definition: Definition
    unit: str
    aggregation: str
    first_token: str = ""
    tokens: str = ""
    note: str = ""
    source: str = ""


HOUSE_TOKENS = "server usage, else logprobs, else a local count of the whole text"


def entries(word: str) -> list[Entry]:
    """Every tool's rows for a word of ours ("ttft"), or for a tool's own name ("inter_token_latency", "e2el").

    Raises UserError that lists the known words.
    """
    wanted = word.strip().lower()
    found = []
    if wanted in HOUSE:
        row = HOUSE[wanted]
        weight = "each gap equal" if row.kind == "gap" else "each request equal"
        found.append(
            Entry(tool=DIALECT, name=row.name, definition=row, unit=row.unit, aggregation=weight, tokens=HOUSE_TOKENS,
                  note=row.words, source=row.source)
        )  # fmt: skip
    for dialect in DIALECTS.values():
        for own in dialect.rows:
            names = {own.word, own.key.lower(), own.definition.name.lower()}
            if wanted in names:
                found.append(
                    Entry(tool=dialect.id, name=own.key, definition=own.definition, unit=own.unit,
                          aggregation="each gap equal" if own.definition.kind == "gap" else
                          f"weighted by {own.weight}" if own.weight else "each request equal",
                          first_token=dialect.first_token, tokens=dialect.tokens, note=own.note, source=dialect.source)
                )  # fmt: skip
    if not found:
        known = sorted(set(HOUSE) | {own.word for dialect in DIALECTS.values() for own in dialect.rows} | OTHER_WORDS)
        raise UserError(f"`{word}` is no metric I know: take one of {', '.join(known)}")
    return found


def rules(word: str) -> list[dict[str, str]]:
    """Each tool's rule for a word that is no number per request; of `max_goodput` ours alone."""
    ours = {
        "goodput": "requests due in the window that break no objective, per second of window; failures are bad, one-token"
        " replies under a TPOT objective are not evaluable and left out",
        "max_goodput": "the highest offered rate whose joint attainment reaches the target: what `phasemeter goodput` searches",
        "output_tokens": f"{HOUSE_TOKENS}; the source is named; never the maximum asked for, never the number of chunks;"
        " reasoning tokens are inside",
        "throughput": "what was received in a stated window from every request, cancelled and warm-up ones too; steady"
        " window: first due after warm-up to last due, unsent ones apart (open loop), the longest interval at 90 % of"
        " peak concurrency (closed)",
    }
    told = [{"tool": DIALECT, "rule": ours[word]}]
    for dialect in DIALECTS.values():
        theirs = {"goodput": dialect.goodput, "output_tokens": dialect.tokens, "throughput": dialect.window_words}
        if word in theirs:
            told.append({"tool": dialect.id, "rule": theirs[word]})
    return told


def document(word: str) -> dict[str, Any]:
    """The word's table as plain data."""
    if word in OTHER_WORDS:
        return {"phasemeter": 1, "word": word, "rules": rules(word)}
    return {"phasemeter": 1, "word": word, "definitions": [_plain(entry) for entry in entries(word)]}


def _plain(entry: Entry) -> dict[str, Any]:
    row = entry.definition
    return {
        "tool": entry.tool,
        "name": entry.name,
        "start": row.start,
        "end": row.end,
        "divisor": row.divisor,
        "excluded": list(row.excluded),
        "aggregation": entry.aggregation,
        "unit": entry.unit,
        "words": row.words or None,
        "first_token": entry.first_token or None,
        "tokens": entry.tokens or None,
        "note": entry.note or None,
        "source": entry.source or None,
    }


def lines(word: str, wide: int | None = None) -> Iterator[str]:
    """The word's table for a person: the time line (in `wide` columns), then each tool's row."""
    if word in OTHER_WORDS:
        for rule in rules(word):
            yield f"{rule['tool']:<22} {rule['rule']}"
        return
    found = entries(word)
    yield from timeline(found, wide)
    yield ""
    for entry in found:
        yield f"{entry.tool}  {entry.name} [{entry.unit}]"
        yield f"    {entry.definition.line()}"
        if entry.definition.excluded:
            yield f"    leaves out  {', '.join(entry.definition.excluded)}"
        yield f"    statistics  {entry.aggregation}"
        for label, text in (("first token", entry.first_token), ("tokens", entry.tokens), ("note", entry.note)):
            if text and text != entry.definition.words:
                yield f"    {label:<11} {text}"
    used = {name for entry in found for name in (entry.definition.start, entry.definition.end) if name}
    yield ""
    for name in (name for name in BOUNDARY_WORDS if name in used):
        yield f"{name}: {BOUNDARY_WORDS[name]}"


def timeline(found: list[Entry], wide: int | None = None) -> Iterator[str]:
    """Each row's stretch of a request's life, one line a tool; shorter steps and no divisors where `wide` columns ask for it."""
    drawn = [entry for entry in found if entry.definition.start is not None and entry.definition.end is not None]
    if not drawn:
        return
    margin = max(len(entry.tool) for entry in found) + 2
    last = len(AXIS) - 1
    step = STEP if wide is None else min(STEP, max(SHORTEST, (wide - margin - len(AXIS[-1])) // last))
    rows = 1 if step == STEP else 2  # names that would touch stand on two lines, in turn
    for row in range(rows):
        yield " " * (margin + row * step) + "".join(f"{name:<{rows * step}}" for name in AXIS[row::rows]).rstrip()
    for entry in drawn:
        start, end = AT[entry.definition.start or ""] * step, AT[entry.definition.end or ""] * step
        bar = ["·" if place % step == 0 else " " for place in range(last * step + 1)]
        bar[start : end + 1] = ["├", *"─" * (end - start - 1), "┤"] if end > start else ["│"]
        line = f"{entry.tool:<{margin}}{''.join(bar)}"
        divisor = f"  ÷ ({entry.definition.divisor})" if entry.definition.divisor else ""
        yield line + divisor if wide is None or len(line + divisor) <= wide else line


def all_words() -> Iterator[str]:
    """Every word of ours in one line each."""
    long = max(len(name) for name in HOUSE)
    yield f"{DIALECT}: `phasemeter define WORD` shows every tool's row side by side"
    for name, row in HOUSE.items():
        yield f"{name:<{long}}  {row.line()}"
    yield f"also: {', '.join(sorted(OTHER_WORDS))}; tools: {', '.join(dialect.id for dialect in DIALECTS.values())}"


def moved(word: str, rows: Iterable[RequestRow]) -> list[dict[str, Any]]:
    """What every tool's row gives on these requests, in seconds, and how far from the first (ours where we have the word).

    Raises UserError for what is no metric of single requests.
    """
    if word in OTHER_WORDS:
        raise UserError(
            f"--for compares times of single requests, `{word}` is none:"
            f" `phasemeter define {word}` tells the rules, `phasemeter report RUN --as TOOL` what a tool prints"
        )
    found = entries(word)
    summary, readings = Summary(), {name: Reading(dialect) for name, dialect in DIALECTS.items()}
    for row in rows:
        summary.add(row)
        for reading in readings.values():
            reading.add(row)
    house = summary.result().metrics
    told: dict[str, dict[str, Metric]] = {
        DIALECTS[name].id: reading.printed().metrics for name, reading in readings.items()
    }
    answers: list[dict[str, Any]] = []
    for entry in found:
        metric = house[entry.name] if entry.tool == DIALECT else told[entry.tool][entry.name]
        scale = {"ms": 1e-3}.get(metric.unit, 1.0)
        p50, p99 = metric.percentiles.get("p50"), metric.percentiles.get("p99")
        answers.append({
            "tool": entry.tool, "name": entry.name, "n": metric.n, "unit": "s" if metric.unit == "ms" else metric.unit,
            "mean": _scaled(metric.mean, scale), "p50": _scaled(p50.value if p50 else None, scale),
            "p99": _scaled(p99.value if p99 else None, scale), "reason": metric.reason,
        })  # fmt: skip
    base = answers[0]
    for answer in answers:
        same = answer["unit"] == base["unit"] and answer["mean"] is not None and base["mean"]
        answer["mean_over_first"] = answer["mean"] / base["mean"] if same else None
    return answers


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def moved_lines(word: str, answers: list[dict[str, Any]], wide: int | None = None) -> Iterator[str]:
    """`moved` for a person; where a table passes `wide` columns, two lines a tool."""
    yield f"{word} of this run, under each tool's definition"
    head = f"{'tool':<24}{'its name':<34}{'n':>9}{'mean':>12}{'p50':>12}{'p99':>12}   mean against the first"
    narrow = wide is not None and len(head) > wide
    if not narrow:
        yield head
    for answer in answers:
        factor, unit = (1e3, "ms") if answer["unit"] == "s" else (1.0, answer["unit"])
        keys = ("mean", "p50", "p99")
        told = {key: DASH if answer[key] is None else number(answer[key] * factor) for key in keys}
        ratio = answer["mean_over_first"]
        change = answer["reason"] or "" if ratio is None else f"{ratio - 1:+.2%}"
        if narrow:
            said = [f"n {answer['n']}", *(f"{key} {value}" for key, value in told.items())]
            against = "" if not change else f" · {change}" if ratio is None else f" · {change} against the first"
            yield f"{answer['tool']}  {answer['name']}"
            yield f"    {' · '.join(said)} {unit}{against}"
            continue
        cells = "".join(f"{told[key]:>12}" for key in keys)
        yield f"{answer['tool']:<24}{answer['name']:<34}{answer['n']:>9}{cells}   {change} ({unit})"
