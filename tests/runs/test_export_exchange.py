"""What is handed on keeps every time, size and count, and no word that a person or a model wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.cli import main
from phasemeter.runs.blank import blanked
from phasemeter.runs.inspect import inspect, json_document
from tests.runs.test_inspect import document
from tests.wire.streams import chunk, event, finished

SECRET = "Elisabeth"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), st.booleans())
def test_text_becomes_filler_of_the_same_length_and_the_rest_stays(text: str, ascii_only: bool) -> None:
    body = b"data: " + json.dumps(chunk(text), ensure_ascii=ascii_only).encode() + b"\n\n"
    filled = blanked(body)
    assert len(filled) == len(body)
    found = json.loads(filled.removeprefix(b"data: "))
    content = found["choices"][0]["delta"].pop("content")
    assert set(content) == {"x"} and found == chunk(text) | {
        "choices": [{"index": 0, "delta": {}, "finish_reason": None}]
    }


@pytest.mark.parametrize(
    "secret",
    [
        chunk(SECRET),
        chunk(delta={"reasoning": SECRET}),
        chunk(delta={"tool_calls": [{"function": {"name": SECRET, "arguments": '{"a":"' + SECRET + '"}'}}]}),
        {"error": {"message": SECRET, "code": 400}},
        {"choices": [{"text": "a", "logprobs": {"tokens": [SECRET], "top_logprobs": [{SECRET: -1.0}]}}]},
        {"choices": [{"logprobs": {"content": [{"token": SECRET, "top_logprobs": [{"token": SECRET}]}]}}]},
        {"response": {"output": [{"content": [{"text": SECRET}]}], "instructions": SECRET}},
        {"message": {"content": SECRET, "thinking": SECRET}},
        {"generated_text": SECRET, "token": {"text": SECRET}},
        {"content": SECRET, "prompt": SECRET, "generation_settings": {"grammar": SECRET}},
    ],
)
def test_no_word_survives_wherever_it_stands(secret: dict[str, object]) -> None:
    assert SECRET.encode() not in blanked(event(secret))
    assert SECRET.encode() not in blanked(json.dumps(secret, indent=2).encode())


def test_numbers_that_spell_text_are_overwritten_and_counts_are_not() -> None:
    body = json.dumps(
        {"bytes": [72, 105], "token_ids": [4711], "usage": {"completion_tokens": 42}, "created": 99}
    ).encode()
    assert json.loads(blanked(body)) == {
        "bytes": [11, 111],
        "token_ids": [1111],
        "usage": {"completion_tokens": 42},
        "created": 99,
    }


@given(st.binary(max_size=60))
def test_any_bytes_keep_their_length(body: bytes) -> None:
    assert len(blanked(body)) == len(body)


def test_an_exported_exchange_reads_the_same_but_for_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = event(chunk(SECRET))
    file = tmp_path / "exchange.json"
    events = [(3.0, whole[:40]), (4.5, whole[40:]), (9.0, event(chunk("é"))), (9.5, finished(3))]
    file.write_text(json.dumps(document(events, {"t_ms": 12, "how": "eof"}, max_tokens=5)), encoding="utf-8")
    out = tmp_path / "out.json"
    assert main.run(["export-exchange", str(file), "--output", str(out)]) == 0
    assert SECRET not in out.read_text(encoding="utf-8") and capsys.readouterr().out == ""
    before, after = (json_document(inspect(str(path))) for path in (file, out))
    text = {key: (before.pop(key), after.pop(key)) for key in ("content", "choices")}
    assert before == after
    assert text["content"] == (SECRET + "é", "x" * len(SECRET) + "xx")
    assert main.run(["export-exchange", str(file), "--with-text"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == document(events)["events"]
