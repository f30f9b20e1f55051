"""An engine's steps, read off the arrivals of tokens: when each ended, who decoded in it, whose first token it gave.

Lives here: grouping arrivals into steps, and laying each prompt's prefill over them. Must not live here: any cost.
Arrivals that lie closer than a fraction of a step are one step's; its end is the earliest of them, the least delayed.
"""

from __future__ import annotations

import msgspec
import numpy as np

from phasemeter.studies.calibrate.observed import Floats, Ints, Run

TOGETHER = 0.2  # of a short step (the 10th percentile): arrivals closer than that are of one step
BURST = 0.02  # of the median gap: what follows closer came in a burst, and tells no step's length
LONG = 1.35  # times its usual length: a step before a first token that is longer held part of the prompt


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays by step. `decodes`: who got a token that was not its first; `contexts`: their tokens, the new one's own included.

    `running`: who was between first and last token all through the step. `first_at`: by request, the step that gave its
    first token. `depth`: how many of the engine's steps came as one: more than 1 where a stream got several tokens at once (reads
    that the kernel merged, chunks of several tokens). `together_s`: what counts as one instant.
    """

    ends_s: Floats
    decodes: Ints
    contexts: Floats
    running: Ints
    depth: Ints
    firsts: Ints
    first_at: Ints
    together_s: float

    @property
    def lengths_s(self) -> Floats:
        """Of each step, from the end of the one before; the first has none (0)."""
        return np.diff(self.ends_s, prepend=self.ends_s[:1])


class _Arrivals(msgspec.Struct, frozen=True):
    """Arrivals of tokens by time: `who` got its `number`-th (from 0) in which `step`; `prompts` and `tokens` by request."""

    who: Ints
    number: Ints
    step: Ints
    prompts: Floats
    tokens: Ints

    def __len__(self) -> int:
        return int(self.step[-1]) + 1

    def per_step(self, of: Ints, weights: Floats | None = None) -> Ints:
        return np.bincount(of, weights=weights, minlength=len(self))

    def ends(self) -> tuple[Ints, Ints]:
        """By request: the steps of its first and of its last token."""
        first, last = (np.zeros(len(self.tokens), dtype=np.int64) for _ in range(2))
        first[self.who[self.number == 0]] = self.step[self.number == 0]
        np.maximum.at(last, self.who, self.step)
        return first, last


def steps_of(run: Run) -> Steps | None:
    """The run's steps; None where arrivals tell none (tokens without a time of their own)."""
    if not run.single_steps:
        return None
    times = [np.asarray(one.times_s or (one.first_s,)) for one in run.requests]
    gaps = np.concatenate([np.diff(one) for one in times])
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    if not usual > 0:
        return None
    together = TOGETHER * float(np.quantile(gaps[gaps > BURST * usual], 0.1))
    lengths = np.array([len(one) for one in times])
    at, who = np.concatenate(times), np.repeat(np.arange(len(times)), lengths)
    number = np.concatenate([np.arange(length) for length in lengths])
    order = np.argsort(at, kind="stable")
    at = at[order]
    starts = np.concatenate([[True], np.diff(at) > together])
    prompts = np.array([one.prompt_tokens for one in run.requests], dtype=np.float64)
    arrivals = _Arrivals(who[order], number[order], np.cumsum(starts) - 1, prompts, lengths)
    first_at, last_at = arrivals.ends()
    change = np.bincount(first_at + 1, minlength=len(arrivals) + 2) - np.bincount(
        last_at + 1, minlength=len(arrivals) + 2
    )
    running = np.cumsum(change)[: len(arrivals)]
    decodes, contexts, depth = _batches(arrivals, running, last_at)
    return Steps(
        ends_s=at[starts],
        decodes=decodes,
        contexts=contexts,
        running=running,
        depth=depth,
        firsts=arrivals.per_step(first_at),
        first_at=first_at,
        together_s=together,
    )


def _batches(arrivals: _Arrivals, running: Ints, last_at: Ints) -> tuple[Ints, Floats, Ints]:
    """(decodes, contexts, depth) by step.

    Who got a token was in the step. Where reads were merged, somebody's token of one step came with that of the next: then who
    runs was in it, if half of them got one. Several steps came as one only where everybody got several tokens.
    """
    later = arrivals.number > 0
    step, who = arrivals.step[later], arrivals.who[later]
    emitted = arrivals.per_step(step)
    contexts = arrivals.per_step(step, arrivals.prompts[who] + arrivals.number[later]).astype(np.float64)
    depth = np.ones(len(arrivals), dtype=np.int64)
    pairs, tokens = np.unique(step * len(arrivals.tokens) + who, return_counts=True)
    if not (tokens > 1).any():
        return emitted, contexts, depth
    got = pairs // len(arrivals.tokens)
    least = np.full(len(arrivals), np.iinfo(np.int64).max)
    np.minimum.at(least, got, tokens)
    distinct = arrivals.per_step(got)
    depth = np.where(distinct > 0, least, 1)
    whole = (2 * distinct >= running) & (distinct > 0)
    # all tokens so far, less those of who has ended, is what those running have got
    before = np.concatenate([[0], np.cumsum(arrivals.per_step(arrivals.step))[:-1]])
    gone = np.concatenate([[0], np.cumsum(arrivals.per_step(last_at, arrivals.tokens + arrivals.prompts))[:-1]])
    first_at = arrivals.ends()[0]
    prompts = np.concatenate([[0], np.cumsum(arrivals.per_step(first_at, arrivals.prompts))[:-1]])
    tokens_of_running = prompts + before - gone + running * (depth - 1) / 2
    return np.where(whole, running * depth, emitted), np.where(whole, tokens_of_running * depth, contexts), depth


def prefill_starts(run: Run, steps: Steps, usual_s: Floats | None) -> Ints:
    """By request, the first step that computed some of its prompt: by the server's word, else by how long steps before were.

    `usual_s`: how long each step would be without prompts; None: not known, a prompt is then laid into one step.
    """
    lengths, found = steps.lengths_s, np.array(steps.first_at)
    for number, one in enumerate(run.requests):
        end = int(steps.first_at[number])
        if one.prefill_s is not None:
            start = float(steps.ends_s[end]) - one.prefill_s + steps.together_s
            found[number] = min(end, int(np.searchsorted(steps.ends_s, start, side="right")))
            continue
        at = end
        while usual_s is not None and at >= 2 and steps.ends_s[at - 2] + steps.together_s >= one.sent_s:
            if not steps.decodes[at - 1] or lengths[at - 1] <= LONG * usual_s[at - 1]:
                break
            at -= 1
        found[number] = at
    return found
