"""Evidence is gathered beside a run and never fails it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.io.scrape import scrape
from phasemeter.runs.gather import gathering, idle
from tests.io.test_scrape import server

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_the_window_has_a_scrape_before_and_one_after(tmp_path: Path) -> None:
    with (
        server(HEAD, b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n") as url,
        gathering(tmp_path, url, ":0") as found,
    ):
        assert found.receiver is not None and found.scrapes == 1
    names = {path.name for path in (tmp_path / "evidence").iterdir()}
    assert {"metrics-before.http", "metrics-after.http"} <= names and found.warnings == []


def test_a_server_without_metrics_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    with server(b"HTTP/1.1 404 Not Found\r\n\r\n") as url, gathering(tmp_path, url) as found:
        pass
    assert [text.split(":")[0] for text in found.warnings] == ["no_scrape", "no_scrape"]


@pytest.mark.parametrize(
    ("page", "expected"), [(b"vllm:num_requests_waiting 2\n", False), (b"go_threads 1\n", True), (b"<html>", True)]
)
def test_a_server_with_requests_is_not_idle(page: bytes, expected: bool) -> None:
    with server(HEAD, page) as url:
        assert idle(scrape(url)) is expected
