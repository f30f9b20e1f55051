"""Sweeps and repetitions: one folder a run, an index of them, and nothing measured twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phasemeter.errors import FileError, UserError
from phasemeter.io.run_directory import RunDirectory
from phasemeter.runs.asked import Asked
from phasemeter.runs.many import points
from tests.runs.served import Behaviour, served
from tests.runs.whole import Bench


def index_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "index.json").read_bytes())
    return found


def test_a_sweep_over_rates_has_a_folder_for_each_and_an_index(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--rate", "50,100", "--requests", "4")
        assert len(server.measured) == 8
    assert ran.code == 0, ran.err
    assert [run["run"]["rate_per_s"] for run in ran.result["runs"]] == [50, 100]
    listed = index_of(ran.path)
    assert [row["run"] for row in listed["runs"]] == ["rate-50", "rate-100"]
    assert all(row["outcomes"]["ok"] == 4 and row["ttft.p50_s"] > 0 for row in listed["runs"])
    for row in listed["runs"]:
        assert bench.report(ran.path / row["run"], "--json").outcomes["ok"] == 4
    with pytest.raises(FileError, match=r"holds 2 runs: name one, like .*/rate-100"):
        RunDirectory.open(ran.path)


def test_repetitions_have_seeds_of_their_own_and_a_spread_and_resume_skips_what_is_complete(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--concurrency", "2", "--requests", "3", "--repeat", "2")
        assert ran.code == 0, ran.err
        assert ran.result["spread"]["ttft.p50"]["n"] == 2
        assert [row["seed"] for row in index_of(ran.path)["runs"]] == [0, 1]
        (ran.path / "repeat-2" / "capture" / "worker-0.end").write_bytes(b" " * 512)  # as if killed
        again = bench(server.url, "--concurrency", "2", "--requests", "3", "--repeat", "2", "--resume", output=ran.path)
        assert again.code == 0, again.err
        assert len(server.measured) == 9
    assert (ran.path / "repeat-2.partial-1").is_dir()
    assert not again.result["runs"][1]["partial"]


def test_a_series_in_a_folder_that_exists_needs_resume(bench: Bench, tmp_path: Path) -> None:
    with served() as server:
        ran = bench(server.url, "--concurrency", "1,2", "--requests", "1", output=tmp_path)
        assert ran.code == 2 and "--resume" in ran.err and server.paths == []


def test_resume_of_a_single_run_reads_what_is_there(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--requests", "2")
        again = bench(server.url, "--requests", "2", "--resume", output=ran.path)
        assert again.code == 0 and again.outcomes == ran.outcomes
        assert len(server.measured) == 2


def test_a_service_that_is_gone_before_a_later_run_ends_the_series_with_what_there_is(bench: Bench) -> None:
    with served(Behaviour(models=None)) as server:

        def refuse_after_three(request: object) -> tuple[int, str] | None:
            return (401, '{"error": {"message": "key expired"}}') if len(server.measured) >= 3 else None

        server.behaviour.fault = lambda request: refuse_after_three(request) if request.number is None else None
        ran = bench(server.url, "--model", "tiny", "--concurrency", "1,2,3", "--requests", "3")
    assert ran.code == 1 and "key expired" in ran.err and "the series ends here" in ran.err
    assert len(ran.result["runs"]) == 1 and index_of(ran.path)["planned"] == 3
    assert not (ran.path / "concurrency-2").exists()


def test_a_series_whose_first_run_is_refused_leaves_no_folder(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--model", "huge", "--concurrency", "1,2")
    assert ran.code == 2 and not ran.path.exists()


def test_points_are_rates_times_repetitions_by_name() -> None:
    named = [name for name, _ in points(Asked(rate="1/s, inf", repeat=2))]
    assert named == ["rate-1-repeat-1", "rate-1-repeat-2", "rate-inf-repeat-1", "rate-inf-repeat-2"]
    assert points(Asked())[0][0] == ""
    assert [name for name, _ in points(Asked(rate="2/s,2/min"))] == ["rate-2", "rate-2min"]


@pytest.mark.parametrize("asked", [Asked(rate="1,1"), Asked(rate="1,"), Asked(rate="1,zero"), Asked(concurrency="1,0")])
def test_a_faulty_list_is_refused(asked: Asked) -> None:
    with pytest.raises(UserError):
        points(asked)


def test_a_series_that_cannot_be_run_to_its_end_is_not_begun(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--rate", "inf", "--concurrency", "2,2000000000", "--requests", "2")
        assert ran.code == 2 and "file descriptors" in ran.err and not ran.path.exists()
        assert server.paths == []
