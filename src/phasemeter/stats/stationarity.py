"""Whether a run had settled: how much of its start to cut, whether it drifted, whether neighbours are alike.

Lives here: MSER-5, a trend with errors that hold under correlation, the lag-1 test. Must not live here: what follows from it
(validity, verdicts).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from phasemeter.errors import Undefined
from phasemeter.stats.distributions import normal_cdf, normal_quantile
from phasemeter.stats.quantiles import Floats, Values, as_array, ranks_of

BATCH = 5
SHORTEST = 250


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A least-squares slope, in units of `values` per unit of `at`, with a standard error that holds under correlation."""

    slope: float
    standard_error: float
    low: float
    high: float
    p_value: float  # two-sided, of "no slope"


def mser5(values: Values) -> int:
    """How many values to cut from the start so that the rest looks settled: a multiple of 5, at most half of them.

    Minimises the squared standard error of the rest over batches of 5. Below 250 values: 0 (a stated fixed warm-up serves
    there). A cut `at_limit` means that no steady state was seen. Give it log TTFT or queue lengths, in arrival order.
    Source: White, "An effective truncation heuristic", Simulation 69 (1997); White, Cobb and Spratt (2000) for batches of 5.
    """
    data = as_array(values)
    if data.size < SHORTEST:
        return 0
    batches = data[: data.size // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    centred = batches - batches.mean()  # so that the squares below don't cancel
    left = np.arange(batches.size, 0, -1)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    spread = np.maximum(squares - sums**2 / left, 0.0) / left.astype(np.float64) ** 2
    return int(np.argmin(spread[: largest_cut(data.size) // BATCH + 1])) * BATCH


def largest_cut(n: int) -> int:
    """The largest cut that `mser5` may answer for n values: half of them, down to a multiple of 5."""
    return n // (2 * BATCH) * BATCH


def at_limit(cut: int, n: int) -> bool:
    """Whether `cut` is as large as it may be: no steady state was seen. Never below 250 values."""
    return n >= SHORTEST and cut >= largest_cut(n)


def lag1(values: Values) -> float:
    """The lag-1 autocorrelation. Raises Undefined for fewer than 3 values or no variation."""
    data = as_array(values)
    if data.size < 3:
        raise Undefined("fewer_than_3_values")
    centred = data - data.mean()
    total = float(centred @ centred)
    if total == 0:
        raise Undefined("no_variation")
    return float(centred[:-1] @ centred[1:]) / total


def correlated(values: Values, significance: float = 0.05) -> bool:
    """Whether neighbours are positively correlated, by the one-sided lag-1 test; the values' ranks are tested, so that a
    heavy tail doesn't hide it. Nothing to test (no variation, fewer than 20 values): False.
    """
    data = as_array(values)
    if data.size < 20:
        return False
    try:
        r1 = lag1(ranks_of(data))
    except Undefined:
        return False
    # under independence r1 is about normal with mean −1/n and variance 1/n (Bartlett)
    return (r1 + 1 / data.size) * math.sqrt(data.size) > normal_quantile(1 - significance)


def integrated_time(values: Values) -> float:
    """How many neighbours are worth one independent value: 1 + 2 · the sum of autocorrelations, of the values' ranks; at least 1.

    The sum ends where pairs of them stop being positive, each pair at most the one before. A run shorter than some 50 of these
    times can't even tell how long they are. Nothing varies: 1. Source: Geyer, "Practical Markov chain Monte Carlo", Statistical
    Science 7 (1992), the initial monotone sequence.
    """
    data = ranks_of(as_array(values))
    n = data.size
    centred = data - data.mean() if n else data
    power = float(centred @ centred)
    if n < 4 or power == 0:
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    correlations = np.fft.irfft(spectrum * np.conj(spectrum), size)[: n // 2] / power
    pairs = correlations[: correlations.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    stops = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: stops[0]] if stops.size else pairs)
    return max(1.0, 2 * float(kept.sum()) - 1)


def trend(values: Values, at: Values | None = None, confidence: float = 0.95) -> Trend:
    """The slope of `values` over `at` (their numbers where None), with Newey–West errors (Bartlett weights).

    Raises Undefined for fewer than 20 values or an `at` that doesn't vary.
    Source: Newey and West, Econometrica 55 (1987); lag 1.3 √n as Lazarus, Lewis, Stock and Watson (2018) recommend.
    """
    data = as_array(values)
    n = data.size
    if n < 20:
        raise Undefined("fewer_than_20_values")
    x = np.arange(n, dtype=np.float64) if at is None else as_array(at)
    x = x - x.mean()
    weight = float(x @ x)
    if weight == 0:
        raise Undefined("no_variation")
    slope = float(x @ (data - data.mean())) / weight
    scores = x * (data - data.mean() - slope * x)
    error = math.sqrt(_long_run_sum(scores, min(n - 1, math.ceil(1.3 * math.sqrt(n))))) / weight
    half = normal_quantile(1 - (1 - confidence) / 2) * error
    if error == 0:
        p_value = 1.0 if slope == 0 else 0.0
    else:
        p_value = 2 * normal_cdf(-abs(slope) / error)
    return Trend(slope=slope, standard_error=error, low=slope - half, high=slope + half, p_value=p_value)


def _long_run_sum(scores: Floats, lags: int) -> float:
    """The sum of squares of `scores`, and twice of all products of two that lie up to `lags` apart, Bartlett's weight on each.

    A triangle of weights is what all windows of lags + 1 neighbours, squared, add up to: one pass, whatever the number of lags.
    """
    total = np.cumsum(scores)
    before, after = np.zeros(lags + 1), np.full(lags, total[-1])
    running = np.concatenate((before, total, after))
    windows = running[lags + 1 :] - running[: -lags - 1]
    return float(np.square(windows).sum()) / (lags + 1)
