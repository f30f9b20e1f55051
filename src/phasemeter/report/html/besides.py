"""What else a result tells: failures in the server's words, facts of the load, a simulation's own knowledge, another tool's keys.

Lives here: layout of what the result document says. Must not live here: computing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phasemeter.report.html.markup import Markup, chart, figure, section, table, tag
from phasemeter.report.words import DASH, number

Document = Mapping[str, Any]
ERRORS_SHOWN, LETTERS = 20, 400
SIMULATED_PHASES = {
    "queue": "queue", "prefill": "prefill", "handoff": "hand-off of the first token", "decode": "decode",
    "stall_prefill": "stalled by others' prefill",
    "stall_mixed": "slowed by mixed steps", "stall_preempted": "stalled by preemption",
}  # fmt: skip


def errors(document: Document) -> Markup | None:
    """The failures, the commonest first, in the server's own words."""
    found = list(document.get("errors") or ())
    if not found:
        return None
    rows = [
        [one["kind"], str(one.get("status") or ""), str(one["count"]), str(one.get("message") or "no words")[:LETTERS]]
        for one in found[:ERRORS_SHOWN]
    ]
    more = len(found) - ERRORS_SHOWN
    return tag(
        "div",
        tag("h3", "What failed"),
        table(["kind", "status", "requests", "in its own words"], rows, "Failures by their words", "words"),
        tag("p", f"And {more} other messages.", class_="note") if more > 0 else None,
    )


def facts(document: Document) -> Markup | None:
    """Of the load and the replies what no other table holds."""
    load, rates = document.get("workload") or {}, document.get("throughput") or {}
    real, gaps, peak = load.get("realised") or {}, load.get("gaps") or {}, rates.get("peak") or {}
    pairs = [
        ("due and sent", _pair(real.get("due_per_s"), real.get("sent_per_s"), "requests/s")),
        ("busiest second", _one(peak.get("peak_output_tokens_per_s"), "output tokens/s")),
        ("in flight at most", _one((load.get("in_flight") or {}).get("peak"), "requests")),
        ("warm-up", _outcomes(load.get("warmup"))),
        ("probe", _outcomes(load.get("probe"))),
        ("finish reasons", ", ".join(f"{name} {count:,}" for name, count in (load.get("finish_reasons") or {}).items())),
        ("tokens a chunk", _one(load.get("tokens_per_chunk"), "")),
        ("gaps that one read made zero", _share(gaps.get("coalesced_share"))),
        ("stalls", _stalls(gaps)),
        ("requests without a final output", _one(load.get("no_final_output") or None, "")),
        ("tokens of cut-off requests", _one(load.get("partial_output_tokens") or None, "")),
        ("tokens that were estimated", _one(rates.get("estimated_tokens") or None, "")),
    ]  # fmt: skip
    items = [[tag("dt", name), tag("dd", figure(text, f"{name} = {text}"))] for name, text in pairs if text]
    return tag("dl", items, class_="pairs") if items else None


def _one(value: Any, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip() if isinstance(value, int | float) else ""


def _pair(due: Any, sent: Any, unit: str) -> str:
    if not isinstance(due, int | float) or not isinstance(sent, int | float):
        return ""
    return f"{number(due)} and {number(sent)} {unit}"


def _share(value: Any) -> str:
    return f"{100 * value:.3g} %" if isinstance(value, int | float) else ""


def _stalls(gaps: Mapping[str, Any]) -> str:
    if not gaps.get("stalls"):
        return ""
    return f"{gaps['stalls']:,} in {gaps.get('requests_with_stalls', 0):,} requests, {number(gaps.get('stalled_s'))} s in all"


def _outcomes(told: Mapping[str, Any] | None) -> str:
    if not told or not told.get("scheduled"):
        return ""
    failed = sum((told.get("failed") or {}).values())
    return f"{told['ok']:,} of {told['scheduled']:,} requests ok" + (f", {failed:,} failed" if failed else "")


def as_tool(document: Document) -> Markup | None:
    """Another tool's own keys with the values it would print, and what of its numbers can't be re-created."""
    told = (document.get("workload") or {}).get("as_tool")
    if not told:
        return None
    rows = [
        [key, DASH if value is None else figure(number(value, 6), f"{told['tool']} {key} = {number(value, 6)}")]
        for key, value in told["printed"].items()
        if value is None or isinstance(value, int | float)
    ]
    lost = [tag("li", line) for line in told.get("cannot_recreate") or ()]
    return tag(
        "div",
        tag("h3", f"As {told['tool']} would print it"),
        table(["its key", "value"], rows, "Under its own names"),
        [tag("p", "Can't be re-created from a capture of ours:"), tag("ul", lost)] if lost else None,
    )


def simulation(document: Document) -> tuple[str, str, Markup] | None:
    """What only a simulator knows; None for a measured run."""
    told = document.get("simulation")
    if not told:
        return None
    stability, warm = told.get("stability") or {}, told.get("warmup") or {}
    steady = {True: "steady", False: "not steady", None: "can't be said"}[stability.get("stable")]
    sentences = [
        f"The load was {steady}: {stability.get('evidence')}.",
        f"Warm-up: {warm.get('requests', 0):,} requests cut ({warm.get('rule')}).",
        f"Preemptions: {told.get('preemptions', 0):,}.",
        f"KV cache: {', '.join(f'{pool} {tokens:,} tokens' for pool, tokens in (told.get('kv_tokens') or {}).items())}.",
    ]
    phases = [
        [words, *(_ms(spread.get(key)) for key in ("mean", "p50", "p95", "p99", "max"))]
        for name, words in SIMULATED_PHASES.items()
        if (spread := (told.get("phases") or {}).get(name))
    ]
    steps = [
        [pool.replace("_", " "), resource.replace("_", " "), _share(share) or DASH,
         str((found.get("steps_bound_by") or {}).get(resource, 0))]
        for pool, found in (told.get("steps") or {}).items()
        for resource, share in (found.get("time_share") or {}).items()
    ]  # fmt: skip
    body = section(
        "simulation", "What the simulator knows",
        tag("ul", [tag("li", text) for text in sentences]),
        table(["phase", "mean, ms", "p50", "p95", "p99", "max"], phases, "Where its requests spent their time", "numbers"),
        table(["pool", "bound by", "share of step time", "steps"], steps, "What binds a step", "words") if steps else None,
        tag("div", [chart("simulated-load", _requests(told.get("load") or {})), chart("simulated-kv", _kv(told.get("load") or {}))],
            class_="two"),
    )  # fmt: skip
    return "simulation", "Simulation", body


def _ms(value: Any) -> Markup | str:
    if not isinstance(value, int | float):
        return DASH
    return figure(number(value * 1e3), f"{number(value * 1e3)} ms")


def _requests(load: Mapping[str, Any]) -> dict[str, Any] | None:
    if len(load.get("at_s") or ()) < 2:
        return None
    return {
        "title": "Running and waiting", "summary": "Requests in the engine over virtual time.",
        "note": "About a hundred instants of the run.",
        "x": {"label": "virtual time", "unit": "s"}, "y": {"label": "requests", "zero": True},
        "series": [
            {"name": name, "kind": "step", "dash": i, "x": load["at_s"], "y": load[name]["over_time"]}
            for i, name in enumerate(("running", "waiting"))
        ],
    }  # fmt: skip


def _kv(load: Mapping[str, Any]) -> dict[str, Any] | None:
    if len(load.get("at_s") or ()) < 2:
        return None
    return {
        "title": "KV cache in use", "summary": "Share of the KV cache in use over virtual time.", "note": "",
        "x": {"label": "virtual time", "unit": "s"}, "y": {"label": "share in use", "zero": True, "max": 1},
        "series": [{"name": "KV", "kind": "step", "x": load["at_s"], "y": load["kv_share"]["over_time"]}],
    }  # fmt: skip
