"""`phasemeter inspect`: one exchange as a time line.

Lives here: the verb and its layout. Must not live here: reading or formulas (runs/inspect).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter.cli.completed import FileName
from phasemeter.cli.numbers import whole
from phasemeter.cli.tokenizer_option import tokenizer_at
from phasemeter.lazy import load

WIDEST_TEXT = 60


def inspect(
    target: FileName,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    tokenizer: Path | None = None,
    rows: Annotated[int, whole(0)] = 200,
) -> int:
    """Look into one exchange: its boundaries, chunks, tokens, gaps and warnings.

    Parameters
    ----------
    target
        A recorded exchange (JSON), a recording NAME.recv.jsonl, or RUN#REQUEST (its id, or its number in the plan).
    json
        One JSON document, times in ms since the send.
    tokenizer
        A local tokenizer.json, or the folder that holds one: counts the whole text where the server gave no usage.
    rows
        At most this many chunks are printed (0: all).

    Examples:
        phasemeter inspect exchange.json
        phasemeter inspect runs/20260101-smollm2#17 --json
    """
    inspecting = load("phasemeter.runs.inspect")
    found = inspecting.inspect(target, tokenizer_at(tokenizer))
    document = inspecting.json_document(found)
    if json:
        sys.stdout.write(load("msgspec").json.encode(document).decode() + "\n")
        return 0
    _print(str(target), document, time_line(found), rows)
    return 0


def time_line(found: Any) -> list[tuple[int, str, str, str, str]]:
    """Rows of the time line, in order: (ns since the send, what, which choice, tokens, text)."""
    row, exchange = found.row, found.exchange
    lines: list[tuple[int, str, str, str, str]] = []
    marks = (
        ("headers", row.headers_ns), ("first chunk", row.first_chunk_ns), ("usage", row.usage_ns),
        ("stream end", row.stream_end_ns),
    )  # fmt: skip
    origin = found.origin_ns
    lines.extend((at - origin, name, "", "", "") for name, at in marks if at is not None)
    for number, choice in enumerate(exchange.choices):
        held = found.counts.per_event[number]
        for event, (read, text) in enumerate(zip(choice.reads, choice.texts, strict=True)):
            tokens = str(held[event]) if held is not None else ""
            lines.append((exchange.times_ns[read] - origin, choice.channel_at(event), str(choice.index), tokens, text))
    order = {"headers": 0, "first chunk": 1, "usage": 3, "stream end": 4}
    return sorted(lines, key=lambda line: (line[0], order.get(line[1], 2)))


def _print(target: str, document: dict[str, Any], lines: list[tuple[int, str, str, str, str]], rows: int) -> None:
    console = load("phasemeter.report.terminal").Paper(highlight=False, soft_wrap=True)
    escape, plain = load("rich.markup").escape, load("phasemeter.report.plain").plain
    document = load("phasemeter.report.plain").plain_tree(document)
    verdict = document["outcome"] if document["failure"] is None else f"{document['outcome']}: {document['failure']}"
    console.print(
        f"[bold]{escape(plain(target))}[/]  {document['api']}  [bold]{verdict}[/]  HTTP {document['http_status']}"
    )
    if document["failure_text"]:
        console.print(f"  {escape(document['failure_text'])}")
    fold = load("phasemeter.report.fold")
    for line in summary(document):
        for part in fold.folded(f"  {line}", fold.columns()):
            console.print(escape(part))
    table = load("rich.table").Table(box=None, pad_edge=False, header_style="dim")
    for name, side in (
        ("ms", "right"),
        ("gap", "right"),
        ("", "left"),
        ("#", "right"),
        ("tok", "right"),
        ("text", "left"),
    ):
        table.add_column(name, justify=side, no_wrap=True)
    shown = lines if rows <= 0 or len(lines) <= rows else [*lines[: rows // 2], *lines[-(rows - rows // 2) :]]
    before: int | None = None
    for number, (at, what, choice, tokens, text) in enumerate(shown):
        if len(shown) < len(lines) and number == rows // 2:
            table.add_row("…", "", f"{len(lines) - len(shown)} more", "", "", "")
        gap = "" if before is None or not choice else f"{(at - before) / 1e6:.2f}"
        table.add_row(f"{at / 1e6:.2f}", gap, what, choice, tokens, escape(_quoted(text)))
        before = at if choice else before
    console.print(table)


def _quoted(text: str) -> str:
    shown = repr(text) if text else ""
    return shown if len(shown) <= WIDEST_TEXT else shown[: WIDEST_TEXT - 1] + "…"


def summary(document: dict[str, Any]) -> list[str]:
    """The numbers of one exchange in words, what is undefined with its reason."""
    reasons = document["reasons"]

    def ms(key: str) -> str:
        value = document[key]
        return f"{value:.2f} ms" if value is not None else f"– ({reasons.get(key, 'none')})"

    tokens = document["output_tokens"]
    counted = "unknown" if tokens is None else f"{tokens} ({document['output_tokens_source']})"
    lines = [
        f"TTFT {ms('ttft_ms')} · TTFO {ms('ttfo_ms')} · last output {ms('last_output_ms')} · end {ms('stream_end_ms')}",
        f"TPOT {ms('tpot_ms')} · decode {ms('decode_ms_per_token')} a token"
        f" · output tokens {counted} · prompt tokens {document['prompt_tokens']}",
    ]
    if document["coalesced_gaps"]:
        lines.append(
            f"{document['coalesced_gaps']} of {len(document['inter_chunk_ms'])} gaps are 0: events that shared a read"
        )
    if document["finish_reason"]:
        lines.append(f"finish: {document['finish_reason']}")
    if document["warnings"]:
        lines.append(f"warnings: {', '.join(document['warnings'])}")
    return lines
