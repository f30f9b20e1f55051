"""Whole answers as equations, for runs whose steps can't be seen: tokens came several at a time, or only first and last are on record.

Lives here: what ran beside an answer, on average. Must not live here: single steps (steps.py, rows.py), solving (fit.py).

An answer of n tokens went through n − 1 steps after its first. What was in them is the mean over points spread evenly over it: how many
others were between first and last token, and their contexts, each growing evenly. Others' first tokens within it are prompts that
it waited for; in how many steps is not seen, so those cost their tokens, and the same constant as a decode. It tells less than
steps do: answers that ran together share most of their steps, and a pace is taken as even.
"""

from __future__ import annotations

import msgspec
import numpy as np

from phasemeter.studies.calibrate.observed import Floats, Ints, Run
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, Rows, joined, met_nobody

POINTS = 64  # at most, in one answer
FEWEST = 5  # prompts alone, before their constant is taken from them
SOMEBODY = 0.5  # fewer decodes than that on average: the prompts were alone


class _Flow(msgspec.Struct, frozen=True):
    """Counts of what has begun less what has ended, at any instant. Arrays by request."""

    first: Floats
    last: Floats
    prompt: Floats
    tokens: Floats

    def at(self, when: Floats) -> tuple[Floats, Floats]:
        """(answers that run, all their tokens of prompt and answer so far)."""
        pace = np.where(self.last > self.first, (self.tokens - 1) / np.maximum(self.last - self.first, 1e-12), 0.0)
        running, context = np.zeros(len(when)), np.zeros(len(when))
        for sign, edge in ((1.0, self.first), (-1.0, self.last)):
            order = np.argsort(edge, kind="stable")
            place = np.searchsorted(edge[order], when, side="right")
            start = self.prompt + 1 - pace * self.first
            before, slope = (np.concatenate([[0.0], np.cumsum(each[order])])[place] for each in (start, pace))
            running += sign * place
            context += sign * (before + slope * when)
        return running, context


def answer_rows(run: Run) -> Rows:
    """All equations of a run in order of time: of its answers, and of prompts whose processing has a known beginning."""
    requests = run.requests
    first, last, prompt, tokens = (
        np.array([getattr(one, name) for one in requests], dtype=np.float64)
        for name in ("first_s", "last_s", "prompt_tokens", "output_tokens")
    )
    flow = _Flow(first, last, prompt, tokens)
    new = np.array([one.prompt_tokens - one.cached_tokens for one in requests], dtype=np.float64)
    squares = new * (2 * (prompt - new) + new)
    order = np.argsort(first, kind="stable")
    sums = [np.concatenate([[0.0], np.cumsum(each[order])]) for each in (new, squares)]
    rows, at = [], []
    for number in np.flatnonzero((tokens > 1) & (last > first)).tolist():
        steps = tokens[number] - 1
        when = first[number] + (last[number] - first[number]) * _middles(int(steps))
        running, context = (float(each.mean()) for each in flow.at(when))
        low, high = np.searchsorted(first[order], [first[number], last[number]], side="right").tolist()
        others, pairs = (float(each[high] - each[low]) for each in sums)
        rows.append([steps, 0, 0, 0, others, steps * context, steps * running, pairs])
        at.append((last[number], last[number] - first[number], KINDS.index("answers")))
    return joined([_made(rows, at), _prompt_rows(run, flow, new, squares)], same_run=True)


def _middles(steps: int) -> Floats:
    points = min(steps, POINTS)
    return (np.arange(points) + 0.5) / points


def _chunks(tokens: float, budget: int | None) -> int:
    return 0 if budget is None else -(-int(tokens) // budget)


def _prompt_rows(run: Run, flow: _Flow, new: Floats, squares: Floats) -> Rows:
    """Prompts by the server's word, those that overlap as one; of an idle engine by the client's where it tells nothing."""
    rows: list[list[float]] = []
    at: list[tuple[float, float, int]] = []
    for members in _chains(run):
        requests = [run.requests[number] for number in members]
        begun = min(one.first_s - (one.prefill_s or 0.0) for one in requests)
        end = max(one.first_s for one in requests)
        steps = max(len({one.first_s for one in requests}), _chunks(float(new[members].sum()), run.budget))
        if flow.at(begun + (end - begun) * _middles(POINTS))[0].mean() < SOMEBODY:
            rows.append([0, 0, steps, 0, float(new[members].sum()), 0, 0, float(squares[members].sum())])
            at.append((end, end - begun, KINDS.index("prefill")))
    for number in np.flatnonzero(met_nobody(run)).tolist():
        one = run.requests[number]
        if one.prefill_s is None:
            rows.append([0, 0, 0, 1, float(new[number]), 0, 0, float(squares[number])])
            at.append((one.first_s, one.ttft_s, KINDS.index("alone")))
    return _made(rows, at) if len(rows) >= FEWEST else _made([], [])


def _chains(run: Run) -> list[Ints]:
    """Requests whose server-told prefills overlap, together."""
    told = [
        (one.first_s - one.prefill_s, one.first_s, number) for number, one in enumerate(run.requests) if one.prefill_s
    ]
    found: list[tuple[float, list[int]]] = []
    for begun, end, number in sorted(told):
        if found and begun < found[-1][0]:
            found[-1] = max(found[-1][0], end), [*found[-1][1], number]
        else:
            found.append((end, [number]))
    return [np.array(members) for _, members in found]


def _made(rows: list[list[float]], at: list[tuple[float, float, int]]) -> Rows:
    when, took, kind = (np.array([one[part] for one in at], dtype=np.float64) for part in range(3))
    kept = took > 0
    made = Rows(
        x=np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS)),
        y=took,
        at_s=when,
        kind=kind.astype(np.int64),
        block=np.zeros(len(at), dtype=np.int64),
    )
    return made.part(kept)
