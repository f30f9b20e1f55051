"""What reading a trace left out, changed or noticed, in words for a run's record.

Lives here: that list. Must not live here: the rules themselves (traces.py).
"""

from __future__ import annotations

from phasemeter.workload.traces import Trace

MOST = 8  # notes of one trace; the others are counted (`phasemeter trace` shows all)
LEFT_TO_THE_RUN = {"no_timestamps"}  # the run itself says how such rows are offered


def words_of(trace: Trace) -> list[str]:
    """A line a thing: rows dropped, sorted, sampled, stamps guessed. Nothing of it happens to a run without a word."""
    said = list(trace.did)
    for fault in trace.warnings:
        if fault.message not in said and fault.kind not in LEFT_TO_THE_RUN:
            said.append(f"line {fault.line}: {fault.message}")
    more = [f"and {len(said) - MOST} notes more"] if len(said) > MOST else []
    name = trace.name.rpartition("/")[2]
    return [f"{name}: {text}" for text in (*said[:MOST], *more)]
