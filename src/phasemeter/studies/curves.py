"""The logistic curve near the crossing, from all looks at all rates that can tell something of it.

Lives here: which looks shape the curve, and how much. Must not live here: the fit itself (crossing.py), which rates are tried
(sequential.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from phasemeter.errors import Undefined
from phasemeter.studies.crossing import Curve, fit
from phasemeter.studies.looks import Bools, Probe, Seen, stretches_of, tail_time, time_of, weighed

# in log rate, one fit after another: what lies farther from the crossing doesn't shape the curve there
REACHES = (1.0, 0.5, 0.5)
BATCH_TIMES = 3  # a batch is so many times as long as neighbours are alike for


class Curves:
    """Fits, with what was found of each look kept."""

    def __init__(self, target: float) -> None:
        self.target = target
        self._times: dict[int, float] = {}  # by a look's identity: probes keep all of them
        self._alikes: dict[tuple[float, int], float] = {}

    def _time(self, look: Seen) -> float:
        if id(look) not in self._times:
            self._times[id(look)] = tail_time(look, self.target)
        return self._times[id(look)]

    def _alike(self, probe: Probe) -> float:
        key = (probe.rate_per_s, len(probe.looks))
        if key not in self._alikes:
            self._alikes[key] = time_of(probe.looks)
        return self._alikes[key]

    def fitted(
        self, probes: Collection[Probe], part: Callable[[Seen], Bools | None], target: float, *, short: bool = False
    ) -> Curve | None:
        """The logistic near the crossing; `short`: of all looks. Rates that grow without end, whose attainment depends on how
        long one looks, are left out. None where nothing can be fitted."""
        kept = [p for p in probes if p.stable is not False]
        longest = max((self._alike(p) for p in kept), default=1.0)
        most = 0 if short else max((one.requests for p in kept for one in p.looks), default=0)
        stretches = [one for p in kept for one in stretches_of(p, part, most, self._time)]
        if len({one.rate_per_s for one in stretches}) < 3:
            stretches = [one for p in kept for one in stretches_of(p, part, 0, self._time)]
        try:
            curve = fit(stretches, BATCH_TIMES * longest)
            for reach in REACHES:
                middle = curve.crossing(target)
                if middle is None:
                    return curve
                near = [weighed(one, middle, reach) for one in stretches]
                near = [one for one in near if one.weight > 0.05]
                if len({one.rate_per_s for one in near}) < 3:
                    break
                curve = fit(near, BATCH_TIMES * longest)
        except Undefined:
            return None
        return curve
