"""Conversations of several turns, each with the real answers before it.

Lives here: what the next turn's messages are, given an answer. Must not live here: reading the answer out of a stream
(wire/), sending, waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Message = dict[str, Any]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it stands: `messages` is what the current turn sends (ending with its user message), `waiting` what the user
    will say in later turns, whatever the answers are."""

    conversation: str
    messages: tuple[Message, ...]
    waiting: tuple[str, ...] = ()
    turn: int = 0


def start(conversation: str, user_texts: Sequence[str], system: str | None = None) -> Conversation:
    """The first turn of a conversation whose user says `user_texts` in turn (at least one)."""
    head: tuple[Message, ...] = ({"role": "system", "content": system},) if system else ()
    first = {"role": "user", "content": user_texts[0]}
    return Conversation(conversation=conversation, messages=(*head, first), waiting=tuple(user_texts[1:]))


def follow(conversation: Conversation, answer: str) -> Conversation | None:
    """The conversation one turn on: the answer that came, then the user's next text. None when the user has no more to say.

    An empty answer is kept as an empty assistant message: the history is what happened.
    """
    if not conversation.waiting:
        return None
    said: tuple[Message, ...] = (
        {"role": "assistant", "content": answer},
        {"role": "user", "content": conversation.waiting[0]},
    )
    return Conversation(
        conversation=conversation.conversation,
        messages=(*conversation.messages, *said),
        waiting=conversation.waiting[1:],
        turn=conversation.turn + 1,
    )


def next_turn(conversation: Conversation, answer: str) -> tuple[Message, ...] | None:
    """The next turn's messages, the answer included; None after the last turn."""
    following = follow(conversation, answer)
    return None if following is None else following.messages


def next_messages(sent: Sequence[Mapping[str, Any]], answer: str, user_text: str) -> list[Message]:
    """The same from a request's own messages, for a caller that keeps only the last body: sent + answer + next user text."""
    return [
        *(dict(message) for message in sent),
        {"role": "assistant", "content": answer},
        {"role": "user", "content": user_text},
    ]
