"""Several engines as one: replicas behind a router, prefill and decode pools joined by a link.

Lives here: who gets a request, when KV is across, whose events come first. Must not live here: scheduling inside an engine.
Like an engine, a cluster reads no clock: `submit(now_ns, …)`, `due_ns()`, `advance(now_ns)`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Protocol

import msgspec

from phasemeter.serving.events import Aborted, Event, Finished, Prefilled, Pull, Tokens, Truth
from phasemeter.serving.hardware import Link
from phasemeter.serving.routers import Router, shortest_queue
from phasemeter.serving.sequence import Request


class Serving(Protocol):
    """An engine, or what looks like one."""

    def submit(self, now_ns: int, request: Request) -> None: ...
    def due_ns(self) -> int | None: ...
    def advance(self, now_ns: int) -> list[Event]: ...
    def abort(self, now_ns: int, request_id: str) -> bool:
        """Called off; False: it isn't here."""

    def load(self) -> tuple[int, int, float]:
        """(running, waiting, share of KV in use)."""


class PoolEngine(Serving, Protocol):
    """An engine of a prefill or decode pool."""

    def check(self, request: Request) -> None: ...
    def offer(self, now_ns: int, request: Request) -> None: ...
    def release(self, now_ns: int, request_id: str) -> None: ...
    def delivered(self, now_ns: int, request_id: str) -> None: ...


def earliest(instants: Sequence[int | None]) -> int | None:
    return min((one for one in instants if one is not None), default=None)


def together(loads: Sequence[tuple[int, int, float]]) -> tuple[int, int, float]:
    """Requests added up, KV shares averaged."""
    return sum(one[0] for one in loads), sum(one[1] for one in loads), sum(one[2] for one in loads) / len(loads)


class Replicas:
    """Equal engines behind a router that sees how many requests each has outstanding."""

    def __init__(self, engines: Sequence[Serving], router: Router) -> None:
        self.engines = engines
        self.router = router
        self.outstanding = [0] * len(engines)
        self.routed = 0

    def submit(self, now_ns: int, request: Request) -> None:
        """Raises UserError for a request that no engine could ever serve."""
        if len(self.engines) == 1:
            self.engines[0].submit(now_ns, request)
            return
        at = self.router(self.outstanding, self.routed, request)
        self.engines[at].submit(now_ns, request)
        self.outstanding[at] += 1
        self.routed += 1

    def due_ns(self) -> int | None:
        return earliest([engine.due_ns() for engine in self.engines])

    def advance(self, now_ns: int) -> list[Event]:
        """Events of all engines up to `now_ns`, in order of time, the first engine first."""
        if len(self.engines) == 1:  # nobody has to choose
            return self.engines[0].advance(now_ns)
        told: list[Event] = []
        for at, engine in enumerate(self.engines):
            due = engine.due_ns()
            if due is None or due > now_ns:
                continue
            for event in engine.advance(now_ns):
                told.append(event)
                if isinstance(event, Finished | Aborted):
                    self.outstanding[at] -= 1
        told.sort(key=lambda event: event.at_ns)
        return told

    def abort(self, now_ns: int, request_id: str) -> bool:
        """Its engine drops it at its next step."""
        return any(engine.abort(now_ns, request_id) for engine in self.engines)

    def load(self) -> tuple[int, int, float]:
        return together([engine.load() for engine in self.engines])


class Handover(msgspec.Struct, frozen=True):
    """One request's way from a prefill engine to a decode engine: KV waits, is pulled, has come."""

    request_id: str
    prefilled_ns: int
    pull_ns: int
    delivered_ns: int


class _Moving(msgspec.Struct):
    request: Request
    source: int
    prefill: Truth | None = None
    target: int = 0
    pull_ns: int = 0
    delivered_ns: int = 0
    out: bool = False  # of its prefill engine, if not of the last stage
    arrived: bool = False  # its KV is on the decode engine
    gone: bool = False  # called off between the two engines


class Split:
    """Prefill and decode on engines of their own (DistServe, arXiv 2401.09670).

    A request goes to the shortest prefill queue; its first token is out when its prompt has passed all stages; its KV stays
    there until a decode engine, the one with the fewest, has room and has pulled it over the prefill engine's link, one
    transfer at a time. `stages`: pipeline stages of a prefill engine, whose step time is one stage's: batches follow each
    other at that pace and leave `stages − 1` such times later.

    `first_from_decode`: nobody hears of the token that prefill found. The decode engine computes the prompt's last token again once
    the KV is there, and its first step gives the first token (as vLLM's prefill and decode instances behind a proxy do).
    """

    def __init__(
        self,
        prefill: Sequence[PoolEngine],
        decode: Sequence[PoolEngine],
        link: Link,
        kv_bytes_per_token: float,
        stages: int,
        *,
        first_from_decode: bool = False,
    ) -> None:
        self.prefill, self.decode = prefill, decode
        self.first_from_decode = first_from_decode
        self.link, self.kv_bytes_per_token, self.stages = link, kv_bytes_per_token, stages
        self.in_prefill = [0] * len(prefill)
        self.in_decode = [0] * len(decode)
        self.link_free_ns = [0] * len(prefill)
        self.moving: dict[str, _Moving] = {}
        self.pending: list[tuple[int, int, Event]] = []  # what is still under way: (when, tie, event)
        self.order = count()
        self.handovers: list[Handover] = []

    def submit(self, now_ns: int, request: Request) -> None:
        """Raises UserError for a request that no engine could ever serve."""
        if request.output_tokens > 1 or self.first_from_decode:
            self.decode[0].check(request)
        at = shortest_queue(self.in_prefill, 0, request)
        alone = self.first_from_decode and request.output_tokens == 1  # prefill keeps its KV all the same
        self.prefill[at].submit(now_ns, msgspec.structs.replace(request, output_tokens=2) if alone else request)
        self.in_prefill[at] += 1
        self.moving[request.request_id] = _Moving(request, at)

    def abort(self, now_ns: int, request_id: str) -> bool:
        """Out of the engine it is in; on its way out of prefill's stages, when it arrives. KV that was not pulled is freed."""
        moving = self.moving.get(request_id)
        if moving is None:
            return False
        if moving.prefill is not None:
            return self.decode[moving.target].abort(now_ns, request_id)
        moving.gone = moving.out or not self.prefill[moving.source].abort(now_ns, request_id)
        return True

    def due_ns(self) -> int | None:
        engines = [engine.due_ns() for engine in (*self.prefill, *self.decode)]
        return earliest([*engines, self.pending[0][0] if self.pending else None])

    def advance(self, now_ns: int) -> list[Event]:
        """Everything up to `now_ns`, in order of time: an engine never runs ahead of what another one sends it."""
        told: list[Event] = []
        while (due := self.due_ns()) is not None and due <= now_ns:
            while self.pending and self.pending[0][0] <= due:
                self._arrived(heapq.heappop(self.pending)[2], told)
            for at, engine in enumerate(self.prefill):
                if (own := engine.due_ns()) is not None and own <= due:
                    self._from_prefill(at, engine.advance(due), told)
            for engine in self.decode:
                if (own := engine.due_ns()) is not None and own <= due:
                    self._from_decode(engine.advance(due), told)
        return told

    def _from_prefill(self, at: int, events: list[Event], told: list[Event]) -> None:
        for event in events:
            if isinstance(event, Aborted):
                self.in_prefill[at] -= 1
                del self.moving[event.request_id]
                told.append(event)
            elif isinstance(event, Prefilled | Finished):  # finished: one token was all it wanted, its KV is gone
                self.moving[event.request_id].out = True
                heapq.heappush(self.pending, (event.at_ns + self._stage_delay_ns(event.truth), next(self.order), event))
            elif isinstance(event, Tokens) and self.first_from_decode:
                told.append(Tokens(event.start_ns, event.at_ns, (), ()))
            else:
                told.append(event)

    def _arrived(self, event: Event, told: list[Event]) -> None:
        """What was under way is there: a prompt out of its last stage, or KV on a decode engine."""
        if isinstance(event, Prefilled | Finished):
            self._prefilled(event, told)
        elif isinstance(event, Pull):
            moving = self.moving[event.request_id]
            self.prefill[moving.source].release(moving.delivered_ns, event.request_id)
            self.in_prefill[moving.source] -= 1
            self.decode[moving.target].delivered(moving.delivered_ns, event.request_id)
            moving.arrived = True
            if moving.gone:
                del self.moving[event.request_id]

    def _stage_delay_ns(self, truth: Truth) -> int:
        """From leaving the first stage, where the engine paces, to leaving the last."""
        return (self.stages - 1) * (truth.prefill_end_ns - truth.prefill_start_ns)

    def _prefilled(self, event: Prefilled | Finished, told: list[Event]) -> None:
        moving = self.moving.get(event.request_id)
        if moving is None:
            return  # called off in the step that ended it
        out_ns = event.at_ns + self._stage_delay_ns(event.truth)
        moving.prefill = msgspec.structs.replace(
            event.truth, prefill_end_ns=out_ns, first_token_ns=out_ns, finish_ns=out_ns
        )
        if not self.first_from_decode:
            told.append(Prefilled(out_ns, event.request_id, moving.prefill))
        if isinstance(event, Finished):
            self.in_prefill[moving.source] -= 1
            told.append(Finished(out_ns, event.request_id, moving.prefill))
            del self.moving[event.request_id]
            return
        if moving.gone:
            self._drop_kv(out_ns, event.request_id)
            told.append(Aborted(out_ns, event.request_id))
            return
        moving.target = shortest_queue(self.in_decode, 0, moving.request)
        self.in_decode[moving.target] += 1
        self.decode[moving.target].offer(out_ns, moving.request)

    def _from_decode(self, events: list[Event], told: list[Event]) -> None:
        for event in events:
            if isinstance(event, Pull):
                self._pull(event)
            elif isinstance(event, Aborted):
                self.in_decode[self.moving[event.request_id].target] -= 1
                self._drop_kv(event.at_ns, event.request_id)
                told.append(event)
            elif isinstance(event, Finished):
                told.append(self._finished(event))
            else:
                told.append(event)

    def _drop_kv(self, now_ns: int, request_id: str) -> None:
        """A request is no more; if its KV was never pulled, it still lies on the prefill engine."""
        moving = self.moving[request_id]
        if not moving.delivered_ns:
            self.prefill[moving.source].release(now_ns, request_id)
            self.in_prefill[moving.source] -= 1
            del self.moving[request_id]
        else:
            moving.gone = True
            if moving.arrived:
                del self.moving[request_id]

    def _pull(self, event: Pull) -> None:
        moving = self.moving[event.request_id]
        start = max(event.at_ns, self.link_free_ns[moving.source])
        size_bytes = event.tokens * self.kv_bytes_per_token
        self.link_free_ns[moving.source] = start + round(1e9 * size_bytes / self.link.bytes_per_s)
        done = start + round(1e9 * self.link.transfer_s(size_bytes))  # what is on its way holds nobody up
        moving.pull_ns, moving.delivered_ns = event.at_ns, done
        heapq.heappush(self.pending, (done, next(self.order), event))

    def _finished(self, event: Finished) -> Finished:
        """The whole request's truth: its first half from the prefill engine, its second from the decode engine."""
        moving = self.moving.pop(event.request_id)
        self.in_decode[moving.target] -= 1
        first = moving.prefill
        if first is None:
            return event
        self.handovers.append(Handover(event.request_id, first.first_token_ns, moving.pull_ns, moving.delivered_ns))
        whole = msgspec.structs.replace(
            event.truth,
            cached_tokens=first.cached_tokens,
            arrival_ns=first.arrival_ns,
            queue_enter_ns=first.queue_enter_ns,
            prefill_start_ns=first.prefill_start_ns,
            prefill_end_ns=first.prefill_end_ns,
            first_token_ns=(event.truth if self.first_from_decode else first).first_token_ns,
        )
        return Finished(event.at_ns, event.request_id, whole)

    def load(self) -> tuple[int, int, float]:
        return together([engine.load() for engine in (*self.prefill, *self.decode)])
