"""Traces: every fault has a rule or a line."""

from __future__ import annotations

import gzip
import json
from array import array
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.cli.main import run
from phasemeter.errors import FileError, UserError
from phasemeter.runs.trace_files import load_for_replay
from phasemeter.workload.trace_stamps import StampError, StampReader
from phasemeter.workload.trace_words import words_of
from phasemeter.workload.traces import Trace, TraceOptions, load_trace, spread_ns

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def load(text: str, **options: object) -> Trace:
    return load_trace(text.splitlines(keepends=True), "t.csv", TraceOptions(**options))  # type: ignore[arg-type]


def offsets(text: str, **options: object) -> list[float]:
    trace = load(text, **options)
    assert trace.offsets_ns is not None
    return [value / 1e9 for value in trace.offsets_ns]


def azure(*stamps: str) -> str:
    return AZURE + "".join(f"{stamp},10,5\n" for stamp in stamps)


def kinds(faults: object) -> list[tuple[int, str]]:
    return [(fault.line, fault.kind) for fault in faults]  # type: ignore[attr-defined]


def test_seven_digits_no_fraction_zones_and_t_all_read_exactly() -> None:
    stamps = (
        "2024-03-01 00:00:00.0000001+00:00",
        "2024-03-01 00:00:01+00:00",
        "2024-03-01T00:00:02Z",
        "2024-03-01 02:00:03+02:00",
    )
    trace = load(azure(*stamps))
    assert list(trace.offsets_ns or ()) == [0, 999_999_900, 1_999_999_900, 2_999_999_900]


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1)), st.integers(-12, 12))
@settings(deadline=None, max_examples=100)
def test_a_date_reads_as_the_standard_library_reads_it(moment: datetime, hours: int) -> None:
    from_iso = moment.isoformat(sep=" ")
    zone = f"{'+' if hours >= 0 else '-'}{abs(hours):02d}:00"
    read = StampReader(None).read(from_iso + zone)
    expected = datetime.fromisoformat(from_iso + zone)
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    assert read == (expected - epoch) // timedelta(microseconds=1) * 1000


def test_dates_with_and_without_a_zone_are_not_mixed() -> None:
    trace = load(azure("2024-03-01 00:00:00", "2024-03-01 00:00:01+00:00", "2024-03-01 00:00:02"))
    assert [fault.line for fault in trace.errors] == [3]
    assert "one kind" in trace.errors[0].message


@pytest.mark.parametrize("stamp", ["NaN", "inf", "yesterday", "2024-02-30 00:00:00", "2024-03-01 25:00:00", "1e400"])
def test_an_impossible_stamp_is_an_error_with_its_line(stamp: str) -> None:
    trace = load(azure("2024-03-01 00:00:00", stamp))
    assert [fault.line for fault in trace.errors] == [3]
    assert not trace.accepted
    assert len(trace.lines) == 1


def test_an_epoch_in_ns_keeps_every_digit() -> None:
    text = "timestamp,input_tokens,output_tokens\n1790000000000000001,5,5\n1790000000000000003,5,5\n"
    trace = load(text)
    assert list(trace.offsets_ns or ()) == [0, 2]
    assert (1, "epoch_unit_guessed") in kinds(trace.warnings)


@pytest.mark.parametrize(("name", "gap"), [("time_s", 2.0), ("time_ms", 0.002), ("time_us", 2e-6), ("time", 2.0)])
def test_a_column_says_its_unit(name: str, gap: float) -> None:
    assert offsets(f"{name},input_tokens,output_tokens\n1,5,5\n3,5,5\n") == [0, gap]


def test_unsorted_rows_are_sorted_stably_with_a_notice() -> None:
    trace = load("time,input_tokens,output_tokens\n5,1,1\n-2,2,1\n5,3,1\n-2,4,1\n")
    assert list(trace.input_tokens or ()) == [2, 4, 1, 3]
    assert list(trace.offsets_ns or ()) == [0, 0, 7 * 10**9, 7 * 10**9]
    assert (3, "unsorted") in kinds(trace.warnings)


def test_one_missing_stamp_is_an_error_and_all_missing_is_a_file_without_a_schedule() -> None:
    some = load("time,input_tokens,output_tokens\n1,1,1\n,2,1\n")
    assert kinds(some.errors) == [(3, "stamp")]
    none = load("time,input_tokens,output_tokens\n,1,1\n,2,1\n")
    assert none.accepted
    assert none.offsets_ns is None
    assert (1, "no_timestamps") in kinds(none.warnings)


@pytest.mark.parametrize("count", ["-1", "", "12.5", "NaN", "abc", "99999999999", "1e400"])
def test_an_impossible_count_is_an_error_with_its_line(count: str) -> None:
    trace = load(f"time,input_tokens,output_tokens\n1,10,5\n2,{count},5\n")
    assert [fault.line for fault in trace.errors] == [3]


def test_counts_as_whole_floats_are_taken_with_a_notice() -> None:
    trace = load("time,input_tokens,output_tokens\n1,10.0,5.0\n2,11,6\n")
    assert list(trace.input_tokens or ()) == [10, 11]
    assert (1, "float_counts") in kinds(trace.warnings)


def test_zero_output_rows_are_left_out_and_counted_or_kept_as_one_token() -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n7,a,9,0,9,x\n7,a,8,3,11,x\n9,a,7,2,9,x\n"
    )
    dropped = load(text)
    assert (dropped.dropped_zero_output, list(dropped.input_tokens or ())) == (1, [8, 7])
    kept = load(text, keep_zero_output=True)
    assert list(kept.output_tokens or ()) == [1, 3, 2]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_bom_crlf_quotes_and_delimiters_are_read(delimiter: str) -> None:
    rows = ["\ufeffnote", "time", "input_tokens", "output_tokens"], ['"a\r\nb"', "1", "10", "5"], ["c", "2", "-3", "5"]
    text = "".join(delimiter.join(row) + "\r\n" for row in rows)
    trace = load(text)
    assert list(trace.lines) == [2]
    assert [fault.line for fault in trace.errors] == [4]  # the quoted field took two lines


def test_a_short_row_is_an_error_with_its_line() -> None:
    assert kinds(load("time,input_tokens,output_tokens\n1,10,5\n\n2,10\n").errors) == [(4, "fields")]


@pytest.mark.parametrize("text", ["", "\n\n", AZURE, "[1]", "a,b\n1,2\n", "{}\n", "nonsense\n"])
def test_what_is_no_trace_is_refused_with_file_and_line(text: str) -> None:
    with pytest.raises(FileError, match=r"t\.csv:\d"):
        load(text)


def test_a_missing_column_lists_found_and_wanted_and_can_be_named() -> None:
    text = "Timestamp,Prompt tokens,Response tokens,Log Type\n1,10,5,x\n"
    with pytest.raises(FileError, match=r"Prompt tokens.*wanted.*Request tokens"):
        load(text)
    assert list(load(text, columns="input=Prompt tokens").input_tokens or ()) == [10]


def test_hash_ids_keep_64_bits_and_have_to_fit_the_length() -> None:
    text = f'{{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [{2**53 + 1}, {2**64 - 1}]}}\n'
    assert load(text).ids_of(0) == (2**53 + 1, 2**64 - 1)
    wrong = load(text, block_tokens=1000)
    assert wrong.invalid_lines == [1]
    assert not wrong.accepted
    lenient = load(text, block_tokens=1000, lenient=True)
    assert lenient.accepted
    assert lenient.ids_of(0) == (2**53 + 1,)


@pytest.mark.parametrize("ids", ["[1.5]", "[18446744073709551616]", "[-1]", '["a"]', "7"])
def test_an_impossible_hash_id_is_an_error(ids: str) -> None:
    text = f'{{"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": {ids}}}\n'
    assert [fault.line for fault in load(text).errors] == [1]


def test_a_json_row_without_what_others_have_is_the_fault_even_when_it_comes_first() -> None:
    rows = [
        '{"input_length": 6, "output_length": 1}',
        '{"timestamp": 500, "input_length": 6, "output_length": 1}',
        "{oops",
        "[]",
    ]
    assert [fault.line for fault in load("\n".join(rows)).errors] == [1, 3, 4]


def test_a_bailian_trace_counts_seconds_and_blocks_of_16() -> None:
    row = '{"chat_id": 1, "parent_chat_id": -1, "timestamp": %s, "input_length": 33, "output_length": 4, "hash_ids": [1, 2, 3]}'
    found = load_trace([row % "61.5", row % "63"], "f")
    assert (found.columns.format, found.block_tokens, found.error_count) == ("bailian", 16, 0)
    assert list(found.offsets_ns or ()) == [0, 1_500_000_000]
    assert next(found.rows()).block_tokens == 16


def test_stamps_of_a_mooncake_file_that_can_only_be_seconds_are_read_so_with_a_notice() -> None:
    row = '{"timestamp": %s, "input_length": 10, "output_length": 4}'
    for stamps, offsets, kinds in (
        (("0.0", "0.2", "0.4"), [0, 200_000_000, 400_000_000], ["unit_guessed"]),
        (("0.5", "1500.5", "3000"), [0, 1_500_000_000, 2_999_500_000], []),  # ms with fractions
        (("0", "1", "1"), [0, 1_000_000, 1_000_000], []),  # whole ms, however close
    ):
        found = load_trace([row % stamp for stamp in stamps], "f")
        assert list(found.offsets_ns or ()) == offsets and [w.kind for w in found.warnings] == kinds


def test_a_file_of_texts_says_that_they_are_not_sent() -> None:
    found = load_trace(['{"timestamp": 0, "text_input": "hello", "output_length": 4}'], "f")
    assert (found.columns.format, found.input_tokens, [w.kind for w in found.warnings]) == (
        "mooncake",
        None,
        ["no_lengths"],
    )


def test_columns_that_are_not_read_are_named_as_an_outcome_in_a_burstgpt_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Elapsed time` is how long the recorded service took: an outcome of that run, no part of a workload (HPMLL/BurstGPT)."""
    file = tmp_path / "burst.csv"
    file.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,71,12.5,ChatGPT,47,18,65,API log\n45,72,3,GPT-4,108,23,131,API log\n"
    )
    assert run(["trace", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["columns"] == {
        "time": "Timestamp", "input": "Request tokens", "output": "Response tokens", "session": "Session ID",
    }  # fmt: skip
    assert told["columns_unread"] == ["Elapsed time", "Model", "Total tokens", "Log Type"]
    assert run(["trace", str(file)]) == 0
    assert "columns not read: Elapsed time, Model, Total tokens, Log Type" in capsys.readouterr().out


def test_columns_of_simulators_request_files_are_known() -> None:
    for header in ("arrival_timestamp,prompt_size,token_size", "arrived_at,num_prefill_tokens,num_decode_tokens",
                   "timestamp_start_unix_s,input_toks,output_toks"):  # fmt: skip
        found = load_trace([header, "0.5,10,4", "1.5,11,5"], "f")
        assert list(found.offsets_ns or ()) == [0, 1_000_000_000] and list(found.input_tokens or ()) == [10, 11]


def test_gaps_are_squeezed_scaled_sliced_and_said() -> None:
    text = "time,input_tokens,output_tokens\n100,1,1\n100.4,2,1\n240.4,3,1\n240.9,4,1\n"
    assert offsets(text) == [0, 0.4, 140.4, 140.9]
    assert offsets(text, max_idle_s=10) == [0, 0.4, 10.4, 10.9]
    assert offsets(text, rate_scale=2, max_idle_s=10) == [0, 0.2, 5.2, 5.45]
    assert offsets(text, slice="0.2s:141s") == [0, 140, 140.5]
    assert offsets(text, slice="1:3") == [0, 140]
    assert load(text, slice="1:3").did == ["slice 1:3: 2 of 4 rows, its first one now at 0"]
    assert load(text).warnings[-1].kind == "quiet_gap"


def test_a_sample_says_how_many_of_how_many_and_repeats() -> None:
    text = "time,input_tokens,output_tokens\n" + "".join(f"{i},{i + 1},1\n" for i in range(25))
    ten = load(text, sample="10")
    assert "10 of 25 rows" in ten.did[0]
    assert list(ten.lines) == sorted(ten.lines) == list(load(text, sample="10").lines)
    assert 0 < len(load(text, sample="40 %").lines) < 25


@pytest.mark.parametrize(
    "wrong",
    [
        {"slice": "x"},
        {"slice": "7:9"},
        {"slice": "5:1 parsec"},
        {"sample": "-3"},
        {"rate_scale": 0.0},
        {"rate_scale": 1e-300},  # its instants would be no 64-bit number of ns
        {"columns": "when=x"},
    ],
)
def test_an_impossible_option_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        load("time,input_tokens,output_tokens\n1,1,1\n2,1,1\n", **wrong)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
@settings(deadline=None, max_examples=100)
def test_spreading_keeps_order_and_leaves_no_second(seconds: list[int]) -> None:
    whole = array("q", (second * 10**9 for second in sorted(seconds)))
    spread = spread_ns(whole)
    assert [value // 10**9 for value in spread] == sorted(seconds)
    assert len(set(spread)) == len(spread)
    assert list(spread) == sorted(spread)


def test_a_packed_file_is_known_by_its_bytes_and_a_long_prompt_beside_the_lengths_is_no_fault(tmp_path: Path) -> None:
    text = f"timestamp,prompt,input_tokens,output_tokens\n0,{'a' * 200_000},1,2\n1,b,1,2\n"
    for name in ("trace.csv", "trace.csv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert len(load_for_replay(tmp_path / name).lines) == 2


def test_two_origins_are_rebased_and_one_origin_is_not() -> None:
    head = "request_id,arrival_time_us,send_time_us\n"
    far = load(head + "0,10,1790000000000010\n1,30,1790000000000090\n")
    assert list(far.client_queue_ns or ()) == [0, 60_000]
    near = load(head + "0,10,20\n1,30,90\n")
    assert list(near.client_queue_ns or ()) == [10_000, 60_000]
    assert not [fault for fault in near.warnings if fault.kind in ("origins_differ", "sent_before_arrival")]
    early = load(head + "0,10,1790000000000030\n1,30,1790000000000040\n")
    assert list(early.client_queue_ns or ()) == [0, -10_000]
    assert [(fault.kind, fault.line) for fault in early.warnings] == [("origins_differ", 2), ("sent_before_arrival", 3)]


def test_a_stamp_beyond_64_bits_is_refused() -> None:
    with pytest.raises(StampError, match="64 bits"):
        StampReader(10**9).read("9223372037")


def test_replay_refuses_a_file_in_doubt_and_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,input_tokens,output_tokens\n1,1,1\nx,1,1\n")
    with pytest.raises(FileError, match=r"t\.csv:3"):
        load_for_replay(path)
    lenient = load_for_replay(path, TraceOptions(lenient=True))
    assert (list(lenient.lines), lenient.did) == ([2], ["lenient: 1 faulty rows left out"])
    path.write_bytes(b"time,input_tokens,output_tokens\n1,1,\xff\n")
    with pytest.raises(FileError, match=r"t\.csv:2: is no UTF-8"):
        load_for_replay(path)
    with pytest.raises(FileError, match="can't be read"):
        load_for_replay(tmp_path / "absent.csv")


def test_the_command_prints_one_document_and_a_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,input_tokens,output_tokens\n1,10,5\n2,20,6\n4,30,7\n")
    assert run(["trace", str(path), "--json", "--max-idle", "1.5"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["offsets_s"], answer["max_idle_s"], answer["rows"]) == ([0, 1, 2.5], 1.5, 3)
    assert run(["trace", str(path)]) == 0
    assert "3 of 3 rows" in capsys.readouterr().out
    path.write_text("")
    assert run(["trace", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["line"] == 1


@pytest.mark.parametrize("number", ["130", "131", "134", "136", "137", "142"])
def test_the_handed_traces_read_as_their_bytes_say(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not CASES.is_dir():
        pytest.skip("../shared is not here: the handed cases can't be read")
    expected_file = next(CASES.glob(f"{number}-*.expected.json"))
    expected = json.loads(expected_file.read_text())["expected"]
    source = next(p for p in CASES.glob(f"{number}-*") if p.suffix in {".csv", ".jsonl"})
    squeezed = expected.pop("with_max_idle_10_s", None)
    run(["trace", str(source), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert {key: answer[key] for key in expected} == expected
    if squeezed is not None:
        run(["trace", str(source), "--json", "--max-idle", "10s"])
        assert json.loads(capsys.readouterr().out)["offsets_s"] == squeezed


def test_the_handed_wrong_columns_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    if not CASES.is_dir():
        pytest.skip("../shared is not here: the handed cases can't be read")
    assert run(["trace", str(next(CASES.glob("133-*.csv"))), "--json"]) == 2
    message = json.loads(capsys.readouterr().out)["errors"][0]["message"]
    assert "Request tokens" in message
    assert "Prompt tokens" in message


def test_what_reading_a_trace_left_out_or_noticed_is_told_in_words_each_thing_once() -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    found = load(head + "6,C,1,1,2,x\n5,C,2,0,2,x\n5,C,3,1,4,x\n5,C,3,1,4,x\n", sample="2")
    told = words_of(found)
    assert [text.split(": ", 1)[0] for text in told] == ["t.csv"] * len(told)
    assert [sum(word in text for text in told) for word in ("no output", "sorted", "sample 2", "whole seconds")] == [
        1,
        1,
        1,
        1,
    ]
    assert words_of(load("input_tokens,output_tokens\n1,1\n")) == []
