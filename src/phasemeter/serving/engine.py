"""One engine: a policy, a KV pool and a step-time model, told what time it is.

Lives here: `Engine`, which turns a policy's choices into steps, steps into tokens, and tokens into each request's truth.
Must not live here: the choices (policies/), the moves (state), memory (kv_cache, kv_reserved), costs (step_shape, step_time).

It reads no clock. The caller says what comes and what time it is, and is told when to come back:

    engine = Engine(VllmV0(), CountedKv(blocks=4096), LinearStepTime(fixed=...), Limits())
    engine.submit(now_ns, request)            # now_ns never falls; it joins the first step that starts at or after now_ns
    engine.due_ns()                           # when the step in progress ends; None: nothing to do
    engine.advance(now_ns)                    # every event up to now_ns, oldest first
    engine.abort(now_ns, request_id)          # its client has left: out at the next step's start

Submit what comes at an instant before advancing to it. Steps follow each other without a pause at their planned instants: a
caller who is late changes nothing. With `tokens=True` it goes step by step and tells each token (the emulator); without, it
tells of requests only, and runs through stretches of decode steps in closed form (the simulator: submit many, then
`advance` far). Both give the same instants. A prefill pool also has `release`, a decode pool `offer` and `delivered`.
"""

from __future__ import annotations

from collections import deque
from math import isqrt

from phasemeter.errors import InternalError, UserError
from phasemeter.serving.events import Aborted, Admitted, Event, Preempted, Pull
from phasemeter.serving.kv_cache import Shares
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.sequence import Request, Sequence, entered
from phasemeter.serving.state import NO_CHUNKS, Chunk, Kv, Limits, Policy, State
from phasemeter.serving.step_end import StepEnds
from phasemeter.serving.step_shape import TICK_BITS, BatchShape, StepTime, ns_of_ticks

_HALF = 1 << (TICK_BITS - 1)


def steps_within(base: int, growth: int, room: int) -> int:
    """The most steps whose durations base, base + growth, … add up to at most `room` ticks."""
    if room < base:
        return 0
    if not growth:
        return room // base
    # growth·j² + (2·base − growth)·j ≤ 2·room, solved for j
    middle = 2 * base - growth
    return (isqrt(middle * middle + 8 * growth * room) - middle) // (2 * growth)


class Engine(StepEnds):
    """One replica. `tokens`: tell every token, step by step. `log`: keeps the segments of steps. `requests_only`: tell Finished alone."""

    def __init__(
        self,
        policy: Policy,
        kv: Kv,
        step_time: StepTime,
        limits: Limits,
        *,
        tokens: bool = False,
        log: SegmentLog | None = None,
    ) -> None:
        if policy.reserves != isinstance(kv, ReservedKv):
            kind = "a ReservedKv" if policy.reserves else "a CountedKv or PagedKv"
            raise UserError(f"policy {type(policy).__name__} needs {kind}")
        if policy.null_blocks:
            kv.hold_back(policy.null_blocks)
        super().__init__(policy, State(kv, limits), tokens=tokens)
        self.step_time = step_time
        self.log = log
        self._largest = policy.largest(kv, limits)
        self._submitted = 0
        self._inbox: deque[tuple[int, str, Sequence]] = deque()  # (tick, what, who)

    def submit(self, now_ns: int, request: Request) -> None:
        """`request` enters the queue. Raises UserError for one that this replica could never serve."""
        self._check(request)
        sequence = entered(request, self._submitted, now_ns)
        self._submitted += 1
        self._put(now_ns, "waiting", sequence)

    def offer(self, now_ns: int, request: Request) -> None:
        """For a decode pool: `request` was prefilled elsewhere and has its first token. `Pull` says when its KV may come."""
        self._check(request)
        if request.output_tokens < 2:
            raise UserError(f"request {request.request_id}: its one token came from prefill, nothing is left to decode")
        sequence = entered(request, self._submitted, now_ns)
        self._submitted += 1
        sequence.generated = 1
        sequence._left -= 1
        sequence.computed = sequence.target
        self._put(now_ns, "offer", sequence)

    def delivered(self, now_ns: int, request_id: str) -> None:
        """For a decode pool: the KV that `Pull` announced is here."""
        self._put(now_ns, "delivered", self.state.in_flight[request_id])

    def release(self, now_ns: int, request_id: str) -> None:
        """For a prefill pool: the KV of a `Prefilled` request has been pulled."""
        self._put(now_ns, "release", self.state.held_out.pop(request_id))

    def abort(self, now_ns: int, request_id: str) -> bool:
        """The request's client has left: its sequence and its blocks go at the first step's start at or after `now_ns`.

        False: it isn't here (any more). `Aborted` tells when it went; one that ends before that just ends.
        """
        known = any(s._request.request_id == request_id for _, _, s in self._inbox)
        if not known and self._aborts.find(request_id) is None:
            return False
        self._aborts.add(now_ns << TICK_BITS, request_id)
        return True

    def due_ns(self) -> int | None:
        """When `advance` has something to do next; None: never, unless something comes."""
        if self._busy:
            return ns_of_ticks(self._end_t)
        coming = self._next_input()
        return None if coming is None else ns_of_ticks(max(coming, self._now_t))

    def _next_input(self) -> int | None:
        """The tick of the next thing from outside."""
        if self._inbox:
            return self._aborts.next_t(self._inbox[0][0])
        return self._aborts.due[0][0] if self._aborts.due else None

    def advance(self, now_ns: int) -> list[Event]:
        """Lives through everything up to `now_ns` and tells of it, oldest first."""
        horizon = (now_ns << TICK_BITS) + _HALF - 1  # ticks that round to now_ns or before
        while True:
            if self._busy:
                if self._end_t > horizon:
                    break
                self._complete()
            elif not self._begin(horizon):
                break
        events, self._events = self._events, []
        return events

    def kv_shares(self) -> Shares:
        """What the KV pool holds now."""
        return self.state.kv.shares(list(self.state.running), self.state.held, bool(self.state.waiting))

    # a step's beginning

    def _check(self, request: Request) -> None:
        kv_tokens, prefill_tokens = self._largest
        longest = request.prompt_tokens + request.output_tokens - 1
        who = f"request {request.request_id}"
        if request.samples > 1 and not self.policy.samples:
            raise UserError(
                f"{who}: {type(self.policy).__name__} runs one sample a request: submit {request.samples} requests"
            )
        limit = self.state.limits.max_model_len
        if limit is not None and longest + 1 > limit:
            raise UserError(f"{who}: {longest + 1} tokens of prompt and answer, but max_model_len is {limit}")
        if longest * request.samples > kv_tokens:
            raise UserError(
                f"{who}: needs KV for {longest * request.samples} tokens, the pool can give one request {kv_tokens}"
            )
        if prefill_tokens is not None and longest > prefill_tokens:
            raise UserError(
                f"{who}: {longest} tokens may have to be prefilled at once, but a batch takes {prefill_tokens}"
            )
        if request.samples > self.state.limits.max_num_seqs:
            raise UserError(f"{who}: {request.samples} samples, but max_num_seqs is {self.state.limits.max_num_seqs}")

    def _put(self, now_ns: int, what: str, sequence: Sequence) -> None:
        tick = now_ns << TICK_BITS
        if self._inbox and tick < self._inbox[-1][0]:
            raise InternalError(f"time went backwards: {now_ns} ns came after {self._inbox[-1][0] >> TICK_BITS} ns")
        self._inbox.append((tick, what, sequence))

    def _receive(self, t: int) -> None:
        inbox, state = self._inbox, self.state
        while inbox and inbox[0][0] <= t:
            _, what, sequence = inbox.popleft()
            if what == "waiting":
                state.waiting.append(sequence)
            elif what == "delivered":
                del state.in_flight[sequence._request.request_id]
                if not self._aborts.dropped(sequence):
                    state.waiting.append(sequence)
            elif what == "offer":
                state.unpulled.append(sequence)
            else:
                state.kv.release(sequence, sequence.computed)

    def _begin(self, horizon: int) -> bool:
        """Starts the next step if it starts by `horizon`."""
        state, inbox = self.state, self._inbox
        t = self._now_t
        if not (state.running or state.swapped or state.waiting or state.unpulled):
            coming = self._next_input()
            if coming is None:
                return False
            t = max(t, coming)
            if t > horizon:
                return False
        if inbox and inbox[0][0] <= t:
            self._receive(t)
        if self._aborts.due:
            self._events += [Aborted(ns_of_ticks(t), request_id) for request_id in self._aborts.apply(t)]
        chunks, decode = self.policy.schedule(state)
        self._now_t = self._start_t = t
        hurried = bool(state._preempted)
        if hurried or state._resumed or state._pulled or (chunks and not self.requests_only):
            self._note_moves(t, chunks)
        for sequence, _ in chunks:
            if sequence._prefill_start_t < 0:
                sequence._prefill_start_t = t
                sequence._start_cached = sequence.cached
        count = state.decodes.count
        if count and not chunks and not state.left_out:
            self._begin_decodes(t, horizon, once=self._tokens or hurried)
        elif chunks or (decode and count):
            self._begin_mixed(t, chunks, decode and count > 0)
        elif hurried:
            return True  # the last one running had to go: who can run now?
        else:  # nobody can run: only an input can change that
            if state.running:
                raise InternalError("sequences run, but no step is due for them")
            coming = self._next_input()
            if coming is None:
                return False
            self._now_t = max(t, coming)
            return self._now_t <= horizon
        return True

    def _begin_decodes(self, t: int, horizon: int, *, once: bool) -> None:
        """A stretch of decode steps up to the next thing that could change the batch."""
        state = self.state
        decodes, kv = state.decodes, state.kv
        line = self.step_time.decode_line(decodes.count, decodes.contexts())
        base, growth, most = line.base, line.growth, line.steps
        swapped = state._swapped_blocks
        if once or swapped:
            steps = 1
        else:
            steps = decodes.next_finish() - decodes.steps
            if most is not None and most < steps:
                steps = most
            bound = horizon
            heeds = not state.waiting and state.seats < state.limits.max_num_seqs and not self.policy.padded
            if self._inbox and (heeds or self._inbox[0][1] != "waiting") and self._inbox[0][0] <= bound:
                bound = self._inbox[0][0] - 1
            if self._aborts.due:
                bound = self._aborts.next_t(bound + 1) - 1
            if t + base * (steps - 1) + growth * (((steps - 1) * (steps - 2)) >> 1) > bound:  # the last one's start
                steps = 1 + steps_within(base, growth, bound - t)
            if kv.grows and (
                kv.named or (steps // kv.block_size + 2) * decodes.count > kv.free
            ):  # else it can't run out
                steps = kv.most_steps(decodes, steps)
        if swapped:
            base = self.step_time.step_ticks(BatchShape(decodes.count, decodes.contexts(), (), swapped))
            state._swapped_blocks = 0
        if self.log is not None:
            self.log.add((t, self.steps, steps, base, growth, decodes.count, state.kv.used_tokens()))
        if state.kv.grows:
            state.take_steps(steps)
        self._end_t = t + base * steps + growth * ((steps * (steps - 1)) >> 1)
        self._chunks = NO_CHUNKS
        self._decoding = steps
        self._mixed_extra = 0
        self._busy = True

    def _begin_mixed(self, t: int, chunks: list[Chunk], decode: bool) -> None:
        """One step that holds chunks, or decodes of which some are left out."""
        state = self.state
        decodes = state.decodes
        self._left_out = [(s, s._finish_at - decodes.steps, s.offset + decodes.steps) for s in state.left_out]
        for sequence in state.left_out:
            decodes.leave(sequence)
        state.left_out = []
        longest = max(s.target for s, _ in chunks) if self.policy.padded else 0
        sizes = [(longest or new, 0 if longest else s.computed) for s, new in chunks]
        count, contexts = (decodes.count, decodes.contexts()) if decode else (0, 0)
        ticks = self.step_time.step_ticks(BatchShape(count, contexts, sizes, state._swapped_blocks))
        state._swapped_blocks = 0
        self._mixed_extra = 0
        if count:
            self._mixed_extra = ticks - self.step_time.decode_line(count, contexts).base
            if state.kv.grows:
                state.take_steps(1)
        if self.log is not None:
            self.log.add((t, self.steps, 1, ticks, 0, count, state.kv.used_tokens()))
        self._end_t = t + ticks
        self._chunks = chunks
        self._decoding = 1 if count else 0
        self._busy = True

    def _note_moves(self, t: int, chunks: list[Chunk]) -> None:
        """Stalls and events of what the policy did at the step's start."""
        state, tell = self.state, not self.requests_only
        at_ns = ns_of_ticks(t)
        for sequence, how in state._preempted:
            sequence.preemptions += 1
            if sequence._first_step >= 0:
                self._end_span(sequence)
                sequence._preempted_t = t
                sequence._prefill_stall += self._prefill_total - sequence._prefill_mark
                sequence._mixed_stall += self._mixed_total - sequence._mixed_mark
            if tell:
                self._events.append(Preempted(at_ns, sequence._request.request_id, how))
        state._preempted.clear()
        for sequence in state._resumed:
            sequence._prefill_mark, sequence._mixed_mark = self._prefill_total, self._mixed_total
            sequence._first_step = self.steps
            if sequence._first_token_t < 0:  # it came with its first token
                sequence._first_token_t = sequence._prefill_end_t = sequence._enter_ns << TICK_BITS
            self._start(sequence, t, at_ns)
        for sequence in state._pulled:
            self._events.append(Pull(at_ns, sequence._request.request_id, sequence.target))
        state._pulled.clear()
        for sequence, _ in chunks:
            if sequence._prefill_start_t < 0:
                self._start(sequence, t, at_ns)

    def _start(self, sequence: Sequence, t: int, at_ns: int) -> None:
        if sequence._prefill_start_t < 0:
            sequence._prefill_start_t = t
            sequence._start_cached = sequence.cached
            if not self.requests_only:
                self._events.append(Admitted(at_ns, sequence._request.request_id))
