"""Requests that are called off: whoever left them behind, their memory comes back at the next step's start.

Lives here: what waits to be called off, and the way out of every place a sequence can be in. Must not live here: steps
(engine), who left (io/).
"""

from __future__ import annotations

from collections import deque
from itertools import chain

from phasemeter.serving.sequence import Sequence
from phasemeter.serving.state import State


class Aborts:
    """`add` at an instant; `apply` at a step's start takes out those that are due and answers who they were.

    A batch that is padded to its longest (request_level) keeps its seats until all have ended: there a sequence runs on
    `unheard`. KV on its way (a pull) is dropped when it has come.
    """

    def __init__(self, state: State, *, padded: bool) -> None:
        self.state = state
        self.padded = padded
        self.due: deque[tuple[int, str]] = deque()
        self.unheard: set[str] = set()

    def add(self, t: int, request_id: str) -> None:
        self.due.append((t, request_id))

    def next_t(self, otherwise: int) -> int:
        """The earlier of the next abort and `otherwise`."""
        return min(self.due[0][0], otherwise) if self.due else otherwise

    def apply(self, t: int) -> list[str]:
        """Takes out everybody whose abort is due by `t`. One that has ended meanwhile is nobody's loss."""
        gone: list[str] = []
        while self.due and self.due[0][0] <= t:
            _, request_id = self.due.popleft()
            sequence = self.find(request_id)
            if sequence is not None and not self._ended(sequence):
                self._remove(sequence, request_id)
                gone.append(request_id)
        return gone

    def _ended(self, sequence: Sequence) -> bool:
        """Whether it only keeps its seat in a padded batch (at a step's start nobody is half prefilled there)."""
        return self.padded and sequence in self.state.running and sequence._finish_at < 0

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of a request that is inside, wherever it is; None for one that was called off already."""
        if request_id in self.unheard:
            return None
        state = self.state
        found = state.held_out.get(request_id) or state.in_flight.get(request_id)
        if found is not None:
            return found
        inside = chain(state.waiting, state.running, state.swapped, state.unpulled)
        return next((s for s in inside if s._request.request_id == request_id), None)

    def dropped(self, sequence: Sequence) -> bool:
        """Whether KV that has just come was called off on its way."""
        request_id = sequence._request.request_id
        if request_id not in self.unheard:
            return False
        self.unheard.discard(request_id)
        self.state.kv.release(sequence, sequence.computed)
        return True

    def _remove(self, sequence: Sequence, request_id: str) -> None:
        state, kv = self.state, self.state.kv
        if request_id in state.held_out:
            kv.release(state.held_out.pop(request_id), sequence.computed)
        elif request_id in state.in_flight or (self.padded and sequence in state.running):
            self.unheard.add(request_id)
        elif sequence in state.running:
            decoding = sequence._finish_at >= 0
            state._stop(sequence)
            if decoding:
                kv.release(sequence, sequence.computed)
            else:
                kv.give_up(sequence)
        else:
            for queue in (state.waiting, state.swapped, state.unpulled):
                if sequence in queue:
                    queue.remove(sequence)
            if sequence.blocks:  # its KV was pulled, it had not started
                kv.release(sequence, sequence.computed)
