"""TLS over bytes of our own reading, proxies only on request, and one exchange to wait for."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from phasemeter.errors import UserError
from phasemeter.io.fetch import fetch
from phasemeter.io.load_options import LoadOptions
from phasemeter.io.proxy import excepted, proxy_for, shown
from phasemeter.io.target import Limits, Proxy, Target, Tls, head, target_of

from .loopback import PATIENCE_S, Line, Speak, answers, loopback
from .test_load import closes, plan, raw, send, sipping


class Authority:
    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.file)

    def server(self, *names: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2", "http/1.1"])
        self.ca.issue_cert(*names).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def secure(port: int, host: str = "127.0.0.1", **tls: object) -> Target:
    return target_of(f"https://{host}:{port}/x", tls=Tls(**tls), limits=Limits(first_byte_s=PATIENCE_S))  # type: ignore[arg-type]


def test_a_run_over_tls_keeps_plaintext_under_kernel_stamps(tmp_path: Path, authority: Authority) -> None:
    def stream(line: Line) -> None:
        while line.request() is not None:
            line.stream([b"one", b"two"], pause_s=0.03)

    with loopback(stream, tls=authority.server("127.0.0.1", "localhost")) as server:
        _, captures = send(tmp_path, secure(server.port, ca_file=authority.file), plan(4, gap_ms=30))
        by_name = fetch(secure(server.port, "localhost", ca_file=authority.file))
    assert closes(captures) == {"complete": 4} and by_name.close == "complete"
    assert all(raw(c).startswith(b"HTTP/1.1 200 OK") and raw(c).endswith(b"0\r\n\r\n") for c in captures)
    assert all(read.data for c in captures for read in c.reads), "a read of session tickets only is no read"
    made = [c for c in captures if not c.reused_connection]
    assert made and all((c.tcp_connected_ns or 0) < (c.connected_ns or 0) for c in made)


def test_a_large_body_is_sent_whole_over_tls_through_a_slow_reader(tmp_path: Path, authority: Authority) -> None:
    body = bytes(range(256)) * 20_000
    with loopback(sipping, tls=authority.server("localhost")) as server:
        _, captures = send(
            tmp_path,
            secure(server.port, "localhost", ca_file=authority.file),
            plan(3, body=body),
            LoadOptions(mode="closed", concurrency=1),
        )
    assert closes(captures) == {"complete": 3}
    assert [request.endswith(body) for request in server.requests] == [True] * 3


def test_a_certificate_of_an_unknown_authority_or_another_name_is_refused(authority: Authority) -> None:
    with loopback(tls=authority.server("somewhere.else")) as server:
        unknown = fetch(secure(server.port))
        misnamed = fetch(secure(server.port, ca_file=authority.file))
        unchecked = fetch(secure(server.port, insecure=True))
    assert unknown.close == misnamed.close == "refused"
    assert "CERTIFICATE_VERIFY_FAILED" in (unknown.error or "")
    assert "127.0.0.1" in (misnamed.error or "")
    assert unchecked.close == "complete"


def test_a_close_without_close_notify_after_a_whole_message_is_clean(authority: Authority) -> None:
    def abrupt(line: Line) -> None:
        line.request()
        line.answer(b"whole")

    with loopback(abrupt, tls=authority.server("127.0.0.1")) as server:
        assert fetch(secure(server.port, ca_file=authority.file)).close == "complete"


def test_a_missing_ca_file_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="nowhere"):
        fetch(secure(1, ca_file="/nowhere.pem"))


def relay(target_port: int) -> Speak:
    """A CONNECT proxy: shovels bytes after the tunnel stands."""

    def speak(line: Line) -> None:
        request = line.request()
        if request is None:
            return
        line.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
        upstream = socket.create_connection(("127.0.0.1", target_port))

        def back() -> None:
            with suppress(OSError):  # either side may leave
                while data := upstream.recv(65536):
                    line.say(data)

        thread = threading.Thread(target=back, daemon=True)
        thread.start()
        try:
            while data := line.sock.recv(65536):
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_RDWR)
        finally:
            thread.join(PATIENCE_S)
            upstream.close()

    return speak


def test_http_through_a_proxy_asks_in_absolute_form() -> None:
    with loopback() as proxy:
        target = Target(host="203.0.113.7", port=8000, path="/v1/x", proxy=Proxy(host="127.0.0.1", port=proxy.port))
        assert fetch(target).close == "complete"
    assert proxy.requests[0].startswith(b"GET http://203.0.113.7:8000/v1/x HTTP/1.1\r\n")


def test_a_proxy_that_refuses_the_tunnel_is_quoted() -> None:
    def refuses(line: Line) -> None:
        line.request()
        line.say(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

    with loopback(refuses) as proxy:
        target = Target(
            host="203.0.113.7",
            port=443,
            tls=Tls(),
            proxy=Proxy(host="127.0.0.1", port=proxy.port, authorization="Basic x"),
        )
        refused = fetch(target)
    assert refused.close == "refused" and "407" in (refused.error or "")
    assert b"Proxy-Authorization: Basic x" in proxy.requests[0]


def test_https_through_a_proxy_is_a_tunnel(authority: Authority) -> None:
    with (
        loopback(tls=authority.server("far.example")) as server,
        loopback(relay(server.port)) as proxy,
    ):
        target = Target(
            host="far.example", port=443, path="/x", tls=Tls(ca_file=authority.file),
            proxy=Proxy(host="127.0.0.1", port=proxy.port),
        )  # fmt: skip
        assert fetch(target).close == "complete"
    assert proxy.requests[0].startswith(b"CONNECT far.example:443 HTTP/1.1\r\n")
    assert server.requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: far.example\r\n")


ENVIRONMENT = {"HTTP_PROXY": "http://user:pass@10.0.0.9:3128", "NO_PROXY": "localhost,127.0.0.1,.inside,10.1.0.0/16"}


@pytest.mark.parametrize(
    ("url", "asked", "used", "note"),
    [
        ("http://127.0.0.1:8000/v1", None, None, None),
        ("http://127.0.0.1:8000/v1", "env", None, "this machine"),
        ("http://[::1]:8000/v1", "http://10.0.0.9:3128", None, "this machine"),
        ("http://203.0.113.7:8000/v1", "env", "http://10.0.0.9:3128", None),
        ("http://203.0.113.7:8000/v1", None, None, "HTTP_PROXY is set but not used"),
        ("http://203.0.113.7:8000/v1", "none", None, None),
        ("http://a.inside/v1", "env", None, "NO_PROXY"),
        ("http://10.1.2.3/v1", "env", None, "NO_PROXY"),
        ("https://203.0.113.7/v1", "env", None, "names no proxy"),
    ],
)
def test_a_proxy_is_used_only_when_asked_and_where_it_applies(
    url: str, asked: str | None, used: str | None, note: str | None
) -> None:
    proxy, said = proxy_for(target_of(url), asked, ENVIRONMENT)
    assert shown(proxy) == used
    assert (said is None) if note is None else (said is not None and note in said)
    assert "pass" not in (shown(proxy) or "") + (said or "")


@pytest.mark.parametrize(
    ("host", "no_proxy", "expected"),
    [
        ("anything", "*", True),
        ("a.example.com", "example.com", True),
        ("a.example.com", ".example.com", True),
        ("a.example.com", "*.example.com", True),
        ("a.example.com", "EXAMPLE.com.", True),
        ("a.example.com.", "example.com", True),
        ("notexample.com", "example.com", False),
        ("example.com", "other.com example.com", True),  # blanks between, as curl takes them
        ("example.com", "other.com, example.com", True),
        ("example.com", "example.com:8000", True),
        ("example.com", "example.com:8001", False),
        ("x", "", False),
        ("x", ",, ,", False),
        ("10.1.2.3", "10.1.0.0/16", True),
        ("10.2.2.3", "10.1.0.0/16", False),
        ("10.1.2.3", "10.1.2.3:8000", True),
        ("::ffff:10.1.2.3", "10.1.0.0/16", True),
        ("fd00::7", "fd00::/8", True),
        ("fd00::7", "[fd00::7]", True),
        ("fd00::7", "[fd00::7]:8000", True),
        ("fd00::7", "[fd00::7]:80", False),
        ("fd00::7", "fd00::7", True),
        ("10.1.2.3", "3", False),
    ],
)
def test_no_proxy_names_hosts_domains_networks_and_ports(host: str, no_proxy: str, expected: bool) -> None:
    assert excepted(host, 8000, no_proxy) == expected


def test_of_two_variables_the_one_in_small_letters_holds_and_a_wrong_one_is_named() -> None:
    both = {"http_proxy": "http://10.0.0.1:1", "HTTP_PROXY": "http://10.0.0.2:1", "no_proxy": "", "NO_PROXY": ""}
    assert shown(proxy_for(target_of("http://203.0.113.7"), "env", both)[0]) == "http://10.0.0.1:1"
    for name in ("HTTPS_PROXY", "all_proxy"):
        with pytest.raises(UserError, match=f"{name}: only http proxies"):
            proxy_for(target_of("https://203.0.113.7"), "env", {name: "socks5://10.0.0.1:1"})


@pytest.mark.parametrize("url", ["[]", "http://[", "http://[::1", "[::x]:3128", "http://h:99999"])
def test_a_proxy_that_is_no_url_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UserError, match=r"^--proxy: .*: write it like http://proxy:3128$"):
        proxy_for(target_of("http://203.0.113.7"), url, {})


def test_what_cannot_be_a_header_is_refused_before_it_is_sent() -> None:
    base = target_of("http://h/")
    for name, value in (("X", "a\r\nY: b"), ("X Y", "a"), ("", "a")):
        with pytest.raises(UserError):
            head(Target(host=base.host, port=80, headers=((name, value),)))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/", "http://", "http://h:99999/", "http://u:p@h/"])
def test_what_is_no_url_is_refused_and_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(UserError) as refused:
        target_of(url)
    assert "u:p" not in str(refused.value)


def test_a_head_answer_ends_with_its_headers_and_limits_hold() -> None:
    def promises(line: Line) -> None:
        line.request()
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
        line.until_left()

    with loopback(promises) as server:
        target = target_of(f"http://127.0.0.1:{server.port}/", limits=Limits(idle_s=0.2))
        assert fetch(target, "HEAD").close == "complete"
        assert fetch(target, "GET").close == "timeout_idle"


def test_a_posted_body_arrives_with_its_length() -> None:
    with loopback(answers) as server:
        done = fetch(target_of(f"http://127.0.0.1:{server.port}/a"), "POST", "/b?c=1", b"{}")
    assert done.close == "complete"
    assert server.requests[0].startswith(b"POST /b?c=1 HTTP/1.1\r\n") and b"Content-Length: 2\r\n" in server.requests[0]


def test_the_zone_of_an_address_is_not_sent() -> None:
    assert Target(host="fe80::1%eth0", port=8000).authority == "[fe80::1]:8000"
