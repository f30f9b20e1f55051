"""The few distributions that intervals need: binomial, beta, Student's t, the normal.

Lives here: cumulative shares and quantiles to about 1e-10, so that no statistics library is needed for five numbers. Must not
live here: an interval (intervals.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from phasemeter.errors import InternalError

Floats = npt.NDArray[np.float64]
_NORMAL = NormalDist()
_TINY = 1e-300


def normal_quantile(share: float) -> float:
    """The standard normal's quantile; `share` in (0, 1)."""
    return _NORMAL.inv_cdf(share)


def normal_cdf(value: float) -> float:
    """The standard normal's cumulative share at `value`."""
    return _NORMAL.cdf(value)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(x, a, b) / a
    return 1 - front * _continued_fraction(1 - x, b, a) / b


def _continued_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        factor = 1.0
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            factor *= d * c
            result *= d * c
        if abs(factor - 1) < 1e-13:
            return result
    raise InternalError(f"the incomplete beta function did not converge at x={x}, a={a}, b={b}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _bisect(cdf: Callable[[float], float], share: float, low: float, high: float) -> float:
    """Where the rising `cdf` reaches `share`, within [low, high]."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if cdf(middle) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_quantile(share: float, a: float, b: float) -> float:
    """The quantile of Beta(a, b)."""
    return _bisect(lambda x: beta_cdf(x, a, b), share, 0.0, 1.0)


def t_cdf(value: float, degrees: float) -> float:
    """Student's t: the cumulative share at `value`."""
    tail = beta_cdf(degrees / (degrees + value * value), degrees / 2, 0.5) / 2
    return 1 - tail if value > 0 else tail


@lru_cache(maxsize=512)
def t_quantile(share: float, degrees: float) -> float:
    """Student's t: the quantile; `share` in (0, 1)."""
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -t_quantile(1 - share, degrees)
    high = 2.0
    while t_cdf(high, degrees) < share:
        high *= 2
    return _bisect(lambda x: t_cdf(x, degrees), share, 0.0, high)


@lru_cache(maxsize=512)
def binomial_window(n: int, p: float) -> tuple[int, Floats]:
    """(first, cdf): `cdf[i]` is the share of Binomial(n, p) at most `first + i`, over all counts that matter.

    Spans 12 standard deviations and 60 counts to each side; what lies outside weighs less than 1e-15.
    """
    if not 0 < p < 1:
        raise InternalError(f"a binomial with p={p} has no window")
    reach = 12 * math.sqrt(n * p * (1 - p)) + 60
    first, last = max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach))
    counts = np.arange(first, last + 1, dtype=np.float64)
    steps = np.log((n - counts[:-1]) / (counts[:-1] + 1)) + math.log(p) - math.log1p(-p)
    start = math.lgamma(n + 1) - math.lgamma(first + 1) - math.lgamma(n - first + 1)
    logs = start + first * math.log(p) + (n - first) * math.log1p(-p) + np.concatenate(([0.0], np.cumsum(steps)))
    shares = np.exp(logs)
    cdf = np.minimum(np.cumsum(shares) / shares.sum(), 1.0)
    cdf.flags.writeable = False
    return first, cdf
