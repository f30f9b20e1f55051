"""Where epoll, kernel stamps or `resource` are missing (macOS, Windows) everything imports, and a run on POSIX works with user stamps."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phasemeter.io import readiness
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.readiness import READ, WRITE, Poller, Selected, poller
from phasemeter.io.run_directory import RunDirectory

from .loopback import Line, answers, loopback
from .test_emulator import chat, events, post, serving, talk
from .test_load import at, closed_plan, closes, fault, plan, raw, send
from .test_odd_servers import LARGE

PLAIN = LoadOptions(prewarm=2, worker_module="tests.io.plain_worker")

IMPORT_ALL = """
import asyncio, ctypes, http.server, select, selectors, signal, socket, ssl, subprocess, sys, tempfile, urllib.request, uuid
for name in ("resource", "uvloop", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
sys.platform = sys.argv[1]
for owner, names in (
    (select, ("epoll", "poll", "kqueue", "EPOLLIN", "EPOLLOUT", "EPOLLERR", "EPOLLHUP", "POLLIN", "POLLOUT")),
    (socket, ("AF_UNIX", "CMSG_SPACE", "SO_PEERCRED")),
    (signal, ("SIGKILL", "SIGHUP", "SIGALRM", "SIGCHLD")),
):
    for name in names:  # the standard library above has what it needs
        if hasattr(owner, name):
            delattr(owner, name)
import importlib, pkgutil, phasemeter
for module in pkgutil.walk_packages(phasemeter.__path__, "phasemeter."):
    if module.name.startswith(("phasemeter.io", "phasemeter.cli", "phasemeter.runs", "phasemeter.records")):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            if (missing.name or "").startswith("phasemeter") or missing.name in sys.modules:
                raise  # anything else is an extra that is not installed
"""


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_every_module_of_the_sender_and_the_verbs_imports_without_what_only_linux_has(system: str) -> None:
    told = subprocess.run([sys.executable, "-c", IMPORT_ALL, system], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-2000:]


def test_without_epoll_and_kernel_stamps_a_run_is_whole_and_says_whose_stamps_it_has(tmp_path: Path) -> None:
    with loopback() as server:
        outcome, captures = send(tmp_path, at(server), plan(30), PLAIN)
    assert outcome.whole and closes(captures) == {"complete": 30}
    assert RunDirectory.open(tmp_path / "run").stamps == "user"
    assert all(read.kernel_realtime_ns is None for c in captures for read in c.reads)
    assert all(c.send_start_ns is not None and c.due_ns <= c.send_start_ns <= c.reads[0].user_ns for c in captures)


def test_without_epoll_a_closed_loop_reuses_and_replaces_connections(tmp_path: Path) -> None:
    def now_and_then_closes(line: Line) -> None:
        for _ in range(3):
            if line.request() is None:
                return
            line.answer()

    options = LoadOptions(mode="closed", concurrency=3, prewarm=3, worker_module="tests.io.plain_worker")
    with loopback(now_and_then_closes) as server:
        _, captures = send(tmp_path, at(server), closed_plan(40), options)
    assert Counter(c.request_id for c in captures) == Counter(f"r{i}" for i in range(40))
    assert set(closes(captures)) <= {"complete", "stale"} and closes(captures)["complete"] >= 30
    assert any(c.reused_connection for c in captures)


def test_without_epoll_a_large_body_and_a_broken_answer_end_as_they_should(tmp_path: Path) -> None:
    def slow(line: Line) -> None:
        if line.sock.recv(1, socket.MSG_PEEK):
            answers(line)

    with loopback(slow) as server:
        _, captures = send(tmp_path / "a", at(server), plan(1, body=LARGE), PLAIN)
        assert closes(captures) == {"complete": 1} and server.requests[0].endswith(LARGE)
    with loopback(fault) as server:
        _, captures = send(tmp_path / "b", at(server), plan(1, body=b"truncated"), PLAIN)
    assert closes(captures) == {"eof": 1} and raw(captures[0]).endswith(b"part")


def test_without_epoll_the_emulator_streams_and_is_woken_from_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "HAVE_EPOLL", False)
    monkeypatch.delattr(os, "eventfd", raising=False)
    with serving() as emulator:
        assert isinstance(emulator.server.poller, Selected)
        asked = post("/v1/chat/completions", chat(stream=True, max_tokens=4))
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(talk, [emulator.server.port] * 6, [asked] * 6))
    assert [events(answer)[-1] for answer in answers] == ["[DONE]"] * 6


def told(poll: Poller, fd: int) -> int:
    return dict(poll.poll(0, 8)).get(fd, 0)


@pytest.mark.parametrize("make", [poller, Selected])
def test_both_pollers_tell_the_same_of_the_same_sockets(make: type[Poller]) -> None:
    poll = make()
    here, there = socket.socketpair()
    try:
        poll.register(here.fileno(), READ | WRITE)
        assert told(poll, here.fileno()) == WRITE
        there.send(b"x")
        assert told(poll, here.fileno()) == READ | WRITE
        poll.modify(here.fileno(), READ)
        assert told(poll, here.fileno()) == READ
        here.recv(1)
        assert told(poll, here.fileno()) == 0
        there.close()
        assert told(poll, here.fileno()) & READ
    finally:
        here.close()
        there.close()
        poll.close()
