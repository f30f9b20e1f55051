"""A pattern said as options and one said in a contract are the same schedule, with the stated rate and shape."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from phasemeter.errors import FileError
from phasemeter.runs.asked import Asked
from phasemeter.runs.settings import Settings, settings_of
from phasemeter.workload.plan import plan_measured

URL = "http://127.0.0.1:1"
N = 6000


def contract(folder: Path, arrivals: str) -> str:
    file = folder / "contract.yaml"
    file.write_text(f"phasemeter: 1\nworkload:\n  arrivals: {arrivals}\nlatency_slo:\n  ttft: {{p95: 1 s}}\n")
    return str(file)


def dues_s(found: Settings) -> list[float]:
    return [request.due_offset_ns / 1e9 for request in plan_measured(found.spec) if request.due_offset_ns is not None]


def cv(dues: list[float]) -> float:
    gaps = [after - before for before, after in pairwise(dues)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


@pytest.mark.parametrize(
    ("written", "typed", "spread"),
    [
        ("{poisson: 20/s}", Asked(rate="20/s"), 1.0),
        ("{constant: 20/s}", Asked(rate="20/s", arrivals="constant"), 0.0),
        ("{gamma: {rate: 20/s, cv: 2}}", Asked(rate="20/s", arrivals="gamma:2"), 2.0),
        ("{burst: {rate: 20/s, size: 10}}", Asked(rate="20/s", arrivals="burst:10"), 3.0),  # sqrt(size - 1)
    ],
)
def test_a_steady_pattern_has_its_rate_and_its_spread(
    written: str, typed: Asked, spread: float, tmp_path: Path
) -> None:
    asked = Asked(contract=contract(tmp_path, written), requests=str(N))
    declared, said = settings_of(URL, asked), settings_of(URL, typed)
    assert declared.spec.arrivals == said.spec.arrivals
    dues = dues_s(declared)
    assert len(dues) == N and dues == sorted(dues)
    assert (N - 1) / dues[-1] == pytest.approx(20, rel=0.07)
    assert cv(dues) == pytest.approx(spread, rel=0.1, abs=1e-3)


@pytest.mark.parametrize(
    ("written", "typed", "counts"),
    [
        ("{ramp: {from: 0/s, to: 40/s, over: 100 s}}", Asked(arrivals="ramp:0:40/s:100s"), [125, 375, 625, 875]),
        ("{ramp: {from: 10/s, to: 30/s}}", Asked(arrivals="ramp:10/s:30/s"), [312, 437, 562, 687]),
        (
            "{steps: [{rate: 5/s, for: 25 s}, {rate: 40/s, for: 25 s}, {rate: 10/s, for: 25 s}, {rate: 20/s, for: 25 s}]}",
            Asked(arrivals="steps:5/s:25s:40/s:25s:10/s:25s:20/s:25s"),
            [125, 1000, 250, 500],
        ),
    ],
)
def test_a_changing_rate_brings_its_area_in_each_quarter(
    written: str, typed: Asked, counts: list[int], tmp_path: Path
) -> None:
    asked = Asked(contract=contract(tmp_path, written), duration="100s")
    declared, said = settings_of(URL, asked), settings_of(URL, typed)
    assert declared.spec.arrivals == said.spec.arrivals
    dues = dues_s(declared)
    for quarter, wanted in enumerate(counts):
        came = sum(25 * quarter <= due < 25 * (quarter + 1) for due in dues)
        assert came == pytest.approx(wanted, abs=4 * wanted**0.5)


def test_think_time_stands_beside_the_slots(tmp_path: Path) -> None:
    written = contract(tmp_path, "{concurrency: 3, think_time: exponential:2s}")
    declared = settings_of(URL, Asked(contract=written, requests="2000"))
    said = settings_of(URL, Asked(concurrency="3", think_time="exponential:2s", requests="2000"))
    assert declared.spec.concurrency == said.spec.concurrency == 3
    assert declared.spec.arrivals == said.spec.arrivals
    pauses = [request.think_ns / 1e9 for request in plan_measured(declared.spec)]
    assert statistics.fmean(pauses) == pytest.approx(2, rel=0.1)
    over = settings_of(URL, Asked(contract=written, think_time="1 s", requests="5"))
    assert {request.think_ns for request in plan_measured(over.spec)} == {10**9}


@pytest.mark.parametrize(
    "written",
    [
        "{burst: {rate: 20/s}}", "{burst: {rate: 20/s, size: 0}}", "{ramp: {from: 1/s}}", "{ramp: {from: 1/s, to: 2/s, over: 0}}",
        "{steps: []}", "{steps: [{rate: 1/s}]}", "{steps: [{rate: inf, for: 3 s}]}", "{concurrency: 3, think_time: soon}",
        "{poisson: 3/s, think_time: 2 s}", "{poisson: 3/s, constant: 3/s}",
    ],
)  # fmt: skip
def test_a_mistake_in_a_pattern_names_its_place(written: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"workload\.arrivals"):
        settings_of(URL, Asked(contract=contract(tmp_path, written), requests="5"))
