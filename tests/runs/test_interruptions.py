"""Signals, killed processes, a full disk, too few descriptors: what came is kept and every request has an end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.report.html import write
from tests.runs.served import Behaviour, Request, Served, served
from tests.runs.whole import Bench, accounted

SLOW = 0.02
LIMITED = """
import os, resource, sys
which, most = map(int, sys.argv[1:3])
resource.setrlimit(which, (most, most))
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


@contextmanager
def started(
    server: Served, path: Path, *words: str, limit: tuple[int, int] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """`limit`: a resource and how much of it there is."""
    before = [] if limit is None else ["-c", LIMITED, *map(str, limit)]
    command = [sys.executable, *before, "-m", "phasemeter", "bench", server.url, *words, "-o", str(path), "--json"]
    sizes = ["--input-tokens", "24", "--output-tokens", "8"]
    process = subprocess.Popen(command + sizes, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(met: Callable[[], bool], patience_s: float = 90.0) -> None:
    until = time.monotonic() + patience_s
    while not met():
        assert time.monotonic() < until, "what was waited for did not come"
        time.sleep(0.01)


def workers_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_sending_and_keeps_what_came(bench: Bench, tmp_path: Path, asked: signal.Signals) -> None:
    path = tmp_path / "run"
    with served(Behaviour(gap_s=SLOW)) as server:
        with started(server, path, "--concurrency", "3", "--requests", "500", "--warmup", "0") as process:
            wait_for(lambda: len(server.measured) > 8)
            process.send_signal(asked)
            out, err = process.communicate(timeout=90)
        assert process.returncode == 130, err
        result = json.loads(out)
        assert result["partial"] is True
        assert accounted(result["outcomes"]) and result["outcomes"]["scheduled"] == 500
        assert result["outcomes"]["ok"] >= 5 and result["outcomes"]["cancelled"] == 3
        assert "Traceback" not in err
    again = bench.report(path, "--json")
    assert again.outcomes == {k: v for k, v in result["outcomes"].items() if k != "error_rate"}


def test_a_signal_during_the_warm_up_leaves_a_partial_run_of_nothing(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with served(Behaviour(gap_s=SLOW)) as server:
        with started(server, path, "--rate", "50", "--requests", "20", "--warmup", "2000") as process:
            wait_for(lambda: len(server.requests) > 6)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=90)
        assert process.returncode == 130, err
        assert server.measured == []
    result = json.loads(out)
    assert result["partial"] is True
    assert result["outcomes"]["scheduled"] == result["outcomes"]["unsent"] == 20
    assert bench.report(path, "--json").result["partial"] is True


def test_a_run_whose_measurer_was_killed_can_be_read(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with (
        served(Behaviour(gap_s=SLOW)) as server,
        started(server, path, "--rate", "40", "--requests", "400", "--warmup", "0", "--processes", "2") as process,
    ):
        wait_for(lambda: len(server.measured) > 20)
        workers = workers_of(process.pid)
        process.kill()
        process.wait()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    ran = bench.report(path, "--json")
    assert ran.result["partial"] is True
    assert accounted(ran.outcomes) and ran.outcomes["scheduled"] == 400 and ran.outcomes["ok"] >= 1


def test_a_killed_worker_costs_its_share_and_no_more(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with (
        served(Behaviour(gap_s=0.005)) as server,
        started(server, path, "--rate", "12", "--requests", "50", "--warmup", "0", "--processes", "2") as process,
    ):
        wait_for(lambda: len(server.measured) > 10)
        os.kill(workers_of(process.pid)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=90)
    result = json.loads(out)
    assert result["partial"] is True and result["validity"]["verdict"] != "valid"
    assert accounted(result["outcomes"]) and result["outcomes"]["scheduled"] == 50
    assert result["outcomes"]["ok"] >= 25
    assert any("lost" in note for note in result["run"]["notes"]), err


def test_a_full_disk_ends_the_run_with_what_fits(bench: Bench, tmp_path: Path) -> None:
    path, largest = tmp_path / "run", 300_000

    limit = (resource.RLIMIT_FSIZE, largest)
    with (
        served(Behaviour(answer=lambda request: ["word " * 2000] * 4)) as server,
        started(server, path, "--concurrency", "2", "--requests", "200", "--warmup", "0", limit=limit) as process,
    ):
        out, err = process.communicate(timeout=90)
    assert "Traceback" not in err, err
    result = json.loads(out)
    assert result["partial"] is True
    assert accounted(result["outcomes"]) and result["outcomes"]["scheduled"] == 200 and result["outcomes"]["ok"] >= 1
    assert process.returncode == 0
    assert bench.report(path, "--json").outcomes["scheduled"] == 200


def test_a_disk_that_is_full_from_the_start_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    limit = (resource.RLIMIT_FSIZE, 100)
    with served() as server, started(server, tmp_path / "run", "--requests", "5", limit=limit) as process:
        _, err = process.communicate(timeout=90)
        assert process.returncode == 2 and "Traceback" not in err, err
        assert "too large" in err and server.measured == []
    assert not (tmp_path / "run").exists()


def test_too_few_descriptors_are_said_before_the_run_with_the_number_needed(tmp_path: Path) -> None:
    limit = (resource.RLIMIT_NOFILE, 128)
    with served() as server, started(server, tmp_path / "run", "--concurrency", "300", limit=limit) as process:
        _, err = process.communicate(timeout=90)
        assert process.returncode == 2
        assert "364" in err and "ulimit" in err
        assert server.paths == []
    assert not (tmp_path / "run").exists()


def test_a_failed_turn_of_a_cut_run_is_still_counted(bench: Bench) -> None:
    def fault(request: Request) -> tuple[int, str] | None:
        return (500, "no") if len(request.body["messages"]) > 3 else None

    with served(Behaviour(fault=fault)) as server:
        ran = bench(server.url, "--turns", "4", "--requests", "12", "--concurrency", "3")
    assert ran.outcomes == {"scheduled": 12, "ok": 6, "failed": {"http_error": 3}, "cancelled": 0, "unsent": 3}


@pytest.mark.parametrize("trouble", [UserError("report.html: can't be written: No space"), OSError(28, "No space")])
def test_a_page_that_cannot_be_written_takes_nothing_of_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def full(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(write, "write_html", full)
    with served() as server:
        ran = bench(server.url, "--requests", "2")
    assert ran.code == 0 and ran.outcomes["ok"] == 2
    assert f"run: {ran.path} (without a page to look at: " in ran.err and "No space" in ran.err
