"""A worker whose next turn is made of the last answer: what runs/ does with real conversations."""

from __future__ import annotations

import sys

from phasemeter.io.load_options import NextRequest
from phasemeter.io.worker_main import main
from phasemeter.records.capture import Capture
from phasemeter.records.request import PlannedRequest


def factory(options: bytes) -> NextRequest:
    turns = int(options)

    def following(planned: PlannedRequest, body: bytes, capture: Capture) -> tuple[PlannedRequest, bytes] | None:
        if planned.turn + 1 >= turns or capture.close != "complete":
            return None
        answer = capture.reads[-1].data.rpartition(b"\r\n\r\n")[2]
        request_id = f"{planned.conversation}-{planned.turn + 1}"
        turn = PlannedRequest(
            request_id=request_id, index=planned.index, conversation=planned.conversation, turn=planned.turn + 1
        )
        return turn, body + b"|" + answer

    return following


if __name__ == "__main__":
    sys.exit(main(factory))
