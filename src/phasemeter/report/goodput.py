"""The answer of a goodput search for a person, for a program, and as an exit code.

Lives here: words. Must not live here: the search or its document (runs/goodput).
"""

from __future__ import annotations

import json
from typing import Any


def dumps(answer: dict[str, Any]) -> str:
    """One strict JSON document."""
    return json.dumps(answer, allow_nan=False, ensure_ascii=False)


def exit_code(answer: dict[str, Any]) -> int:
    """0, or 3 where no rate tried keeps the contract, or none misses it."""
    return 0 if answer["goodput_per_s"]["value"] is not None and answer["reason"] != "no_rate_missed" else 3


def words(answer: dict[str, Any]) -> list[str]:
    """The answer for a person: each rate tried, then the rate, what binds, and what another SLO would give."""
    lines = []
    for probe in answer["probes"]:
        share, (low, high) = probe["attainment"]["value"], probe["attainment"]["ci95"]
        text = "–" if share is None else f"{100 * share:5.1f} %"
        if probe.get("classes"):
            told = (f"{n} {100 * c['value']:.1f} %" for n, c in probe["classes"].items() if c["value"] is not None)
            text += f" ({', '.join(told)})"
        sure = "" if low is None or high is None else f" ({100 * low:.1f} … {100 * high:.1f} %)"
        lines.append(f"{probe['rate_per_s']:9.4g} req/s  {text} good{sure}  {probe['standing']}"
                     + (f": {probe['why']}" if probe["why"] else ""))  # fmt: skip
    value, (low, high) = answer["goodput_per_s"]["value"], answer["goodput_per_s"]["ci95"]
    target = f"{100 * answer['attainment_target']:g} %"
    if answer.get("class_targets"):
        target += f" ({', '.join(f'{name} {100 * share:g} %' for name, share in answer['class_targets'].items())})"
    if value is None:
        why = ", ".join(filter(None, (answer["reason"], answer["binding"] and f"{answer['binding']} is broken most")))
        return [*lines, f"no goodput: no rate tried keeps {target} of requests within the contract ({why})"]
    bounds = f" (95 %: {'–' if low is None else f'{low:.4g}'} … {'–' if high is None else f'{high:.4g}'})"
    lines.append(f"goodput {value:.4g} req/s{bounds} with {target} of requests good" + (
        f"; {answer['binding']} binds" if answer["binding"] else ""))  # fmt: skip
    if answer["reason"]:
        lines.append(f"  {answer['reason']}")
    alone = [f"{name} {rate:.4g}" for name, rate in answer["single"].items() if rate is not None]
    if len(answer["single"]) > 1 and alone:
        lines.append("  each objective alone would carry, in req/s: " + ", ".join(alone))
    scaled = [f"×{scale} {rate:.4g}" for scale, rate in answer["sensitivity"].items() if rate is not None]
    if scaled:
        lines.append("  with all limits scaled: " + ", ".join(scaled))
    return [*lines, *(f"warning: {warning}" for warning in answer["warnings"])]
