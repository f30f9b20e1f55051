"""What a run shows of its engine's scheduler, where nobody says: enough to predict the same run again.

Lives here: reading it off the steps. Must not live here: schedulers (serving/).
"""

from __future__ import annotations

import msgspec
import numpy as np

from phasemeter.serving.engine import Engine
from phasemeter.serving.kv_cache import CountedKv
from phasemeter.serving.policies.vllm_v0 import VllmV0
from phasemeter.serving.policies.vllm_v1 import VllmV1
from phasemeter.serving.state import Limits
from phasemeter.serving.step_time import LinearCoefficients, LinearCost, TickedCost
from phasemeter.studies.calibrate.observed import Floats, Ints, Run
from phasemeter.studies.calibrate.steps import Steps

FULL = 0.05  # share of steps with every seat taken and somebody waiting, from which on the seats are a limit
BLOCK = 16
MOST_SEATS, MOST_TOKENS = 1024, 8192


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """`mixed`: first tokens came together with others' further ones. `seats`: the most that ran, if more waited; None: no limit seen."""

    mixed: bool
    seats: int | None
    most_tokens: int  # of KV, of all requests that were in flight together

    @property
    def policy(self) -> str:
        return "vllm_v1" if self.mixed else "vllm_v0"


def seen_in(run: Run, steps: Steps | None) -> Seen:
    """The run's scheduler as far as it shows."""
    sent = np.sort(np.array([one.sent_s for one in run.requests]))
    last = np.sort(np.array([one.last_s for one in run.requests]))
    sizes = np.sort(np.array([one.prompt_tokens + one.output_tokens for one in run.requests]))
    flight = np.searchsorted(sent, sent, side="right") - np.searchsorted(last, sent, side="left")
    most_tokens = int(sizes[-int(flight.max()) :].sum())
    if steps is None:
        firsts = np.sort(np.array([one.first_s for one in run.requests]))
        running = np.arange(1, len(firsts) + 1) - np.searchsorted(last, firsts, side="right")
        return Seen(mixed=True, seats=_seats(running, _in_flight(sent, last, firsts)), most_tokens=most_tokens)
    busy = (steps.firsts > 0) & (steps.running > 0)
    mixed = int((busy & (steps.decodes > 0)).sum()) * 2 >= int(busy.sum())
    running = steps.running + steps.firsts
    seats = _seats(running, _in_flight(sent, last, steps.ends_s))
    return Seen(mixed=mixed, seats=seats, most_tokens=most_tokens)


def _in_flight(sent: Floats, last: Floats, at_s: Floats) -> Ints:
    """Requests that were sent before each instant and have not had their last token. `sent`, `last`: sorted."""
    return np.searchsorted(sent, at_s) - np.searchsorted(last, at_s, side="left")


def _seats(running: Ints, in_flight: Ints) -> int | None:
    peak = int(running.max())
    full = float(((running == peak) & (in_flight > peak)).mean())
    return peak if full >= FULL else None


def engine_of(seen: Seen, linear: LinearCoefficients, budget: int | None) -> Engine:
    """A fresh engine of one replica, with room for all that the run had at once."""
    limits = Limits(
        max_num_seqs=seen.seats or MOST_SEATS,
        max_num_batched_tokens=max(budget or MOST_TOKENS, seen.seats or MOST_SEATS),
    )
    kv = CountedKv(2 * seen.most_tokens // BLOCK + 1024, BLOCK)
    engine = Engine(VllmV1() if seen.mixed else VllmV0(), kv, TickedCost(LinearCost(linear)), limits)
    engine.requests_only = True
    return engine
