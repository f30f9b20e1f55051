"""A run's steps as equations: how long, and how much of each constant was in it.

Lives here: which stretches of a run say what. Must not live here: solving (fit.py), what constants mean (constants.py).

A decode step is `decode + contexts + sequences`; a step with prompts in it `mixed` (once, whoever shares it) + what its decodes
cost + tokens + squares; one of prompts alone `prefill` + tokens + squares; a request that met an idle engine, whose server says
nothing, `alone` (prefill and all that is outside the engine) + tokens + squares. A prompt in chunks has the sum of its steps:
k new tokens after x cached ones add k·(2x + k), so squares add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.studies.calibrate.observed import Floats, Ints, Run
from phasemeter.studies.calibrate.steps import Steps

COLUMNS = ("decode", "mixed", "prefill", "alone", "tokens", "contexts", "sequences", "squares")
Flags = npt.NDArray[np.bool_]
KINDS = ("decode", "mixed", "prefill", "alone", "answers")  # the last: answers.py


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """`x` (rows by COLUMNS), `y` in seconds, `at_s` when, `kind` (an index of KINDS), `block`: what belongs together in time."""

    x: Floats
    y: Floats
    at_s: Floats
    kind: Ints
    block: Ints

    def part(self, kept: Flags | Ints) -> Rows:
        return Rows(x=self.x[kept], y=self.y[kept], at_s=self.at_s[kept], kind=self.kind[kept], block=self.block[kept])

    def of(self, kind: str) -> Ints:
        return np.flatnonzero(self.kind == KINDS.index(kind))


def decode_rows(steps: Steps, taken: Flags | None = None) -> Rows:
    """Steps in which everybody decoded; `taken`: those that held prompts."""
    usable = (steps.decodes > 0) & (steps.firsts == 0)
    usable[0] = False
    if taken is not None:
        usable &= ~taken
    at = np.flatnonzero(usable)
    x = np.zeros((len(at), len(COLUMNS)))
    x[:, COLUMNS.index("decode")] = steps.depth[at]
    x[:, COLUMNS.index("contexts")] = steps.contexts[at]
    x[:, COLUMNS.index("sequences")] = steps.decodes[at]
    return _rows(x, steps.lengths_s[at], steps.ends_s[at], np.zeros(len(at), dtype=np.int64))


def rows_of(run: Run, steps: Steps, starts: Ints) -> Rows:
    """All equations of a run, in order of time. `starts`: by request, the first step that held some of its prompt."""
    taken = np.zeros(len(steps.ends_s), dtype=bool)
    found: list[tuple[list[float], float, float, int]] = []
    lonely = met_nobody(run)
    for first, last, members in _groups(starts, steps.first_at):
        taken[first : last + 1] = True
        row = _group(run, steps, (first, last), members, bool(lonely[members[0]]))
        if row is not None:
            found.append(row)
    x = np.array([one[0] for one in found]).reshape(-1, len(COLUMNS))
    y, at = np.array([one[1] for one in found]), np.array([one[2] for one in found])
    groups = _rows(x, y, at, np.array([one[3] for one in found], dtype=np.int64))
    return joined([decode_rows(steps, taken), groups], same_run=True)


def _groups(starts: Ints, ends: Ints) -> list[tuple[int, int, list[int]]]:
    """Prompts whose steps overlap stand together: (first step, last step, which)."""
    found: list[tuple[int, int, list[int]]] = []
    for number in np.lexsort((ends, starts)).tolist():
        first, last = int(starts[number]), int(ends[number])
        if found and first <= found[-1][1]:
            begun, reached, members = found[-1]
            members.append(number)
            found[-1] = begun, max(reached, last), members
        else:
            found.append((first, last, [number]))
    return found


def _group(
    run: Run, steps: Steps, window: tuple[int, int], members: list[int], lonely: bool
) -> tuple[list[float], float, float, int] | None:
    """(x, y, when, kind); None where nobody knows when it began."""
    first, last = window
    requests = [run.requests[number] for number in members]
    new = [one.prompt_tokens - one.cached_tokens for one in requests]
    tokens = float(sum(new))
    squares = float(sum(k * (2 * one.cached_tokens + k) for k, one in zip(new, requests, strict=True)))
    span = slice(first, last + 1)
    mixed = int(steps.depth[span][steps.decodes[span] > 0].sum())
    bare = int((steps.decodes[span] == 0).sum())
    end = float(steps.ends_s[last])
    alone = 0
    if first > 0 and steps.running[first] > 0:
        begun = float(steps.ends_s[first - 1])
    elif all(one.prefill_s is not None for one in requests):
        begun = min(
            float(steps.ends_s[steps.first_at[number]]) - (run.requests[number].prefill_s or 0) for number in members
        )
    elif len(members) == 1 and first == last and lonely:
        begun, alone = requests[0].sent_s, 1
    else:
        return None
    if run.budget is not None and not mixed:
        bare = max(bare, -(-int(tokens) // run.budget))  # chunks of which a client sees the last one only
    x = dict.fromkeys(COLUMNS, 0.0)
    x |= {"mixed": mixed, "prefill": bare - alone, "alone": alone, "tokens": tokens, "squares": squares}
    x |= {"contexts": float(steps.contexts[span].sum()), "sequences": float(steps.decodes[span].sum())}
    kind = "mixed" if mixed else "alone" if alone else "prefill"
    return [x[name] for name in COLUMNS], end - begun, end, KINDS.index(kind)


def met_nobody(run: Run) -> Flags:
    """By request, whether no other one was in flight between its sending and its first token."""
    sent, first, last = (
        np.array([getattr(one, name) for one in run.requests]) for name in ("sent_s", "first_s", "last_s")
    )
    before = np.concatenate([[-np.inf], np.maximum.accumulate(last)[:-1]])
    return np.asarray((before <= sent) & (np.concatenate([sent[1:], [np.inf]]) >= first))


def _rows(x: Floats, y: Floats, at_s: Floats, kind: Ints) -> Rows:
    made = Rows(x=x, y=y, at_s=at_s, kind=kind, block=np.zeros(len(y), dtype=np.int64))
    return made.part(y > 0)  # what took no time was taken by no clock that tells


def joined(parts: Sequence[Rows], *, same_run: bool = False) -> Rows:
    """Several sets as one: of one run in order of time, of several one run after the other."""
    whole = Rows(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in Rows.__struct_fields__})
    if not same_run:
        return whole
    return whole.part(np.argsort(whole.at_s, kind="stable"))


def in_blocks(runs: Sequence[Rows], blocks: int) -> Rows:
    """All runs' rows, in about `blocks` stretches of time of about as many rows each; at least four a run."""
    total, begun, parts = sum(len(one.y) for one in runs), 0, []
    for one in runs:
        rows = len(one.y)
        own = max(1, min(rows, max(4, round(blocks * rows / max(1, total)))))
        parts.append(msgspec.structs.replace(one, block=begun + np.arange(rows) * own // max(1, rows)))
        begun += own
    return joined(parts)
