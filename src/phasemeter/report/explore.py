"""The what-if page: sliders over the terms of the budget, what dominates, where the SLO breaks.

Lives here: the page and the numbers it starts from. Must not live here: the fit (runs/law.py). The law is
e2e = ttft + (output_tokens − 1)·tpot; what a rate adds is Sakasegawa's approximation of the wait before `slots` servers, said
on the page (H. Sakasegawa, Annals of the Institute of Statistical Mathematics 29, 1977).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.errors import Undefined
from phasemeter.report.html.markup import Markup, data, section, tag, words
from phasemeter.report.html.page import banner, page
from phasemeter.report.html.run_tables import open_tables, result_document
from phasemeter.report.html.segments import swatch
from phasemeter.runs.law import Law, Observation, fit, observed

FITTED_AT_MOST = 600  # requests: the fit looks at every pair


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where the sliders stand: ms, tokens, requests a second. As given: TTFT 450 ms, 120 tokens of 25 ms, e2e 3.425 s."""

    input: float = 500
    output: float = 120
    lump: float = 0.0
    ingress: float = 30.0
    queue: float = 100.0
    prefill_base: float = 50.0
    prefill_per_token: float = 0.5
    hand_off: float = 20.0
    tpot: float = 25.0
    tpot_per_request: float = 0.0
    rate: float = 1.0
    slots: float = 64
    slo_ttft: float = 500.0
    slo_tpot: float = 30.0
    slo_e2e: float = 4000.0


# knob: (group, words, unit, least, most, step)
KNOBS: dict[str, tuple[str, str, str, float, float, float]] = {
    "input": ("Workload", "input length", "tokens", 1, 32768, 1),
    "output": ("Workload", "output length", "tokens", 1, 8192, 1),
    "rate": ("Workload", "rate", "req/s", 0.01, 1000, 0.01),
    "lump": ("Until the first token", "not told apart", "ms", 0, 2000, 0.1),
    "ingress": ("Until the first token", "ingress + delivery", "ms", 0, 1000, 0.1),
    "queue": ("Until the first token", "queue at low load", "ms", 0, 2000, 0.1),
    "prefill_base": ("Until the first token", "prefill, fixed", "ms", 0, 1000, 0.1),
    "prefill_per_token": ("Until the first token", "prefill, an input token", "ms", 0, 5, 0.001),
    "hand_off": ("Until the first token", "first-token hand-off", "ms", 0, 200, 0.1),
    "tpot": ("Then", "tpot, alone", "ms", 0.1, 200, 0.1),
    "tpot_per_request": ("Then", "tpot grows a request beside it by", "ms", 0, 5, 0.01),
    "slots": ("Then", "requests served at once", "slots", 1, 512, 1),
    "slo_ttft": ("Limits", "ttft at most", "ms", 1, 5000, 1),
    "slo_tpot": ("Limits", "tpot at most", "ms", 1, 250, 0.5),
    "slo_e2e": ("Limits", "e2e at most", "ms", 1, 60000, 10),
}


def start_of(law: Law, seen: Sequence[Observation], parts: Mapping[str, float] | None) -> Start:
    """The sliders at a run's own numbers: typical lengths, its TTFT in the parts that are on record, its tpot; limits at its p95.

    `parts`: the mean budget of its TTFT by segment, in seconds, where its server told of queue or prefill; None: one lump.
    """
    input_tokens = round(statistics.median(one.input_tokens for one in seen))
    output_tokens = round(statistics.median(one.output_tokens for one in seen))
    slope = max(law.per_input_token_s, 0.0) * 1e3
    mean_input = statistics.fmean(one.input_tokens for one in seen)

    def tail(values: list[float]) -> float:
        return float(f"{sorted(values)[min(len(values) - 1, round(0.95 * (len(values) - 1)))] * 1e3:.3g}")

    def ms(*names: str) -> float:
        return _shown(sum((parts or {}).get(name, 0.0) for name in names) * 1e3)

    if parts is None:  # what grows with the prompt is prefill; of the rest nobody knows whose it is
        base = law.ttft_s(input_tokens) * 1e3 - slope * input_tokens
        told = {"lump": _shown(max(base, 0.0)), "prefill_per_token": round(slope, 6), "prefill_base": 0.0}
    else:
        prefill = ms("prefill")
        slope = min(slope, prefill / mean_input) if mean_input else 0.0
        told = {
            "lump": max(0.0, ms("unattributed")), "ingress": max(0.0, ms("connect", "upload", "ingress_delivery")),
            "queue": max(0.0, ms("queue")), "hand_off": max(0.0, ms("first_token")), "prefill_per_token": round(slope, 6),
            "prefill_base": _shown(max(0.0, prefill - slope * mean_input)),
        }  # fmt: skip
    start = Start(
        input=input_tokens, output=output_tokens, ingress=0.0, queue=0.0, hand_off=0.0, tpot=_shown(law.tpot_s * 1e3),
        slo_ttft=tail([one.ttft_s for one in seen]), slo_tpot=tail([one.tpot_s for one in seen]),
        slo_e2e=tail([one.e2e_s for one in seen]),
    )  # fmt: skip
    return msgspec.structs.replace(start, **told)


def _shown(value: float) -> float:
    return float(f"{value:.5g}")


def parts_of(document: Mapping[str, Any]) -> tuple[dict[str, float] | None, str]:
    """(the mean TTFT by segment, on whose word); (None, "") where neither queue nor prefill is on record."""
    budget = document.get("budget") or {}
    evidence, mean = budget.get("evidence") or {}, (budget.get("mean") or {}).get("ttft")
    if mean and {"queue", "prefill"} & set(evidence):
        return dict(
            mean
        ), f"its server's own word ({', '.join(sorted({name for part in evidence.values() for name in part}))})"
    for engine, window in (budget.get("aggregate") or {}).items():
        if {"queue", "prefill"} <= set(window.get("mean") or {}):
            return dict(window["mean"]), f"{engine}'s sums and counts over the run"
    return None, ""


def load_of(document: Mapping[str, Any]) -> float | None:
    """Requests a second: as offered on a schedule, else as served."""
    load = (document.get("workload") or {}).get("load") or {}
    served = (document.get("throughput") or {}).get("requests_per_s")
    rate = load.get("rate_per_s") if load.get("mode") == "open" else None
    found = rate if isinstance(rate, int | float) else served
    return float(f"{found:.4g}") if isinstance(found, int | float) and found > 0 else None


def started(run: Path) -> tuple[Start, str]:
    """(where the sliders stand for this run, how that was found). Raises FileError when there is no run."""
    with open_tables(run) as tables:
        seen = observed(tables.rows())
    told = result_document(run)
    chosen = seen[:: -(-len(seen) // FITTED_AT_MOST) or 1] if seen else []
    name = run.resolve().name
    if not chosen:
        return Start(), f"{name} has no finished request with lengths, TTFT and TPOT: the numbers are an example."
    parts, source = parts_of(told)
    try:
        law = fit(chosen)
        grows = f"TTFT grows by {law.per_input_token_s * 1e3:.4g} ms an input token (Theil–Sen)"
    except Undefined as absent:
        law = Law(
            base_s=statistics.median(one.ttft_s for one in chosen), per_input_token_s=0.0, n=len(chosen),
            tpot_s=statistics.median(one.tpot_s for one in chosen),
        )  # fmt: skip
        grows = f"TTFT can't be split by input length ({absent.reason})"
    split = f"The parts of TTFT are its mean budget, on {source}." if parts is not None else LUMP
    rate = load_of(told)
    start = start_of(law, chosen, parts)
    start = start if rate is None else msgspec.structs.replace(start, rate=rate)
    how = f"Starts from {name}, {law.n} requests: {grows}, tpot is its median, the limits are its p95."
    return start, f"{how} {split}{'' if rate is None else RATE}"


LUMP = (
    "Its server told nothing of queue and prefill, so what doesn't grow with the prompt is one lump, “not told apart”: move what"
    " you know of it to the other sliders."
)
RATE = " The rate is the run's own, and what load it had is in its numbers already: raise the rate to see what more would add."
EXAMPLE = (
    "An example: TTFT 450 ms, 120 tokens, 25 ms a token: 0.45 s + 119 × 0.025 s = 3.425 s."
    " `phasemeter explore RUN` starts from a run."
)


def beginning(run: Path | None = None) -> tuple[Start, str]:
    """Where the sliders stand, and how that was found: at `run`'s numbers or at the example's. Raises FileError when there is no run."""
    return (Start(), EXAMPLE) if run is None else started(run)


def explore_page(run: Path | None = None, begun: tuple[Start, str] | None = None) -> str:
    """The page; `begun`: its `beginning`, where that is known already."""
    start, how = begun or beginning(run)
    groups: dict[str, list[Markup]] = {}
    for knob, (group, *_) in KNOBS.items():
        groups.setdefault(group, []).append(_slider(knob, getattr(start, knob)))
    sliders = [
        tag("fieldset", tag("legend", group), tag("div", found, class_="sliders")) for group, found in groups.items()
    ]
    colours = [
        tag("span", swatch(kind), name, "\u2003", class_="keyed")
        for kind, name in (("unattributed", "not told apart"), ("ingress_delivery", "ingress + delivery"), ("queue", "queue"),
                           ("prefill", "prefill"), ("first_token", "first-token hand-off"), ("decode", "decode"))
    ]  # fmt: skip
    sections = [
        ("answer", "Answer", section(
            "answer", "What it comes to",
            tag("p", id="explore-answer", class_="answer"),
            tag("div", id="explore-bars", class_="bars"),
            tag("p", colours, class_="note"),
            tag("div", id="explore-limits"),
            tag("noscript", "The sliders need this page's own script."),
        )),
        ("terms", "Terms", section(
            "terms", "The terms", tag("p", words(how), class_="note"),
            tag("div", sliders, id="explore-here"),
            tag("p", tag("button", "Back to the start", type="button", id="explore-reset", class_="quiet")),
            data("explore-data", {"start": msgspec.to_builtins(start)}),
        )),
        ("picture", "Picture", section(
            "picture", "Two phases, one budget",
            tag("div", id="explore-picture", class_="picture scroll", tabindex="0", role="region",
                aria_label="Picture of prefill, state and decode"),
        )),
        ("lengths", "Lengths", section(
            "lengths", "Lengths",
            tag("div", tag("figure", tag("h3", "End to end against output length"), tag("div", id="explore-curve", class_="chart")),
                tag("figure", tag("h3", "Which term dominates"), tag("p", "Dimmed where a limit breaks; grey where the load is too much.",
                    class_="note"), tag("div", id="explore-map")), class_="two"),
        )),
        ("law", "The law", section("law", "The law and its limits", _law())),
    ]  # fmt: skip
    name = "What if?" if run is None else f"What if? {run.resolve().name}"
    return page(f"{name}: phasemeter explore", banner("phasemeter explore", name), sections, ("explore.js",))


def _slider(knob: str, value: float) -> Markup:
    _, name, unit, least, most, step = KNOBS[knob]
    identifier = f"knob-{knob}"
    top = max(most, value * 1.5)
    return tag(
        "div",
        tag("label", f"{name}, {unit}", for_=identifier),
        tag("input", type="number", id=identifier, data_knob=knob, min=least, step="any", value=value),
        tag(
            "input",
            type="range",
            data_range=knob,
            min=least,
            max=top,
            step=step,
            value=value,
            aria_label=f"{name}, {unit}",
        ),
        class_="slider",
    )


def _law() -> Markup:
    lines = (
        "`e2e = ttft + (output_tokens − 1) · tpot`, and `ttft = ingress + queue + prefill + first-token hand-off + delivery`.",
        "Prefill is taken as a fixed part and a part for each input token; real ones bend with length, batch and cache.",
        "The rate adds to the queue by Sakasegawa's approximation for several servers with memoryless arrivals and services:"
        " `wait = held · ρ^√(2(slots + 1)) / (slots · (1 − ρ))`, where ρ is rate × time held / slots. A scheduler that batches"
        " is no such queue: take it as a direction and measure. `phasemeter simulate` runs the scheduler itself.",
        "tpot may grow with the requests beside it; both hold each other and are solved together.",
    )
    return tag("div", [tag("p", words(line)) for line in lines])
