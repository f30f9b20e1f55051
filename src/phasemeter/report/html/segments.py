"""The budget's segments in words, and its stacked bars.

Lives here: what each segment means to a reader, what is lumped and why. Must not live here: budgets (phases/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phasemeter.phases.budget import SEGMENTS
from phasemeter.report.html.markup import Markup, figure, table, tag, words
from phasemeter.report.words import number

WORDS: Mapping[str, tuple[str, str]] = {
    "client_queue": ("client queue", "due → the connect or send: our own lateness"),
    "connect": ("connect", "name lookup, TCP and TLS of a new connection"),
    "upload": ("upload", "from the first byte's write until the kernel took the last"),
    "ingress_delivery": ("ingress + delivery", "network, gateway, parsing and tokenisation before the scheduler, and detokenising,"
                         " serialising and transport after the first token"),
    "queue": ("queue", "server: queue_enter → prefill_start, waiting for the scheduler"),
    "prefill": ("prefill", "server: prefill_start → prefill_end, processing the prompt, building the KV cache"),
    "first_token": ("first-token hand-off", "server: prefill_end → its first token; 0 where an engine ends prefill with it"),
    "reasoning": ("reasoning", "first token → first output outside reasoning"),
    "decode": ("decode", "first output → last token, without the stalls"),
    "stalls": ("stalls", "the gaps over 5 times their request's median gap"),
    "tail": ("tail", "last token → the stream's end: usage, [DONE], close"),
    "unattributed": ("unattributed", "what nobody explains: of ingress, queue, prefill, hand-off and delivery what no evidence"
                     " names"),
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
    names = [name for name in SEGMENTS if any(segments.get(name) for _, segments, _ in lines)]
    rows = [
        [
            label,
            *(
                figure(_ms(segments.get(name, 0.0)), f"{metric} budget, {label}: {WORDS[name][0]} = {_ms(segments.get(name, 0.0))}"
                       f" ({WORDS[name][1]})")
                for name in names
            ),
            *beside,
        ]
        for label, segments, beside in lines
    ]  # fmt: skip
    head = ["near", *([swatch(name), WORDS[name][0]] for name in names), "requests", "percentile", "− their mean"]
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


def _lines(budget: Mapping[str, Any], metric: str) -> Iterator[tuple[str, Mapping[str, float], tuple[str, str, str]]]:
    """(label, its segments, (how many requests, the percentile itself, how far it is from their mean))."""
    mean = (budget.get("mean") or {}).get(metric)
    if mean:
        yield "mean", mean, (str(budget.get("complete") or budget.get("requests") or ""), "", "")
    for label, tail in ((budget.get("tails") or {}).get(metric) or {}).items():
        if tail.get("verdict") == "decided":
            off = tail["percentile_minus_band_mean_s"]
            yield label, tail["segments_s"], (str(tail["n"]), _ms(tail["value_s"]), _ms(off))


def side_by_side(budgets: Mapping[str, Mapping[str, Any]], metric: str) -> Markup | None:
    """The mean budget of one metric for each of several runs, on one scale."""
    means = {name: mean for name, told in budgets.items() if (mean := (told.get("mean") or {}).get(metric))}
    if len(means) < 2:
        return None
    longest = max(sum(max(value, 0.0) for value in mean.values()) for mean in means.values())
    used = [name for name in SEGMENTS if any(mean.get(name) for mean in means.values())]
    drawn = [
        (tag("span", name), bar(mean, longest), tag("span", _ms(sum(mean.values())), class_="total"))
        for name, mean in means.items()
    ]
    rows = [
        [
            run,
            *(
                figure(_ms(mean.get(name, 0.0)), f"{run}, mean {metric} budget: {WORDS[name][0]} = {_ms(mean.get(name, 0.0))}")
                for name in used
            ),
            f"{budgets[run].get('with_server_evidence', 0):,} of {budgets[run].get('requests', 0):,}",
        ]
        for run, mean in means.items()
    ]  # fmt: skip
    head = ["run", *([swatch(name), WORDS[name][0]] for name in used), "with server evidence"]
    return tag(
        "div",
        tag("h3", f"Mean budget of {metric}"),
        tag("div", drawn, class_="bars"),
        table(head, rows, f"Where the time of {metric} went, mean a request", "numbers"),
    )


def legend(budget: Mapping[str, Any]) -> Markup:
    """What each colour means, what is lumped and why; only the segments that occur."""
    used = {
        name
        for metric in METRICS
        for _, segments, _ in _lines(budget, metric)
        for name, value in segments.items()
        if value
    }
    why = budget.get("lumps") or {}
    sources = budget.get("evidence") or {}

    def meaning(name: str) -> Markup:
        told = ", ".join(f"{source} ({n:,} requests)" for source, n in (sources.get(name) or {}).items())
        source = tag("span", words(f" On the word of {told}."), class_="note") if told else None
        return tag("dd", WORDS[name][1], f". One lump: {why[name]}." if name in why else ".", source)

    items = [[tag("dt", swatch(name), WORDS[name][0]), meaning(name)] for name in WORDS if name in used]
    return tag("dl", items, class_="pairs")


def beyond(budget: Mapping[str, Any]) -> list[Markup]:
    """What else the budget says: parts of a lump that are known in the mean, spans that found their request, other warnings."""
    told = []
    inside, before = budget.get("inside_server_mean"), budget.get("before_text_mean")
    if inside:
        told.append(
            f"Of ingress + delivery, {_ms(inside)} lie inside the server in the mean: its own TTFT holds them beyond its parts."
        )
    if before:
        told.append(f"Of the wait, {_ms(before)} pass from the first chunk without text to the first with text.")
    spans = budget.get("spans")
    if spans:
        ambiguous = f", {spans['ambiguous']:,} fit more than one and are left out" if spans.get("ambiguous") else ""
        told.append(f"{spans.get('joined', 0):,} requests were joined with their spans{ambiguous}.")
    if budget.get("with_other_warnings"):
        told.append(
            f"{budget['with_other_warnings']:,} requests carry another warning: `phasemeter inspect RUN#REQUEST` names it."
        )
    return [tag("li", words(text)) for text in told]


def aggregates(budget: Mapping[str, Any]) -> Markup | None:
    """What the scrapes' window says by engine: a mean budget of the wait, or why there is none."""
    found = budget.get("aggregate") or {}
    if not found:
        return None
    parts: list[Markup] = []
    for engine, window in found.items():
        mean = window.get("mean")
        if not mean:
            parts.append(
                tag("p", tag("strong", engine), f": no mean budget ({window.get('reason') or 'no reason given'}).")
            )
            continue
        n = window.get("n")
        rows = [
            [
                [swatch(name), WORDS[name][0]],
                figure(_ms(value), f"{engine}, mean of the window: {WORDS[name][0]} = {_ms(value)}, n = {n}"),
            ]
            for name in WORDS
            if (value := mean.get(name)) is not None
        ]
        parts += [
            tag("p", tag("strong", engine), f": {n:,} requests of the window" if isinstance(n, int | float) else ": the window"),
            bar({name: mean[name] for name in WORDS if name in mean}, sum(max(value, 0.0) for value in mean.values())),
            table(["segment", "mean"], rows, f"Mean wait for the first token by {engine}'s own sums and counts"),
        ]  # fmt: skip
        said = ", ".join(
            f"{key.removesuffix('_s')} {_ms(value)}"
            for key, value in (window.get("told") or {}).items()
            if key.endswith("_s")
        )
        parts.append(tag("p", f"As it told them: {said}. Of tails a window says nothing: quantiles of phases don't add." if said else "",
                         class_="note"))  # fmt: skip
    return tag("div", tag("h3", "The window of the scrapes"), parts)


def _ms(seconds: float) -> str:
    return f"{number(seconds)} s" if abs(seconds) >= 10 else f"{number(seconds * 1e3)} ms"


def copied(name: str, ms: float, what: str) -> Markup:
    """A segment's length, to be copied with what it spans."""
    text = _ms(ms / 1e3)
    return figure(text, f"{name} = {text}: {what}")
