"""Every request of a simulated run into a summary, as columns.

Lives here: which requests are alike, and in which order a summary has them. Must not live here: metrics, tables
(simulated_tables.py), the run (simulate.py).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.metrics.alike import Events, add_alike
from phasemeter.metrics.columns import Alike
from phasemeter.metrics.summary import Summary
from phasemeter.records.request import Phase
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.simulated_tables import ROW_COLUMNS
from phasemeter.serving.ended import Ended
from phasemeter.serving.simulate import row_of

Marks = npt.NDArray[np.bool_]


def add_simulated(summary: Summary, ended: Ended, warmup: int) -> None:
    """All requests, of which the first `warmup` are cut; those without events tell no gaps where others with events stand for them."""
    served, (times_ns, counts) = ended.served(), ended.tokens()
    warm = np.arange(len(ended)) < warmup
    several = ended.column("finish_ns") > ended.column("first_token_ns")
    order = np.arange(len(ended))
    if not ended.has_tokens:  # the many that are columns alone first, kind by kind
        order = np.argsort(np.where(served & (counts == 0), 2 * ~warm + ~several, 4), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    marks = np.array((ended.column("output_tokens") > 1, several, counts > 0, ~warm))
    kind = np.array((1, 2, 4, 8)) @ marks  # what decides which metrics a request has
    kept = {name: ended.column(name) for name in set(ROW_COLUMNS.values())}
    parts = []
    for number in np.unique(kind[served]):
        group = np.flatnonzero(served & (kind == number))
        own = {name: values[group] for name, values in kept.items()}
        numbers = {field: own[name] for field, name in ROW_COLUMNS.items()}
        parts.append(Alike(_row(ended, int(group[0]), warm), numbers, places[group]))
    parts += [Alike(_row(ended, at, warm), {}, places[at : at + 1]) for at in np.flatnonzero(~served).tolist()]
    owners = np.flatnonzero(counts)
    events = Events(places[owners], counts[owners], times_ns)
    add_alike(summary, parts, events, without_gaps="sampled_out" if ended.sampled else None)


def _row(ended: Ended, at: int, warm: Marks) -> RequestRow:
    phase: Phase = "warmup" if warm[at] else "measured"
    return msgspec.structs.replace(row_of(ended[at]), phase=phase)
