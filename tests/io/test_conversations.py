"""A next turn is built from the answer, takes its predecessor's slot, and is on record like any request."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from phasemeter.io.load_options import LoadOptions
from phasemeter.io.run_directory import RunDirectory
from phasemeter.records.request import PlannedRequest

from .loopback import Line, loopback
from .test_load import at, send


def hashes(line: Line) -> None:
    while (request := line.request()) is not None:
        line.answer(hashlib.sha256(request.partition(b"\r\n\r\n")[2]).hexdigest().encode())


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_every_turn_carries_the_real_history_and_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    users, turns = 12, 4
    first = (
        (PlannedRequest(request_id=f"u{i}-0", index=i, conversation=f"u{i}", due_offset_ns=0), b"hello %d" % i)
        for i in range(users)
    )
    options = LoadOptions(
        mode="open" if mode == "open" else "closed", concurrency=5, processes=2, prewarm=2,
        worker_module="tests.io.talking_worker", worker_options=b"%d" % turns,
    )  # fmt: skip
    with loopback(hashes) as server:
        outcome, captures = send(tmp_path, at(server), first, options)
    assert outcome.whole
    assert {c.request_id for c in captures} == {f"u{i}-{t}" for i in range(users) for t in range(turns)}
    assert all(c.close == "complete" for c in captures)
    directory = RunDirectory.open(tmp_path / "run")
    for i in range(users):
        history = b"hello %d" % i
        for turn in range(turns):
            assert directory.request_body(f"u{i}-{turn}") == history
            history += b"|" + hashlib.sha256(history).hexdigest().encode()
    by_id = {c.request_id: c for c in captures}
    assert all(by_id[f"u{i}-1"].due_ns >= (by_id[f"u{i}-0"].closed_ns or 0) for i in range(users))
