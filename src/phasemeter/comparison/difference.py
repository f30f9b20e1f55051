"""How two sides differ: in the mean, in quantiles, in the whole distribution, each with an interval and an honest p-value.

Lives here: bootstrap over requests (blocks where neighbours are alike), permutations for the distribution, Holm's correction.
Must not live here: whether the sides may be compared (comparable.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.stats.distributions import t_cdf, t_quantile
from phasemeter.stats.intervals import Generator, block_indices
from phasemeter.stats.quantiles import Floats, quantile, sorted_quantiles
from phasemeter.stats.stationarity import correlated, integrated_time

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
RESAMPLES = 400
PERMUTATIONS = 999
CLOSE_PERMUTATIONS = 4999  # so many that a p-value survives the correction over some sixty tests
SMALL = 4000  # values on both sides: with more, a resampled spread is good enough
DOUBTFUL = 0.02  # p-values above it are not significant after any correction that matters
SIGNIFICANCE = 0.05
FEWEST = 10  # values a side


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """B against A in one statistic; `difference` is b − a in `unit`, its interval at 95 %.

    `p_adjusted`: Holm's, over all tests of the comparison. `significant`: at 5 % family-wise. None: not testable (`reason`).
    """

    metric: str
    statistic: str
    a: float | None
    b: float | None
    difference: float | None = None
    relative: float | None = None
    ci95: tuple[float | None, float | None] = (None, None)
    p_value: float | None = None
    p_adjusted: float | None = None
    significant: bool | None = None
    n_a: int = 0
    n_b: int = 0
    unit: str = "s"
    reason: str | None = None


def statistics() -> dict[str, Callable[[Floats], float]]:
    """What is compared besides the whole distribution."""
    found: dict[str, Callable[[Floats], float]] = {"mean": lambda values: float(values.mean())}
    for name, q in QUANTILES.items():
        found[name] = lambda values, q=q: quantile(values, q)  # type: ignore[misc]
    return found


def block_length(values: Floats) -> int:
    """1 where neighbours are independent; else a twentieth of the run, or twice as many values as neighbours are alike for where
    that is longer (at most a quarter): shorter stretches would call two equal runs different.
    """
    if not correlated(values):
        return 1
    alike = math.ceil(2 * integrated_time(values))
    return max(1, math.ceil(values.size / 20), min(alike, values.size // 4))


def worth_of(values: Floats) -> float:
    """How many independent values a run is worth."""
    return values.size / integrated_time(values) if correlated(values) else float(values.size)


def enough(q: float | None, n: float) -> bool:
    """Whether n independent values say anything about a quantile: five beyond it, on either side; the mean needs FEWEST."""
    return n >= FEWEST if q is None else n * min(q, 1 - q) >= 5 and n >= FEWEST


def between(
    metric: str,
    a: Sequence[Floats],
    b: Sequence[Floats],
    generator: Generator,
    unit: str = "s",
    *,
    distribution: bool = True,
) -> list[Difference]:
    """Every statistic of one metric, B against A; each side is one or more runs, values in the order due.

    With 3 or more runs on both sides runs are the sample (Welch's t on their statistics), else requests are.
    """
    if not all(len(run) for run in (*a, *b)):
        return []
    runs = min(len(a), len(b)) >= 3
    found = []
    drawn = None if runs else (_resampled(a, generator), _resampled(b, generator))
    worth = (
        min(sum(map(worth_of, side)) for side in (a, b))
        if drawn is not None
        else min(sum(map(len, a)), sum(map(len, b)))
    )
    for name, statistic in statistics().items():
        q = QUANTILES.get(name)
        n_a, n_b = sum(map(len, a)), sum(map(len, b))
        if not enough(q, worth):
            found.append(Difference(metric=metric, statistic=name, a=_pooled(statistic, a), b=_pooled(statistic, b), n_a=n_a,
                                    n_b=n_b, unit=unit, reason="too_few_samples"))  # fmt: skip
        elif drawn is None:
            found.append(_of_runs(metric, name, [statistic(v) for v in a], [statistic(v) for v in b], unit))
        else:
            found.append(_doubted(_of_requests(metric, name, (a, b), drawn, unit), q, (a, b), generator))
    if distribution and not runs and enough(None, min(sum(map(len, a)), sum(map(len, b)))):
        found.append(whole_distribution(metric, np.concatenate(a), np.concatenate(b), generator))
    return found


def _pooled(statistic: Callable[[Floats], float], runs: Sequence[Floats]) -> float:
    return statistic(np.concatenate(runs))


class _Drawn(msgspec.Struct, frozen=True):
    """Resampled statistics: name: one value a resample; and how many stretches they came from."""

    values: dict[str, Floats]
    stretches: float


def _resampled(runs: Sequence[Floats], generator: Generator) -> _Drawn:
    lengths = [block_length(run) for run in runs]
    levels = np.array([*QUANTILES.values()])
    means, quantiles = np.empty(RESAMPLES), np.empty((RESAMPLES, levels.size))
    for i in range(RESAMPLES):
        pool = np.concatenate(
            [run[block_indices(run.size, length, generator)] for run, length in zip(runs, lengths, strict=True)]
        )
        means[i] = pool.mean()
        quantiles[i] = sorted_quantiles(np.sort(pool), levels)
    values = {"mean": means} | {name: quantiles[:, j] for j, name in enumerate(QUANTILES)}
    return _Drawn(values, sum(run.size / length for run, length in zip(runs, lengths, strict=True)))


def _of_requests(
    metric: str, name: str, sides: tuple[Sequence[Floats], Sequence[Floats]], drawn: tuple[_Drawn, _Drawn], unit: str
) -> Difference:
    statistic = statistics()[name]
    a, b = (_pooled(statistic, side) for side in sides)
    # k stretches vary by (k − 1) / k too little around their own mean
    spread = math.hypot(*(
        float(each.values[name].std(ddof=1)) * math.sqrt(each.stretches / max(1.0, each.stretches - 1)) for each in drawn
    ))  # fmt: skip
    degrees = max(2.0, min(each.stretches for each in drawn) * 2 - 2)
    return _tested(
        Difference(
            metric=metric, statistic=name, a=a, b=b, n_a=sum(map(len, sides[0])), n_b=sum(map(len, sides[1])), unit=unit
        ),
        spread, degrees,
    )  # fmt: skip


def _doubted(
    found: Difference, q: float | None, sides: tuple[Sequence[Floats], Sequence[Floats]], generator: Generator
) -> Difference:
    """A difference that looks significant in a small sample, held to a permutation test as well: the larger p-value counts.

    A resampled spread of a quantile is off by a third at a hundred values, and once in forty too small by enough to matter;
    stretches dealt out to the sides anew have no spread to get wrong.
    """
    if found.p_value is None or found.p_value > DOUBTFUL or found.n_a + found.n_b > SMALL or found.difference is None:
        return found
    chance = permutation_p(q, sides, abs(found.difference), generator)
    return msgspec.structs.replace(found, p_value=max(found.p_value, chance))


def permutation_p(
    q: float | None, sides: tuple[Sequence[Floats], Sequence[Floats]], seen: float, generator: Generator
) -> float:
    """How often sides dealt anew differ by `seen` or more in their q-quantile (None: their mean). Stretches stay whole."""
    stretches: list[Floats] = []
    counts = []
    for side in sides:
        before = len(stretches)
        for run in side:
            length = block_length(run)
            stretches += [run[at : at + length] for at in range(0, run.size, length)]
        counts.append(len(stretches) - before)
    values = np.concatenate(stretches)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    owner = np.repeat(np.arange(len(stretches)), [one.size for one in stretches])[order]
    beyond = 0
    for _ in range(CLOSE_PERMUTATIONS):
        mine = np.zeros(len(stretches), dtype=bool)
        mine[_permuted(len(stretches), generator)[: counts[0]]] = True
        first, second = ordered[mine[owner]], ordered[~mine[owner]]
        gap = first.mean() - second.mean() if q is None else sorted_quantiles(first, q) - sorted_quantiles(second, q)
        beyond += abs(float(gap)) >= seen * (1 - 1e-9)
    return (1 + beyond) / (CLOSE_PERMUTATIONS + 1)


def _of_runs(metric: str, name: str, a: list[float], b: list[float], unit: str) -> Difference:
    errors = [float(np.var(side, ddof=1)) / len(side) for side in (a, b)]
    total = sum(errors)
    degrees = 2.0 if total == 0 else total**2 / sum(e**2 / (len(s) - 1) for e, s in zip(errors, (a, b), strict=True))
    base = Difference(
        metric=metric, statistic=name, a=float(np.mean(a)), b=float(np.mean(b)), n_a=len(a), n_b=len(b), unit=unit
    )
    return _tested(base, math.sqrt(total), max(1.0, degrees))


def _tested(base: Difference, error: float, degrees: float) -> Difference:
    ours, theirs = base.a or 0.0, base.b or 0.0
    gap = theirs - ours
    half = t_quantile(0.975, degrees) * error
    if error > 0:
        p_value = 2 * t_cdf(-abs(gap) / error, degrees)
    else:
        p_value = 1.0 if gap == 0 else 0.0
    return msgspec.structs.replace(
        base, difference=gap, relative=gap / ours if ours else None, ci95=(gap - half, gap + half), p_value=p_value
    )


def ks_statistic(a: Floats, b: Floats) -> float:
    """The largest vertical gap between two samples' cumulative shares (Kolmogorov–Smirnov)."""
    grid = np.concatenate([a, b])
    first = np.searchsorted(np.sort(a), grid, side="right") / a.size
    second = np.searchsorted(np.sort(b), grid, side="right") / b.size
    gaps: Floats = np.abs(first - second)
    return float(gaps.max())


def ks_p_value(a: Floats, b: Floats) -> float:
    """Its p-value for independent values, by the asymptotic law with Stephens' correction; ties make it too large, not small."""
    size = math.sqrt(a.size * b.size / (a.size + b.size))
    x = (size + 0.12 + 0.11 / size) * ks_statistic(a, b)
    if x < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((1 if k % 2 else -1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))))


def whole_distribution(metric: str, a: Floats, b: Floats, generator: Generator) -> Difference:
    """Kolmogorov–Smirnov with a permutation p-value: stretches are permuted whole where neighbours are alike."""
    length = max(block_length(a), block_length(b))
    pool = np.concatenate([a, b])
    order = np.argsort(pool, kind="stable")
    ranked = pool[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # shares are read after the last of equal values
    owner_of = np.concatenate([np.arange(a.size) // length, a.size // length + 1 + np.arange(b.size) // length])[order]
    stretches = np.unique(owner_of)
    in_a = int(np.ceil(a.size / length))
    seen = ks_statistic(a, b)
    beyond = 0
    for _ in range(PERMUTATIONS):
        chosen = np.zeros(int(owner_of.max()) + 1, dtype=bool)
        chosen[stretches[_permuted(stretches.size, generator)[:in_a]]] = True
        mine = chosen[owner_of]
        total = int(mine.sum())
        gap = np.abs(np.cumsum(mine) / total - np.cumsum(~mine) / (mine.size - total))
        beyond += float(gap[last].max()) >= seen - 1e-12
    return Difference(
        metric=metric, statistic="distribution", a=None, b=None, difference=seen, p_value=(1 + beyond) / (PERMUTATIONS + 1),
        n_a=int(a.size), n_b=int(b.size), unit="1",
    )  # fmt: skip


def _permuted(n: int, generator: Generator) -> npt.NDArray[np.int64]:
    return np.argsort(generator.integers(0, 2**62, n), kind="stable")


def from_summary(metric: str, a: Mapping[str, Any], b: Mapping[str, Any], *, gaps: bool) -> list[Difference]:
    """What two files' summaries allow: Welch on mean and spread; percentiles side by side without an interval.

    `gaps`: many values a request, which aren't independent: no test at all.
    """
    unit, n_a, n_b = str(a.get("unit", "s")), int(a.get("n") or 0), int(b.get("n") or 0)
    found = []
    base = Difference(metric=metric, statistic="mean", a=a.get("mean"), b=b.get("mean"), n_a=n_a, n_b=n_b, unit=unit)
    if not gaps and None not in (a.get("std"), b.get("std"), base.a, base.b) and min(n_a, n_b) >= FEWEST:
        error = math.hypot(a["std"] / math.sqrt(n_a), b["std"] / math.sqrt(n_b))
        found.append(
            msgspec.structs.replace(_tested(base, error, n_a + n_b - 2), reason="independent_requests_assumed")
        )
    elif None not in (base.a, base.b):
        found.append(_bare(base))
    for name in QUANTILES:
        ours, theirs = (a.get(name) or {}).get("value"), (b.get(name) or {}).get("value")
        if ours is not None and theirs is not None:
            found.append(
                _bare(Difference(metric=metric, statistic=name, a=ours, b=theirs, n_a=n_a, n_b=n_b, unit=unit))
            )
    return found


def _bare(base: Difference) -> Difference:
    gap = (base.b or 0.0) - (base.a or 0.0)
    return msgspec.structs.replace(
        base, difference=gap, relative=gap / base.a if base.a else None, reason="no_values_of_single_requests"
    )


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """The family-wise correction over all tests: the smallest p times their number, the next times one fewer, …, rising.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    tested = sorted(
        (i for i, d in enumerate(differences) if d.p_value is not None), key=lambda i: differences[i].p_value or 0.0
    )
    found, worst = list(differences), 0.0
    for rank, i in enumerate(tested):
        worst = max(worst, min(1.0, (differences[i].p_value or 0.0) * (len(tested) - rank)))
        found[i] = msgspec.structs.replace(differences[i], p_adjusted=worst, significant=worst <= SIGNIFICANCE)
    return found
