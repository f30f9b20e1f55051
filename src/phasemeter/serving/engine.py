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
from heapq import heappop
from math import isqrt

from phasemeter.errors import InternalError, UserError
from phasemeter.serving.events import Aborted, Admitted, Event, Preempted, Pull
from phasemeter.serving.kv_cache import Shares
from phasemeter.serving.kv_reserved import ReservedKv
from phasemeter.serving.segments import SegmentLog
from phasemeter.serving.sequence import NO_FORKS, NO_TABLE, Request, Sequence
from phasemeter.serving.state import NO_CHUNKS, Chunk, Kv, Limits, Policy, State
from phasemeter.serving.step_end import StepEnds
from phasemeter.serving.step_shape import TICK_BITS, BatchShape, StepTime, ns_of_ticks

_HALF = 1 << (TICK_BITS - 1)
NEVER = 1 << 200  # later than any tick


def steps_within(base: int, growth: int, room: int) -> int:
    """The most steps whose durations base, base + growth, … add up to at most `room` ticks."""
    steps = room // base
    if growth * (steps * (steps - 1) >> 1) <= room - base * steps:  # they hardly grow
        return steps
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
        self._largest_tokens, self._largest_prefill = policy.largest(kv, limits)
        bounds = (
            self._largest_tokens,
            self._largest_prefill,
            None if (most := limits.max_model_len) is None else most - 1,
        )
        # tokens of prompt and answer that one sample surely gets: all but the last need KV
        self._served_length = min(one for one in bounds if one is not None) + 1
        self._grow = None if isinstance(kv, ReservedKv) else kv.grow
        self._entered = 0
        self._inbox: deque[tuple[int, str, Request]] = deque()  # (ns, what, who)
        self._released: dict[str, Sequence] = {}  # whose KV goes with the next step

    def submit(self, now_ns: int, request: Request) -> None:
        """`request` enters the queue. Raises UserError for one that this replica could never serve."""
        if request.samples > 1 or request.prompt_tokens + request.output_tokens > self._served_length:
            self.check(request)
        inbox = self._inbox
        if inbox and now_ns < inbox[-1][0]:
            raise self._backwards(now_ns)
        inbox.append((now_ns, "waiting", request))

    def offer(self, now_ns: int, request: Request) -> None:
        """For a decode pool: `request` was prefilled elsewhere, and has its first token if that isn't this pool's to emit. `Pull` says
        when its KV may come."""
        if request.output_tokens < 2 and not self.policy.emits_first:
            raise UserError(f"request {request.request_id}: its one token came from prefill, nothing is left to decode")
        self.check(request)
        self._put(now_ns, "offer", request)

    def delivered(self, now_ns: int, request_id: str) -> None:
        """For a decode pool: the KV that `Pull` announced is here."""
        self._put(now_ns, "delivered", self.state.in_flight[request_id]._request)

    def release(self, now_ns: int, request_id: str) -> None:
        """For a prefill pool: the KV of a `Prefilled` request has been pulled."""
        self._released[request_id] = sequence = self.state.held_out.pop(request_id)
        self._put(now_ns, "release", sequence._request)

    def abort(self, now_ns: int, request_id: str) -> bool:
        """The request's client has left: its sequence and its blocks go at the first step's start at or after `now_ns`.

        False: it isn't here (any more). `Aborted` tells when it went; one that ends before that just ends.
        """
        known = any(request.request_id == request_id for _, _, request in self._inbox)
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
        coming = self._aborts.next_t(self._inbox[0][0] << TICK_BITS if self._inbox else NEVER)
        return None if coming == NEVER else coming

    def advance(self, now_ns: int) -> list[Event]:
        """Lives through everything up to `now_ns` and tells of it, oldest first."""
        horizon = (now_ns << TICK_BITS) + _HALF - 1  # ticks that round to now_ns or before
        complete = self._complete_telling if self._tokens else self._complete
        while True:
            if self._busy:
                if self._end_t > horizon:
                    break
                complete()
            if not self._begin(horizon):
                break
        events, self._events = self._events, []
        return events

    def kv_shares(self) -> Shares:
        """What the KV pool holds now."""
        return self.state.kv.shares(list(self.state.running), self.state.held, bool(self.state.waiting))

    # a step's beginning

    def check(self, request: Request) -> None:
        """Raises UserError for a request that this replica could never serve."""
        limits = self.state.limits
        longest = request.prompt_tokens + request.output_tokens - 1
        held = request.prompt_tokens if self.policy.prefill_only else longest
        who = f"request {request.request_id}"
        if request.samples > 1 and not self.policy.samples:
            raise UserError(
                f"{who}: {request.samples} samples, but {self.policy.alone}: submit {request.samples} requests"
            )
        if limits.max_model_len is not None and longest + 1 > limits.max_model_len:
            raise UserError(
                f"{who}: {longest + 1} tokens of prompt and answer, but max_model_len is {limits.max_model_len}"
            )
        kv = self.state.kv
        if request.samples == 1 or isinstance(kv, ReservedKv):  # every sample has its own
            if held * request.samples > self._largest_tokens:
                raise UserError(
                    f"{who}: needs KV for {held * request.samples} tokens, "
                    f"the pool can give one request {self._largest_tokens}"
                )
        else:  # they share the prompt's full blocks; a block begun is a block taken, in each sample
            blocks = kv.blocks_of(request.prompt_tokens, request.samples, longest)
            if blocks * kv.block_size > self._largest_tokens:
                raise UserError(
                    f"{who}: its samples need {blocks} KV blocks, the pool can give one request "
                    f"{self._largest_tokens // kv.block_size}"
                )
        if self._largest_prefill is not None and longest > self._largest_prefill:
            raise UserError(
                f"{who}: {longest} tokens may have to be prefilled at once, but a batch takes {self._largest_prefill}"
            )
        if request.samples > limits.max_num_seqs:
            raise UserError(f"{who}: {request.samples} samples, but max_num_seqs is {limits.max_num_seqs}")

    def _put(self, now_ns: int, what: str, request: Request) -> None:
        inbox = self._inbox
        if inbox and now_ns < inbox[-1][0]:
            raise self._backwards(now_ns)
        inbox.append((now_ns, what, request))

    def _backwards(self, now_ns: int) -> InternalError:
        return InternalError(f"time went backwards: {now_ns} ns came after {self._inbox[-1][0]} ns")

    def _receive(self, t: int) -> None:
        """Takes in what has come by `t`; something has."""
        inbox, state, now_ns = self._inbox, self.state, t >> TICK_BITS
        while True:
            enter_ns, what, request = inbox.popleft()
            if what == "waiting" or what == "offer":  # made now, not when submitted: it stays in the processor's cache
                prompt = request.prompt_tokens
                sequence = Sequence(
                    request, self._entered, enter_ns, prompt, prompt, request.max_tokens, request.samples,
                    request.block_hashes, NO_TABLE, NO_FORKS,
                )  # fmt: skip
                self._entered += 1
                if what == "waiting":
                    state.waiting.append(sequence)
                else:
                    if self.policy.emits_first:  # the prompt's last token is computed again: it gives the first one
                        sequence.target = sequence.computed = prompt - 1
                    else:
                        sequence.generated, sequence.computed = 1, prompt
                    state.unpulled.append(sequence)
            elif what == "delivered":
                sequence = state.in_flight.pop(request.request_id)
                if not self._aborts.dropped(sequence):
                    state.waiting.append(sequence)
            else:
                sequence = self._released.pop(request.request_id)
                state.kv.release(sequence, sequence.computed)
            if not inbox or inbox[0][0] > now_ns:
                return

    def _begin(self, horizon: int) -> bool:
        """Steps, one after another, until one is in progress; False: none can start by `horizon`. What has ended by then is done with."""
        state, aborts, inbox, schedule = self.state, self._aborts, self._inbox, self.policy.schedule
        waiting, prefilling, swapped, unpulled = state.waiting, state.prefilling, state.swapped, state.unpulled
        while not self._busy:
            t = self._now_t
            coming = inbox[0][0] << TICK_BITS if inbox else NEVER
            if (
                coming > t
                and not (waiting or prefilling or swapped or unpulled or aborts.due)
                and state.decodes.count
                and self._decode(t, horizon, coming)
            ):
                t = self._now_t
                if self._busy or coming > t:
                    continue
            if not (state.running or waiting or swapped or unpulled):
                t = max(t, aborts.next_t(coming))
                if t > horizon:
                    return False
            if coming <= t:
                self._receive(t)
            if aborts.due:
                self._events += [Aborted(ns_of_ticks(t), request_id) for request_id in aborts.apply(t)]
            chunks, decode = schedule(state)
            self._now_t = t
            hurried = False
            if state.moved or (chunks and not self.requests_only):
                hurried = self._note_moves(t, chunks)
            if chunks or (state._swapped_blocks and state.decodes.count):
                self._run_mixed(t, horizon, chunks, decode)
            elif state.decodes.count:
                if not self._decode(t, horizon, inbox[0][0] << TICK_BITS if inbox else NEVER, once=hurried):
                    raise InternalError("decodes were to run, but their blocks are not free")
            elif not hurried and not self._wait(
                t, horizon
            ):  # hurried: the last one running had to go. Who can run now?
                return False
        return True

    def _wait(self, t: int, horizon: int) -> bool:
        """Nobody can run: only an input can change that."""
        if self.state.running:
            raise InternalError("sequences run, but no step is due for them")
        coming = self._next_input()
        if coming is None:
            return False
        self._now_t = max(t, coming)
        return self._now_t <= horizon

    def _decode(self, t: int, horizon: int, coming: int, *, once: bool = False) -> bool:
        """Stretches of decode steps, each up to the next end of an answer, for as long as nothing else changes the batch.

        `coming`: when the next one comes. `once`: one step. False: nothing was done, the blocks of the first step are not free.
        """
        state, log, line_of, grow = self.state, self.log, self.step_time.decode_line, self._grow
        decodes = state.decodes
        heap, ends = decodes.heap, decodes.ends
        padded = self._padded
        idle = not (state.waiting or state.swapped or state.unpulled)  # nobody waits for room
        heeding = idle and state.seats < state.limits.max_num_seqs and not padded  # who comes, at once
        undisturbed = horizon  # the last tick at which a step can start with this very batch
        if coming <= horizon and (heeding or self._inbox[0][1] != "waiting"):
            undisturbed = coming - 1
        if self._aborts.due:
            undisturbed = self._aborts.next_t(undisturbed + 1) - 1
        if once or self._tokens:
            undisturbed = min(undisturbed, t)
        whole = self._tokens or padded or state._resumed  # more comes with a step's end than the ends of answers
        began, done, count = t, decodes.steps, decodes.count
        while True:
            line = line_of(count, decodes.offsets + count * (done + 1))
            base, growth, most = line.base, line.growth, line.steps
            while (first := heap[0]) not in ends:
                heappop(heap)
            steps = first - done
            if most is not None and most < steps:
                steps = most
            end = t + base * steps + growth * (steps * (steps - 1) >> 1)
            if end > undisturbed and end - base - growth * (steps - 1) > undisturbed:  # that is the last one's start
                steps = 1 + steps_within(base, growth, undisturbed - t)
                end = t + base * steps + growth * (steps * (steps - 1) >> 1)
            if grow is not None and (fitting := grow(decodes, steps)) < steps:
                if not fitting:
                    return t > began
                steps = fitting
                end = t + base * steps + growth * (steps * (steps - 1) >> 1)
            if log is not None:
                log.add((t, done + self._prefills, steps, base, growth, count))
            if whole or end > horizon:
                self._start_t, self._end_t, self._decoding = t, end, steps
                self._chunks, self._mixed_extra, self._busy = NO_CHUNKS, 0, True
                return True
            decodes.steps = done = done + steps
            if done == first:
                self._end_answers(ends.pop(heappop(heap)), end)
            self._now_t, t, count = end, end, decodes.count
            if t > undisturbed or not heeding or not count:
                return True

    def _run_mixed(self, t: int, horizon: int, chunks: list[Chunk], decode: bool) -> None:
        """One step that holds chunks, or that swaps."""
        state = self.state
        decodes = state.decodes
        if len(chunks) == 1:
            sequence, new = chunks[0]
            sizes: tuple[tuple[int, int], ...] = ((new, sequence.computed),)
        elif self._padded:
            sizes = ((max(s.target for s, _ in chunks), 0),) * len(chunks)
        else:
            sizes = tuple([(new, s.computed) for s, new in chunks])
        count = contexts = extra = 0
        if decode and (count := decodes.count):
            contexts = decodes.offsets + count * (decodes.steps + 1)
            if self._grow is not None and not self._grow(decodes, 1):
                raise InternalError("decodes were to run, but their blocks are not free")
        ticks = self.step_time.step_ticks(BatchShape(count, contexts, sizes, state._swapped_blocks))
        if count and chunks:
            extra = ticks - self.step_time.decode_ticks(count, contexts)
        state._swapped_blocks = 0
        if self.log is not None:
            self.log.add((t, self.steps, 1, ticks, 0, count))
        end, decoding = t + ticks, 1 if count else 0
        if end <= horizon and not self._tokens:
            self._close(t, end, decoding, chunks, extra)
        else:
            self._start_t, self._end_t, self._decoding = t, end, decoding
            self._chunks, self._mixed_extra, self._busy = chunks, extra, True

    def _note_moves(self, t: int, chunks: list[Chunk]) -> bool:
        """Stalls and events of what the policy did at the step's start; whether it has to be asked after one step."""
        state, tell = self.state, not self.requests_only
        once = state.preempted_now
        state.moved = state.preempted_now = False
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
            if sequence._first_token_t < 0:
                if sequence.generated:  # it came with its first token
                    sequence._first_token_t = sequence._enter_ns << TICK_BITS
                else:  # its first one comes with this very step
                    once = True
            self._start(sequence, t, at_ns)
        for sequence in state._pulled:
            self._events.append(Pull(at_ns, sequence._request.request_id, sequence.prompt_tokens))
        state._pulled.clear()
        for sequence, _ in chunks:
            if sequence._prefill_start_t < 0:
                self._start(sequence, t, at_ns)
        return once

    def _start(self, sequence: Sequence, t: int, at_ns: int) -> None:
        if sequence._prefill_start_t < 0:
            sequence._prefill_start_t = t
            sequence._start_cached = sequence.cached
            if not self.requests_only:
                self._events.append(Admitted(at_ns, sequence._request.request_id))
