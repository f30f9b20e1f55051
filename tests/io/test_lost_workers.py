"""Killed, stopped, out of disk or out of descriptors: the run is readable and every request is accounted for."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.target import target_of
from phasemeter.io.workers import FIRST_SPOOL_S, Load, Progress, run_load
from phasemeter.records.request import PlannedRequest

from .loopback import PATIENCE_S, Line, Loopback, loopback
from .test_load import at, closes, plan

RUN = """
import resource, sys
from pathlib import Path
from phasemeter.errors import PhasemeterError
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.target import target_of
from phasemeter.io.workers import Load, run_load
from phasemeter.records.request import PlannedRequest

folder, port, count, gap_ms, size_limit, files, open_ = sys.argv[1], *map(int, sys.argv[2:])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
if size_limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_limit, size_limit))
plan = (
    (PlannedRequest(request_id=f"r{i}", index=i, due_offset_ns=i * gap_ms * 1_000_000), b"{}") for i in range(count)
)
options = LoadOptions(prewarm=1, expected_open=open_)
load = Load(requests=plan, target=target_of(f"http://127.0.0.1:{port}/"), options=options)
try:
    print("started", flush=True)
    outcome = run_load(RunDirectory.create(folder), load)
    print(outcome.reasons[0])
except PhasemeterError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def in_a_process(
    folder: Path, port: int, *, count: int = 100, gap_ms: int = 20, size_limit: int = 0, files: int = 0, open_: int = 0
) -> subprocess.Popen[str]:
    numbers = [port, count, gap_ms, size_limit, files, open_]
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), *map(str, numbers)], stdout=subprocess.PIPE, text=True
    )


def worker_pid(folder: Path) -> int:
    """The process that writes worker 0's capture, once it does."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if (folder / "capture" / "worker-0.capture").exists():
            readers = RunDirectory(folder).readers()
            if readers and readers[0].header is not None:
                return readers[0].header.pid
        time.sleep(0.01)
    raise AssertionError("no worker came")


def wait_for_requests(server: Loopback, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(server.requests) < count:
        assert time.monotonic() < until, f"only {len(server.requests)} requests came"
        time.sleep(0.01)


def holds(line: Line) -> None:
    """Half an answer, then nothing."""
    while line.request() is not None:
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")


def counted(folder: Path) -> dict[str | None, int]:
    return dict(Counter(c.close for c in RunDirectory.open(folder).captures()))


def test_a_killed_worker_is_noticed_and_the_other_goes_on(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    killed = threading.Event()

    def kill_first(progress: Progress) -> None:
        if progress.done >= 10 and not killed.is_set():
            os.kill(directory.readers()[0].header.pid, signal.SIGKILL)  # type: ignore[union-attr]
            killed.set()

    def pauses(line: Line) -> None:
        """After some answers none until the worker is killed: it leaves requests without an end."""
        while line.request() is not None:
            if len(server.requests) > 20:
                killed.wait(PATIENCE_S)
            line.answer()

    with loopback(pauses) as server:
        load = Load(requests=plan(60, gap_ms=20), target=at(server), options=LoadOptions(processes=2, prewarm=2))
        outcome = run_load(directory, load, kill_first)
    assert outcome.reasons[0].startswith("lost") and outcome.reasons[1] == "done" and not outcome.whole
    captures = list(RunDirectory.open(tmp_path / "run").captures())
    assert len(captures) == 60 and len({c.request_id for c in captures}) == 60
    assert closes([c for c in captures if c.worker == 1]) == {"complete": 30}
    lost = [c for c in captures if c.worker == 0 and c.close != "complete"]
    assert lost and all(c.error and c.error.startswith("worker_lost") for c in lost)


def test_killing_the_parent_stops_its_workers_and_the_capture_stays_readable(tmp_path: Path) -> None:
    with loopback() as server:
        parent = in_a_process(tmp_path / "run", server.port, count=1000)
        worker = worker_pid(tmp_path / "run")
        wait_for_requests(server, 20)
        parent.kill()
        parent.wait()
        until = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{worker}").exists():
            assert time.monotonic() < until, "the worker outlived its parent"
            time.sleep(0.02)
    assert parent.stdout is not None
    parent.stdout.close()
    found = counted(tmp_path / "run")
    assert found["complete"] >= 10 and found["unsent"] > 0
    assert sum(found.values()) == len(list(RunDirectory.open(tmp_path / "run").planned()))


def test_sigterm_to_a_worker_keeps_what_came_and_leaves_the_rest_unsent(tmp_path: Path) -> None:
    with loopback(holds) as server:
        parent = in_a_process(tmp_path / "run", server.port, count=1000)
        worker = worker_pid(tmp_path / "run")
        wait_for_requests(server, 10)
        os.kill(worker, signal.SIGTERM)
        said, _ = parent.communicate(timeout=PATIENCE_S)
    assert said.split() == ["started", "stopped"]
    found = counted(tmp_path / "run")
    assert set(found) == {"cancelled", "unsent"} and sum(found.values()) == 1000
    cancelled = [c for c in RunDirectory.open(tmp_path / "run").captures() if c.close == "cancelled"]
    answered = [c for c in cancelled if c.reads]  # the last one's answer may have been on its way
    assert answered and all(c.reads[-1].data.endswith(b"half") for c in answered)


def test_ctrl_c_stops_sending_and_keeps_everything(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    asked = threading.Event()

    def look(progress: Progress) -> None:
        if progress.done >= 5:
            asked.set()

    with loopback() as server:
        load = Load(requests=plan(1000, gap_ms=20), target=at(server), options=LoadOptions(prewarm=1))
        outcome = run_load(directory, load, look, asked.is_set)
    found = counted(tmp_path / "run")
    assert outcome.interrupted and not outcome.whole
    assert found["complete"] >= 5 and found["unsent"] > 100 and sum(found.values()) == 1000


def test_a_full_disk_ends_the_run_with_its_reason_and_what_is_written_can_be_read(tmp_path: Path) -> None:
    def much(line: Line) -> None:
        while line.request() is not None:
            line.answer(b"x" * 20_000)

    with loopback(much) as server:
        parent = in_a_process(tmp_path / "run", server.port, count=200, gap_ms=10, size_limit=400_000)
        said, _ = parent.communicate(timeout=PATIENCE_S)
    assert "can't be written" in said
    captures = list(RunDirectory.open(tmp_path / "run").captures())
    found = dict(Counter(c.close for c in captures))
    assert found["complete"] >= 5 and found["unsent"] > 0 and sum(found.values()) == 200
    assert all("can't be written" in (c.error or "") for c in captures if c.close in ("unsent", None))


def test_too_few_descriptors_are_said_before_the_run_with_the_number_needed(tmp_path: Path) -> None:
    with loopback() as server:
        parent = in_a_process(tmp_path / "run", server.port, count=10, files=256, open_=2000)
        said, _ = parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 2
    assert "ulimit -n 2064" in said and "256" in said and "2000" in said
    assert server.requests == []


def test_descriptors_that_run_out_within_the_run_are_our_own_failure_and_the_rest_is_answered(tmp_path: Path) -> None:
    def late(line: Line) -> None:
        while line.request() is not None:
            time.sleep(0.4)
            line.answer()

    with loopback(late) as server:
        parent = in_a_process(tmp_path / "run", server.port, count=200, gap_ms=0, files=96, open_=10)
        said, _ = parent.communicate(timeout=PATIENCE_S)
    assert said.split() == ["started", "done"]
    found = counted(tmp_path / "run")
    assert set(found) == {"complete", "client_resource"} and sum(found.values()) == 200
    assert found["complete"] >= 60, "as many as there were descriptors for"
    ours = [c for c in RunDirectory.open(tmp_path / "run").captures() if c.close == "client_resource"]
    assert all("EMFILE" in (c.error or "") and c.send_start_ns is None for c in ours)


FEW_PORTS = """
import fcntl, os, socket, struct, subprocess, sys
IFF_UP, SIOCSIFFLAGS = 1, 0x8914
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))
with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
    file.write("40000 40029")
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.io.test_lost_workers import few_ports
few_ports(Path(sys.argv[2]))
"""


def few_ports(folder: Path) -> None:
    """Within a network of its own that has thirty local ports: more requests at once than that, to two addresses."""
    from_ports: dict[str, dict[str | None, int]] = {}
    for host in ("127.0.0.1", "127.0.0.2"):
        none_left = threading.Event()

        def look(progress: Progress, none_left: threading.Event = none_left) -> None:
            if progress.failed >= 31:
                none_left.set()

        def holds_then_answers(line: Line, none_left: threading.Event = none_left) -> None:
            while line.request() is not None:
                none_left.wait(PATIENCE_S / 2)
                line.answer()

        with loopback(holds_then_answers, host=host) as server:
            directory = RunDirectory.create(folder / host)
            target = target_of(f"http://{host}:{server.port}/")
            run_load(directory, Load(requests=plan(60, gap_ms=1), target=target, options=LoadOptions(prewarm=1)), look)
        found = list(directory.captures())
        from_ports[host] = closes(found)
        assert all("EADDRNOTAVAIL" in (c.error or "") for c in found if c.close == "client_resource")
    sys.stdout.write(repr(from_ports))


def test_ports_that_run_out_are_our_own_failure_and_another_address_has_its_own(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace of one's own can be made here")
    root = str(Path(__file__).parents[2])
    told = subprocess.run(
        [unshare, "-rn", sys.executable, "-c", FEW_PORTS, root, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    ports = 29  # the server itself has one
    each = {"complete": ports, "client_resource": 60 - ports}
    assert ast.literal_eval(told.stdout) == {"127.0.0.1": each, "127.0.0.2": each}


def test_a_schedule_that_can_not_be_written_on_is_sent_as_far_as_it_goes_and_said(tmp_path: Path) -> None:
    def requests() -> Iterator[tuple[PlannedRequest, bytes]]:
        yield from plan(10)
        time.sleep(FIRST_SPOOL_S + 0.1)  # the beginning is spooled, the run has begun
        yield from plan_from(10, 5)
        raise OSError(28, "No space left on device")

    directory = RunDirectory.create(tmp_path / "run")
    with loopback() as server:
        outcome = run_load(directory, Load(requests=requests(), target=at(server), options=LoadOptions(prewarm=1)))
    assert outcome.schedule_error is not None and "No space left" in outcome.schedule_error
    assert not outcome.whole and not outcome.interrupted
    assert outcome.reasons == ("the schedule was not written to its end",)
    found = counted(tmp_path / "run")
    assert found["complete"] >= 10 and sum(found.values()) == outcome.scheduled == 15


def plan_from(first: int, count: int) -> Iterator[tuple[PlannedRequest, bytes]]:
    for i in range(first, first + count):
        yield PlannedRequest(request_id=f"r{i}", index=i, due_offset_ns=i * 10_000_000), b"{}"


def test_what_is_wrong_with_the_schedule_s_beginning_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    def requests() -> Iterator[tuple[PlannedRequest, bytes]]:
        yield from plan(2)
        raise UserError("prompts.jsonl:3: not JSON")

    with loopback() as server, pytest.raises(UserError, match=r"prompts\.jsonl:3"):
        load = Load(requests=requests(), target=at(server), options=LoadOptions(prewarm=1))
        run_load(RunDirectory.create(tmp_path / "run"), load)
    assert server.requests == []


@pytest.mark.parametrize("name", ["run"])
def test_an_output_folder_that_exists_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with loopback() as server:
        parent = in_a_process(tmp_path / name, server.port)
        said, _ = parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 2 and "exists already" in said


def test_a_worker_that_fails_unforeseen_is_lost_with_its_last_words(tmp_path: Path) -> None:
    with loopback() as server:
        directory = RunDirectory.create(tmp_path / "run")
        options = LoadOptions(prewarm=1, worker_module="tests.io.doomed_worker")
        outcome = run_load(directory, Load(requests=plan(3), target=at(server), options=options))
    assert outcome.reasons == ("lost: worker 0 ended with 1: RuntimeError: the dog ate it",)
