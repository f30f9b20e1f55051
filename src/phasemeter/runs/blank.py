"""An exchange's text replaced by filler of the same length, byte for byte, so that it can be attached to a bug report.

Lives here: which JSON strings of a body are structure and which may be somebody's words. Must not live here: files, times.
Only strings that the protocol itself chooses are kept; every other string, key of unknown make and token id is overwritten.
"""

from __future__ import annotations

import re

# values that servers choose, not people or models
KEPT = frozenset({
    b"id", b"object", b"model", b"role", b"type", b"finish_reason", b"stop_reason", b"done_reason", b"stop_type", b"status",
    b"system_fingerprint", b"created_at", b"service_tier", b"reason", b"error_type", b"code", b"sequence_number", b"item_id",
    b"response_id", b"status_code", b"format", b"phase",
})  # fmt: skip
# lists of numbers that spell text
SPELLS = frozenset({b"bytes", b"token_ids", b"tokens", b"output_ids", b"prompt_token_ids", b"context", b"id"})
SPELLING_LISTS = SPELLS - {b"id"}
# objects that a model or a person wrote whole, their keys and numbers too: a tool's arguments, the schema it was told
WRITTEN = frozenset({b"arguments", b"args", b"input", b"action", b"operation", b"parameters", b"schema", b"metadata"})
# objects whose keys may be text: {" the": -0.3}
TEXT_KEYED = frozenset({b"top_logprobs"})
ENTRY_KEYS = frozenset({b"token", b"logprob", b"bytes", b"id", b"decoded_token", b"rank", b"text"})

_TOKEN = re.compile(rb'"(?:[^"\\\r\n]|\\.)*"|[{}\[\]:,]|[\r\n]|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')


def blanked(body: bytes) -> bytes:
    """`body` (event stream, JSON lines or one document) of the same length, its text overwritten with `x`."""
    out = bytearray(body)
    stack: list[tuple[bytes, bytes]] = []  # (bracket, the key it stands under)
    key = b""
    for match in _TOKEN.finditer(body):
        token = match.group()
        first = token[:1]
        if first in (b"{", b"["):
            stack.append((first, key))
        elif first in (b"}", b"]"):
            if stack:
                key = stack.pop()[1]
        elif first == b'"':
            is_key = bool(stack) and stack[-1][0] == b"{" and body[match.end() :].lstrip(b" \t")[:1] == b":"
            if is_key:
                key = token[1:-1]
                if _is_text_key(key, stack):
                    _overwrite(out, match.start() + 1, match.end() - 1, b"x")
            elif key not in KEPT or _in_list_of(stack, SPELLING_LISTS | TEXT_KEYED) or _words(key, stack):
                _overwrite(out, match.start() + 1, match.end() - 1, b"x")
        elif first not in b":,\r\n" and (_in_list_of(stack, SPELLING_LISTS) or _spells(key, stack) or _written(stack)):
            _overwrite(out, match.start(), match.end(), b"1")
    return bytes(out)


def _overwrite(out: bytearray, start: int, end: int, filler: bytes) -> None:
    out[start:end] = filler * (end - start)


def _in_list_of(stack: list[tuple[bytes, bytes]], names: frozenset[bytes]) -> bool:
    return bool(stack) and stack[-1][0] == b"[" and stack[-1][1] in names


def _spells(key: bytes, stack: list[tuple[bytes, bytes]]) -> bool:
    """A token's id inside a list of logprobs."""
    return key == b"id" and any(name in (b"content", b"top_logprobs", b"logprobs", b"token") for _, name in stack)


def _is_text_key(key: bytes, stack: list[tuple[bytes, bytes]]) -> bool:
    return _written(stack) or (any(name in TEXT_KEYED for _, name in stack) and key not in ENTRY_KEYS)


def _words(key: bytes, stack: list[tuple[bytes, bytes]]) -> bool:
    """Whether a string under a kept key is somebody's all the same."""
    return _written(stack) or _stop_string(key, stack)


def _written(stack: list[tuple[bytes, bytes]]) -> bool:
    """Inside an object that somebody's words made, however deep."""
    return any(name in WRITTEN for _, name in stack)


def _stop_string(key: bytes, stack: list[tuple[bytes, bytes]]) -> bool:
    """vLLM's `stop_reason` of a choice: the text that the request asked to stop at."""
    return key == b"stop_reason" and any(name == b"choices" for _, name in stack)
