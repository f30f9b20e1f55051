"""Prompts that a person brings: JSONL of {prompt}, {messages} or ShareGPT {conversations}, a JSON array of those, or a line of text each.

Lives here: the forms and their faults, named by line. Must not live here: opening a file (the text is an argument).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from phasemeter.errors import NOT_JSON, FileError

TEXTS = ("prompt", "text", "text_input")  # the last as GenAI-Perf and AIPerf write it
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
}


class FilePrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `messages` is what the first request sends; `later_user_texts` are the user's further turns (ShareGPT
    and message lists)."""

    line: int
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    later_user_texts: tuple[str, ...] = ()
    output_tokens: int | None = None
    extra: dict[str, Any] = {}


def read_prompts(text: str, name: str, unasked: list[int] | None = None) -> list[FilePrompt]:
    """All prompts of a file's text, in order.

    A file whose first character is `[` is one JSON array (ShareGPT's own form); one whose first is `{`, or whose every line is a
    JSON string, is JSON lines; anything else is a prompt a line. A recorded conversation in which no user speaks (ShareGPT
    holds some) is left out, its line put into `unasked`.
    Raises FileError with name and line.
    """
    text = text.removeprefix("\ufeff")
    if name.lower().endswith((".csv", ".tsv")):
        raise FileError(
            f'{name}: a table is not read for prompts: write one JSON object a line, like {{"prompt": "..."}}'
        )
    head = text.lstrip()[:1]
    if not head:
        raise FileError(f'{name}: holds no prompt: write one JSON object a line, like {{"prompt": "..."}}')
    if head == "[":
        rows: Iterable[tuple[int, Any]] = _array(text, name)
    elif head == "{" or (head == '"' and _all_strings(text)):
        rows = _json_lines(text, name)
    else:
        lines = text.replace("\r\n", "\n").split("\n")  # splitlines would also cut at U+2028 inside a prompt
        return [FilePrompt(line=n, text=line) for n, line in enumerate(lines, 1) if line.strip()]
    found = [_row(value, f"{name}:{line}", line) for line, value in rows]
    if unasked is not None:
        unasked += [row.line for row in found if row.messages == ()]
    asked = [row for row in found if row.messages != ()]
    if not asked:
        raise FileError(f"{name}: holds no prompt: in none of its {len(found)} conversations does a user speak")
    return asked


def _all_strings(text: str) -> bool:
    try:
        return all(isinstance(msgspec.json.decode(line), str) for line in text.split("\n") if line.strip())
    except NOT_JSON:
        return False


def _array(text: str, name: str) -> list[tuple[int, Any]]:
    try:
        return list(enumerate(msgspec.json.decode(text, type=list[Any]), 1))
    except NOT_JSON as error:
        raise FileError(f"{name}: starts with [ but is no JSON array: {error}") from None


def _json_lines(text: str, name: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line)
        except NOT_JSON as error:
            raise FileError(f"{name}:{number}: is no JSON: {error}") from None


def _row(value: Any, where: str, line: int) -> FilePrompt:
    if isinstance(value, str) and value:
        return FilePrompt(line=line, text=value)
    if not isinstance(value, Mapping):
        raise FileError(f'{where}: is neither an object nor text: write {{"prompt": "..."}}')
    limit = _limit(value, where)
    extra = value.get("body", {})
    if not isinstance(extra, dict):
        raise FileError(f"{where}: `body` has to be an object of extra fields")
    prompt = next((value[key] for key in TEXTS if value.get(key) is not None), None)
    if prompt in ("", []):
        raise FileError(f"{where}: its prompt is empty: there is nothing to send")
    if isinstance(prompt, str) and prompt:
        return FilePrompt(line=line, text=prompt, output_tokens=limit, extra=extra)
    if isinstance(prompt, list) and prompt and all(type(part) is int and part >= 0 for part in prompt):
        return FilePrompt(line=line, token_ids=tuple(prompt), output_tokens=limit, extra=extra)
    turns = value.get("messages", value.get("conversations", value.get("conversation")))
    if not isinstance(turns, list):
        found = ", ".join(f"`{key}`" for key in list(value)[:8]) or "nothing"
        raise FileError(f"{where}: found {found}; wanted `prompt` (text), `messages` or `conversations`")
    messages = [_message(turn, where) for turn in turns]
    if "messages" not in value and not any(message["role"] == "user" for message in messages):
        return FilePrompt(line=line, messages=())
    first, later = _turns(messages, where)
    return FilePrompt(line=line, messages=first, later_user_texts=later, output_tokens=limit, extra=extra)


def _limit(value: Mapping[str, Any], where: str) -> int | None:
    for name in ("output_tokens", "max_tokens", "max_completion_tokens", "output_length"):
        if (limit := value.get(name)) is not None:
            if type(limit) is not int or limit < 1:
                raise FileError(f"{where}: `{name}` is {limit!r}: it has to be a whole number of 1 or more")
            return limit
    return None


def _message(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise FileError(f"{where}: a turn has to be an object with a role and a content")
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    if role not in _ROLES or content is None:
        raise FileError(
            f"{where}: a turn needs `role` and `content` (or ShareGPT's `from` and `value`), not {dict(turn)!r:.80}"
        )
    kept = {key: item for key, item in turn.items() if key not in {"from", "value", "role", "content"}}
    return {"role": _ROLES[role], "content": content, **(kept if "role" in turn else {})}


def _turns(messages: list[dict[str, Any]], where: str) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """(what the first request sends, the user's later texts).

    A list that ends with the user's message is a whole request: all of it is sent. One that ends with an answer is a conversation on
    record: it is cut before the first answer, and the recorded answers give way to the real ones.
    """
    if not any(message["role"] == "user" for message in messages):
        raise FileError(f"{where}: no turn of a user: nothing to ask")
    if messages[-1]["role"] != "assistant":
        return tuple(messages), ()
    first_user = next(i for i, message in enumerate(messages) if message["role"] == "user")
    head = tuple(m for m in messages[: first_user + 1] if m["role"] != "assistant")
    later = tuple(str(m["content"]) for m in messages[first_user + 1 :] if m["role"] == "user")
    return head, later
