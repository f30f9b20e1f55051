"""Whether the emulator keeps its plan, and how it says that it doesn't.

Lives here: counts of late steps, their p99, the words. Must not live here: clocks, what a step writes (emulator.py).
"""

from __future__ import annotations

LATE_STEP_NS = 1_000_000  # a step whose first write is later than this after its plan is late
LATE_WRITE_NS = 10_000_000  # and so is one whose last write is
FEWEST_STEPS = 100  # before that there is no word of it
KEPT = 100_000

_GAUGES = {
    "step_start_lateness_p99_seconds": "From a step's plan to its first write, p99 of the last steps.",
    "step_end_lateness_p99_seconds": "From a step's plan to its last write, p99 of the last steps.",
    "keeps_up": "0 when more than one step in a hundred began over 1 ms or ended over 10 ms after its plan.",
}


class Lag:
    """How late steps started to be written, and ended: the emulator's own fidelity."""

    def __init__(self) -> None:
        self.steps = self.late = self.late_starts = self.late_ends = 0
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []

    def note(self, planned_ns: int, started_ns: int, ended_ns: int) -> None:
        start, end = started_ns - planned_ns, ended_ns - planned_ns
        self.steps += 1
        self.late_starts += start > LATE_STEP_NS
        self.late_ends += end > LATE_WRITE_NS
        self.late += start > LATE_STEP_NS or end > LATE_WRITE_NS
        if len(self.starts_ns) >= KEPT:
            del self.starts_ns[: KEPT // 2], self.ends_ns[: KEPT // 2]
        self.starts_ns.append(start)
        self.ends_ns.append(end)

    @property
    def keeps_up(self) -> bool:
        return self.steps < FEWEST_STEPS or max(self.late_starts, self.late_ends) <= self.steps / 100

    def p99_s(self) -> tuple[float, float]:
        """p99 of (first write − plan, last write − plan) over the last steps, in seconds."""
        if not self.starts_ns:
            return 0.0, 0.0
        at = min(len(self.starts_ns) - 1, int(0.99 * len(self.starts_ns)))
        return sorted(self.starts_ns)[at] / 1e9, sorted(self.ends_ns)[at] / 1e9

    def complaint(self) -> str | None:
        """One line when it doesn't keep up: more than one step in a hundred is late."""
        if self.keeps_up:
            return None
        start_s, end_s = self.p99_s()
        return (
            f"can't keep up: at p99 a step's first write is {start_s * 1e3:.1f} ms and its last {end_s * 1e3:.1f} ms "
            "after plan; hold clients against `written_ns`, or offer less"
        )

    def page(self) -> bytes:
        """The same for a metrics page, under names of our own."""
        start_s, end_s = self.p99_s()
        values = dict(zip(_GAUGES, (start_s, end_s, float(self.keeps_up)), strict=True))
        out = []
        for name, text in _GAUGES.items():
            out += [f"# HELP phasemeter_emulator_{name} {text}", f"# TYPE phasemeter_emulator_{name} gauge"]
            out.append(f"phasemeter_emulator_{name} {values[name]!r}")
        for name, count in (("steps", self.steps), ("late_steps", self.late)):
            out.append(f"# TYPE phasemeter_emulator_{name}_total counter")
            out.append(f"phasemeter_emulator_{name}_total {float(count)!r}")
        return ("\n".join(out) + "\n").encode()
