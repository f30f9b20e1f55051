"""Between which two rates the crossing lies, from rates that were looked at and not all decided.

Lives here: the monotone reading of what was attained. Must not live here: which rate is tried next (sequential.py), the curve
(crossing.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasemeter.studies.looks import Probe


def bracket(probes: Sequence[Probe], target: float, parts: Mapping[str, float]) -> tuple[float | None, float | None]:
    """(the highest rate that leans to good, the lowest above it that leans to bad); None: there is no such rate.

    Each rate votes with its requests; where a higher rate looks better than a lower one, both vote together: pool adjacent
    violators (Ayer and others, Annals of Mathematical Statistics 26, 1955). A rate that is decided outvotes any that is not.
    """
    ordered = sorted(probes, key=lambda one: one.rate_per_s)
    firm = [one.rate_per_s for one in ordered if one.standing == "bad"]
    ceiling = min(firm, default=None)
    below_it = [one for one in ordered if ceiling is None or one.rate_per_s < ceiling]
    floor = max((one.rate_per_s for one in below_it if one.standing == "good"), default=None)
    open_ones = [one for one in below_it if floor is None or one.rate_per_s > floor]
    pools: list[tuple[float, float, list[float]]] = []  # (votes for good, votes, rates)
    for one in open_ones:
        votes = float(one.requests)
        pool = (votes if one.leans_good(target, parts) else 0.0, votes, [one.rate_per_s])
        while pools and pools[-1][0] / pools[-1][1] < pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1], before[2] + pool[2])
        pools.append(pool)
    good = [rate for votes, of, rates in pools if 2 * votes >= of for rate in rates]
    bad = [rate for votes, of, rates in pools if 2 * votes < of for rate in rates]
    return max(good, default=floor), min(bad, default=ceiling)
