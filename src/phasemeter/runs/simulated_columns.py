"""Every request of a simulated run summed up and judged, as columns.

Lives here: which requests are alike, and in which order a summary has them. Must not live here: metrics, tables
(simulated_tables.py), the run (simulate.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.contract.goodput import Judged
from phasemeter.contract.goodput_alike import judged_alike
from phasemeter.metrics.alike import Events, add_alike
from phasemeter.metrics.columns import Alike
from phasemeter.metrics.summary import Summary
from phasemeter.records.request import Phase
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.simulated_tables import ROW_COLUMNS
from phasemeter.serving.ended import Ended
from phasemeter.serving.simulate import row_of

Places = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


def add_simulated(summary: Summary, ended: Ended, warmup: int) -> None:
    """All requests, of which the first `warmup` are cut; those without events tell no gaps where others with events stand for them."""
    times_ns, counts = ended.tokens()
    order = np.arange(len(ended))
    if not ended.has_tokens:  # the many that are columns alone first, kind by kind
        measured, lone = order >= warmup, ended.column("finish_ns") == ended.column("first_token_ns")
        order = np.argsort(np.where(ended.served() & (counts == 0), 2 * measured + lone, 4), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    owners = np.flatnonzero(counts)
    events = Events(places[owners], counts[owners], times_ns)
    parts = alike_of(ended, warmup, places, counts > 0)
    add_alike(summary, parts, events, without_gaps="sampled_out" if ended.sampled else None)


def alike_of(ended: Ended, warmup: int, places: Places, told: Marks) -> list[Alike]:
    """All requests, at `places`, in parts that have the same metrics; `told`: whose tokens' instants are told beside them."""
    served, measured = ended.served(), np.arange(len(ended)) >= warmup
    several = ended.column("finish_ns") > ended.column("first_token_ns")
    kind = np.array((1, 2, 4, 8)) @ np.array((ended.column("output_tokens") > 1, several, told, measured))
    kept = {name: ended.column(name) for name in set(ROW_COLUMNS.values())}
    parts = []
    for number in np.unique(kind[served]):
        group = np.flatnonzero(served & (kind == number))
        own = {name: values[group] for name, values in kept.items()}
        numbers = {field: own[name] for field, name in ROW_COLUMNS.items()}
        parts.append(Alike(_row(ended, int(group[0]), warmup), numbers, places[group]))
    return parts + [Alike(_row(ended, at, warmup), {}, places[at : at + 1]) for at in np.flatnonzero(~served).tolist()]


def judged(ended: Ended, warmup: int, objectives: Mapping[str, float]) -> Judged:
    """The measured requests held to `objectives`, in order of arrival."""
    many = len(ended)
    return judged_alike(alike_of(ended, warmup, np.arange(many), np.zeros(many, bool)), objectives)


def _row(ended: Ended, at: int, warmup: int) -> RequestRow:
    phase: Phase = "warmup" if at < warmup else "measured"
    return msgspec.structs.replace(row_of(ended[at]), phase=phase)
