"""Evidence is gathered beside a run, from idle to idle, and never fails it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from phasemeter.io.emulator_spans import RequestSpan, encode
from phasemeter.io.otlp_receiver import OtlpReceiver
from phasemeter.io.run_directory import RunDirectory
from phasemeter.io.schedule_file import ScheduleWriter
from phasemeter.io.scrape import LateError, Scrape, scrape
from phasemeter.records.request import PlannedRequest
from phasemeter.runs import gather, spans
from phasemeter.runs.gather import Page, gathering, idle
from tests.io.test_scrape import server

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
IDLE = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "evidence").iterdir()}


def test_the_window_has_a_scrape_before_and_one_after(tmp_path: Path) -> None:
    with server(HEAD, IDLE) as url, gathering(tmp_path, Page(url=url), ":0") as found:
        assert found.receiver is not None and found.scrapes == 0
        found.begin()
        found.end(0)
    assert {"metrics-before.http", "metrics-after.http"} <= names(tmp_path) and found.warnings == []


def test_a_page_that_was_asked_for_and_is_not_there_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    with server(b"HTTP/1.1 404 Not Found\r\n\r\n") as url, gathering(tmp_path, Page(url=url)) as found:
        found.begin()
        found.end(3)
    assert {text.split(":")[0] for text in found.warnings} == {"no_scrape"} and len(found.warnings) == 3


def test_a_page_that_falls_silent_during_a_run_is_waited_for_ever_shorter_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def scraped(url: str, *, timeout_s: float, access: object) -> Scrape:
        asked.append(timeout_s)
        if len(asked) > 2:
            raise LateError(f"{url}: no whole metrics page within {timeout_s:g} s")
        return Scrape(url=url, asked_ns=0, answered_ns=1, status=200, headers=(), body=IDLE)

    monkeypatch.setattr(gather, "scrape", scraped)
    monkeypatch.setattr(gather, "EVERY_S", 0.01)
    with gathering(tmp_path, Page(url="http://engine/metrics")) as found:
        found.begin()
        while len(asked) < 5:
            threading.Event().wait(0.01)
        found.end(0)
    assert asked[:3] == [gather.LOOK_S, gather.SCRAPE_S, gather.SCRAPE_S] and set(asked[3:]) == {gather.SHORT_S}
    assert len(found.warnings) == 1 and found.warnings[0].startswith("no_scrape: during the run")


@pytest.mark.parametrize("head", [b"HTTP/1.1 404 Not Found\r\n\r\n", HEAD])
def test_a_page_that_nobody_asked_for_and_is_none_leaves_no_trace(tmp_path: Path, head: bytes) -> None:
    with server(head, b"<html>my own page</html>") as url, gathering(tmp_path, Page(url=url, asked=False)) as found:
        found.begin()
        found.end(3)
    assert found.warnings == [] and not (tmp_path / "evidence").exists()


@pytest.mark.parametrize(
    ("page", "words"),
    [(b"<html><title>Login</title></html>", 'titled "Login"'), (b"go_threads 1\n", "no engine that I know")],
)
def test_a_page_that_was_asked_for_and_tells_nothing_is_said_at_once(tmp_path: Path, page: bytes, words: str) -> None:
    with server(HEAD, page) as url, gathering(tmp_path, Page(url=url)) as found:
        assert found.warnings[0].startswith("no_metrics") and words in found.warnings[0]


def test_a_warm_up_that_is_counted_late_is_waited_for_and_then_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "WARM_PATIENCE_S", 0.3)
    page = IDLE + b'vllm:request_success_total{finished_reason="stop"} 7\n'
    with server(HEAD, page) as url, gathering(tmp_path, Page(url=url)) as found:
        found.begin(2)
        found.end(0)
    assert [text.split(":")[0] for text in found.warnings] == ["late_warm_up"]
    kept = json.loads((tmp_path / "evidence" / gather.NOTES).read_bytes())
    assert kept["warnings"] == found.warnings


def test_spans_that_never_come_are_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_PATIENCE_S", 0.2)
    with gathering(tmp_path, None, ":0") as found:
        found.end(5)
    assert [text.split(":")[0] for text in found.warnings] == ["no_spans"]


def test_spans_of_the_warm_up_and_several_of_one_request_are_not_taken_for_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "SPAN_PATIENCE_S", 20.0)

    def exported(found: gather.Gathering, number: int) -> None:
        trace = f"00-{number:032x}-{1:016x}-01"
        one = RequestSpan(
            request_id=f"r{number}", traceparent=trace, start_unix_ns=1, end_unix_ns=2, seconds={}, counts={}
        )
        assert found.receiver.keep(encode([one, one]), "pb")  # two spans of one request

    with gathering(tmp_path, None, ":0") as found:
        found.begin(2)
        for number in (1, 2, 3):
            exported(found, number)
        late = threading.Timer(0.5, exported, (found, 4))
        late.start()
        found.end(2)
        here = len(list((tmp_path / "evidence").glob("spans-*")))
        late.join()
    assert here == 4 and not found.warnings
    assert spans.requests_of(tmp_path / "evidence" / "spans-000004.pb") == {f"{4:032x}"}


def test_spans_of_the_probes_requests_do_not_end_the_wait_for_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that heeds traceparent: only traces that the run sent count, however many others come first."""
    monkeypatch.setattr(spans, "SPAN_PATIENCE_S", 20.0)

    def parent(number: int) -> str:
        return f"00-{number:032x}-{1:016x}-01"

    def exported(found: gather.Gathering, *numbers: int) -> None:
        for number in numbers:
            one = RequestSpan(
                request_id=f"x{number}",
                traceparent=parent(number),
                start_unix_ns=1,
                end_unix_ns=2,
                seconds={},
                counts={},
            )
            assert found.receiver.keep(encode([one]), "pb")

    schedule = ScheduleWriter(RunDirectory.create(tmp_path / "run").capture, "shared")
    for number in (1, 2):
        schedule.add(PlannedRequest(request_id=f"r{number}", index=number, traceparent=parent(number)), b"{}")
    schedule.finish()
    schedule.close()
    with gathering(tmp_path / "run", None, ":0") as found:
        found.begin(1)
        exported(found, 1, 91, 92, 93)  # the probe's and the warm-up's
        late = threading.Timer(0.5, exported, (found, 2))
        late.start()
        found.end(2)
        here = len(list((tmp_path / "run" / "evidence").glob("spans-*")))
        late.join()
    assert here == 5 and not found.warnings


def test_bodies_that_come_to_disk_out_of_turn_are_each_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(spans, "SPAN_PATIENCE_S", 20.0)
    monkeypatch.setattr(spans, "requests_of", lambda path: read.append(path.name) or {path.name})
    (tmp_path / "spans-000002.pb").write_bytes(b"x")
    late = threading.Timer(0.3, (tmp_path / "spans-000001.pb").write_bytes, (b"x",))
    late.start()
    assert spans.awaited(OtlpReceiver(tmp_path), 2, set(), 0) == []
    late.join()
    assert sorted(read) == ["spans-000001.pb", "spans-000002.pb"]


@pytest.mark.parametrize(
    ("page", "expected"), [(b"vllm:num_requests_waiting 2\n", False), (b"go_threads 1\n", True), (b"<html>", True)]
)
def test_a_server_with_requests_is_not_idle(page: bytes, expected: bool) -> None:
    with server(HEAD, page) as url:
        assert idle(scrape(url)) is expected
