"""`inspect` of small exchanges of our own: each kind of fault, its right values and its exact warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.cli import main
from phasemeter.errors import FileError
from phasemeter.io.capture_file import CaptureWriter, Closed, Header, Started
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.schedule_file import ScheduleWriter
from phasemeter.metrics.boundaries import row_of_exchange
from phasemeter.metrics.tokens import count_tokens
from phasemeter.records.request import PlannedRequest
from phasemeter.runs.exchange_file import RecordedExchange, close_of, of_recorded
from phasemeter.runs.inspect import Inspected, inspect, json_document
from phasemeter.wire.exchange import read_exchange
from tests.wire.streams import DONE, chunk, event, finished, usage

Event = tuple[float, bytes]


def document(events: list[Event], close: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    asked = {"api": "openai.chat", "stream": True} | request
    return {
        "request": asked,
        "response": {"status": 200, "headers": {"Content-Type": "text/event-stream"}},
        "events": [[t, raw.decode("latin-1")] for t, raw in events],
        "close": close or {"t_ms": events[-1][0] if events else 1, "how": "eof"},
    }


def told(tmp_path: Path, events: list[Event], close: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    """What `inspect --json` says of a file with these events."""
    file = tmp_path / "exchange.json"
    file.write_text(json.dumps(document(events, close, **request)), encoding="utf-8")
    return dict(json.loads(json.dumps(json_document(inspect(str(file))), allow_nan=False)))


def text(*pieces: tuple[float, str]) -> list[Event]:
    return [(t, event(chunk(piece))) for t, piece in pieces]


ROLE = event(chunk(delta={"role": "assistant", "content": ""}))
HIDDEN = {"completion_tokens_details": {"reasoning_tokens": 50}}
LOGPROBS = [
    (t, event({"choices": [{"index": 0, "delta": {"content": "x" * n}, "logprobs": {"content": [{}] * n}}]}))
    for t, n in ((10.0, 2), (16.0, 1), (20.0, 2))
]
KINDS: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "a role chunk is no token": (
        [(5, ROLE), *text((20, "h"), (50, "i")), (60, finished(2))],
        {"ttft_ms": 20, "ttfo_ms": 20, "last_output_ms": 50, "output_chunk_times_ms": [20, 50], "inter_chunk_ms": [30],
         "tpot_ms": 30, "stream_end_ms": 60, "content": "hi", "output_tokens": 2, "output_tokens_source": "usage",
         "finish_reason": "stop", "outcome": "ok", "failure": None, "warnings": []},
    ),
    "events of one read": (
        [(10, event(chunk("a")) + event(chunk("b"))), *text((14, "c")), (15, finished(3))],
        {"output_chunk_times_ms": [10, 10, 14], "inter_chunk_ms": [0, 4], "tpot_ms": 2, "coalesced_gaps": 1, "warnings": []},
    ),
    "one token": (
        [*text((9, "x")), (10, finished(1))],
        {"ttft_ms": 9, "inter_chunk_ms": [], "tpot_ms": None, "tpot_null_reason": "fewer_than_2_tokens", "warnings": []},
    ),
    "all in one read": (
        [(40, event(chunk("all of it")) + finished(30))],
        {"ttft_ms": 40, "inter_chunk_ms": [], "tpot_ms": None, "tpot_null_reason": "single_arrival", "output_tokens": 30,
         "warnings": ["stream_not_incremental"]},
    ),
    "no text at all": (
        [(5, ROLE), (8, finished(1))],
        {"outcome": "ok", "ttft_ms": None, "ttfo_ms": None, "tpot_ms": None, "output_tokens": 1, "stream_end_ms": 8,
         "inter_chunk_ms": [], "warnings": ["no_output"]},
    ),
    "reasoning first": (
        [(10, event(chunk(delta={"reasoning": "hm"}))), *text((30, "4")), (31, finished(2))],
        {"ttft_ms": 10, "ttfo_ms": 30, "reasoning": "hm", "content": "4", "tpot_ms": 20, "inter_chunk_ms": [20], "warnings": []},
    ),
    "reasoning only": (
        [(10, event(chunk(delta={"reasoning": "h"}))), (15, event(chunk(delta={"reasoning": "m"}, finish="length"))),
         (16, finished(2, "length"))],
        {"ttft_ms": 10, "ttfo_ms": None, "content": "", "tpot_ms": 5, "finish_reason": "length", "warnings": []},
    ),
    "hidden reasoning": (
        [*text((100, "a"), (110, "b"), (120, "c")), (121, finished(53, **HIDDEN))],
        {"output_tokens": 53, "reasoning_tokens": 50, "visible_tpot_ms": 10, "all_token_tpot_ms": 20 / 52, "tpot_ms": None,
         "tpot_null_reason": "hidden_reasoning", "warnings": ["hidden_reasoning"]},
    ),
    "logprobs": (
        [*LOGPROBS, (21, event(chunk(finish="stop")) + DONE)],
        {"output_tokens": 5, "output_tokens_source": "logprobs", "tokens_per_chunk": [2, 1, 2], "tpot_ms": 2.5,
         "token_itl_ms": [0, 6, 2, 2], "warnings": []},
    ),
    "a bundled first chunk": (
        [(t, event(chunk("x", usage=usage(n)))) for t, n in ((10, 5), (17, 6), (24, 7))] + [(25, finished(7))],
        {"first_chunk_tokens": 5, "tpot_ms": 14 / 6, "decode_ms_per_token": 7, "warnings": ["first_chunk_bundled"]},
    ),
    "tokens before text": (
        [(5, event(chunk("", usage=usage(1)))), (8, event(chunk("a", usage=usage(2)))), (9, event(chunk("b", usage=usage(3)))),
         (10, finished(3))],
        {"first_token_by_usage_ms": 5, "ttft_ms": 8, "warnings": []},
    ),
    "text held back while tokens count": (
        [(5, event(chunk("", usage=usage(1)))), (8, event(chunk("abc", usage=usage(3)))), (10, finished(3))],
        {"first_token_by_usage_ms": 5, "ttft_ms": 8, "tpot_ms": None, "tpot_null_reason": "single_arrival", "warnings": []},
    ),
    "one visible token after hidden reasoning": (
        [*text((9, "x")), (10, finished(51, **HIDDEN))],
        {"ttft_ms": 9, "output_tokens": 51, "visible_tokens": 1, "tpot_ms": None, "warnings": ["hidden_reasoning"]},
    ),
    "a count of zero beside text": (
        [*text((1, "a"), (2, "b")), (3, finished(0))],
        {"output_tokens": None, "prompt_tokens": 7, "tpot_ms": None, "tpot_null_reason": "unknown_tokens", "warnings": []},
    ),
    "no usage": (
        [*text((1, "a"), (2, "b")), (3, event(chunk(finish="stop")) + DONE)],
        {"output_tokens": None, "output_tokens_source": None, "tpot_ms": None, "tpot_null_reason": "unknown_tokens", "warnings": []},
    ),
    "half a stream": (
        text((4, "a"), (6, "b")),
        {"outcome": "failed", "failure": "truncated_stream", "ttft_ms": 4, "output_tokens": None, "warnings": []},
    ),
    "fractions of a millisecond": (
        [*text((0.125, "a"), (0.5, "b")), (0.75, finished(2))],
        {"ttft_ms": 0.125, "inter_chunk_ms": [0.375], "tpot_ms": 0.375, "stream_end_ms": 0.75},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_of_each_kind_has_its_exact_values(tmp_path: Path, kind: str) -> None:
    events, expected = KINDS[kind]
    found = told(tmp_path, events)
    assert {key: found[key] for key in expected} == expected


def test_choices_are_told_apart(tmp_path: Path) -> None:
    events = [
        (t, event(chunk(piece, index=i))) for t, piece, i in ((10, "a", 0), (13, "b", 1), (20, "c", 0), (23, "d", 1))
    ]
    end = (
        event(chunk(finish="stop"))
        + event(chunk(index=1, finish="length"))
        + event({"choices": [], "usage": usage(4)})
        + DONE
    )
    found = told(tmp_path, [*events, (24, end)], n=2)
    parts = {
        index: {
            key: choice[key]
            for key in ("ttft_ms", "inter_chunk_ms", "content", "finish_reason", "tpot_ms", "output_tokens")
        }
        for index, choice in found["choices"].items()
    }
    assert parts == {
        "0": {
            "ttft_ms": 10,
            "inter_chunk_ms": [10],
            "content": "ac",
            "finish_reason": "stop",
            "tpot_ms": 10,
            "output_tokens": 2,
        },
        "1": {
            "ttft_ms": 13,
            "inter_chunk_ms": [10],
            "content": "bd",
            "finish_reason": "length",
            "tpot_ms": 10,
            "output_tokens": 2,
        },
    }
    assert (found["ttft_ms"], found["per_choice_tpot_ms"], found["output_tokens"]) == (10, 10, 4)


def test_impossible_usage_is_shown_beside_the_count_that_is_trusted(tmp_path: Path) -> None:
    events = [(t, event(chunk("x", usage=usage(n)))) for t, n in ((10, 1), (20, 3), (30, 6))]
    found = told(tmp_path, [*events, (31, finished(6))], max_tokens=3)
    assert (found["output_tokens"], found["output_tokens_source"], found["trusted_output_tokens"]) == (6, "usage", 3)
    assert (found["tpot_ms"], found["warnings"]) == (10, ["usage_exceeds_max_tokens"])


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict"])
def test_the_most_tokens_asked_for_are_known_under_every_apis_name(tmp_path: Path, name: str) -> None:
    stream = [*text((10, "a"), (20, "b")), (30, finished(9))]
    assert told(tmp_path, stream, **{name: 5})["warnings"] == ["usage_exceeds_max_tokens"]
    assert told(tmp_path, stream, **{name: -1})["warnings"] == []  # without a limit


@pytest.mark.parametrize(
    ("how", "outcome", "failure"),
    [("reset", "failed", "transport"), ("timeout_idle", "failed", "timeout_idle"), ("cancelled", "cancelled", None)],
)
def test_the_close_of_a_recorded_exchange_counts(tmp_path: Path, how: str, outcome: str, failure: str | None) -> None:
    found = told(tmp_path, text((4, "a")), {"t_ms": 9, "how": how})
    assert (found["outcome"], found["failure"], found["stream_end_ms"], found["ttft_ms"]) == (outcome, failure, 9, 4)


def test_a_recording_of_a_socket_is_read_from_its_raw_http(tmp_path: Path) -> None:
    body = json.dumps({"max_tokens": 4, "stream": True})
    request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n{body}"
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    reads = [
        (100, head),
        (3_000_000, event(chunk("°")).decode()),
        (5_000_000, event(chunk("b")).decode()),
        (6_000_000, finished(2).decode()),
    ]
    lines = [json.dumps({"request": request})]
    lines += [json.dumps({"t_ns": t, "n": len(data.encode()), "data": data}) for t, data in reads]
    file = tmp_path / "x.recv.jsonl"
    file.write_text("\n".join([*lines, json.dumps({"t_ns": 7_000_000, "eof": True})]), encoding="utf-8")
    found = json_document(inspect(str(file)))
    assert (found["outcome"], found["ttft_ms"], found["tpot_ms"], found["content"], found["warnings"]) == (
        "ok",
        3,
        2,
        "°b",
        [],
    )


BAD_FILES = {
    "empty": ("x.json", "", "empty"),
    "not json": ("x.json", "# HELP", "no JSON"),
    "no events": ("x.json", '{"given": {}}', "no `events`"),
    "a bad event": ("x.json", '{"events": [[1]]}', "events"),
    "time going back": ("x.json", '{"events": [[5, "a"], [4, "b"]]}', r"events\[1\]"),
    "a negative time": ("x.json", '{"events": [[-5, "a"]]}', r"events\[0\]"),
    "a wide character": ("x.json", '{"events": [[5, "\\u6d77"]]}', "one byte"),
    "an unknown api": ("x.json", '{"events": [], "request": {"api": "magic"}}', "openai.chat"),
    "an unknown close": ("x.json", '{"events": [], "close": {"how": "magic"}}', "close.how"),
    "a broken line": ("x.recv.jsonl", '{"request": "POST /v1/chat/completions HTTP/1.1"}\n{"t_ns"', "line 2"),
    "no request": ("x.recv.jsonl", '{"t_ns": 1}', "line 1"),
    "another path": ("x.recv.jsonl", '{"request": "GET /metrics HTTP/1.1\\r\\n\\r\\n"}', "/metrics"),
    "a read without time": ("x.recv.jsonl", '{"request": "POST /v1/completions HTTP/1.1"}\n{"data": "x"}', "t_ns"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_line_that_names_it_and_its_place(tmp_path: Path, kind: str) -> None:
    name, content, words = BAD_FILES[kind]
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(FileError, match=words) as raised:
        inspect(str(file))
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_file_a_folder_and_a_missing_run_are_told_apart(tmp_path: Path) -> None:
    for target, words in (
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "#REQUEST"),
        (f"{tmp_path}/none#3", "not a run directory"),
    ):
        with pytest.raises(FileError, match=words):
            inspect(str(target))


def test_the_verb_prints_one_document_or_a_time_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "exchange.json"
    file.write_text(json.dumps(document([*text((20, "h"), (50, "i")), (60, finished(2))])), encoding="utf-8")
    assert main.run(["inspect", str(file), "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["tpot_ms"] == 30 and printed.count("\n") == 1
    assert main.run(["inspect", str(file)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("TTFT 20.00 ms", "TPOT 30.00 ms", "'h'", "30.00", "stream end"))
    assert main.run(["inspect", str(file), "--rows", "2"]) == 0
    assert "more" in capsys.readouterr().out
    file.write_text("{}", encoding="utf-8")
    assert main.run(["inspect", str(file), "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_a_tokenizer_counts_where_the_server_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"ab": 0, "c": 1, "?": 2}, "unk_token": "?"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model,
    }))  # fmt: skip
    file = tmp_path / "exchange.json"
    file.write_text(json.dumps(document([*text((1, "a"), (2, "b c")), (3, event(chunk(finish="stop")) + DONE)])))
    assert main.run(["inspect", str(file), "--json", "--tokenizer", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["output_tokens"], found["output_tokens_source"]) == (2, "tokenizer_full_text")
    assert main.run(["inspect", str(file), "--tokenizer", str(file)]) == 2
    assert main.run(["inspect", str(file), "--tokenizer", str(tmp_path / "none")]) == 2


def run_of_one(path: Path) -> Path:
    """A run directory whose only request, number 3, was sent at 1 s and answered over 40 ms; stamps are the user's."""
    second = 10**9
    events = [*text((20, "h"), (40, "Secret")), (45, finished(2))]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    run = RunDirectory.create(path)
    schedule = ScheduleWriter(run.capture, "shared")
    schedule.add(PlannedRequest(request_id="req-3", index=3, output_tokens=9), b"{}")
    schedule.finish()
    schedule.close()
    writer = CaptureWriter(run.capture / "worker-0.capture", Header(0, 1, second, "user", 1))
    writer.starts.append(
        Started(
            0, "req-3", 0, False, second - 5, None, None, None, None, None, second, second + 9, True, False, 1, "x", 2
        )
    )
    for t, raw in [(5.0, head), *events]:
        writer.numbers.append(0)
        writer.reads.append((second + round(t * 1e6), None, raw))
    writer.closes.append(Closed(0, second + 50_000_000, "complete", None, None))
    writer.close("done")
    return path


@pytest.mark.parametrize("name", ["req-3", "3"])
def test_a_request_of_a_run_is_found_by_id_or_number_and_counts_from_its_send(tmp_path: Path, name: str) -> None:
    run = run_of_one(tmp_path / "run")
    found = json_document(inspect(f"{run}#{name}"))
    assert (found["ttft_ms"], found["headers_ms"], found["tpot_ms"], found["stream_end_ms"]) == (20, 5, 20, 45)
    assert (found["content"], found["outcome"], found["warnings"]) == ("hSecret", "ok", [])
    with pytest.raises(FileError, match="no request `4`"):
        inspect(f"{run}#4")


def test_an_exported_request_of_a_run_reads_like_the_request(tmp_path: Path) -> None:
    run = run_of_one(tmp_path / "run")
    out = tmp_path / "out.json"
    assert main.run(["export-exchange", f"{run}#3", "--output", str(out)]) == 0
    assert "Secret" not in out.read_text(encoding="utf-8")
    mine, theirs = json_document(inspect(f"{run}#3")), json_document(inspect(str(out)))
    same = (
        "outcome",
        "ttft_ms",
        "tpot_ms",
        "output_chunk_times_ms",
        "output_tokens",
        "stream_end_ms",
        "warnings",
        "finish_reason",
    )
    assert {key: mine[key] for key in same} == {key: theirs[key] for key in same}


TEXT = st.text(st.characters(categories=["L", "P", "Cs"]), max_size=3)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-(2**80), 2**80), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXT, inner, max_size=2)),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["id", "model", "timings", "error", "usage", "metrics"]), VALUES), TEXT, TEXT)
@settings(max_examples=100, deadline=None)
def test_whatever_a_server_writes_the_document_is_strict_json(extra: dict[str, Any], piece: str, finish: str) -> None:
    raw = json.dumps(chunk(piece, finish=finish) | extra).encode()
    asked, received = of_recorded(RecordedExchange(events=[(1.0, f"data: {raw.decode()}\n\n")]), "x")
    exchange = read_exchange(asked, received)
    counts = count_tokens(exchange)
    found = Inspected(row=row_of_exchange(exchange, counts, "x", 0), exchange=exchange, counts=counts, origin_ns=0)
    json.loads(msgspec.json.encode(json_document(found)), parse_constant=pytest.fail)


def test_a_byte_order_mark_before_the_document_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"events": [[5, "data: [DONE]\\n\\n"]]}')
    assert inspect(str(path)).row.failure == "empty_response"


@pytest.mark.parametrize(
    ("word", "close"),
    [("EOF", "eof"), ("clean close", "eof"), ("connection-reset", "reset"), ("idle timeout", "timeout_idle"),
     ("client_cancelled", "cancelled"), ("timeout", "timeout_total"), ("first-byte-timeout", "timeout_first_byte"),
     ("read_timeout", "timeout_idle"), ("server_disconnected", "eof"), ("broken pipe", "reset"), ("incomplete_read", "eof"),
     ("dns_error", "refused"), ("kept alive", "complete")],
)  # fmt: skip
def test_other_writers_words_for_a_close_are_known(word: str, close: str) -> None:
    assert close_of(word, "x") == close


def test_no_limit_of_rows_is_spelt_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "exchange.json"
    file.write_text(json.dumps(document([*((100 + i, event(chunk("w"))) for i in range(30)), (200, finished())])))
    for rows, cut in (("6", True), ("0", False)):
        assert main.run(["inspect", str(file), "--rows", rows]) == 0
        assert (" more" in capsys.readouterr().out) == cut
    assert main.run(["inspect", str(file), "--rows", "-1"]) == 2
