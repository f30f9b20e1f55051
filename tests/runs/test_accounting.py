"""Every scheduled request has an end, whatever the server does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phasemeter.workload.urls import PATHS
from tests.runs.served import Behaviour, Request, served
from tests.runs.whole import Bench, accounted

Fault = str | tuple[int, str]


def every(second: int, fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault if request.number is not None and request.number % second == 1 else None


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ((500, '{"error": {"message": "out of order"}}'), "http_error"),
        ((429, '{"error": {"message": "slow down"}}'), "http_error"),
        ("reset", "transport"),
        ("truncate", "truncated_stream"),
        ("stall", "timeout_idle"),
        ("silence", "timeout_first_byte"),
        ("not-http", "malformed_http"),
    ],
)
def test_every_second_request_may_fail_and_all_are_accounted_for(bench: Bench, fault: Fault, kind: str) -> None:
    with served(Behaviour(fault=every(2, fault))) as server:
        ran = bench(
            server.url,
            "--concurrency",
            "4",
            "--requests",
            "12",
            "--timeout-idle",
            "1500ms",
            "--timeout-first-byte",
            "1500ms",
        )
    assert ran.code == 0, ran.err
    assert ran.outcomes == {"scheduled": 12, "ok": 6, "failed": {kind: 6}, "cancelled": 0, "unsent": 0}
    again = bench.report(ran.path, "--json")
    assert again.outcomes == ran.outcomes


@pytest.mark.parametrize("api", PATHS)
def test_an_answer_that_is_said_and_left_open_is_ok_and_holds_no_slot(bench: Bench, api: str) -> None:
    with served(Behaviour(fault=every(2, "left-open"))) as server:
        ran = bench(server.url, "--api", api, "--concurrency", "4", "--requests", "4", "--timeout-total", "50s")
    assert ran.outcomes == {"scheduled": 4, "ok": 4, "failed": {}, "cancelled": 0, "unsent": 0}
    assert "left_open" in bench.report(ran.path, "--csv", "requests").out


def test_a_status_and_the_servers_words_are_on_record(bench: Bench) -> None:
    with served(Behaviour(fault=every(1, (429, '{"error": {"message": "slow down"}}')))) as server:
        server.behaviour.fault = lambda request: None if request.number is None else (429, "slow down, please")
        ran = bench(server.url, "--concurrency", "1", "--requests", "2")
    assert ran.code == 1
    assert ran.outcomes["failed"] == {"http_error": 2}
    rows = bench.report(ran.path, "--csv", "requests").out
    assert "429" in rows and "slow down, please" in rows


def test_a_server_that_only_fails_is_a_saved_run_that_ends_with_1(bench: Bench) -> None:
    with served(Behaviour(fault=lambda request: (503, "no"))) as server:
        ran = bench(server.url, "--rate", "100", "--requests", "5")
    assert ran.code == 1
    assert "the probe was not answered" in ran.err
    assert ran.outcomes["failed"] == {"http_error": 5}
    assert ran.result["metrics"]["ttft"]["reason"]


def test_a_server_that_goes_away_in_mid_run_leaves_failures_not_gaps(bench: Bench) -> None:
    with served() as server:

        def leave(request: Request) -> str | None:
            return "close" if request.number is not None and request.number >= 5 else None

        server.behaviour.fault = leave
        server.behaviour.keep_alive = False
        ran = bench(server.url, "--concurrency", "2", "--requests", "10")
    assert accounted(ran.outcomes) and ran.outcomes["scheduled"] == 10
    assert ran.outcomes["ok"] == 5 and sum(ran.outcomes["failed"].values()) == 5


def test_a_drain_limit_cancels_what_is_late_and_counts_it(bench: Bench) -> None:
    with served(Behaviour(fault=every(2, "stall"))) as server:
        ran = bench(server.url, "--concurrency", "4", "--requests", "8", "--drain", "1500ms")
    assert ran.code == 0
    assert ran.outcomes["cancelled"] >= 1 and accounted(ran.outcomes) and ran.outcomes["scheduled"] == 8


def test_two_processes_share_one_schedule(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--rate", "200", "--requests", "40", "--processes", "2")
        assert len(server.measured) == 40
    assert ran.outcomes["ok"] == 40
    assert len(list((ran.path / "capture").glob("worker-*.capture"))) == 2
