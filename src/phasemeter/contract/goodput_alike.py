"""Goodput of requests that differ only in their numbers, judged as columns: a simulator's millions.

Lives here: `Meter`'s judgement of many rows at once (a test holds the two to each other). Must not live here: what is good (goodput.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from phasemeter.contract.goodput import Judged
from phasemeter.contract.samples import reading
from phasemeter.metrics.alike import values_of
from phasemeter.metrics.columns import Alike
from phasemeter.metrics.definitions import HOUSE


def judged_alike(parts: Sequence[Alike], objectives: Mapping[str, float]) -> Judged:
    """The measured requests of these parts, each held to all `objectives`: limits of the house's metrics, in seconds.

    Of requests that were due at one instant, places say who came first.
    """
    kept = [part for part in parts if part.example.phase == "measured" and part.example.outcome != "unsent"]
    unsent = sum(len(part.places) for part in parts if part.example.outcome == "unsent")
    most = np.empty((sum(len(part.places) for part in kept), len(objectives)))
    least, reasons = np.empty_like(most), np.full(len(most), None, dtype=object)
    due, places, at = np.empty(len(most), np.int64), np.empty(len(most), np.int64), 0
    for part in kept:
        own = slice(at, at := at + len(part.places))
        due[own], places[own] = part.column("due_ns"), part.places
        for column, metric in enumerate(objectives):
            low, high, reason = reading(metric, part.example)
            if reason is not None and reasons[own][0] is None:
                reasons[own] = f"{metric}: {reason}"
            plain = part.example.outcome == "ok" and reason is None
            values = values_of(HOUSE[metric], part, low) if plain else None
            least[own, column] = low if values is None else values
            most[own, column] = high if values is None else values
        if part.example.outcome == "cancelled" and reasons[own][0] is None:
            reasons[own] = "cancelled"
    order = np.lexsort((places, due))
    return Judged(
        least=least[order],
        most=most[order],
        limits=np.array(list(objectives.values()), dtype=np.float64),
        names=tuple(objectives),
        due_ns=due[order],
        reasons=tuple(reasons[order].tolist()),
        unsent=unsent,
        classes=(None,) * len(most),
    )
