"""Every turn carries the real history, for many users at once; a turn that fails ends its conversation and is counted."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.runs.served import Behaviour, Request, Served, served
from tests.runs.whole import Bench, accounted

Messages = list[dict[str, Any]]


def hash_of(messages: Messages) -> str:
    return hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()[:24]


def messages_of(request: Request) -> Messages:
    told = request.body.get("messages", request.body.get("input"))
    return [{"role": "user", "content": told}] if isinstance(told, str) else list(told)


def hashes(request: Request) -> list[str]:
    """An answer that only the very messages it answers could have got."""
    whole = hash_of(messages_of(request))
    return [whole[:10], whole[10:20], whole[20:]]


def talks(server: Served) -> dict[str, list[Messages]]:
    """Each conversation's requests by their number of turns, found by what the user said first."""
    found: dict[str, list[Messages]] = {}
    for request in server.measured:
        messages = messages_of(request)
        found.setdefault(str(messages[0]["content"]), []).append(messages)
    return {first: sorted(turns, key=len) for first, turns in found.items()}


def hold_together(turns: list[Messages]) -> None:
    for before, after in pairwise(turns):
        assert after[: len(before)] == before
        answer, question = after[len(before) :]
        assert answer == {"role": "assistant", "content": hash_of(before)}
        assert question["role"] == "user" and question["content"]


def test_eight_turns_of_two_hundred_users_keep_every_history_right(bench: Bench) -> None:
    with served(Behaviour(answer=hashes)) as server:
        ran = bench(server.url, "--turns", "8", "--requests", "1600", "--concurrency", "200", "--processes", "2")
        found = talks(server)
    assert ran.outcomes == {"scheduled": 1600, "ok": 1600, "failed": {}, "cancelled": 0, "unsent": 0}
    assert len(found) == 200
    for turns in found.values():
        assert [len(messages) for messages in turns] == [1, 3, 5, 7, 9, 11, 13, 15]
        hold_together(turns)
    assert len({request.headers["traceparent"] for request in server.measured}) == 1600


def test_a_failed_turn_ends_its_conversation_and_the_rest_is_unsent(bench: Bench) -> None:
    def fault(request: Request) -> tuple[int, str] | None:
        return (500, "no") if len(messages_of(request)) == 5 else None

    with served(Behaviour(answer=hashes, fault=fault)) as server:
        ran = bench(server.url, "--turns", "5", "--requests", "20", "--concurrency", "2", "--processes", "2")
    assert ran.outcomes == {"scheduled": 20, "ok": 8, "failed": {"http_error": 4}, "cancelled": 0, "unsent": 8}
    rows = bench.report(ran.path, "--csv", "requests").out
    assert len(rows.strip().splitlines()) == 21


def test_conversations_by_rate_are_due_by_their_first_turn(bench: Bench) -> None:
    with served(Behaviour(answer=hashes)) as server:
        ran = bench(server.url, "--turns", "3", "--requests", "10", "--rate", "50")
        found = talks(server)
    assert ran.outcomes["ok"] == 10  # three of three turns, and one of one
    assert sorted(len(turns) for turns in found.values()) == [1, 3, 3, 3]
    for turns in found.values():
        hold_together(turns)


def test_a_closed_loop_by_duration_leaves_no_turn_behind_that_was_never_due(bench: Bench) -> None:
    with served(Behaviour(answer=hashes, gap_s=0.01)) as server:
        ran = bench(server.url, "--turns", "50", "--duration", "400ms", "--concurrency", "3")
    assert accounted(ran.outcomes) and ran.outcomes["unsent"] == 0 and ran.outcomes["ok"] >= 3
    assert ran.result["partial"] is False


def sharegpt(questions: list[list[str]]) -> list[dict[str, Any]]:
    def turns(texts: list[str]) -> list[dict[str, str]]:
        return [turn for text in texts for turn in ({"from": "human", "value": text}, {"from": "gpt", "value": "old"})]

    return [{"id": str(n), "conversations": turns(texts)} for n, texts in enumerate(questions)]


@pytest.mark.parametrize("form", ["sharegpt", "messages"])
def test_a_file_of_conversations_is_played_with_new_answers(bench: Bench, tmp_path: Path, form: str) -> None:
    questions = [["a1", "a2", "a3"], ["b1"], ["c1", "c2"]]
    file = tmp_path / "talks.json"
    rows = sharegpt(questions)
    if form == "messages":
        role = {"human": "user", "gpt": "assistant"}
        rows = [
            {"messages": [{"role": role[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]}
            for row in rows
        ]
    file.write_text(json.dumps(rows))
    with served(Behaviour(answer=hashes)) as server:
        ran = bench(server.url, "--prompts", str(file), "--turns", "3", "--concurrency", "2")
        found = talks(server)
    assert ran.outcomes["ok"] == ran.outcomes["scheduled"] == 6
    assert "2 of 3 conversations have fewer than 3 turns" in ran.err
    for texts in questions:
        turns = found[texts[0]]
        hold_together(turns)
        assert [messages[-1]["content"] for messages in turns] == texts


@pytest.mark.parametrize("api", ["anthropic.messages", "openai.responses", "ollama.chat"])
def test_other_chats_have_a_history_too(bench: Bench, api: str) -> None:
    with served(Behaviour(answer=hashes)) as server:
        ran = bench(server.url, "--api", api, "--turns", "3", "--requests", "6", "--concurrency", "2")
        found = talks(server)
    assert ran.outcomes["ok"] == 6, ran.err
    for turns in found.values():
        assert [len(messages) for messages in turns] == [1, 3, 5]
        hold_together(turns)


def test_the_words_of_a_system_message_stay_at_the_head(bench: Bench, tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "u1"}]
    talk += [
        {"role": "assistant", "content": "old"},
        {"role": "user", "content": "u2"},
        {"role": "assistant", "content": "x"},
    ]
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"messages": talk, "max_tokens": 7, "body": {"user": "u-9"}}))
    with served(Behaviour(answer=hashes)) as server:
        for api in ("openai.chat", "anthropic.messages"):
            ran = bench(server.url, "--api", api, "--prompts", str(file), "--turns", "2")
            assert ran.outcomes["ok"] == 2, ran.err
        bodies = [request.body for request in server.measured]
    chat, messages = bodies[:2], bodies[2:]
    assert all(body["messages"][0] == talk[0] and body["max_tokens"] == 7 and body["user"] == "u-9" for body in chat)
    assert [body["messages"][-1]["content"] for body in chat] == ["u1", "u2"]
    assert all(body["system"] == "be brief" and body["user"] == "u-9" for body in messages)
    assert [len(body["messages"]) for body in messages] == [1, 3]
