"""A metrics endpoint can't harm a run: it may be slow, endless, huge or wrong, and the answer is one clear line in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from phasemeter.errors import NetworkError, ServerError, UserError
from phasemeter.io.scrape import LateError, save, scrape, scrape_when


@contextmanager
def server(*pieces: bytes, forever: bool = False, hang: bool = False) -> Iterator[str]:
    """Answers each connection with `pieces`; `forever` repeats the last one, `hang` keeps the connection open after."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with connection:
                    connection.recv(65536)
                    for piece in pieces:
                        connection.sendall(piece)
                    while forever and not stop.is_set():
                        connection.sendall(pieces[-1])
                    if hang:
                        stop.wait()
            except OSError:
                continue

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


OK = b"HTTP/1.1 200 OK\r\nProcess-Start-Time-Unix: 77\r\nContent-Length: 4\r\n\r\n"


def test_a_page_is_kept_as_received_with_its_headers(tmp_path: Path) -> None:
    with server(OK, b"a 1\n") as url:
        page = scrape(url)
    assert page.body == b"a 1\n" and page.asked_ns <= page.answered_ns
    saved = save(page, tmp_path / "evidence", "metrics-before").read_bytes()
    assert b"Process-Start-Time-Unix: 77" in saved and saved.endswith(b"\r\n\r\na 1\n")


@pytest.mark.parametrize(
    "pieces", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",), (b"HTTP/1.1 200 OK\r\n\r\nabc",)]
)
def test_an_endpoint_that_hangs_is_given_up_in_time(pieces: tuple[bytes, ...]) -> None:
    with server(*pieces, hang=True) as url, pytest.raises(NetworkError, match=r"within 0\.3 s"):
        scrape(url, timeout_s=0.3)


def test_a_page_without_end_is_bounded_in_size() -> None:
    with (
        server(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 4096, forever=True) as url,
        pytest.raises(ServerError, match=r"over 0\.1 MB"),
    ):
        scrape(url, max_bytes=100_000)


def test_a_trickle_is_bounded_in_time() -> None:
    """It has no end of its own: without a bound it would be waited for as long as the server lives."""
    trickle = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")
    with server(*trickle, hang=True) as url, pytest.raises(NetworkError):
        scrape(url, timeout_s=0.3)


def test_a_head_that_trickles_without_end_is_cut_off_in_time() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while True:  # until the other side has had enough
                connection.sendall(b"y")
                time.sleep(0.05)

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    with listener:
        with pytest.raises(LateError, match=r"within 0\.3 s"):
            scrape(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", timeout_s=0.3)
        assert dripping.is_alive()  # it was not waited out
    dripping.join(60)


def test_a_refusal_carries_the_servers_words() -> None:
    with (
        server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno such") as url,
        pytest.raises(ServerError, match=r"404.*no such"),
    ):
        scrape(url)


@pytest.mark.parametrize("url", ["ftp://x/metrics", "http://", "http://h:port/"])
def test_what_is_no_address_is_a_users_mistake(url: str) -> None:
    with pytest.raises(UserError):
        scrape(url)


def test_nobody_there_is_a_network_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NetworkError, match="no metrics page"):
        scrape(f"http://127.0.0.1:{port}/metrics")


def test_waiting_for_idle_ends_with_patience() -> None:
    seen: list[bytes] = []
    with server(OK, b"a 1\n") as url:
        assert scrape_when(
            lambda: scrape(url), lambda page: bool(seen.append(page.body)) or len(seen) > 2, every_s=0.01
        )[1]
        assert not scrape_when(lambda: scrape(url), lambda page: False, patience_s=0.05, every_s=0.02)[1]
    assert len(seen) == 3
