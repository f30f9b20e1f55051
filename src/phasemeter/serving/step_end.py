"""How a step ends: tokens come out, requests finish, and what it cost each of them is written down.

Lives here: `StepEnds`, the half of an engine that closes steps. Must not live here: how one starts (engine), who is in it (policies/).
"""

from __future__ import annotations

from heapq import heappop

from phasemeter.serving.aborts import Aborts
from phasemeter.serving.events import Event, Finished, Prefilled, Tokens, Truth
from phasemeter.serving.sequence import Sequence
from phasemeter.serving.state import NO_CHUNKS, Chunk, Policy, State, decodes_on
from phasemeter.serving.step_shape import TICK_BITS, ns_of_ticks

_HALF = 1 << (TICK_BITS - 1)


class StepEnds:
    """The step (or stretch of decode steps) in progress, and its end. `steps` have ended so far."""

    def __init__(self, policy: Policy, state: State, *, tokens: bool) -> None:
        self.policy = policy
        self.state = state
        self.requests_only = False
        self._tokens, self._padded = tokens, policy.padded
        self._aborts = Aborts(state, padded=policy.padded)
        self._events: list[Event] = []
        self._now_t = 0  # the last step's end: the next one starts at or after it
        self._prefills = 0  # steps without decodes; of these,
        self._prefills_in_row, self._row_after = (
            0,
            0,
        )  # so many one after another when there had been so many decode steps
        self._busy = False  # whether a step is in progress; what it is:
        self._start_t = self._end_t = 0
        self._chunks: list[Chunk] = NO_CHUNKS
        self._decoding = 0  # how many decode steps it has
        self._prefill_total = self._mixed_total = self._mixed_extra = 0  # ticks that others' prefills took from decodes

    @property
    def steps(self) -> int:
        return self.state.decodes.steps + self._prefills

    def _complete(self) -> None:
        self._busy = False
        self._close(self._start_t, self._end_t, self._decoding, self._chunks, self._mixed_extra)

    def _close(self, start_t: int, t: int, steps: int, chunks: list[Chunk], extra: int) -> None:
        """What ran from `start_t` to `t` has ended: `steps` decode steps, `chunks`, which made them `extra` ticks longer.

        Whoever has its last token leaves; whose prompt is computed has its first.
        """
        state = self.state
        decodes, prefilling = state.decodes, state.prefilling
        self._now_t = t
        if steps:
            self._mixed_total += extra
            if state._resumed:
                self._end_interruptions(t, self._mixed_total + extra)
            decodes.steps = done = decodes.steps + steps
            heap = decodes.heap
            while heap and heap[0] <= done:
                if ended := decodes.ends.pop(heappop(heap), None):
                    self._end_answers(ended, t)
        else:
            self._end_prefill_step(t - start_t)
        padding = max(s.target for s, _ in chunks) if self._padded and chunks else 0
        for sequence, new in chunks:
            had = sequence.computed
            sequence.computed = computed = had + new
            if sequence._prefill_start_t < 0:
                sequence._prefill_start_t, sequence._start_cached = start_t, sequence.cached
            if computed != sequence.target:
                if had == sequence.cached and sequence not in prefilling:
                    prefilling.append(sequence)
                continue
            if prefilling and sequence in prefilling:
                prefilling.remove(sequence)
            sequence.generated = generated = sequence.generated + 1
            sequence._first_step = decodes.steps + self._prefills - 1
            if sequence._first_token_t < 0:
                sequence._first_token_t = t
            elif sequence._preempted_t >= 0:
                sequence._preempted_stall += t - sequence._preempted_t
                sequence._preempted_t = -1
            sequence._prefill_mark, sequence._mixed_mark = self._prefill_total, self._mixed_total
            left = sequence._request.output_tokens - generated
            if left and not self.policy.prefill_only:
                decodes.join(sequence, left, padding or computed)
            else:
                self._end_at_prefill(sequence, t)
                if padding:
                    decodes.stay(sequence, padding)
        if self._padded and state.running and not decodes.heap and not prefilling:
            self._end_padded()

    def _complete_telling(self) -> None:
        """The same, and its tokens are told, before whom they end."""
        told = len(self._events)
        first = tuple(s._request.request_id for s, new in self._chunks if s.computed + new == s.target)
        more: tuple[str, ...] = ()
        if self._decoding:
            decoding = [s for s in self.state.running if s._finish_at >= 0]
            first += tuple(s._request.request_id for s in decoding if s._first_token_t < 0)
            more = tuple(s._request.request_id for s in decoding if s._first_token_t >= 0)
        self._complete()
        self._events.insert(told, Tokens(ns_of_ticks(self._start_t), ns_of_ticks(self._end_t), first, more))

    def _end_prefill_step(self, ticks: int) -> None:
        decodes = self.state.decodes
        self._prefills += 1
        self._prefills_in_row = self._prefills_in_row + 1 if self._row_after == decodes.steps else 1
        self._row_after = decodes.steps
        if decodes.count:
            self._prefill_total += ticks

    def _end_interruptions(self, t: int, mixed_mark: int) -> None:
        for sequence in self.state._resumed:
            if sequence._first_token_t < 0:
                sequence._first_token_t = t
            if sequence._preempted_t >= 0:
                sequence._preempted_stall += t - sequence._preempted_t
                sequence._preempted_t = -1
                sequence._mixed_mark = mixed_mark
        self.state._resumed.clear()

    def _end_answers(self, ended: tuple[Sequence, ...], t: int) -> None:
        """These have all their tokens with the decode step that ended at `t`."""
        state = self.state
        decodes = state.decodes
        decodes.ended_at = steps = decodes.steps
        decodes.ended = many = len(ended)
        last = steps + self._prefills - 1
        for sequence in sorted(ended, key=_order) if many > 1 else ended:
            sequence._spans += ((sequence._first_step, last),)
            if self._padded:  # its seat and its memory stay taken until the batch has ended
                sequence._finish_at = -1
            else:
                del state.running[sequence]
                state.seats -= sequence.samples
                state.kv.release(sequence, decodes.end(sequence))
            if self._aborts.unheard:
                self._tell_end(sequence, t)
            else:
                truth = self._truth(sequence, t)
                self._events.append(Finished(truth.finish_ns, truth.request_id, truth))

    def _tell_end(self, sequence: Sequence, t: int) -> None:
        request_id, unheard = sequence._request.request_id, self._aborts.unheard
        if request_id in unheard:
            unheard.discard(request_id)
        else:
            self._events.append(Finished(ns_of_ticks(t), request_id, self._truth(sequence, t)))

    def _end_at_prefill(self, sequence: Sequence, t: int) -> None:
        """Its answer is one token long, or is decoded elsewhere."""
        state, request_id = self.state, sequence._request.request_id
        self._end_span(sequence)
        if not self._padded:
            del state.running[sequence]
            state.seats -= sequence.samples
        if sequence.generated < sequence._request.output_tokens:
            state.held_out[request_id] = sequence
            self._events.append(Prefilled(ns_of_ticks(t), request_id, self._truth(sequence, t)))
            return
        if not self._padded:
            state.kv.release(sequence, sequence.target)
        self._tell_end(sequence, t)

    def _end_padded(self) -> None:
        state = self.state
        for sequence in state.running:
            state.kv.release(sequence, sequence.target)
        state.running.clear()
        state.seats = 0
        steps = state.decodes.steps
        state.decodes = decodes_on(state.kv)
        state.decodes.steps = steps

    def _end_span(self, sequence: Sequence) -> None:
        """Its tokens stop for now: the last came with the last decode step, or with the step of its first one."""
        first, steps = sequence._first_step, self.steps
        if first < steps:
            last = steps - 1 - (self._prefills_in_row if self._row_after == self.state.decodes.steps else 0)
            sequence._spans = (*sequence._spans, (first, max(first, last)))
        sequence._first_step = -1

    def _truth(self, sequence: Sequence, t: int) -> Truth:
        """Of a sequence whose last token came at `t`: it decoded until then, or its prompt has just ended."""
        request = sequence._request
        first_ns = (sequence._first_token_t + _HALF) >> TICK_BITS
        return Truth(
            request.request_id,
            sequence.prompt_tokens,
            request.output_tokens,
            sequence.samples,
            sequence._start_cached,
            request.arrival_ns,
            sequence._enter_ns,
            (sequence._prefill_start_t + _HALF) >> TICK_BITS,
            first_ns,  # the step that computed the prompt's last token emitted the first one
            first_ns,
            (t + _HALF) >> TICK_BITS,
            (sequence._prefill_stall + self._prefill_total - sequence._prefill_mark + _HALF) >> TICK_BITS,
            (sequence._mixed_stall + self._mixed_total - sequence._mixed_mark + _HALF) >> TICK_BITS,
            (sequence._preempted_stall + _HALF) >> TICK_BITS,
            sequence.preemptions,
            sequence._spans,
        )


def _order(sequence: Sequence) -> int:
    return sequence.order
