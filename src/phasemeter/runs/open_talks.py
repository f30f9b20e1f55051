"""Conversations that ended before their last turn: the turns that never came to be are unsent, not forgotten.

Lives here: which turns are missing. Must not live here: why a turn failed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from phasemeter.io.run_directory import RunDirectory, unsent
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest

ENDED = "an earlier turn of its conversation did not succeed"


class OpenTalks:
    """Shown every request as it closes; remembers the conversations that have turns to come."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[PlannedRequest, int, int]] = {}

    def see(self, planned: PlannedRequest, capture: Capture) -> None:
        if planned.conversation is None or planned.turns < 2:
            return
        known = self._last.get(planned.conversation)
        if known is not None and known[0].turn > planned.turn:
            return
        if planned.turn + 1 < planned.turns:
            self._last[planned.conversation] = (planned, capture.worker, capture.closed_ns or capture.due_ns)
        else:
            self._last.pop(planned.conversation, None)

    def never_sent(self, directory: RunDirectory) -> Iterator[tuple[PlannedRequest, Capture]]:
        """The turns that no one sent. A run that was over by its own time leaves none: they were never due."""
        for last, worker, at_ns in self._last.values():
            if directory.end_of(worker) == "duration":
                continue
            for turn in range(last.turn + 1, last.turns):
                ahead = turn - last.turn
                index = last.later[ahead - 1] if last.later else last.index + ahead
                planned = msgspec.structs.replace(
                    last,
                    request_id=f"r{index}",
                    index=index,
                    turn=turn,
                    due_offset_ns=None,
                    traceparent=None,
                    sent_id=None,
                )
                yield planned, unsent(planned, worker, at_ns, ENDED)
