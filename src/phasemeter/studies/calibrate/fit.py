"""Least squares that a stall can't bend: which constants rows can tell, their values, and intervals.

Lives here: linear algebra on Rows. Must not live here: runs, what a constant means (constants.py).

Residuals are relative to what a row should take, so that long and short steps count alike; each kind of row has its own spread.
Rows far from all others (a stall, a pause of a collector) lose their weight: Tukey's biweight from a start in least absolute
residuals. Intervals are by jackknife over stretches of time, since neighbours share their disturbances; it is as good as
the sandwich with many stretches, and wider with few (MacKinnon and White 1985, HC3).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from phasemeter.stats.distributions import t_quantile
from phasemeter.studies.calibrate.observed import Floats, Ints
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, Flags, Rows

ORDER = (
    "decode",
    "mixed",
    "prefill",
    "alone",
    "tokens",
    "contexts",
    "sequences",
    "squares",
)  # who keeps what two share
TOLD = 1e-4  # a column that others explain but for this share of it is theirs
VAGUE = 0.5  # a constant whose interval spans this share of a row is not told
TUKEY = 4.685  # 95 % efficient on normal residuals
STILL = 0.05  # biweight below this: the row is left out
MAD = 1.4826
SHARPEST = 0.3  # no kind of row counts as more precise than this share of the spread of all
MOST_WIDENED = 3.0
EXACT = 1e-9  # relative: the clock's and the arithmetic's grain


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Values by COLUMNS (0 where not told). `told`: which. `free`: the values where none is bound to 0; `without`: those again, by
    stretch, from all others. `widen`: by how much a spread at fixed weights is too small for that the weights were found.

    `weights`: each row's, 0 to 1; `predicted` in seconds. `spread`: relative, by kind (NaN without rows of it).
    """

    values: Floats
    told: Flags
    free: Floats
    without: Floats
    widen: float
    weights: Floats
    predicted: Floats
    spread: Floats

    def interval(self, of: Callable[[Floats], float], confidence: float = 0.95) -> tuple[float | None, float | None]:
        """Of a number made of the values; (None, None) where it hangs on a single stretch. Around the free value, with the bound one in."""
        stretches = len(self.without)
        value, bound = of(self.free), of(self.values)
        spread = np.array([of(one) for one in self.without]) - value
        if stretches < 2 or not np.isfinite(spread).all():
            return None, None
        error = float(np.sqrt((stretches - 1) / stretches * (spread**2).sum()))
        half = t_quantile((1 + confidence) / 2, stretches - 1) * error * self.widen
        return min(value - half, bound), max(value + half, bound)


def told_by(x: Floats) -> Flags:
    """Which columns the rows can tell apart, in the order of ORDER: the later of two that say the same is not told."""
    told = np.zeros(len(COLUMNS), dtype=bool)
    basis: list[Floats] = []
    for name in ORDER:
        column = x[:, COLUMNS.index(name)]
        size = float(np.linalg.norm(column))
        if size == 0 or len(basis) >= len(x):
            continue
        rest = column / size
        for _ in range(2):  # once more, for what rounding left
            for one in basis:
                rest = rest - one * float(one @ rest)
        left = float(np.linalg.norm(rest))
        if left > TOLD:
            told[COLUMNS.index(name)] = True
            basis.append(rest / left)
    return told


def solve(x: Floats, y: Floats, told: Flags) -> Floats:
    """Least squares in the told columns, none below 0: the most negative one is put to 0, and all others are solved again."""
    free, values = told.copy(), np.zeros(x.shape[1])
    while free.any():
        sizes = np.linalg.norm(x[:, free], axis=0)
        sizes[sizes == 0] = 1
        found = np.linalg.lstsq(x[:, free] / sizes, y, rcond=None)[0] / sizes
        if (found >= 0).all():
            values[free] = found
            break
        free[np.flatnonzero(free)[np.argmin(found * sizes)]] = False
    return values


def fit(rows: Rows) -> Fit:
    """The constants that the rows tell. Needs at least one row."""
    told = told_by(rows.x / rows.y[:, None])
    while True:
        found = _fit(rows, told)
        vague = _vague(rows, found)
        if vague is None:
            return found
        told = told.copy()
        told[vague] = False


def _fit(rows: Rows, told: Flags) -> Fit:
    x, y = rows.x, rows.y
    expected = np.array(y)
    weight = np.ones(len(y))
    for _ in range(12):  # least absolute residuals
        root = np.sqrt(weight) / expected
        values = solve(x * root[:, None], y * root, told)
        expected = _expected(x, y, values)
        weight = 1 / np.maximum(np.abs(y / expected - 1), 1e-4)
    weight, spread = _biweights(rows, expected)
    for _ in range(15):
        precision = 1 / spread[rows.kind]
        root = np.sqrt(weight) * precision / expected
        values = solve(x * root[:, None], y * root, told)
        expected = _expected(x, y, values)
        weight, spread = _biweights(rows, expected)
    root = np.sqrt(weight) / spread[rows.kind] / expected
    free, without = _without_each(x * root[:, None], y * root, rows, told)
    return Fit(
        values=values,
        told=told,
        free=free,
        without=without,
        widen=_widening((y / expected - 1) / (TUKEY * spread[rows.kind])),
        weights=weight,
        predicted=x @ values,
        spread=spread,
    )


def _expected(x: Floats, y: Floats, values: Floats) -> Floats:
    """What rows should take, kept within sight of what they took: a fit that is off must not blow up a weight."""
    return np.asarray(np.clip(x @ values, y / 4, y * 4))


def _biweights(rows: Rows, expected: Floats) -> tuple[Floats, Floats]:
    """(weights, spread by kind) from relative residuals."""
    residual = rows.y / expected - 1
    whole = max(MAD * float(np.median(np.abs(residual))), EXACT)
    spread = np.full(len(KINDS), np.nan)
    for kind in range(len(KINDS)):
        own = np.abs(residual[rows.kind == kind])
        if len(own):
            spread[kind] = max(MAD * float(np.median(own)), SHARPEST * whole)
    u = residual / (TUKEY * spread[rows.kind])
    return np.where(np.abs(u) < 1, (1 - u**2) ** 2, 0.0), spread


def _widening(u: Floats) -> float:
    """Mean weight over mean slope of the biweight's score at residuals `u`: what fixed weights leave out of a standard error.

    Source: Huber, Robust Statistics (1981), section 7.6, the asymptotic variance of an M-estimate of regression.
    """
    inside = u[np.abs(u) < 1] ** 2
    slope = float(((1 - inside) * (1 - 5 * inside)).sum())
    return float(np.clip(((1 - inside) ** 2).sum() / slope, 1.0, MOST_WIDENED)) if slope > 0 else MOST_WIDENED


def _without_each(x: Floats, y: Floats, rows: Rows, told: Flags) -> tuple[Floats, Floats]:
    """(values of all, values with each stretch left out), not bound to 0; NaN where the others don't tell them."""
    names = np.flatnonzero(told)
    sizes = np.linalg.norm(x[:, names], axis=0)
    sizes[sizes == 0] = 1
    scaled = x[:, names] / sizes
    blocks = np.unique(rows.block)
    found = np.zeros((len(blocks), x.shape[1]))
    squares = np.array([scaled[rows.block == one].T @ scaled[rows.block == one] for one in blocks])
    sides = np.array([scaled[rows.block == one].T @ y[rows.block == one] for one in blocks])
    whole, sum_of_sides = squares.sum(axis=0), sides.sum(axis=0)
    free = np.zeros(x.shape[1])
    free[names] = np.linalg.lstsq(scaled, y, rcond=None)[0] / sizes
    for number in range(len(blocks)):
        rest, side = whole - squares[number], sum_of_sides - sides[number]
        kept = _independent(rest, names)
        found[number, names] = np.nan
        found[number, names[kept]] = np.linalg.solve(rest[np.ix_(kept, kept)], side[kept]) / sizes[kept]
    return free, found


def _independent(gram: Floats, names: Ints) -> Flags:
    """As `told_by`, of columns known by their products: `names` says which column is which."""
    kept = np.zeros(len(names), dtype=bool)
    for name in ORDER:
        for at in np.flatnonzero(names == COLUMNS.index(name)):
            rest = float(gram[at, at])
            if rest > 0 and kept.any():
                rest -= float(gram[at, kept] @ np.linalg.lstsq(gram[np.ix_(kept, kept)], gram[kept, at], rcond=None)[0])
            kept[at] = rest > TOLD**2 * max(float(gram[at, at]), EXACT)
    return kept


def _vague(rows: Rows, found: Fit) -> int | None:
    """A told constant that is too uncertain for what it adds to a row; never one of the first four. A bend goes before its line."""
    for name in ("squares", "sequences", "contexts", "tokens"):
        column = COLUMNS.index(name)
        if not found.told[column]:
            continue
        use = rows.x[:, column] > 0
        share = float(np.median(rows.x[use, column] / rows.y[use]))
        low, high = found.interval(lambda values, column=column: float(values[column]))  # type: ignore[misc]
        half = np.inf if low is None or high is None else (high - low) / 2
        if half * share > VAGUE:
            squares = COLUMNS.index("squares")
            return squares if name == "tokens" and found.told[squares] else column
    return None
