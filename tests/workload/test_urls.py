"""URLs: with or without /v1, never doubled, never with a password in print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.errors import UserError
from phasemeter.workload.urls import PATHS, endpoint, redacted

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("http://a:1", "/v1/chat/completions"),
        ("a:1", "/v1/chat/completions"),
        ("http://a:1/v1/", "/v1/chat/completions"),
        ("http://a:1/v1/chat/completions/", "/v1/chat/completions"),
        ("http://a:1/deep/v3", "/deep/v3/chat/completions"),
        ("http://a:1/gw", "/gw/chat/completions"),
        ("http://a:1//v1//", "/v1/chat/completions"),
        ("http://a:1/v1/models", "/v1/chat/completions"),
        ("http://a:1/v1?api-version=7", "/v1/chat/completions?api-version=7"),
    ],
)
def test_v1_is_added_only_where_there_is_no_path(given: str, path: str) -> None:
    assert endpoint(given).path == path


def test_the_handed_url_forms_lead_to_the_right_path() -> None:
    if not CASES.is_dir():
        pytest.skip("../shared is not here: the handed cases can't be read")
    for given, wanted in json.loads(next(CASES.glob("106-*.json")).read_text())["given"]["cases"]:
        assert endpoint(given).url == wanted


@pytest.mark.parametrize("api", sorted(PATHS))
def test_every_api_is_reached_from_its_root_from_v1_and_from_its_own_endpoint(api: str) -> None:
    tail, versioned = PATHS[api]
    full = f"/v1{tail}" if versioned else tail
    for given in ("http://a:1", "http://a:1/v1", f"http://a:1{full}"):
        assert endpoint(given, api).path == full
        assert endpoint(given, api).root == ""


def test_the_endpoint_of_another_api_is_refused_with_its_name() -> None:
    with pytest.raises(UserError, match=r"openai\.completions"):
        endpoint("http://a:1/v1/completions", "openai.chat")


def test_credentials_are_apart_and_never_printed() -> None:
    found = endpoint("https://me:p%40ss@a/v1")
    assert (found.user, found.password, found.port) == ("me", "p@ss", 443)
    assert "p@ss" not in found.url
    assert "p%40ss" not in redacted("https://me:p%40ss@a/v1")
    with pytest.raises(UserError) as caught:
        endpoint("ftp://me:secret@a/v1")
    assert "secret" not in str(caught.value)


def test_ipv6_hosts_lose_their_brackets_and_get_them_back_in_the_header() -> None:
    found = endpoint("http://[::1]:8000")
    assert (found.host, found.authority) == ("::1", "[::1]:8000")


@pytest.mark.parametrize(
    "wrong", ["", "http://", "http://a:99999", "ftp://a", "http://a b", "http://a:x", "http://a/v1#x", "http://[::1"]
)
def test_what_is_no_url_is_one_line(wrong: str) -> None:
    with pytest.raises(UserError) as caught:
        endpoint(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http:/127.0.0.1:8000", "HTTP:127.0.0.1:8000", "https:/host/v1"])
def test_a_missing_slash_is_no_host_called_http(url: str) -> None:
    with pytest.raises(UserError, match="slash"):
        endpoint(url)


def test_the_zone_of_a_link_local_address_is_this_machines_own() -> None:
    """RFC 6874: `%25` before it in a URL; it finds the interface and is never sent."""
    found = endpoint("http://[fe80::1%25eth0]:8000")
    assert (found.host, found.authority) == ("fe80::1%eth0", "[fe80::1%25eth0]:8000")
