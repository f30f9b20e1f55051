"""The answer of `phasemeter plan` as plain data.

Lives here: its keys. Must not live here: the search (choose.py), words for a person (report/choose.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasemeter.metrics.document import strict
from phasemeter.runs.choose import Chosen
from phasemeter.runs.choose_after import Detail, Scenario
from phasemeter.runs.choose_cluster import Sized, cheapest
from phasemeter.serving.plan_candidates import Choice
from phasemeter.serving.plan_changes import accelerators_of, hardware_of, model_of, unseen_changes
from phasemeter.studies.paired import Crossing

HOUR_S = 3600


def document(chosen: Chosen) -> dict[str, Any]:
    """One strict document: null with a reason for what is not known."""
    racer, choice = chosen.racer, chosen.choice
    ranks = {index: rank for rank, index in racer.ranks()}
    rows = [_row(chosen, index, rank) for index, rank in ranks.items()]
    rows += [_row(chosen, index, None) for index in _unranked(chosen, ranks)]
    front = pareto(rows)
    for row in rows:
        row["pareto"] = row["name"] in front
    first = choice.first
    found = {
        "phasemeter": 1,
        "partial": chosen.interrupted,
        "model": model_of(first) if first is not None else None,
        "seed": chosen.simulated.seed,
        "attainment_target": chosen.promise.attainment,
        "class_targets": dict(chosen.promise.shares),
        "objectives_s": {
            name if who is None else f"{who}.{name}": limit for (who, name), limit in chosen.promise.columns().items()
        },
        "ranked_by": "price" if choice.prices else "accelerators",
        "currency": choice.currency if choice.prices else None,
        "choice": _chosen(chosen, ranks),
        "candidates": rows,
        "impossible": [
            {"name": one.name, "varied": dict(one.varied), "reason": one.reason}
            for one in (*(one for one in choice.candidates if one.plan is None), *_refusing(chosen))
        ],
        "pareto": [row["name"] for row in rows if row["pareto"]],
        "target": _target(chosen),
        "scenarios": [_scenario(chosen, one) for one in chosen.scenarios],
        "warnings": _warnings(choice),
        "search": {"looks": racer.looks, "requests": racer.requests, "interrupted": chosen.interrupted},
    }
    answer: dict[str, Any] = strict(found)
    return answer


def _warnings(choice: Choice) -> list[str]:
    unseen = unseen_changes(one.plan for one in choice.candidates if one.plan is not None)
    if not unseen:
        return []
    return [
        f"one fitted step time stands for candidates that differ in {', '.join(unseen)}, which it can't follow: give each its own,"
        " or leave it to the formula"
    ]


def _refusing(chosen: Chosen) -> list[Any]:
    known = {one.name for one in chosen.choice.candidates if one.plan is None}
    return [one for one in chosen.entered.refused if one.name not in known]


def _unranked(chosen: Chosen, ranks: dict[int, int]) -> list[int]:
    """Those that keep no rate, were passed over for their ceiling, or were not reached: by ceiling, then by name."""
    entrants = chosen.racer.entrants
    left = [i for i in range(len(entrants)) if i not in ranks]
    return sorted(left, key=lambda i: (-entrants[i].ceiling_per_s / entrants[i].units, entrants[i].name))


def _row(chosen: Chosen, index: int, rank: int | None) -> dict[str, Any]:
    racer, plan = chosen.racer, chosen.simulated.plans[index]
    entrant, standing = racer.entrants[index], racer.found.get(index)
    found = standing.crossing if standing is not None else None
    count = accelerators_of(plan)
    best = racer.best()
    ratio = racer.against(index, best, 0.95) if rank is not None and best is not None else None
    priced, sure = bool(chosen.choice.prices), standing is not None and standing.stage > 0
    told = chosen.details.get(index)
    ceiling = entrant.ceiling_per_s if entrant.ceiling_per_s < float("inf") else None
    return {
        "rank": rank,
        "name": entrant.name,
        "varied": dict(chosen.entered.candidates[index].varied),
        "hardware": hardware_of(plan),
        "accelerators": count,
        "price_per_h": entrant.units if priced else None,
        "status": _status(chosen, index),
        "reason": found.reason if found is not None else None,
        "goodput_per_s": _scaled(found, 1.0, sure=sure),
        "goodput_per_accelerator": _scaled(found, 1 / count, sure=sure),
        "goodput_per_currency": _scaled(found, HOUR_S / entrant.units, sure=sure) if priced else None,
        "ceiling_per_s": ceiling,
        "binding": found.binding if found is not None else None,
        "against_best": None if ratio is None else {"ratio": ratio[0], "ci95": [ratio[1], ratio[2]]},
        "requests_a_look": found.requests if found is not None else 0,
        "at_goodput": None if told is None else _detail(told),
        "for_target": None if index not in chosen.sized else _sized(chosen.sized[index]),
    }  # fmt: skip


def _status(chosen: Chosen, index: int) -> str:
    """`measured`: in long looks; `screened`: in short ones, which flatter by a few percent; `passed_over`: its ceiling is too low."""
    standing = chosen.racer.found.get(index)
    if standing is None:
        return "not_reached"
    if standing.crossing is None:
        return "passed_over"
    if standing.crossing.rate_per_s is None:
        return "keeps_no_rate"
    return "measured" if standing.stage > 0 else "screened"


def _scaled(found: Crossing | None, factor: float, *, sure: bool = True) -> dict[str, Any]:
    """A rate times something; without an interval where only short looks stand behind it: theirs hold the truth too seldom."""
    if found is None or found.rate_per_s is None:
        return {"value": None, "ci95": [None, None]}
    if not sure:
        return {"value": found.rate_per_s * factor, "ci95": [None, None], "reason": "short_looks"}
    ends = [None if one is None else one * factor for one in (found.low, found.high)]
    return {"value": found.rate_per_s * factor, "ci95": ends}


def resource_of(told: Detail) -> str | None:
    """What the steps are spent on most, by pool."""
    most = {pool: max(shares, key=lambda one: shares[one]) for pool, shares in told.time_share.items()}
    if not most:
        return None
    if list(most) == ["all"]:
        return most["all"]
    return ", ".join(f"{pool}: {name}" for pool, name in most.items())


def _detail(told: Detail) -> dict[str, Any]:
    return {
        "resource": resource_of(told),
        "time_share": {pool: dict(shares) for pool, shares in told.time_share.items()},
        "ttft_s": dict(told.ttft_s), "tpot_s": dict(told.tpot_s), "batch": told.running, "waiting": told.waiting,
        "kv_tokens": dict(told.kv_tokens), "kv_share": told.kv_share, "most_kv_share": told.most_kv_share,
        "preemptions": told.preemptions, "kv_link_share": told.link_share,
    }  # fmt: skip


def _sized(one: Sized) -> dict[str, Any]:
    return {
        "copies": one.copies, "accelerators": one.accelerators, "price_per_h": one.price_per_h, "within_budget": one.within,
        "kept": one.kept,
        "checks": [
            {"copies": c.copies, "attainment": {"value": c.attainment, "ci95": [c.low, c.high]}, "stable": c.stable, "kept": c.kept}
            for c in one.checks
        ],
    }  # fmt: skip


def _chosen(chosen: Chosen, ranks: dict[int, int]) -> dict[str, Any] | None:
    """The best, who can't be told from it, and whether other limits or step times choose the same."""
    racer = chosen.racer
    best = racer.best()
    if best is None:
        return None
    tied = [racer.entrants[i].name for i, rank in ranks.items() if rank == 1 and i != best]
    other = [one.name for one in chosen.scenarios if best not in one.tied]
    return {
        "name": racer.entrants[best].name,
        "tied": tied,
        "robust": None if not chosen.scenarios else not other,
        "other_choice_with": other,
    }


def _target(chosen: Chosen) -> dict[str, Any] | None:
    """Who carries the plan's target rate for least, of those whose whole cluster was simulated."""
    choice, racer = chosen.choice, chosen.racer
    if choice.target_per_s is None:
        return None
    kept = [i for i in cheapest(chosen.sized, racer) if chosen.sized[i].kept and chosen.sized[i].within]
    same = [i for i in kept if _cost(chosen.sized[i]) == _cost(chosen.sized[kept[0]])]
    least = min((one.accelerators for one in chosen.sized.values()), default=None)
    return {
        "rate_per_s": choice.target_per_s,
        "headroom": choice.headroom,
        "budget": choice.budget,
        "choice": racer.entrants[same[0]].name if same else None,
        "equal": [racer.entrants[i].name for i in same[1:]],
        "reason": None if same else _no_target(chosen, least),
    }


def _cost(one: Sized) -> float:
    return one.price_per_h if one.price_per_h is not None else float(one.accelerators)


def _no_target(chosen: Chosen, least: int | None) -> str:
    if chosen.interrupted:
        return "interrupted"
    if least is None:
        return "no_candidate_keeps_the_objectives"
    return (
        "over_budget"
        if chosen.choice.budget is not None and least > chosen.choice.budget
        else "no_checked_cluster_keeps_it"
    )


def _scenario(chosen: Chosen, one: Scenario) -> dict[str, Any]:
    entrants = chosen.racer.entrants
    rows = [
        {"name": entrants[i].name, "goodput_per_s": _scaled(found, 1.0),
         "per_cost": None if found.rate_per_s is None else found.rate_per_s / entrants[i].units}
        for i, found in one.order
    ]  # fmt: skip
    tied: Sequence[str] = [entrants[i].name for i in one.tied]
    return {"name": one.name, "choice": tied[0] if tied else None, "tied": list(tied[1:]), "candidates": rows}


def pareto(rows: Sequence[dict[str, Any]]) -> set[str]:
    """Who is not beaten in all of TTFT, TPOT (90th percentiles at their goodput) and accelerators for a request a second at once."""
    points = {}
    for row in rows:
        told, per = row["at_goodput"], row["goodput_per_accelerator"]["value"]
        if told is not None and per and told["ttft_s"]:
            points[row["name"]] = (told["ttft_s"]["p90"], told["tpot_s"].get("p90", 0.0), 1 / per)
    return {
        name
        for name, own in points.items()
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) and other != own for other in points.values())
    }
