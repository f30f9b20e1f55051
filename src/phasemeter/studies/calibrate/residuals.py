"""What a fit leaves unexplained: does it grow with the batch, the contexts, the prompt, or with time?

Lives here: the question and its answer in numbers. Must not live here: words for people (report/).
"""

from __future__ import annotations

import msgspec
import numpy as np

from phasemeter.studies.calibrate.fit import STILL, Fit
from phasemeter.studies.calibrate.observed import Floats, Ints
from phasemeter.studies.calibrate.rows import COLUMNS, Rows

NOTICED = 0.03  # relative: below it a bend is no news
SURE = 3.0  # and it has to stand this many standard errors above the noise
FEWEST = 20  # rows in each part

# what is looked along, in which kind of row
ALONG = (
    ("decode", "sequences"), ("decode", "contexts"), ("mixed", "tokens"), ("mixed", "sequences"), ("prefill", "tokens"),
    ("alone", "tokens"), ("decode", "time"),
)  # fmt: skip


class Bend(msgspec.Struct, frozen=True, kw_only=True):
    """The mean relative residual (measured over fitted − 1) in the lowest, middle and highest third of rows of `kind` along `along`."""

    kind: str
    along: str
    low: float
    middle: float
    high: float


def bends(rows: Rows, fit: Fit) -> list[Bend]:
    """Each structure that stands out of the noise. Rows that the fit left out count nowhere."""
    residual = rows.y / np.maximum(fit.predicted, 1e-12) - 1
    found = []
    for kind, along in ALONG:
        at = rows.of(kind)
        at = at[fit.weights[at] > STILL]
        values = rows.at_s[at] if along == "time" else rows.x[at, COLUMNS.index(along)]
        parts = _thirds(values)
        if parts is None:
            continue
        means = [float(residual[at][part].mean()) for part in parts]
        noise = max(_standard_error(residual[at][part]) for part in parts)
        if max(means) - min(means) > max(NOTICED, SURE * noise):
            found.append(Bend(kind=kind, along=along, low=means[0], middle=means[1], high=means[2]))
    return found


def _thirds(values: Floats) -> list[Ints] | None:
    """Places of the lowest, middle and highest third by value; None where there are not three of them."""
    if len(values) < 3 * FEWEST:
        return None
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    parts = [
        np.flatnonzero(values <= low),
        np.flatnonzero((values > low) & (values <= high)),
        np.flatnonzero(values > high),
    ]
    return parts if min(len(part) for part in parts) >= FEWEST else None


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))
