"""The highest rate whose joint attainment reaches the target, found by asking `measure(rate)`.

Lives here: the search. Must not live here: what is measured (a simulator and a service look alike from here), objectives.
Plain: double the rate until it misses, then bisect; every probe sees the same requests (common random numbers), so attainment
moves with the rate and not with the draw. DistServe (arXiv 2401.09670, section 4) searches likewise.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from phasemeter.errors import UserError


class Attainment(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe found: the share of requests that met every objective, its 95 % interval, and whether load was stable.

    `run`: where it was written, if anywhere. `binding`: the objective that failed most often.
    """

    value: float
    ci95: tuple[float | None, float | None] = (None, None)
    stable: bool | None = None
    binding: str | None = None
    run: str | None = None


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    rate_per_s: float
    attainment: Attainment


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """`value` None: not even the lowest rate tried attained the target. `ci95`: rates whose interval clears the target on
    the good and on the bad side; None where none did."""

    value: float | None
    ci95: tuple[float | None, float | None]
    binding: str | None
    probes: tuple[Probe, ...]
    reason: str | None = None


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """`target`: share that has to be attained. `precision`: relative width at which bisection stops."""

    target: float = 0.9
    start_per_s: float = 1.0
    precision: float = 0.02
    most_probes: int = 24

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise UserError(f"attainment {self.target:g}: write a share above 0, like 90 %")
        if not (self.start_per_s > 0 and self.precision > 0 and self.most_probes >= 2):
            raise UserError("a search needs a start rate and a precision above 0, and at least 2 probes")


def max_goodput(measure: Callable[[float], Attainment], search: Search) -> Goodput:
    """The highest rate that attains the target, to the search's precision.

    An unstable probe misses, whatever it attained: a short run can make overload look fine.
    """
    probes: dict[float, Attainment] = {}

    def good(rate: float) -> bool:
        if rate not in probes:
            probes[rate] = measure(rate)
        return probes[rate].value >= search.target and probes[rate].stable is not False

    low, high = _bracket(good, search, probes)
    while (
        low is not None and high is not None and high / low > 1 + search.precision and len(probes) < search.most_probes
    ):
        middle = (low * high) ** 0.5
        if good(middle):
            low = middle
        else:
            high = middle
    ordered = tuple(Probe(rate_per_s=rate, attainment=probes[rate]) for rate in sorted(probes))
    reason = None
    if low is None:
        reason = "target_never_attained"
    elif high is None:
        reason = "no_rate_missed"
    binding = probes[high].binding if high is not None else None
    return Goodput(value=low, ci95=_interval(ordered, search.target), binding=binding, probes=ordered, reason=reason)


def _bracket(
    good: Callable[[float], bool], search: Search, probes: dict[float, Attainment]
) -> tuple[float | None, float | None]:
    """(a rate that attains, one that misses): by doubling, or halving where the start already misses."""
    rate, factor = search.start_per_s, 2.0
    last: float | None = None
    first = good(rate)
    while len(probes) < search.most_probes:
        last, rate = rate, rate * factor if first else rate / factor
        if good(rate) != first:
            return (last, rate) if first else (rate, last)
    return (rate, None) if first else (None, rate)


def _interval(probes: tuple[Probe, ...], target: float) -> tuple[float | None, float | None]:
    """(highest rate up to which every interval is surely good, lowest rate that is surely missed)."""
    low: float | None = None
    high: float | None = None
    for probe in probes:
        bottom, top = probe.attainment.ci95
        if probe.attainment.stable is False or (top is not None and top < target):
            high = probe.rate_per_s
            break
        if bottom is not None and bottom >= target:
            low = probe.rate_per_s
    return low, high
