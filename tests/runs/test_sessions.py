"""A trace's sessions are replayed as conversations: a later row waits for the answer before it and carries the history."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from phasemeter.io.run_directory import RunDirectory
from tests.runs.served import Behaviour, Request, served
from tests.runs.whole import Bench

ROWS = [  # stamp, input, output, session: b's second row is shorter than its history, and c is alone
    (0.00, 20, 3, "a"), (0.01, 30, 2, "b"), (0.05, 40, 4, "a"), (0.06, 25, 2, "b"), (0.10, 15, 2, "c"), (2.60, 90, 3, "a"),
    (2.61, 12, 2, ""), (2.62, 12, 2, ""),
]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "trace.csv"
    lines = ["timestamp,input_tokens,output_tokens,session_id", *(",".join(map(str, row)) for row in ROWS)]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def rows_of(bench: Bench, path: Path) -> dict[str, dict[str, float]]:
    table = csv.DictReader(bench.report(path, "--csv", "requests").out.splitlines())
    return {row["id"]: {k: float(row[k]) for k in ("scheduled_s", "sent_s", "end_s")} for row in table if row["sent_s"]}


def by_index(requests: list[Request]) -> dict[int, Request]:
    return {int(str(request.headers["x-request-id"]).rpartition("-r")[2]): request for request in requests}


def test_a_later_row_waits_for_its_answer_or_its_own_instant_whichever_is_later(bench: Bench, trace: str) -> None:
    with served(Behaviour(ttft_s=0.15)) as server:
        ran = bench(server.url, "--trace", trace)
    assert ran.outcomes == {"scheduled": 8, "ok": 8, "failed": {}, "cancelled": 0, "unsent": 0}, ran.err
    assert "2 sessions of the trace have several rows (5)" in ran.err
    rows = rows_of(bench, ran.path)
    start = rows["r0"]["scheduled_s"]
    captured = {one.request_id: one for one in RunDirectory.open(ran.path).captures()}
    for before, after in (("r0", "r2"), ("r1", "r3"), ("r2", "r5")):
        own = captured["r0"].due_ns + round(ROWS[int(after[1:])][0] * 1e9)
        assert captured[after].due_ns == max(own, captured[before].closed_ns or 0)
        assert rows[after]["sent_s"] >= rows[before]["end_s"]
    for alone in ("r4", "r6", "r7", "r5"):  # the answer before r5 was there long ago
        assert rows[alone]["scheduled_s"] - start == pytest.approx(ROWS[int(alone[1:])][0], abs=0.001)


def test_history_fills_the_prompt_and_the_new_message_the_rest(bench: Bench, trace: str) -> None:
    def answer(request: Request) -> list[str]:
        return [f" answer-{request.words}", *[" w"] * (request.tokens - 1)]

    with served(Behaviour(ttft_s=0.02, answer=answer)) as server:
        ran = bench(server.url, "--trace", trace)
        sent = by_index(server.measured)
    first, second, third = (sent[index].body["messages"] for index in (0, 2, 5))
    assert [message["role"] for message in third] == ["user", "assistant", "user", "assistant", "user"]
    assert second[0] == first[0] and third[:3] == second
    assert second[1]["content"].split()[0] == f"answer-{sent[0].words}"
    assert [sent[index].words + 5 for index in (0, 2, 5)] == [20, 40, 90]  # 5: the server's template
    assert len(sent[3].body["messages"]) == 1 and sent[3].words + 5 == 25  # no longer than its history: its own prompt
    assert ran.result["workload"]["realised"]["input_tokens"]["mean"] == sum(row[1] for row in ROWS) / len(ROWS)


def test_a_session_whose_row_failed_ends_there_and_the_rest_is_unsent(bench: Bench, trace: str) -> None:
    def fault(request: Request) -> tuple[int, str] | None:
        return (500, "no") if request.headers.get("x-request-id", "").endswith("-r0") else None

    with served(Behaviour(fault=fault)) as server:
        ran = bench(server.url, "--trace", trace)
    assert ran.outcomes == {"scheduled": 8, "ok": 5, "failed": {"http_error": 1}, "cancelled": 0, "unsent": 2}
    ids = [row["id"] for row in csv.DictReader(bench.report(ran.path, "--csv", "requests").out.splitlines())]
    assert sorted(ids) == [f"r{index}" for index in range(8)]


def test_without_sessions_every_row_goes_out_at_its_own_instant(bench: Bench, trace: str) -> None:
    with served(Behaviour(ttft_s=0.15)) as server:
        ran = bench(server.url, "--trace", trace, "--no-sessions", "--requests", "6")
        assert all(len(request.body["messages"]) == 1 for request in server.measured)
    rows = rows_of(bench, ran.path)
    start = rows["r0"]["scheduled_s"]
    assert [rows[f"r{n}"]["scheduled_s"] - start for n in range(6)] == pytest.approx(
        [row[0] for row in ROWS[:6]], abs=0.001
    )
    assert "sessions of the trace" not in ran.err
