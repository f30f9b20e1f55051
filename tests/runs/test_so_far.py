"""What the live view says of promises is counted from the very requests, whatever the looks found when."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phasemeter.contract.model import parse
from phasemeter.io.capture_tail import CaptureTail
from phasemeter.runs import analysis, so_far
from phasemeter.runs.so_far import SoFar
from tests.runs.served import Behaviour, served
from tests.runs.whole import Bench

CONTRACT = """
phasemeter: 1
latency_slo: {ttft: {p90: 12 ms, mean: 20 ms}, inter_chunk: {p99: 60 s}, e2e: {p95: 60 s}}
capacity: {objectives: {ttft: 12 ms}, attainment: 90 %}
"""


@pytest.fixture
def run(bench: Bench) -> Path:
    """30 requests, every fifth of them refused by the server."""
    fault = {0: (503, "busy")}
    with served(Behaviour(gap_s=0.001, fault=lambda r: fault.get((r.number or 1) % 5))) as server:
        return bench(server.url, "--requests", "30", "--concurrency", "4", "--warmup", "5").path


def allow(monkeypatch: pytest.MonkeyPatch, cpu_s: float) -> None:
    monkeypatch.setattr(so_far, "LOOK_S", cpu_s)
    monkeypatch.setattr(so_far, "EVERY_S", 0.0)
    monkeypatch.setattr(so_far, "SHARE", 1e9)


def test_what_is_counted_is_what_the_rows_say(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 10.0)
    seen = SoFar(run / "capture", parse(CONTRACT))
    seen.look()
    rows = [row for row in analysis.rows(run) if row.phase == "measured"]
    firsts = [
        ((row.first_token_ns or 0) - (row.send_start_ns or 0), (row.observer_lag_ns or 0) + 100_000)
        for row in rows
        if row.outcome == "ok"
    ]
    told = {one.name: one for one in seen.standings()}
    # our own reads stand for the kernel's stamps here: a request may lie on the limit's other side by our lag
    least, most = (
        sum(ttft + late <= 12_000_000 for ttft, late in firsts),
        sum(ttft <= 12_000_000 for ttft, _ in firsts),
    )
    assert least <= told["ttft p90"].kept <= most
    assert told["ttft p90"].of == len(rows) == 30  # a failed request has not kept it
    assert told["all limits at once"].of == 30 and told["all limits at once"].needs == 0.9
    assert told["inter_chunk p99"].kept == told["inter_chunk p99"].of > 30
    assert told["ttft mean"].needs is None and told["ttft mean"].mean_s is not None
    assert told["e2e p95"].kept == sum(row.outcome == "ok" for row in rows)
    assert seen.first_read_s is not None and 0 < seen.first_read_s < 60
    seen.close()


def test_a_file_that_grows_gives_each_request_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 10.0)
    growing = tmp_path / "growing"
    shutil.copytree(run / "capture", growing)
    whole = (run / "capture" / "worker-0.capture").read_bytes()
    file = growing / "worker-0.capture"
    file.write_bytes(b"")
    tail = CaptureTail(growing, lambda row: True)
    rows: list[int] = []
    for at in range(0, len(whole) + 997, 997):
        with file.open("ab") as more:
            more.write(whole[at : at + 997])
        rows += [row for row, _, _ in tail.look(1e12)]
    assert sorted(rows) == list(range(35))
    tail.close()


def test_where_more_ends_than_may_be_read_fewer_are_taken_and_by_their_number(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, 10.0)
    monkeypatch.setattr(so_far, "KEPT_MOST", 10)
    seen = SoFar(run / "capture", parse(CONTRACT))
    seen.look()
    seen.look()
    assert seen.every > 1
    taken = [row for row in range(35) if seen._takes(row)]
    assert {one.of for one in seen.standings() if one.name == "e2e p95"} == {sum(row >= 5 for row in taken)}
    seen.close()


def test_a_capture_that_outruns_its_reader_is_given_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasemeter.io.capture_tail.TOO_FAR_BYTES", 10)
    seen = SoFar(run / "capture", parse(CONTRACT))
    tail = seen._tail
    list(tail.look(-1.0))  # no time at all: one block, then it is behind
    assert tail.given_up and seen.given_up
    assert list(tail.look(1e12)) == []
    seen.close()


def test_the_time_spent_is_a_small_share(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(float(i) for i in range(1000))
    spent = iter(i * 0.5 for i in range(1000))  # every glance at the clock finds half a second of work done
    monkeypatch.setattr(so_far.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(so_far.time, "thread_time", lambda: next(spent))
    seen = SoFar(run / "capture", None)
    seen.look()
    assert seen._next_s > 0.5 / so_far.SHARE
    seen.close()
