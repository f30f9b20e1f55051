"""How sure one is: intervals for quantiles, means and shares, and how many samples would decide.

Lives here: interpolated order statistics for exchangeable samples, whole requests varied for pooled gaps, batch means for
correlated samples, Wilson and Clopper–Pearson for shares. A bound that n can't give is None, never a guess. Must not live
here: a verdict (contract/). A random generator is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phasemeter.errors import Undefined
from phasemeter.stats.distributions import beta_quantile, binomial_window, normal_quantile, t_quantile
from phasemeter.stats.quantiles import (
    Floats,
    Values,
    as_array,
    between,
    ordered_quantile,
    quantile,
    ranks_of,
)

Interval = tuple[float | None, float | None]
BATCHES = 20
_EXACT_UP_TO = 1_000_000  # values: beyond it the normal approximation of n_to_decide is exact to a part in a thousand


class Generator(Protocol):
    """What is asked of a random generator: `numpy.random.Generator` has it."""

    def integers(self, low: int, high: int, size: int) -> npt.NDArray[np.int64]: ...


@lru_cache(maxsize=4096)
def order_rank(n: int, q: float, confidence: float) -> tuple[int, float] | None:
    """(r, w): the upper bound of the q-quantile of n values is `(1 − w) X_(r) + w X_(r+1)`, ranks from 1, one-sided.

    None where even the largest value is a bound with less than `confidence`: q^n > 1 − confidence.
    Source: Nyblom, "Note on interpolated order statistics", Statistics & Probability Letters 14 (1992), equation 7; for the
    median it is Hettmansperger and Sheather (1986).
    """
    if n < 1 or not 0 < q < 1:
        return None
    first, cdf = binomial_window(n, q)
    # X_(r) is a bound with confidence P(B <= r − 1): the smallest such r that reaches it, interpolated with the one below
    reach = int(np.searchsorted(cdf, confidence, side="left"))
    rank = first + reach + 1
    if rank > n:
        return None
    if reach == 0:
        return rank, 0.0
    lower, upper = float(cdf[reach - 1]), float(cdf[reach])
    below, above = confidence - lower, upper - confidence
    r = rank - 1
    weight = (n - r) * q * below / ((n - r) * q * below + r * (1 - q) * above)
    return (r, weight) if r >= 1 else (rank, 0.0)


def quantile_interval(values: Values, q: float, confidence: float = 0.95) -> Interval:
    """(low, high) of the q-quantile of exchangeable `values`, in their unit; a bound that n can't give is None.

    A two-sided 95 % bound above p99 needs 368 values, above p50 6. `inf` (a failure as "never") may be among the values.
    """
    return ordered_quantile_interval(np.sort(as_array(values)), q, confidence)


def ordered_quantile_interval(ordered: Floats, q: float, confidence: float = 0.95) -> Interval:
    """As `quantile_interval`, of values that are in order already."""
    n, side = ordered.size, 1 - (1 - confidence) / 2
    high = order_rank(n, q, side)
    low = order_rank(n, 1 - q, side)  # the same from the other end
    return (
        None if low is None else _at_rank(ordered[::-1], low),
        None if high is None else _at_rank(ordered, high),
    )


def _at_rank(data: Floats, rank: tuple[int, float]) -> float:
    r, weight = rank
    first, second = float(data[r - 1]), float(data[min(r, data.size - 1)])
    if first == np.inf and second < first and weight > 0:
        return second  # a lower bound between a value and "never": the value is the safe side
    if first > second:  # counted from the top
        return between(second, first, 1 - weight)
    return between(first, second, weight)


def smallest_n(q: float, confidence: float = 0.95) -> int:
    """How many values an upper bound of the q-quantile needs at least (two-sided `confidence`); the same for 1 − q below."""
    tail = (1 - confidence) / 2
    worst = max(q, 1 - q)
    return math.ceil(math.log(tail) / math.log(worst) - 1e-9)


def mean_interval(values: Values, confidence: float = 0.95) -> Interval:
    """Student's interval for the mean of independent values; (None, None) for fewer than 2."""
    data = as_array(values)
    if data.size < 2:
        return None, None
    half = t_quantile(1 - (1 - confidence) / 2, data.size - 1) * float(data.std(ddof=1)) / math.sqrt(data.size)
    middle = float(data.mean())
    return middle - half, middle + half


def batch_means(values: Values, batches: int = BATCHES) -> Floats:
    """The means of `batches` equal stretches in order; what doesn't fill a batch is left out at the start.

    Raises Undefined("too_few_for_batches") for fewer than 2 values a batch.
    """
    data = as_array(values)
    size = data.size // batches
    if size < 2:
        raise Undefined("too_few_for_batches")
    means: Floats = data[data.size - size * batches :].reshape(batches, size).mean(axis=1)
    return means


def correlated_mean_interval(values: Values, confidence: float = 0.95, batches: int = BATCHES) -> Interval:
    """The mean's interval where consecutive values are correlated: Student's t on batch means, values in arrival order.

    Source: Law and Kelton, "Simulation Modeling and Analysis", the method of batch means.
    """
    try:
        return mean_interval(batch_means(values, batches), confidence)
    except Undefined:
        return None, None


def effective_n(values: Values, batches: int = BATCHES) -> float:
    """How many independent values the mean of correlated `values` (in order; 0/1 for a share) is worth, by batch means.

    Raises Undefined for too few values; all equal: the number of batches (nothing was seen to vary).
    """
    data = as_array(values)
    variance = float(batch_means(data, batches).var(ddof=1)) / batches
    spread = float(data.var())
    if variance == 0 or spread == 0:
        return float(batches)
    return min(float(data.size), spread / variance)


def correlated_quantile_interval(
    values: Values, q: float, confidence: float = 0.95, batches: int = BATCHES
) -> Interval:
    """The q-quantile's interval where consecutive values are correlated, values in arrival order.

    Batch means say how many independent values the run is worth; Wilson's interval for the share q at that n (widened by t/z
    for its own uncertainty), read off the sample, bounds the quantile (Woodruff, JASA 1952). Of the worth of "at most the
    quantile" and of the ranks the lower counts: a tail with few crossings looks independent just when it looks short.
    """
    return correlated_quantile_intervals(values, (q,), confidence, batches)[0]


def correlated_quantile_intervals(
    values: Values, levels: Sequence[float], confidence: float = 0.95, batches: int = BATCHES
) -> list[Interval]:
    """`correlated_quantile_interval` at each of several levels: values are put in order once for all of them."""
    data = as_array(values)
    if data.size < 2 * batches:
        return [(None, None) for _ in levels]
    ordered = np.sort(data)
    by_rank = effective_n(ranks_of(data), batches)
    tail = (1 - confidence) / 2
    ratio = normal_quantile(1 - tail) / t_quantile(1 - tail, batches - 1)
    found: list[Interval] = []
    for q in levels:
        below = (data <= ordered_quantile(ordered, q)).astype(np.float64)
        worth = min(effective_n(below, batches), by_rank)
        low, high = wilson_interval(q * worth * ratio**2, worth * ratio**2, confidence)
        lower = None if (1 - q) ** worth > tail else ordered_quantile(ordered, low)
        upper = None if q**worth > tail else ordered_quantile(ordered, high)
        found.append((lower, upper))
    return found


def clustered_quantile_interval(groups: Sequence[Values], q: float, confidence: float = 0.95) -> Interval:
    """The quantile's interval of pooled values (gaps) that come in groups (requests), without resampling: whole groups vary.

    The share at or below the quantile is a ratio of sums over groups; its variance between groups says how many independent
    values the pool is worth, and Wilson's interval at that n is read off the sample (Woodruff, JASA 1952). `inf` may be
    among the values. (None, None) for fewer than 10 groups with values.
    """
    filled = [as_array(group) for group in groups if len(group)]
    if len(filled) < 10:
        return None, None
    values = np.concatenate(filled)
    sizes = np.array([group.size for group in filled], dtype=np.float64)
    ordered = np.sort(values)
    point = quantile(ordered, q)
    starts = np.concatenate(([0], np.cumsum(sizes[:-1]).astype(np.int64)))
    residuals = np.add.reduceat((values <= point).astype(np.float64), starts) - q * sizes
    variance = float(residuals @ residuals) * len(filled) / (len(filled) - 1) / float(sizes.sum()) ** 2
    worth = min(float(values.size), q * (1 - q) / variance) if variance > 0 else float(len(filled))
    tail = (1 - confidence) / 2
    ratio = normal_quantile(1 - tail) / t_quantile(1 - tail, len(filled) - 1)
    low, high = wilson_interval(q * worth * ratio**2, worth * ratio**2, confidence)
    return (
        None if (1 - q) ** worth > tail else quantile(ordered, low),
        None if q**worth > tail else quantile(ordered, high),
    )


def wilson_interval(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share. `n` may be an effective (fractional) number. (0, 1) for n = 0.

    Source: Wilson, JASA 22 (1927).
    """
    if n <= 0:
        return 0.0, 1.0
    z = normal_quantile(1 - (1 - confidence) / 2)
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def clopper_pearson_interval(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval for a share: covers with at least `confidence`. (0, 1) for n = 0. `n` may be an
    effective (fractional) number.

    Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    if n <= 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else beta_quantile(tail, successes, n - successes + 1)
    high = 1.0 if successes == n else beta_quantile(1 - tail, successes + 1, n - successes)
    return low, high


def block_indices(n: int, length: int, generator: Generator) -> npt.NDArray[np.int64]:
    """n indices made of random stretches of `length` consecutive ones (circular block bootstrap; length 1: the plain one)."""
    blocks = math.ceil(n / length)
    starts = generator.integers(0, n, blocks)
    drawn: npt.NDArray[np.int64] = ((starts[:, None] + np.arange(length)) % n).ravel()[:n]
    return drawn


def n_to_decide(share: float, q: float, confidence: float = 0.95) -> int | None:
    """How many independent values would put the interval of the q-quantile on one side of a limit, all else staying as seen.

    `share` is the share of values on the good side of the limit: the interval is there once the rank of its bound lies
    within that share. About z² q (1 − q) / (share − q)², and never fewer than a bound at q needs. None where the share is q
    itself: no number would.
    """
    if share == q:
        return None
    if share < q:
        share, q = 1 - share, 1 - q
    side = 1 - (1 - confidence) / 2
    z = normal_quantile(side)
    about = z * z * q * (1 - q) / (share - q) ** 2
    if about > _EXACT_UP_TO:
        return math.ceil(about)

    def decides(n: int) -> bool:
        rank = order_rank(n, q, side)
        return rank is not None and math.ceil(sum(rank)) <= share * n + 1e-9

    high = max(1, math.ceil(math.log(1 - side) / math.log(q) - 1e-9))
    low = high - 1
    while not decides(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
