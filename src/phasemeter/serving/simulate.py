"""A workload through a deployment in virtual time.

Lives here: the loop over arrivals and steps, what is kept of each request, samples of the load. Must not live here: engines
(engine.py), statistics of the result (metrics/, runs/), files.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, count

import msgspec

from phasemeter.errors import UserError
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.serving.cluster import Replicas, Serving
from phasemeter.serving.demand import Demand, Draws
from phasemeter.serving.ended import Ended, Refused, Served
from phasemeter.serving.events import Event, Finished, Prefilled, Tokens, Truth
from phasemeter.serving.sequence import Request


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The load at one instant. KV is a share of the pools."""

    at_ns: int
    running: int
    waiting: int
    kv_share: float


class Simulation:
    """One run. `tokens`: the serving tells each token's instant, which costs time and memory by the token.

    Requests that ended are handed out by `run` as they end; `samples` holds the load at `sample_every_ns`.
    """

    def __init__(self, serving: Serving, demand: Demand, seed: int, *, tokens: bool, sample_every_ns: int) -> None:
        self.serving = serving
        self.demand = demand
        self.seed = seed
        self.tokens = tokens
        self.sample_every_ns = sample_every_ns
        self.samples: list[Sample] = []
        self.sampled: Callable[[Sample], None] | None = None  # is given each sample as it is taken
        self.steps = 0
        self.step_tokens = 0
        self.draws = Draws(demand, seed)
        self._order = count()
        self._next_sample = 0
        self._open: dict[str, Request] = {}
        self._times: dict[str, list[int]] = {}

    def run(self) -> Iterator[Served | Refused]:
        """Serve the whole demand; every request comes out once, refused ones at once, the others as they end."""
        if not self.demand.arrivals.open_loop:
            yield from self._closed_loop()
        elif self.demand.turns > 1:
            yield from self._conversations()
        else:
            yield from self._open_loop()

    def fill(self, ended: Ended) -> None:
        """As `run`, into `ended`; where nothing follows from an answer's end, without a record for each request in between."""
        if self.tokens or self.demand.turns > 1 or not self.demand.arrivals.open_loop:
            for one in self.run():
                ended.add(one)
            return
        serving, alone = self.serving, self._alone()
        for request in self.demand.open_loop(self.seed):
            arrival_ns = request.arrival_ns
            if not alone or arrival_ns > self._next_sample:
                for events in self._lived(arrival_ns - 1):
                    ended.take(events)
            try:
                serving.submit(arrival_ns, request)
            except UserError as error:
                ended.add(Refused(request, str(error)))
        while (due := serving.due_ns()) is not None:
            for events in self._lived(max(due, self._next_sample)):
                ended.take(events)

    def _alone(self) -> bool:
        """Whether one engine is all there is: it may be told ahead of what comes; a router has to see what is outstanding."""
        return isinstance(self.serving, Replicas) and len(self.serving.engines) == 1

    def _open_loop(self) -> Iterator[Served | Refused]:
        alone = self._alone()
        for request in self.demand.open_loop(self.seed):
            if not alone or request.arrival_ns > self._next_sample:
                yield from self._until(request.arrival_ns - 1)  # a step that starts at its arrival may take it in
            yield from self._submit(request)
        yield from self._drain()

    def _conversations(self) -> Iterator[Served | Refused]:
        """First turns by schedule, later ones when the answer before them has come and the user has thought."""
        source = self.demand.open_loop(self.seed)
        later: list[tuple[int, int, Request]] = []
        first = next(source, None)
        while True:
            engine_due = self.serving.due_ns()
            use_later = bool(later) and (first is None or later[0][0] <= first.arrival_ns)
            request = later[0][2] if use_later else first
            if request is not None and (engine_due is None or request.arrival_ns <= engine_due):
                if use_later:
                    heapq.heappop(later)
                else:
                    first = next(source, None)
                ended: Iterator[Served | Refused] = chain(self._until(request.arrival_ns - 1), self._submit(request))
            elif engine_due is not None:
                ended = self._until(engine_due)
            else:
                return
            for one in ended:
                if isinstance(one, Served) and (turn := self.draws.following(one.request, one.truth.finish_ns)):
                    heapq.heappush(later, (turn.arrival_ns, next(self._order), turn))
                yield one

    def _closed_loop(self) -> Iterator[Served | Refused]:
        """Each client sends its next request (its conversation's next turn) when its last one ended, after thinking."""
        most, turns = self.demand.most(), self.demand.turns
        horizon_ns = None if self.demand.duration_s is None else round(self.demand.duration_s * 1e9)
        due: list[tuple[int, int, Request | None]] = [
            (0, next(self._order), None) for _ in range(self.demand.concurrency or 1)
        ]
        begun = 0
        while True:
            engine_due = self.serving.due_ns()
            if due and due[0][2] is None and most is not None and begun * turns >= most:
                due = [one for one in due if one[2] is not None]  # no conversation is left to begin
                heapq.heapify(due)
            if due and horizon_ns is not None and due[0][0] > horizon_ns:
                due = []
            if due and (engine_due is None or due[0][0] <= engine_due):
                at, _, turn = heapq.heappop(due)
                if turn is None:
                    turn = self.draws.request(begun * turns, at)
                    begun += 1
                ended: Iterator[Served | Refused] = chain(self._until(at - 1), self._submit(turn))
            elif engine_due is not None:
                ended = self._until(engine_due)
            else:
                return
            for one in ended:
                heapq.heappush(due, self._after(one, begun))
                yield one

    def _after(self, one: Served | Refused, begun: int) -> tuple[int, int, Request | None]:
        """What the client does whose request has ended: (when, tie, its conversation's next turn or None)."""
        if isinstance(one, Refused):
            return one.request.arrival_ns + self.draws.think_ns(begun), next(self._order), None
        turn = self.draws.following(one.request, one.truth.finish_ns) if self.demand.turns > 1 else None
        if turn is not None:
            return turn.arrival_ns, next(self._order), turn
        return one.truth.finish_ns + self.draws.think_ns(begun), next(self._order), None

    def _submit(self, request: Request) -> Iterator[Refused]:
        try:
            self.serving.submit(request.arrival_ns, request)
        except UserError as error:
            yield Refused(request, str(error))
            return
        self._open[request.request_id] = request
        if self.tokens:
            self._times[request.request_id] = []

    def _until(self, at_ns: int) -> Iterator[Served]:
        for events in self._lived(at_ns):
            yield from self._told(events)

    def _lived(self, at_ns: int) -> Iterator[list[Event]]:
        """What happens up to `at_ns`, from sample to sample."""
        if at_ns < 0:
            return
        while self._next_sample <= at_ns:
            yield self.serving.advance(self._next_sample)
            self.samples.append(Sample(self._next_sample, *self.serving.load()))
            self._next_sample += self.sample_every_ns
            if self.sampled is not None:
                self.sampled(self.samples[-1])
        yield self.serving.advance(at_ns)

    def _drain(self) -> Iterator[Served]:
        while (due := self.serving.due_ns()) is not None:
            yield from self._until(max(due, self._next_sample))  # far enough for stretches of steps

    def _told(self, events: list[Event]) -> Iterator[Served]:
        for event in events:
            if isinstance(event, Tokens):
                self.steps += 1
                self.step_tokens += len(event.first) + len(event.more)
                for request_id in chain(event.first, event.more):
                    self._times[request_id].append(event.at_ns)
            elif isinstance(event, Prefilled) and self.tokens:
                self._times[event.request_id] = [event.at_ns]
            elif isinstance(event, Finished):
                times = tuple(self._times.pop(event.request_id, ()))
                yield Served(event.truth, self._open.pop(event.request_id), times)


def row_of(one: Served | Refused) -> RequestRow:
    """The row of a simulated request: virtual ns; the client stands beside the engine, so nothing is lost on the way."""
    request = one.request
    if isinstance(one, Refused):
        return RequestRow(
            request_id=request.request_id,
            outcome="failed",
            failure="rejected",
            failure_text=one.reason,
            asked_input_tokens=request.prompt_tokens,
            asked_output_tokens=request.output_tokens,
            due_ns=request.arrival_ns,
            send_start_ns=request.arrival_ns,
        )
    truth = one.truth
    reads = tuple(range(len(one.times_ns)))
    choices = ChoiceTimes(
        times_ns=one.times_ns,
        reads=reads,
        tokens=(1,) * len(one.times_ns),
        finish_reason="length",
        output_tokens=truth.output_tokens,
    )
    arrival, first, last = truth.arrival_ns, truth.first_token_ns, truth.finish_ns
    return RequestRow(
        request_id=request.request_id,
        outcome="ok",
        asked_input_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens,
        due_ns=arrival,
        send_start_ns=arrival,
        sent_ns=arrival,
        headers_ns=first,
        first_read_ns=first,
        first_chunk_ns=first,
        first_token_ns=first,
        first_output_ns=first,
        last_token_ns=last,
        stream_end_ns=last,
        input_tokens=truth.prompt_tokens,
        cached_tokens=truth.cached_tokens,
        output_tokens=truth.output_tokens,
        output_tokens_source="simulated",
        finish_reason="length",
        choices=(choices,) if one.times_ns else (),
    )


def phases_of(truth: Truth) -> dict[str, float]:
    """Seconds of each phase; queue + prefill + handoff = TTFT, and decode holds the three kinds of stall."""
    return {
        "queue": (truth.prefill_start_ns - truth.queue_enter_ns) / 1e9,
        "prefill": (truth.prefill_end_ns - truth.prefill_start_ns) / 1e9,
        "handoff": (truth.first_token_ns - truth.prefill_end_ns) / 1e9,
        "decode": (truth.finish_ns - truth.first_token_ns) / 1e9,
        "stall_prefill": truth.stall_prefill_ns / 1e9,
        "stall_mixed": truth.stall_mixed_ns / 1e9,
        "stall_preempted": truth.stall_preempted_ns / 1e9,
    }
