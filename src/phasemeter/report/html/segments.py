"""The budget's segments in words, and its stacked bars.

Lives here: what each segment means to a reader, what is lumped and why. Must not live here: budgets (phases/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phasemeter.phases.budget import SPANNED
from phasemeter.report.html.markup import Markup, figure, table, tag
from phasemeter.report.words import number

WORDS: Mapping[str, tuple[str, str]] = {
    "client_queue": ("client queue", "due → the connect or send: our own lateness"),
    "connect": ("connect", "name lookup, TCP and TLS of a new connection"),
    "upload": ("upload", "from the first byte's write until the kernel took the last"),
    "ingress_delivery": ("ingress + delivery", "network, gateway, parsing and tokenisation before the scheduler, and detokenising,"
                         " serialising and transport after the first token. One lump: the two clocks share no zero, so that"
                         " only their sum is known"),
    "queue": ("queue", "server: queue_enter → prefill_start, waiting for the scheduler"),
    "prefill": ("prefill", "server: prefill_start → prefill_end, processing the prompt, building the KV cache"),
    "first_token": ("first-token hand-off", "server: prefill_end → its first token; 0 where an engine ends prefill with it"),
    "reasoning": ("reasoning", "first token → first output outside reasoning"),
    "decode": ("decode", "first output → last token, without the stalls"),
    "stalls": ("stalls", "the gaps over 5 times their request's median gap"),
    "tail": ("tail", "last token → the stream's end: usage, [DONE], close"),
    "unattributed": ("unattributed", "what nobody explains. Without server evidence of both queue and prefill, all of the wait for"
                     " the first token that it doesn't name is here: those of ingress, queue, prefill, hand-off and delivery can't"
                     " be told apart"),
}  # fmt: skip
METRICS = ("ttft", "ttft_from_due", "e2e", "e2e_from_due")


def swatch(kind: str) -> Markup:
    return tag("span", class_=f"swatch s-{kind}", aria_hidden="true")


def bar(segments: Mapping[str, float], longest: float) -> Markup:
    """One stacked bar; `longest` is the whole width. A negative segment can't be drawn: the words beside it say so."""
    parts = [
        tag(
            "span",
            class_=f"s-{name}",
            style=f"width:{100 * value / longest:.3f}%",
            title=f"{WORDS[name][0]}: {_ms(value)}",
        )
        for name, value in segments.items()
        if value > 0 and longest > 0
    ]
    return tag("div", parts, class_="bar", aria_hidden="true")


def bars(budget: Mapping[str, Any], metric: str) -> Markup | None:
    """Mean and tails of one metric: bars, then the same numbers as a table."""
    lines = list(_lines(budget, metric))
    if not lines:
        return None
    longest = max(sum(max(v, 0.0) for v in segments.values()) for _, segments, _ in lines)
    drawn = [
        (tag("span", label), bar(segments, longest), tag("span", _ms(sum(segments.values())), class_="total"))
        for label, segments, _ in lines
    ]
    names = [name for name in SPANNED[metric] if any(segments.get(name) for _, segments, _ in lines)]
    rows = [
        [
            label,
            *(
                figure(_ms(segments.get(name, 0.0)), f"{metric} budget, {label}: {WORDS[name][0]} = {_ms(segments.get(name, 0.0))}"
                       f" ({WORDS[name][1]})")
                for name in names
            ),
            remark,
        ]
        for label, segments, remark in lines
    ]  # fmt: skip
    head = ["", *([swatch(name), WORDS[name][0]] for name in names), ""]
    undecided = [
        f"{label}: undecided, needs about {tail['needs_requests']:,} requests"
        for label, tail in (budget.get("tails") or {}).get(metric, {}).items()
        if tail.get("verdict") == "undecided" and tail.get("needs_requests")
    ]
    return tag(
        "div",
        tag("h3", f"Budget of {metric}"),
        tag("div", drawn, class_="bars"),
        table(head, rows, f"Where the time of {metric} went, mean a request", "numbers"),
        tag("p", "; ".join(undecided), class_="note") if undecided else None,
    )


def _lines(budget: Mapping[str, Any], metric: str) -> Iterator[tuple[str, Mapping[str, float], str]]:
    mean = (budget.get("mean") or {}).get(metric)
    if mean:
        yield "mean", mean, ""
    for label, tail in ((budget.get("tails") or {}).get(metric) or {}).items():
        if tail.get("verdict") == "decided":
            off = tail["percentile_minus_band_mean_s"]
            remark = f"{tail['n']} requests near it; {label} is {_ms(tail['value_s'])}, {_ms(off)} from their mean"
            yield label, tail["segments_s"], remark


def legend(budget: Mapping[str, Any]) -> Markup:
    """What each colour means, what is lumped and why; only the segments that occur."""
    used = {
        name
        for metric in METRICS
        for _, segments, _ in _lines(budget, metric)
        for name, value in segments.items()
        if value
    }
    items = [[tag("dt", swatch(name), WORDS[name][0]), tag("dd", WORDS[name][1])] for name in WORDS if name in used]
    return tag("dl", items, class_="pairs")


def _ms(seconds: float) -> str:
    return f"{number(seconds)} s" if abs(seconds) >= 10 else f"{number(seconds * 1e3)} ms"


def copied(name: str, ms: float, what: str) -> Markup:
    """A segment's length, to be copied with what it spans."""
    text = _ms(ms / 1e3)
    return figure(text, f"{name} = {text}: {what}")
