"""Conversations carry the real answers; prompt files are read in the forms people have."""

from __future__ import annotations

import hashlib
import json

import pytest

from phasemeter.errors import FileError
from phasemeter.workload.conversations import next_messages
from phasemeter.workload.prompt_files import read_prompts


def server(messages: object) -> str:
    """A server whose answer is a hash of the messages it got."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()


def test_two_hundred_users_of_eight_turns_keep_every_history_right_in_any_order() -> None:
    sent = {u: [{"role": "system", "content": "s"}, {"role": "user", "content": f"u{u} t0"}] for u in range(200)}
    truth = {u: list(messages) for u, messages in sent.items()}
    for turn in range(8):
        for user in sorted(sent, key=lambda u: (u * 37 + turn) % 200):
            answer = server(truth[user])
            truth[user] += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"u{user} t{turn + 1}"},
            ]
            sent[user] = next_messages(sent[user], server(sent[user]), f"u{user} t{turn + 1}")
    assert sent == truth


def test_an_empty_answer_is_a_part_of_the_history() -> None:
    sent = ({"role": "user", "content": "a"},)
    wanted = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "b"}]
    assert next_messages(sent, "", "b") == wanted


def test_prompt_rows_of_all_forms_are_read() -> None:
    rows = [
        {"prompt": "p", "max_tokens": 9},
        {"prompt": [1, 2]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "gpt", "value": "a"},
                {"from": "human", "value": "r"},
                {"from": "gpt", "value": "b"},
            ]
        },
    ]
    found = read_prompts("\ufeff" + "\n".join(map(json.dumps, rows)), "p.jsonl")
    assert (found[0].text, found[0].output_tokens, found[1].token_ids) == ("p", 9, (1, 2))
    assert found[2].messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    assert found[3].messages == ({"role": "user", "content": "q"},)
    assert found[3].later_user_texts == ("r",)
    assert [row.line for row in found] == [1, 2, 3, 4]
    assert len(read_prompts(json.dumps(rows), "p.json")) == 4
    assert [row.text for row in read_prompts("one\n\ntwo\n", "p.txt")] == ["one", "two"]


@pytest.mark.parametrize(
    "line",
    [
        "{oops",
        "{}",
        '{"prompt": ""}',
        '{"messages": []}',
        '{"messages": [{"role": "x", "content": "y"}]}',
        '{"prompt": "a", "max_tokens": 0}',
    ],
)
def test_a_faulty_prompt_row_is_named_by_its_line(line: str) -> None:
    with pytest.raises(FileError, match=r"p\.jsonl:2: "):
        read_prompts('{"prompt": "fine"}\n' + line + "\n", "p.jsonl")


def test_a_conversation_in_which_no_user_speaks_is_left_out_and_named() -> None:
    answer, question = {"from": "gpt", "value": "x"}, {"from": "human", "value": "q"}
    rows = [{"conversations": talk} for talk in ([answer], [], [answer, question, answer])]
    unasked: list[int] = []
    found = read_prompts(json.dumps(rows), "p.json", unasked)
    assert [row.messages for row in found] == [({"role": "user", "content": "q"},)] and unasked == [1, 2]
    with pytest.raises(FileError, match="in none of its 2 conversations"):
        read_prompts(json.dumps(rows[:2]), "p.json")


def test_an_empty_prompt_file_is_refused() -> None:
    with pytest.raises(FileError, match="no prompt"):
        read_prompts(" \n", "p.jsonl")
