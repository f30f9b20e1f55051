"""Conversations of several turns, each with the real answers before it.

Lives here: what the next turn's messages are, given an answer. Must not live here: reading the answer out of a stream
(wire/), sending, waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]


def next_messages(sent: Sequence[Mapping[str, Any]], answer: str, user_text: str) -> list[Message]:
    """What the next turn sends: the messages that were sent, the answer to them, what the user says next.

    An empty answer is kept as an empty assistant message: the history is what happened.
    """
    return [
        *(dict(message) for message in sent),
        {"role": "assistant", "content": answer},
        {"role": "user", "content": user_text},
    ]
