"""Options that mean nothing are refused before a server is asked."""

from __future__ import annotations

import pytest

from phasemeter.errors import UserError
from phasemeter.runs.asked import Asked
from phasemeter.runs.settings import settings_of

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"turns": ""}, "--turns"),
        ({"rate": "5", "requests": " "}, "--requests"),
        ({"model": ""}, "--model"),
        ({"rate_scale": "3"}, "--rate-scale"),
        ({"trace_slice": "1:2"}, "--trace-slice"),
        ({"lenient": True}, "--lenient"),
        ({"trace_columns": "time=t"}, "--trace-columns"),
        ({"spread_same_second": True}, "--spread-same-second"),
        ({"block_size": 16}, "--block-size"),
        ({"rate": "5", "think_time": "1 s"}, "--think-time"),
        ({"processes": 0}, "--processes"),
        ({"processes": 100_000}, "--processes"),
        ({"seed": 10**23}, "--seed"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"temperature": -1.0}, "--temperature"),
        ({"top_p": 2.0}, "--top-p"),
        ({"top_p": float("nan")}, "--top-p"),
        ({"proxy": "socks5://127.0.0.1:1"}, "--proxy"),
    ],
)
def test_an_option_that_means_nothing_is_refused_by_its_name(asked: dict[str, object], option: str) -> None:
    with pytest.raises(UserError, match=f"^{option}"):
        settings_of(URL, Asked(**asked))  # type: ignore[arg-type]


def test_an_empty_key_is_a_way_to_send_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    settings = settings_of(URL, Asked(api_key=""))
    assert settings.target.secret_headers == ()


def test_what_has_a_meaning_still_passes() -> None:
    assert settings_of(URL, Asked(temperature=0.0, top_p=1.0, seed=-1, think_time="1 s")).spec.seed == -1


@pytest.mark.parametrize("word", ["none", "env"])
def test_a_word_for_no_proxy_or_the_environments_is_no_address(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert settings_of("http://127.0.0.1:9", Asked(proxy=word)).target.proxy is None
