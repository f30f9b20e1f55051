"""How a step ends: tokens come out, requests finish, and what it cost each of them is written down.

Lives here: `StepEnds`, the half of an engine that closes steps. Must not live here: how one starts (engine), who is in it (policies/).
"""

from __future__ import annotations

from heapq import heappop

from phasemeter.serving.aborts import Aborts
from phasemeter.serving.block_demand import Decodes
from phasemeter.serving.events import Event, Finished, Prefilled, Tokens, Truth
from phasemeter.serving.sequence import Sequence
from phasemeter.serving.state import NO_CHUNKS, Chunk, Policy, State
from phasemeter.serving.step_shape import TICK_BITS, ns_of_ticks

_HALF = 1 << (TICK_BITS - 1)


class StepEnds:
    """The step (or stretch of decode steps) in progress, and its end. `steps` have ended so far."""

    def __init__(self, policy: Policy, state: State, *, tokens: bool) -> None:
        self.policy = policy
        self.state = state
        self.steps = 0
        self.requests_only = False
        self._tokens = tokens
        self._aborts = Aborts(state, padded=policy.padded)
        self._events: list[Event] = []
        self._now_t = 0  # the last step's end: the next one starts at or after it
        self._last_decode_step = -1
        self._busy = False  # whether a step is in progress; what it is:
        self._start_t = self._end_t = 0
        self._chunks: list[Chunk] = NO_CHUNKS
        self._decoding = 0  # how many decode steps it has
        self._left_out: list[tuple[Sequence, int, int]] = []  # (who, tokens to go, tokens held)
        self._prefill_total = self._mixed_total = self._mixed_extra = 0  # ticks that others' prefills took from decodes

    def _complete(self) -> None:
        state, t = self.state, self._end_t
        self._busy = False
        self._now_t = t
        done = self._decoding
        decodes = state.decodes
        self.steps += done or 1
        told = len(self._events)
        more: tuple[str, ...] = ()
        if done:
            self._last_decode_step = self.steps - 1
            decodes.steps += done
            if self._tokens:
                left_out = {s for s, _, _ in self._left_out}
                more = tuple(s._request.request_id for s in state.running if s._finish_at >= 0 and s not in left_out)
            if state._resumed:
                self._end_interruptions(t)
            self._mixed_total += self._mixed_extra
            heap = decodes.heap
            while heap and heap[0][0] <= decodes.steps:
                at, _, sequence = heappop(heap)
                if sequence._finish_at == at:
                    self._finish_decoding(sequence, t)
        elif decodes.count or self._left_out:
            self._prefill_total += t - self._start_t
        if self._left_out:
            self._take_back(t)
        first = self._end_chunks(t) if self._chunks else ()
        if self._tokens:
            self._events.insert(told, Tokens(ns_of_ticks(self._start_t), ns_of_ticks(t), first, more))
        if self.policy.padded and state.running and not decodes.heap and not state.prefilling:
            self._end_padded()

    def _end_interruptions(self, t: int) -> None:
        for sequence in self.state._resumed:
            if sequence._preempted_t >= 0:
                sequence._preempted_stall += t - sequence._preempted_t
                sequence._preempted_t = -1
                sequence._mixed_mark = self._mixed_total + self._mixed_extra
        self.state._resumed.clear()

    def _take_back(self, t: int) -> None:
        """Decodes that the budget left out go on with the next step."""
        for sequence, left, held in self._left_out:
            sequence._left, sequence.generated = left, sequence._request.output_tokens - left
            sequence.target = held
            self.state.decodes.join(sequence, left, held)
            if self._decoding:
                sequence._prefill_stall += t - self._start_t
                sequence._mixed_stall -= self._mixed_extra
            self._end_span(sequence)
            sequence._first_step = self.steps
        self._left_out = []

    def _finish_decoding(self, sequence: Sequence, t: int) -> None:
        state = self.state
        held = sequence.offset + state.decodes.steps
        sequence._prefill_stall += self._prefill_total - sequence._prefill_mark
        sequence._mixed_stall += self._mixed_total - sequence._mixed_mark
        self._end_span(sequence)
        if self.policy.padded:  # its seat and its memory stay taken until the batch has ended
            sequence._finish_at = -1
        else:
            state.decodes.leave(sequence)
            del state.running[sequence]
            state.seats -= sequence.samples
            state.kv.release(sequence, held)
        self._tell_end(sequence, t)

    def _tell_end(self, sequence: Sequence, t: int) -> None:
        request_id, unheard = sequence._request.request_id, self._aborts.unheard
        if unheard and request_id in unheard:
            unheard.discard(request_id)
        else:
            self._events.append(Finished(ns_of_ticks(t), request_id, self._truth(sequence, t)))

    def _end_chunks(self, t: int) -> tuple[str, ...]:
        """The chunks are computed: whose prefill is over emits a token. Answers who they are."""
        state, step = self.state, self.steps - 1
        first: list[str] = []
        padding = max(s.target for s, _ in self._chunks) if self.policy.padded else 0
        for sequence, new in self._chunks:
            if sequence.computed + new != sequence.target:
                if sequence.computed == sequence.cached and sequence not in state.prefilling:
                    state.prefilling.append(sequence)
                sequence.computed += new
                continue
            sequence.computed += new
            if state.prefilling and sequence in state.prefilling:
                state.prefilling.remove(sequence)
            sequence.generated += 1
            sequence._left -= 1
            sequence._first_step = step
            if sequence._first_token_t < 0:
                sequence._first_token_t = sequence._prefill_end_t = t
            elif sequence._preempted_t >= 0:
                sequence._preempted_stall += t - sequence._preempted_t
                sequence._preempted_t = -1
            if self._tokens:
                first.append(sequence._request.request_id)
            if sequence._left and not self.policy.prefill_only:
                sequence._prefill_mark, sequence._mixed_mark = self._prefill_total, self._mixed_total
                state.decodes.join(sequence, sequence._left, padding or sequence.target)
            else:
                self._end_at_prefill(sequence, t)
                if padding:
                    state.decodes.stay(sequence, padding)
        return tuple(first)

    def _end_at_prefill(self, sequence: Sequence, t: int) -> None:
        """Its answer is one token long, or is decoded elsewhere."""
        state, request_id = self.state, sequence._request.request_id
        self._end_span(sequence)
        if not self.policy.padded:
            del state.running[sequence]
            state.seats -= sequence.samples
        if sequence._left:
            state.held_out[request_id] = sequence
            self._events.append(Prefilled(ns_of_ticks(t), request_id, self._truth(sequence, t)))
            return
        if not self.policy.padded:
            state.kv.release(sequence, sequence.target)
        self._tell_end(sequence, t)

    def _end_padded(self) -> None:
        state = self.state
        for sequence in state.running:
            state.kv.release(sequence, sequence.target)
        state.running.clear()
        state.seats = 0
        steps = state.decodes.steps
        state.decodes = Decodes(state.kv.block_size, by_slot=state.kv.named)
        state.decodes.steps = steps

    def _end_span(self, sequence: Sequence) -> None:
        """Its tokens stop for now: the last came with the last decode step, or with the step of its first one."""
        if sequence._first_step < self.steps:
            span = sequence._first_step, max(sequence._first_step, self._last_decode_step)
            sequence._spans = (*sequence._spans, span)
        sequence._first_step = -1

    def _truth(self, sequence: Sequence, t: int) -> Truth:
        request = sequence._request
        return Truth(
            request.request_id,
            request.prompt_tokens,
            request.output_tokens,
            request.samples,
            sequence._start_cached,
            request.arrival_ns,
            sequence._enter_ns,
            (sequence._prefill_start_t + _HALF) >> TICK_BITS,
            (sequence._prefill_end_t + _HALF) >> TICK_BITS,
            (sequence._first_token_t + _HALF) >> TICK_BITS,
            (t + _HALF) >> TICK_BITS,
            (sequence._prefill_stall + _HALF) >> TICK_BITS,
            (sequence._mixed_stall + _HALF) >> TICK_BITS,
            (sequence._preempted_stall + _HALF) >> TICK_BITS,
            sequence.preemptions,
            sequence._spans,
        )
