"""Services whose capacity is known exactly: attainment by rate; first looks share their draws over the rates, later ones don't."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from phasemeter.stats.distributions import normal_cdf, normal_quantile
from phasemeter.studies.looks import SHARED, Measure, Seen

WINDOW = 15


def drawn(seed: int, look: int, n: int, window: int, rate: float = 0.0) -> npt.NDArray[np.float64]:
    """Standard normals; neighbours up to `window` apart share some of their draws (a moving average)."""
    own = 0 if look == SHARED else round(1e6 * rate)
    draws = np.random.default_rng([seed, look, own]).standard_normal(n + window - 1)
    sums = np.cumsum(np.concatenate([[0.0], draws]))
    moving: npt.NDArray[np.float64] = (sums[window:] - sums[:-window]) / math.sqrt(window)
    return moving


def probit(crossing: float, target: float, fall: float, window: int = WINDOW) -> Callable[[int], Measure]:
    """Attainment is normal_cdf(z(target) − fall · ln(rate / crossing))."""
    level = normal_quantile(target)

    def seeded(seed: int) -> Measure:
        def measure(rate: float, requests: int, look: int) -> Seen:
            z = drawn(seed, look, requests, window, rate)
            bound = level - fall * math.log(rate / crossing)
            return Seen(
                good=z <= bound, strain=np.exp(z - bound), requests=requests, stable=True,
                scaled={"1.5": z <= bound + 0.4}, single={"ttft": z <= bound, "tpot": z <= bound + 0.25},
            )  # fmt: skip

        return measure

    return seeded


def slope(target: float, fall: float) -> float:
    """Of attainment over ln(rate), at the crossing of `probit`."""
    z = normal_quantile(target)
    return -fall * (normal_cdf(z + 1e-5) - normal_cdf(z - 1e-5)) / 2e-5
