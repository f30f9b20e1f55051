"""What is written into the tables comes back, whatever the parts' size."""

from pathlib import Path

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import FileError
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.report.html.run_tables import open_tables
from phasemeter.runs import tables

ns = st.one_of(st.none(), st.integers(0, 2**62))


@st.composite
def choices(draw: st.DrawFn) -> ChoiceTimes:
    count = draw(st.integers(0, 5))
    times = tuple(sorted(draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count))))
    tokens = draw(st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=count, max_size=count).map(tuple)))
    return ChoiceTimes(
        index=draw(st.integers(0, 3)),
        times_ns=times,
        reads=tuple(range(count)),
        tokens=tokens,
        reasoning_events=draw(st.integers(0, count)),
        finish_reason=draw(st.sampled_from([None, "stop"])),
    )


@st.composite
def rows(draw: st.DrawFn) -> RequestRow:
    return RequestRow(
        request_id=draw(st.text(min_size=1, max_size=5)),
        outcome=draw(st.sampled_from(["ok", "failed", "cancelled", "unsent"])),
        failure=draw(st.sampled_from([None, "transport"])),
        due_ns=draw(st.integers(0, 2**62)),
        first_token_ns=draw(ns),
        first_output_ns=draw(ns),
        stream_end_ns=draw(ns),
        output_tokens=draw(st.one_of(st.none(), st.integers(0, 10**6))),
        warnings=tuple(draw(st.lists(st.sampled_from(["a", "b"]), max_size=2))),
        choices=tuple(draw(st.lists(choices(), max_size=2))),
        stream=draw(st.booleans()),
        single_arrival=draw(st.booleans()),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(rows(), max_size=6), st.integers(1, 3), st.integers(1, 4))
def test_rows_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, some: list[RequestRow], requests_a_part: int, events_a_part: int
) -> None:
    directory = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "REQUESTS_A_PART", requests_a_part)
        patch.setattr(tables, "EVENTS_A_PART", events_a_part)
        tables.write_tables(directory, some)
    assert list(tables.read_rows(directory)) == some
    assert sorted(path.name for path in directory.iterdir()) == ["events.parquet", "requests.parquet"]


def test_the_promised_columns_are_there_with_their_clock(tmp_path: Path) -> None:
    row = RequestRow(request_id="a", outcome="ok", due_ns=1, first_token_ns=5, first_output_ns=9, stream_end_ns=12)
    writer = tables.TableWriter(tmp_path, ("server_queue_s",))
    writer.add(row, {"prefill_start": (77, "engine_monotonic")}, {"server_queue_s": 0.25})
    writer.close()
    (record,) = polars.read_parquet(tmp_path / "requests.parquet").iter_rows(named=True)
    assert record["prefill_start_ts"] == 77 and record["prefill_start_ts_clock"] == "engine_monotonic"
    assert record["queue_enter_ts"] is None and record["queue_enter_ts_clock"] is None
    assert record["first_output_received_ts"] == 5 and record["first_output_received_class"] == "reasoning"
    assert record["request_complete_ts"] == 12 and record["server_queue_s"] == 0.25


def test_a_missing_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="rebuild them"):
        list(tables.read_rows(tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not here")
def test_a_full_disk_is_told_as_the_systems_error_and_another_fault_as_it_is(tmp_path: Path) -> None:
    some = [RequestRow(request_id=str(i), outcome="failed", due_ns=i) for i in range(2000)]
    for table in (tables.REQUESTS, tables.EVENTS):
        folder = tmp_path / table
        folder.mkdir()
        (folder / f".{table}.0.part").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left on device"):
            tables.write_tables(folder, some)
    frame = polars.LazyFrame({"a": [1]}).select(polars.col("nowhere"))
    with pytest.raises(polars.exceptions.ColumnNotFoundError):
        tables._write(frame, tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["[]", "[a]", "a*", "run?", "{x,y}"])
def test_a_folder_is_no_pattern_whatever_its_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, folder in enumerate((name, "a", "abc", "runx")):  # a pattern would find some of the others
        (tmp_path / folder).mkdir(exist_ok=True)
        some = [RequestRow(request_id=f"{number}-{i}", outcome="failed", due_ns=i) for i in range(4)]
        monkeypatch.setattr(tables, "REQUESTS_A_PART", 2)
        tables.write_tables(tmp_path / folder, some)
    assert [row.request_id for row in tables.read_rows(tmp_path / name)] == [f"0-{i}" for i in range(4)]
    with open_tables(tmp_path / name) as read:
        assert read.requests["request_id"].to_list() == [f"0-{i}" for i in range(4)]
