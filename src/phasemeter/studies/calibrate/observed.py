"""A request as a fit looks at it: when its tokens came, how long it was, what the server said of its prefill.

Lives here: the way from a row and its evidence to that. Must not live here: steps (steps.py), files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from phasemeter.phases.budget import durations_of
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import RequestRow

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BUNDLED = 0.05  # share of a run's tokens that may lack an arrival of their own before its arrivals are no steps


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One request that got output. Seconds since the run's first send; tokens. `times_s`: each arrival of its tokens.

    `prefill_s`, `queue_s`: the server's own durations, None where it told none. `scored`: its prediction counts.
    """

    request_id: str
    sent_s: float
    first_s: float
    last_s: float
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int
    times_s: tuple[float, ...] = ()
    prefill_s: float | None = None
    queue_s: float | None = None
    scored: bool = True

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.last_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """None for fewer than two tokens."""
        return (self.last_s - self.first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run's requests in order of sending. `budget`: the most tokens a step takes, where somebody says so."""

    name: str
    requests: tuple[Observed, ...]
    concurrency: int | None = None  # closed loop: so many at a time
    budget: int | None = None

    @property
    def single_steps(self) -> bool:
        """Whether (nearly) every token has an arrival of its own: then arrivals are the ends of the engine's steps."""
        tokens = sum(one.output_tokens for one in self.requests)
        seen = sum(min(len(one.times_s), one.output_tokens) for one in self.requests)
        ended = len(self.requests)  # an end-of-sequence token has no text: one each is no bundle
        return tokens - seen <= BUNDLED * tokens + ended and any(len(one.times_s) > 1 for one in self.requests)


def observed(row: RequestRow, told: Sequence[EvidenceValue], origin_ns: int) -> Observed | None:
    """The request as seen; None for one that has no output, or whose lengths nobody knows."""
    prompt = row.input_tokens if row.input_tokens is not None else row.asked_input_tokens
    tokens = row.output_tokens
    events = [choice.times_ns for choice in row.choices]
    if tokens is None and row.outcome != "ok":
        tokens = sum(len(times) for times in events)  # called off: it was in the batch as long as it was
    sent, first, last = row.send_start_ns, row.first_token_ns, row.last_token_ns
    if not prompt or not tokens or sent is None or first is None or last is None or row.n > 1:
        return None
    durations = durations_of(told)
    times = _arrivals(row) - origin_ns

    def seconds(name: str) -> float | None:
        found = durations.get(name)
        return None if found is None or found[0] < 0 else found[0] / 1e9

    return Observed(
        request_id=row.request_id,
        sent_s=(sent - origin_ns) / 1e9,
        first_s=(first - origin_ns) / 1e9,
        last_s=(last - origin_ns) / 1e9,
        prompt_tokens=prompt,
        cached_tokens=min(row.cached_tokens or 0, prompt - 1),
        output_tokens=tokens,
        times_s=tuple((times / 1e9).tolist()),
        prefill_s=seconds("prefill"),
        queue_s=seconds("queue"),
        scored=row.outcome == "ok" and row.phase == "measured",
    )


def _arrivals(row: RequestRow) -> Ints:
    """When each token came, as far as events tell: one that holds several stands as often. Empty for several choices."""
    if len(row.choices) != 1:
        return np.empty(0, dtype=np.int64)
    times, tokens = np.asarray(row.choices[0].times_ns, dtype=np.int64), row.choices[0].tokens
    return times if tokens is None else np.repeat(times, tokens)


def in_order(requests: Iterable[Observed]) -> tuple[Observed, ...]:
    """By sending, the first at 0 or later; ties by name, so that a run is read one way."""
    found = sorted(requests, key=lambda one: (one.sent_s, one.request_id))
    early = -min(0.0, found[0].sent_s) if found else 0.0
    return tuple(found) if not early else tuple(_later(one, early) for one in found)


def _later(one: Observed, by_s: float) -> Observed:
    return msgspec.structs.replace(
        one,
        sent_s=one.sent_s + by_s,
        first_s=one.first_s + by_s,
        last_s=one.last_s + by_s,
        times_s=tuple(at + by_s for at in one.times_s),
    )
