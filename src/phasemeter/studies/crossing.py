"""Where attainment crosses its target: a logistic curve over the logarithm of the rate, with an interval that knows its data.

Lives here: the fit, its errors under shared random numbers, the interval of the crossing. Must not live here: which rates are
tried (goodput_search.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.errors import Undefined
from phasemeter.stats.distributions import t_quantile

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
BATCHES = 12
PRIOR = 0.1  # of a good and of a bad request at each rate: keeps the curve finite where rates separate (Firth 1993)
STEPS = 60


class Stretch(msgspec.Struct, frozen=True):
    """The requests of one run at one rate, in order: which kept the objectives. Runs of equal `draws` share their draws.

    `weight`: how much it shapes the curve, for a curve that is only to hold near the crossing. `time`: for how many requests
    neighbours are alike near the target.
    """

    rate_per_s: float
    draws: str | int
    good: Bools
    weight: float = 1.0
    time: float = 1.0


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """logit(attainment) = a + b · (log(rate) − log(centre)), with the covariance of (a, b) and its degrees of freedom."""

    a: float
    b: float
    centre_per_s: float
    covariance: tuple[tuple[float, float], tuple[float, float]]
    degrees: float

    def attainment(self, rate_per_s: float) -> float:
        """The curve at a rate."""
        return _expit(self.a + self.b * math.log(rate_per_s / self.centre_per_s))

    def crossing(self, target: float) -> float | None:
        """The rate at which the falling curve reaches the target; None where it doesn't fall."""
        if self.b >= -1e-9:
            return None
        shift = (_logit(target) - self.a) / self.b
        return self.centre_per_s * math.exp(shift) if abs(shift) < 20 else None

    def interval(self, target: float, confidence: float = 0.95) -> tuple[float, float] | None:
        """The rates at which the curve may reach the target (Fieller's set); None where it is not bounded on both sides.

        Source: Fieller, JRSS B 16 (1954); for a dose's effect level Finney, "Probit Analysis", chapter 4.
        """
        t = t_quantile(1 - (1 - confidence) / 2, self.degrees)
        (aa, ab), (_, bb) = self.covariance
        g = self.a - _logit(target)
        # (g + b x)^2 <= t^2 (aa + 2 ab x + bb x^2)
        square, linear, constant = (
            self.b**2 - t * t * bb,
            2 * (g * self.b - t * t * ab),
            g * g - t * t * aa,
        )
        root = linear * linear - 4 * square * constant
        if square <= 0 or root < 0 or self.b >= 0:
            return None
        ends = sorted((-linear + sign * math.sqrt(root)) / (2 * square) for sign in (-1, 1))
        if max(map(abs, ends)) > 20:
            return None
        return self.centre_per_s * math.exp(ends[0]), self.centre_per_s * math.exp(ends[1])


def _logit(share: float) -> float:
    inside = min(max(share, 1e-9), 1 - 1e-9)
    return math.log(inside / (1 - inside))


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def fit(stretches: Sequence[Stretch], least: float = 1.0) -> Curve:
    """The curve through all stretches.

    `least`: no batch is shorter.
    Two estimates of its error, of which the larger counts. One from batches of neighbouring requests: batch j of runs that share
    their draws is one cluster over all their rates, for a lucky stretch of arrivals is lucky at each of them. One from the binomial
    law and each stretch's `time`: a run that happens to hold few bad stretches attains much and, by its batches alone, seems sure of
    it. Raises Undefined with fewer than 2 rates, or where nothing varies. Source: cluster-robust errors, Liang and Zeger,
    Biometrika 73 (1986); overdispersion, McCullagh and Nelder, "Generalized Linear Models", section 4.5.
    """
    rates = np.array([one.rate_per_s for one in stretches], dtype=np.float64)
    if len(set(rates.tolist())) < 2:
        raise Undefined("fewer_than_2_rates")
    weights = np.array([one.weight * one.good.size for one in stretches], dtype=np.float64)
    centre = float(np.exp(np.average(np.log(rates), weights=weights)))
    x = np.log(rates / centre)
    successes = np.array([one.weight * float(one.good.sum()) for one in stretches])
    if successes.sum() in (0, weights.sum()):
        raise Undefined("no_variation")
    beta = _solve(x, successes, weights)
    shares = 1 / (1 + np.exp(-np.clip(beta[0] + beta[1] * x, -30, 30)))
    information = _information(x, (weights + 2 * PRIOR) * shares * (1 - shares))
    length = max(least, _longest(stretches) / BATCHES)
    scores: dict[tuple[str | int, int], Floats] = {}
    for one, at, share in zip(stretches, x, shares, strict=True):
        for j, part in enumerate(np.array_split(one.good, max(1, round(one.good.size / length)))):
            gap = one.weight * (float(part.sum()) - part.size * float(share))
            key = (one.draws, j)
            scores[key] = scores.get(key, np.zeros(2)) + gap * np.array([1.0, at])
    spread = np.array(list(scores.values()))
    count = len(spread)
    meat = spread.T @ spread * (count / max(1, count - 1))
    inverse = np.linalg.inv(information)
    own = np.array([one.weight**2 * one.time * one.good.size for one in stretches]) * shares * (1 - shares)
    covariance = max((inverse @ each @ inverse for each in (meat, _information(x, own))), key=lambda each: each[0, 0])
    (aa, ab), (ba, bb) = covariance.tolist()
    return Curve(
        a=float(beta[0]),
        b=float(beta[1]),
        centre_per_s=centre,
        covariance=((aa, ab), (ba, bb)),
        degrees=max(2.0, count - 2.0),
    )


def _longest(stretches: Sequence[Stretch]) -> int:
    """The requests at the rate that was looked at longest: its stretches make `batches`, long ones, for neighbours are alike."""
    totals: dict[float, int] = {}
    for one in stretches:
        totals[one.rate_per_s] = totals.get(one.rate_per_s, 0) + one.good.size
    return max(totals.values())


def _information(x: Floats, weights: Floats) -> Floats:
    return np.array([[weights.sum(), (weights * x).sum()], [(weights * x).sum(), (weights * x * x).sum()]])


def _solve(x: Floats, successes: Floats, weights: Floats) -> Floats:
    """Newton's steps, halved where they would overshoot."""
    n, k = weights + 2 * PRIOR, successes + PRIOR
    beta = np.array([_logit(float(k.sum() / n.sum())), 0.0])

    def height(at: Floats) -> float:
        eta = np.clip(at[0] + at[1] * x, -30, 30)
        return float((k * eta - n * np.logaddexp(0, eta)).sum())

    for _ in range(STEPS):
        shares = 1 / (1 + np.exp(-np.clip(beta[0] + beta[1] * x, -30, 30)))
        gradient = np.array([(k - n * shares).sum(), ((k - n * shares) * x).sum()])
        step = np.linalg.solve(_information(x, n * shares * (1 - shares)) + 1e-9 * np.eye(2), gradient)
        size, before = 1.0, height(beta)
        while size > 1e-6 and height(beta + size * step) < before:
            size /= 2
        beta = beta + size * step
        if float(np.abs(size * step).max()) < 1e-9:
            break
    return beta
