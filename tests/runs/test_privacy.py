"""Keys reach no file, and text goes where it was asked to go; times, sizes and metrics stay."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.io.run_directory import RunDirectory
from phasemeter.runs import analysis, privacy
from tests.runs.served import Behaviour, Request, served
from tests.runs.whole import Bench, Ran

KEY = "sk-0123456789-very-secret"


def bytes_of(path: Path) -> Iterator[tuple[Path, bytes]]:
    for file in path.rglob("*"):
        if file.is_file():
            yield file, file.read_bytes()


def nowhere(ran: Ran, *secrets: str) -> None:
    assert ran.code == 0, ran.err
    for secret in secrets:
        assert secret not in ran.out and secret not in ran.err
        for file, held in bytes_of(ran.path):
            assert secret.encode() not in held, file


def test_a_key_from_the_option_or_the_environment_is_in_no_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Behaviour(key=KEY)) as server:
        nowhere(bench(server.url, "--rate", "100", "--requests", "3", "--warmup", "1", "--api-key", KEY), KEY)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        nowhere(bench(server.url, "--requests", "3"), KEY)
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}


def test_no_key_is_no_header(bench: Bench) -> None:
    with served() as server:
        nowhere(bench(server.url, "--requests", "1"))
        assert all("authorization" not in request.headers for request in server.requests)


def test_headers_and_a_password_in_the_url_are_in_no_file(bench: Bench) -> None:
    pair = base64.b64encode(b"ann:p4ssw0rd-p4ss").decode()
    with served() as server:
        url = server.url.replace("http://", "http://ann:p4ssw0rd-p4ss@")
        ran = bench(url, "--requests", "2", "--header", "X-Token: tok-998877", "--header", "api-key: k-445566")
        nowhere(ran, "p4ssw0rd-p4ss", pair, "tok-998877", "k-445566")
        assert {request.headers["authorization"] for request in server.requests} == {f"Basic {pair}"}
        assert {request.headers["x-token"] for request in server.requests} == {"tok-998877"}
    assert "X-Token" in ran.manifest["body"]["headers"]


def test_the_credentials_of_a_proxy_are_in_no_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://bob:hunter2hunter2@proxy.invalid:3128")
    ran = bench("http://service.invalid", "--model", "tiny")
    assert "hunter2" not in ran.err and "HTTP_PROXY is set but not used" in ran.err
    ran = bench("http://service.invalid", "--model", "tiny", "--proxy", "env")
    assert ran.code == 2 and "hunter2" not in ran.err and "proxy.invalid" in ran.err


def test_a_key_that_the_server_echoes_is_overwritten(bench: Bench) -> None:
    def echo(request: Request) -> list[str]:
        return [" you", f" sent {request.headers['authorization']}", " to", " me"]

    with served(Behaviour(answer=echo)) as server:
        nowhere(bench(server.url, "--requests", "3", "--api-key", KEY), KEY)


def test_a_refusal_that_echoes_the_key_is_told_without_it(bench: Bench) -> None:
    def refuse(request: Request) -> tuple[int, str]:
        return 400, json.dumps({"error": {"message": f"bad key {KEY}"}})

    with served(Behaviour(fault=refuse)) as server:
        ran = bench(server.url, "--api-key", KEY)
    assert ran.code == 2 and KEY not in ran.err and "bad key ***" in ran.err


# ---- text

SAID = "marmalade"


def answers(request: Request) -> list[str]:
    return [f" {SAID}", ' "quoted" \\ and \u00fcber', "\n", " end"]


def test_no_text_keeps_times_sizes_and_metrics_and_drops_every_word(bench: Bench, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"tell me about pomegranates {n}"}) + "\n" for n in range(6)))

    def fault(request: Request) -> tuple[int, str] | None:
        return (422, request.raw.decode()) if request.number == 3 else None

    with served(Behaviour(answer=answers, fault=fault, gap_s=0.001)) as server:
        ran = bench(server.url, "--prompts", str(prompts), "--rate", "100", "--warmup", "1", "--no-text")
    assert ran.outcomes == {"scheduled": 6, "ok": 5, "failed": {"http_error": 1}, "cancelled": 0, "unsent": 0}
    for file, held in bytes_of(ran.path):
        assert b"marmalade" not in held and b"pomegranate" not in held and b"quoted" not in held, file
    assert ran.manifest["text"] == "dropped"
    assert not list(ran.path.rglob("*.bodies"))
    again = bench.report(ran.path, "--json").result
    assert again["metrics"] == ran.result["metrics"] and again["outcomes"] == ran.result["outcomes"]
    for table in ("requests.parquet", "events.parquet"):  # and so it does from the blanked capture alone
        (ran.path / table).unlink()
    assert bench.report(ran.path, "--json").result["metrics"] == ran.result["metrics"]


def test_text_is_kept_where_nobody_asked_to_drop_it(bench: Bench) -> None:
    with served(Behaviour(answer=answers)) as server:
        ran = bench(server.url, "--requests", "2")
    assert any(b"marmalade" in held for _, held in bytes_of(ran.path / "capture"))
    assert ran.manifest["text"] is None


@pytest.mark.parametrize("after", ["load", "tables", "first file"])
def test_a_run_killed_before_its_text_was_dropped_is_finished_by_the_next_report(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, served(Behaviour(answer=answers)) as server:
        if after == "load":
            patched.setattr(analysis, "derive", killed)
        elif after == "tables":
            patched.setattr(privacy, "drop_text", killed)
        else:
            patched.setattr(privacy, "rewrite", killed)
        ran = bench(server.url, "--requests", "4", "--no-text")
    assert ran.code == 130
    assert f"what was captured is in {ran.path}: `phasemeter report` reads it" in ran.err
    assert any(b"marmalade" in held for _, held in bytes_of(ran.path))
    (ran.path / "evidence").mkdir()
    (ran.path / "evidence" / ".spans-000001.pb").write_bytes(b"half of a span of marmalade")
    again = bench.report(ran.path, "--json")
    assert again.outcomes["ok"] == 4
    assert not any(b"marmalade" in held for _, held in bytes_of(ran.path))
    assert ran.manifest["text"] == "dropped"


def test_a_run_that_is_being_measured_is_not_finished_by_a_reader(bench: Bench) -> None:
    with served(Behaviour(answer=answers)) as server:
        ran = bench(server.url, "--requests", "2")
    directory = RunDirectory(ran.path)
    directory.write_manifest(msgspec.structs.replace(directory.read_manifest(), text=privacy.DROPPING))
    with privacy.live(ran.path):
        assert bench.report(ran.path, "--json").code == 0
        assert any(b"marmalade" in held for _, held in bytes_of(ran.path))
    shutil.copyfile(os.devnull, ran.path / privacy.RUNNING)  # what a killed measurer leaves
    bench.report(ran.path, "--json")
    assert not any(b"marmalade" in held for _, held in bytes_of(ran.path))


def events(words: list[str]) -> bytes:
    return b"".join(b"data: " + json.dumps({"choices": [{"delta": {"content": w}}]}).encode() + b"\n\n" for w in words)


@settings(deadline=None, max_examples=80)
@given(
    words=st.lists(st.text(alphabet='abc"\\\n\u00e9{}[]:, ', min_size=0, max_size=8), max_size=5),
    chunk=st.integers(1, 40), cuts=st.lists(st.integers(0, 400), max_size=8), chunked=st.booleans(), interim=st.booleans(),
)  # fmt: skip
def test_blanking_keeps_every_length_and_no_word_however_the_bytes_are_cut(
    words: list[str], chunk: int, cuts: list[int], chunked: bool, interim: bool
) -> None:
    body = events([f"Quince{word}" for word in words])
    head = b"HTTP/1.1 100 Continue\r\n\r\n" * interim + b"HTTP/1.1 200 OK\r\nX-Note: stays\r\n"
    if chunked:
        parts = [body[at : at + chunk] for at in range(0, len(body), chunk)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        whole = head + b"Transfer-Encoding: chunked\r\n\r\n" + framed
    else:
        whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    at = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    reads = [whole[a:b] for a, b in pairwise(at)]
    blank = privacy.blanked_reads(reads)
    assert [len(read) for read in blank] == [len(read) for read in reads]
    told = b"".join(blank)
    spans, _ = privacy.body_spans(told)
    text = b"".join(told[a:b] for a, b in spans)
    assert b"Quince" not in text and b"abc" not in text
    assert text.count(b"data: ") == len(words) and b"X-Note: stays" in told
    assert privacy.blanked_reads(blank) == blank
    for line in text.split(b"\n"):
        if line.startswith(b"data: "):
            json.loads(line[6:])
