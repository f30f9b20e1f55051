"""The answer of `phasemeter plan` for a person, for a program, and as an exit code.

Lives here: words and a table that fits its terminal. Must not live here: the search or its document (runs/choose*.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from phasemeter.report.words import DASH, number

NAMES = {"compute": "compute", "memory_bandwidth": "memory bw", "kv_memory": "kv reads", "link": "link", "host": "host"}
BINDS = {"stability": "queue"}  # the queue grows before an objective fails
LONGEST_NAME, SHORTEST_NAME = 46, 18
# which columns go first where the terminal is narrow
LEAST_NEEDED = ("batch", "ttft p90", "tpot p90", "cost/h", "KV", "most time in")


def dumps(answer: dict[str, Any]) -> str:
    """One strict JSON document."""
    return json.dumps(answer, allow_nan=False, ensure_ascii=False)


def exit_code(answer: dict[str, Any]) -> int:
    """0 with a choice; 1 where no candidate keeps the objectives, or none carries the target rate; 2 where none can be; 130
    interrupted."""
    if answer["partial"]:
        return 130
    if not answer["candidates"]:
        return 2
    target = answer["target"]
    return 1 if answer["choice"] is None or (target is not None and target["choice"] is None) else 0


def words(answer: dict[str, Any], width: int) -> list[str]:
    """The answer for a person, in lines of at most `width` where names allow it."""
    rows = [row for row in answer["candidates"] if row["rank"] is not None]
    lines = [_title(answer), ""]
    if rows:
        lines += [*_table(answer, rows, width), ""]
    lines += _others(answer)
    lines += _choice(answer) if answer["choice"] is not None else [_none(answer)]
    lines += _target(answer)
    lines += _scenarios(answer)
    lines += [f"warning: {text}" for text in answer["warnings"]]
    if answer["partial"]:
        lines.append("interrupted: what is above was found until then, and is not the whole search")
    return [line for text in lines for line in _wrapped(text, width)]


def _title(answer: dict[str, Any]) -> str:
    limits = ", ".join(f"{name} {_time(limit)}" for name, limit in answer["objectives_s"].items())
    many = len(answer["candidates"]) + len(answer["impossible"])
    return f"{answer['model'] or 'plan'}: {many} candidates, {100 * answer['attainment_target']:g} % of requests within {limits}"


def _time(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(1e3 * seconds)} ms"


def _table(answer: dict[str, Any], rows: Sequence[dict[str, Any]], width: int) -> list[str]:
    priced = answer["currency"] is not None
    cells = [_cells(answer, row, rows) for row in rows]
    columns = [name for name in cells[0] if priced or name not in {"cost/h", f"req per {answer['currency']}"}]
    longest = {name: max(len(name), *(len(one[name]) for one in cells)) for name in columns}
    longest["candidate"] = min(LONGEST_NAME, longest["candidate"])
    for name in LEAST_NEEDED:
        if sum(longest.values()) + 2 * len(longest) - 2 <= width:
            break
        longest.pop(name, None)
    over = sum(longest.values()) + 2 * len(longest) - 2 - width
    if over > 0:
        longest["candidate"] = max(SHORTEST_NAME, longest["candidate"] - over)
    left = {"candidate", "SLO", "most time in"}
    told = []
    for one in [{name: name for name in longest}, *cells]:
        parts = [_fit(one[name], wide, left=name in left) for name, wide in longest.items()]
        told.append("  ".join(parts).rstrip())
    notes = [
        "~ from short looks, which flatter by a few percent"
        for row in rows[:1]
        if any(r["status"] == "screened" for r in rows)
    ]
    return told + notes


def _fit(text: str, wide: int, *, left: bool) -> str:
    short = text if len(text) <= wide else text[: wide - 1] + "…"
    return short.ljust(wide) if left else short.rjust(wide)


def _cells(answer: dict[str, Any], row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    told = row["at_goodput"] or {}
    shared = sum(other["rank"] == row["rank"] for other in rows) > 1
    rough = "~" if row["status"] == "screened" else ""
    resource = told.get("resource")
    for name, short in NAMES.items():
        resource = resource.replace(name, short) if resource else resource
    per_currency = row["goodput_per_currency"]
    return {
        "#": f"{row['rank']}{'=' if shared else ''}",
        "candidate": row["name"],
        "GPUs": str(row["accelerators"]),
        "req/s per GPU": rough + _with_ends(row["goodput_per_accelerator"]),
        f"req per {answer['currency']}": "" if per_currency is None else number(per_currency["value"], 4),
        "cost/h": number(row["price_per_h"]),
        "SLO": BINDS.get(row["binding"], row["binding"]) or DASH,
        "most time in": (resource or DASH).replace("prefill: ", "p ").replace("decode: ", "d "),
        "KV": f"{100 * told['kv_share']:.0f} %" if told else DASH,
        "ttft p90": _time(told["ttft_s"]["p90"]) if told.get("ttft_s") else DASH,
        "tpot p90": _time(told["tpot_s"]["p90"]) if told.get("tpot_s") else DASH,
        "batch": number(told["batch"], 3) if told else DASH,
    }


def _with_ends(value: dict[str, Any]) -> str:
    low, high = value["ci95"]
    ends = f" ({number(low, 3)} … {number(high, 3)})" if low is not None or high is not None else ""
    return number(value["value"], 3) + ends


def _others(answer: dict[str, Any]) -> list[str]:
    """Who is not in the table, each with its reason; equal reasons on one line."""
    found: dict[str, list[str]] = {}
    unit = f"{answer['currency']}'s worth" if answer["currency"] is not None else "GPU"
    for row in answer["candidates"]:
        if row["rank"] is not None:
            continue
        reason = {
            "keeps_no_rate": f"too few requests are good at any rate ({row['binding']})",
            "not_reached": "not looked at: interrupted",
            "passed_over": f"no schedule of it carries as much for a {unit} as the best one does",
        }[row["status"]]
        ceiling = row["ceiling_per_s"]
        most = f" (at most {number(ceiling / row['accelerators'], 3)} a GPU)" if row["status"] == "passed_over" else ""
        found.setdefault(reason, []).append(row["name"] + most)
    for one in answer["impossible"]:
        found.setdefault(f"can't be: {one['reason']}", []).append(one["name"])
    lines = []
    for reason, names in found.items():
        lines += [f"{reason}:", f"    {', '.join(names)}"]
    return [*lines, ""] if lines else []


def _none(answer: dict[str, Any]) -> str:
    if not answer["candidates"]:
        return "no candidate can be: give more accelerators, fewer bytes a weight, or other values to vary"
    return "no choice: no candidate that was looked at keeps the objectives"


def _choice(answer: dict[str, Any]) -> list[str]:
    choice = answer["choice"]
    row = next(one for one in answer["candidates"] if one["name"] == choice["name"])
    worth = row["goodput_per_currency"]
    rough = "~" if row["status"] == "screened" else ""
    money = f", {number(worth['value'])} requests per {answer['currency']}" if worth is not None else ""
    lines = [
        f"best: {choice['name']}, {rough}{_with_ends(row['goodput_per_accelerator'])} req/s per GPU{money}; "
        f"{BINDS.get(row['binding'], row['binding']) or 'nothing'} binds{_spent(row)}"
    ]
    if choice["tied"]:
        lines.append(f"  a tie: nothing tells it from {', '.join(choice['tied'])}")
    return lines


def _spent(row: dict[str, Any]) -> str:
    told = row["at_goodput"]
    if told is None or not told["resource"]:
        return ""
    return f", most step time goes to {told['resource'].replace('_', ' ')}, KV {100 * told['kv_share']:.0f} % in use"


def _target(answer: dict[str, Any]) -> list[str]:
    target = answer["target"]
    if target is None:
        return []
    rate = f"{number(target['rate_per_s'])} req/s"
    if target["headroom"]:
        rate += f" and {100 * target['headroom']:g} % headroom"
    if target["choice"] is None:
        return [f"{rate}: {_why_not(answer)}"]
    row = next(one for one in answer["candidates"] if one["name"] == target["choice"])
    same = f"  for as much: {', '.join(target['equal'])}"
    return [f"{rate}: {_sized(answer, row)}", *([same] if target["equal"] else [])]


def _sized(answer: dict[str, Any], row: dict[str, Any]) -> str:
    own = row["for_target"]
    gpus = f"{own['copies']} × {row['name']} = {own['accelerators']} GPUs"
    if own["price_per_h"] is not None:
        gpus += f", {number(own['price_per_h'])} {answer['currency']}/h"
    for one in own["checks"]:
        share, (low, high) = one["attainment"]["value"], one["attainment"]["ci95"]
        said = f"{100 * share:.1f} % good ({100 * low:.1f} … {100 * high:.1f} %)"
        grows = ", its queue grows" if one["stable"] is False else ""
        if one["copies"] == own["copies"]:
            gpus += f"; simulated whole: {said}"
        else:
            few = "is too few" if one["copies"] == 1 else "are too few"
            gpus += f"; {one['copies']} {'would do too' if one['kept'] else few}: {said}{grows}"
    return gpus


def _why_not(answer: dict[str, Any]) -> str:
    target = answer["target"]
    if target["reason"] == "over_budget":
        least = min(row["for_target"]["accelerators"] for row in answer["candidates"] if row["for_target"])
        return f"takes at least {least} GPUs, more than the budget of {target['budget']}"
    return {
        "interrupted": "not looked at: interrupted",
        "no_candidate_keeps_the_objectives": "no candidate keeps the objectives at any rate",
    }.get(target["reason"], "no cluster within the budget that was simulated keeps the objectives")


def _scenarios(answer: dict[str, Any]) -> list[str]:
    choice, scenarios = answer["choice"], answer["scenarios"]
    if not scenarios or choice is None:
        return []
    lines = []
    names = [one["name"] for one in scenarios]
    if choice["robust"]:
        return [f"robust: the same choice, or a tie with it, with {', '.join(names)}"]
    same = [name for name in names if name not in choice["other_choice_with"]]
    lines.append("not robust:")
    for one in scenarios:
        if one["name"] in choice["other_choice_with"]:
            values = {row["name"]: row["per_cost"] for row in one["candidates"]}
            own, other = values.get(choice["name"]), values.get(one["choice"])
            more = f", {number(other / own, 3)} times as much" if own and other else ""
            lines.append(f"  {one['name']}: {one['choice'] or 'none keeps the objectives'}{more}")
    if same:
        lines.append(f"  the same choice with {', '.join(same)}")
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Lines at spaces; what follows is set in by four."""
    if len(text) <= width or text.startswith(" " * 30):
        return [text]
    lines, rest = [], text
    while len(rest) > width:
        at = rest.rfind(" ", 8, width + 1)
        if at < 0:
            break
        lines.append(rest[:at])
        rest = "    " + rest[at + 1 :]
    return [*lines, rest]
