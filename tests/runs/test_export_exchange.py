"""What is handed on keeps every time, size and count, and no word that a person or a model wrote."""

from __future__ import annotations

import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phasemeter.cli import main
from phasemeter.runs.blank import blanked
from phasemeter.runs.exchange_file import RecordedExchange, of_recorded
from phasemeter.runs.export_exchange import recorded
from phasemeter.runs.inspect import inspect, json_document
from phasemeter.wire.exchange import Asked, Exchange, Received, read_exchange
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
        {
            "content_block": {
                "type": "tool_use",
                "id": "t",
                "name": "f",
                "input": {"id": SECRET, SECRET: [{"code": SECRET}]},
            }
        },
        {"message": {"tool_calls": [{"function": {"name": "f", "arguments": {"status": SECRET, "model": SECRET}}}]}},
        {"item": {"type": "local_shell_call", "action": {"type": SECRET, "env": {SECRET: "1"}}}},
        {
            "response": {
                "metadata": {SECRET: "1"},
                "tools": [{"parameters": {"properties": {SECRET: {"type": SECRET}}}}],
            }
        },
        {"choices": [{"text": "a", "finish_reason": "stop", "stop_reason": SECRET}]},
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


def test_numbers_of_a_calls_arguments_are_words_too() -> None:
    call = {"function": {"name": "f", "arguments": {"account": -4711.5, "n": [1234], "ok": True}}, "index": 3}
    filled = blanked(event(chunk(delta={"tool_calls": [call]})))
    assert b"4711" not in filled and b"1234" not in filled and b'"index": 3' in filled
    assert isinstance(json.loads(filled.removeprefix(b"data: ")), dict)


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


# ---- from raw HTTP: every coding, framing and cut

EVENTS = [event(chunk(SECRET)), event(chunk("b")), event(chunk("ccc")), event(chunk("d")), finished(7)]


def coded(coding: str) -> list[bytes]:
    """The events as a server sends them: each flushed as it comes."""
    if coding not in ("gzip", "x-gzip", "deflate", "raw deflate"):
        return EVENTS  # identity, and codings that nobody here can undo: their bytes don't matter
    wbits = {"deflate": 15, "raw deflate": -15}.get(coding, 31)
    press = zlib.compressobj(wbits=wbits)
    pieces = [press.compress(one) + press.flush(zlib.Z_SYNC_FLUSH) for one in EVENTS]
    return [*pieces[:-1], pieces[-1] + press.flush()]


def raw_reads(coding: str, framing: str, cuts: list[int]) -> list[bytes]:
    """Reads of a whole raw answer, the head in the first; cut elsewhere at `cuts` thousandths of it."""
    pieces = coded(coding)
    head = [b"HTTP/1.1 200 OK", b"Content-Type: text/event-stream"]
    head += [] if coding == "identity" else [b"Content-Encoding: " + coding.removeprefix("raw ").encode()]
    if framing == "chunked":
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]
        head.append(b"Transfer-Encoding: chunked")
    elif framing == "length":
        head.append(b"Content-Length: %d" % sum(map(len, pieces)))
    top = b"\r\n".join(head) + b"\r\n\r\n"
    if not cuts:
        return [top, *pieces]
    body = b"".join(pieces)
    edges = sorted({0, len(body), *(cut * len(body) // 1000 for cut in cuts)})
    return [top, *(body[a:b] for a, b in pairwise(edges))]


CODING = st.sampled_from(["identity", "gzip", "x-gzip", "deflate", "raw deflate", "br", "zstd"])


def seen(found: Exchange) -> dict[str, Any]:
    """All that is told of an exchange but its words, and what its framing alone tells."""
    kept = {
        name: getattr(found, name)
        for name in ("outcome", "failure", "warnings", "status", "headers_ns", "first_chunk_ns", "first_token_ns",
                     "first_output_ns", "last_token_ns", "stream_end_ns", "completion_tokens", "prompt_tokens", "usage_ns",
                     "silent_ns", "bare_ns", "finish_reason", "data_events", "body_form")
    }  # fmt: skip
    times = [(found.times_of(choice), list(map(len, choice.texts))) for choice in found.choices]
    return kept | {"choices": times}


@pytest.mark.parametrize("with_text", [True, False])
@given(
    coding=CODING,
    framing=st.sampled_from(["chunked", "length", "until close"]),
    cuts=st.lists(st.integers(1, 999), max_size=12),
    kept=st.integers(1, 20),
    damage=st.none() | st.integers(1, 10**6),
)
@example(coding="gzip", framing="chunked", cuts=[], kept=20, damage=None)
@settings(max_examples=200, deadline=None)
def test_an_export_of_raw_http_reads_as_the_run_does_whatever_its_coding_and_framing(
    with_text: bool, coding: str, framing: str, cuts: list[int], kept: int, damage: int | None
) -> None:
    reads = raw_reads(coding, framing, cuts)
    if damage is not None and len(reads) > 1 and coding != "identity":  # a byte of a compressed body turned over
        number = 1 + damage % (len(reads) - 1)
        place = damage % len(reads[number])
        reads[number] = reads[number][:place] + bytes([reads[number][place] ^ 0x55]) + reads[number][place + 1 :]
    whole = kept >= len(reads)
    received = Received(
        reads=reads[:kept], times_ns=[1_000_000 * (n + 1) for n in range(min(kept, len(reads)))],
        close="complete" if whole and framing != "until close" else "eof", closed_ns=10**9,
    )  # fmt: skip
    asked = Asked(api="openai.chat", max_tokens=9)
    before = read_exchange(asked, received)
    told = json.loads(json.dumps(recorded(asked, received, with_text)))
    again = read_exchange(*of_recorded(msgspec.convert(told, RecordedExchange), "there"))
    if before.failure == "malformed_http":
        assert "framing" in told["notes"]  # which is undone, and its damage with it: the file says so
    else:
        assert seen(again) == seen(before)
    assert before.content == again.content or not with_text
    assert with_text or SECRET not in json.dumps(told)
