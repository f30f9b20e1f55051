"""Quantiles, linear on n−1: the one rule that all percentiles of this project follow.

Lives here: the point estimate. Must not live here: its interval (intervals.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phasemeter.errors import InternalError, Undefined

Floats = npt.NDArray[np.float64]
Values = Sequence[float] | Floats


def as_array(values: Values) -> Floats:
    """The values as float64, without a copy where they are already."""
    return np.asarray(values, dtype=np.float64)


def quantile(values: Values, q: float) -> float:
    """The q-quantile (q in [0, 1]) by linear interpolation on n−1, in the unit of `values` (any order).

    Raises Undefined for no values. `inf` ranks last (a failure as "never"): where interpolation touches it the answer is inf.
    """
    if not 0 <= q <= 1:
        raise InternalError(f"a quantile of {q} is outside [0, 1]")
    data = as_array(values)
    if data.size == 0:
        raise Undefined("no_values")
    position = q * (data.size - 1)
    low = int(position)
    high = min(low + 1, data.size - 1)
    part = np.partition(data, (low, high))
    return between(float(part[low]), float(part[high]), position - low)


def ordered_quantile(ordered: Floats, q: float) -> float:
    """As `quantile`, of one value or more that are in order already."""
    position = q * (ordered.size - 1)
    low = int(position)
    return between(float(ordered[low]), float(ordered[min(low + 1, ordered.size - 1)]), position - low)


def between(low: float, high: float, weight: float) -> float:
    """`low + weight × (high − low)`, exact at both ends and without inf − inf."""
    if weight == 0 or low == high:
        return low
    return low + weight * (high - low) if high != np.inf else high


def sorted_quantiles(ordered: Floats, q: float | Floats) -> Floats:
    """Quantiles at each level `q` of an already sorted array (all finite)."""
    position = np.asarray(q, dtype=np.float64) * (ordered.size - 1)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, ordered.size - 1)
    values: Floats = ordered[low] + (position - low) * (ordered[high] - ordered[low])
    return values


def ranks_of(data: Floats) -> Floats:
    """Ranks from 0, ties sharing their mean."""
    _, inverse, counts = np.unique(data, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((2 * ends - counts - 1) / 2)[inverse]
    return ranks
