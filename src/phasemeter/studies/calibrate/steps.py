"""An engine's steps, read off the arrivals of tokens: when each ended, who decoded in it, whose first token it gave.

Lives here: grouping arrivals into steps, and laying each prompt's prefill over them. Must not live here: any cost.
Arrivals that lie closer than a fraction of a step are one step's; its end is the earliest of them, the least delayed.
"""

from __future__ import annotations

import msgspec
import numpy as np

from phasemeter.studies.calibrate.observed import Floats, Ints, Run

TOGETHER = 0.2  # of a short step (the 10th percentile): arrivals closer than that are of one step
TWICE = 0.02  # share of steps that may give a stream two tokens before they are no steps
LONG = 1.35  # times its usual length: a step before a first token that is longer held part of the prompt


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays by step. `decodes`: who got a token that was not its first; `contexts`: their tokens, the new one's own included.

    `running`: who was between first and last token all through the step. `first_at`: by request, the step that gave its
    first token. `together_s`: what counts as one instant.
    """

    ends_s: Floats
    decodes: Ints
    contexts: Floats
    running: Ints
    firsts: Ints
    first_at: Ints
    together_s: float

    @property
    def lengths_s(self) -> Floats:
        """Of each step, from the end of the one before; the first has none (0)."""
        return np.diff(self.ends_s, prepend=self.ends_s[:1])


def steps_of(run: Run) -> Steps | None:
    """The run's steps; None where arrivals are no steps (several tokens in one, or several steps at a time)."""
    if not run.single_steps:
        return None
    requests = run.requests
    times = [np.asarray(one.times_s or (one.first_s,)) for one in requests]
    gaps = np.concatenate([np.diff(one) for one in times])
    gaps = gaps[gaps > 0]
    if not len(gaps):
        return None
    together = TOGETHER * float(np.quantile(gaps, 0.1))
    at = np.concatenate(times)
    who = np.repeat(np.arange(len(times)), [len(one) for one in times])
    number = np.concatenate([np.arange(len(one)) for one in times])
    order = np.argsort(at, kind="stable")
    at, who, number = at[order], who[order], number[order]
    starts = np.concatenate([[True], np.diff(at) > together])
    step = np.cumsum(starts) - 1
    count = int(step[-1]) + 1
    pairs = np.unique(step * len(times) + who)
    if len(at) - len(pairs) > TWICE * count:
        return None
    first = number == 0
    first_at = np.zeros(len(times), dtype=np.int64)
    first_at[who[first]] = step[first]
    last_at = np.zeros(len(times), dtype=np.int64)
    np.maximum.at(last_at, who, step)
    change = np.bincount(first_at + 1, minlength=count + 2) - np.bincount(last_at + 1, minlength=count + 2)
    prompts = np.array([one.prompt_tokens for one in requests], dtype=np.float64)
    decoding = step[~first]
    return Steps(
        ends_s=at[starts],
        decodes=np.bincount(decoding, minlength=count),
        contexts=np.bincount(decoding, weights=prompts[who[~first]] + number[~first], minlength=count).astype(
            np.float64
        ),
        running=np.cumsum(change)[:count],
        firsts=np.bincount(first_at, minlength=count),
        first_at=first_at,
        together_s=together,
    )


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
