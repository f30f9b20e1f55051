"""What is wrong is said in one line before anything is measured, and no folder is left."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.runs.served import Behaviour, served
from tests.runs.whole import Bench, Ran


def refused(ran: Ran, *words: str) -> None:
    assert ran.code == 2
    assert ran.out == ""
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("phasemeter: ")
    for word in words:
        assert word in last, last
    assert "Traceback" not in ran.err
    assert not ran.path.exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--rate", "0"], "rate"),
        (["--rate", "-3/s"], "rate"),
        (["--rate", "4 furlongs"], "furlongs"),
        (["--rate", "4/s", "--arrivals", "sometimes"], "sometimes"),
        (["--concurrency", "0"], "concurrency 0"),
        (["--concurrency", "1.5"], "concurrency"),
        (["--concurrency", "unlimited"], "--rate inf"),
        (["--arrivals", "ramp:0:0"], "--arrivals"),
        (["--n", "0"], "--n 0"),
        (["--concurrency", "٣"], "concurrency"),
        (["--warmup", "²"], "warmup"),
        (["--warmup", "-1"], "warmup"),
        (["--prefix", "²:4"], "prefix"),
        (["--otlp-listen", ":²"], "--otlp-listen"),
        (["--otlp-listen", "nonsense"], "--otlp-listen"),
        (["--proxy", "nonsense"], "--proxy"),
        (["--proxy", "4 furlongs:80"], "--proxy"),
        (["--proxy", "ftp://proxy:21"], "--proxy"),
        (["--rate", "1,2", "--concurrency", "1,2"], "sweep"),
        (["--rate", "1,,2"], "empty member"),
        (["--rate", "10,10.0"], "twice"),
        (["--rate", "1/s,60/min"], "twice"),
        (["--requests", "0"], "requests"),
        (["--duration", "60 parsecs"], "parsecs"),
        (["--input-tokens", "gauss:1:2"], "--input-tokens"),
        (["--timeout-idle", "0"], "--timeout-idle"),
        (["--repeat", "0"], "--repeat"),
        (["--processes", "0"], "--processes"),
        (["--nonsense", "1"], "nonsense"),
        (["--api", "openai.smalltalk"], "openai.smalltalk"),
        (["--body", "{"], "--body"),
        (["--body", "stream=false"], "--no-stream"),
        (["--body", '{"max_tokens": 9}'], "--output-tokens"),
        (["--body", "n=2"], "--n"),
        (["--body", "messages=1"], "--prompts"),
        (["--body", "messages=null"], "--prompts"),
        (["--body", "prompt=hello", "--api", "openai.completions"], "--prompts"),
        (["--body", 'options={"num_predict": 3}', "--api", "ollama.chat"], "--output-tokens"),
        (["--body", "ignore_eos=false"], "--no-ignore-eos"),
        (["--body", "temperature=1", "--temperature", "0"], "--temperature"),
        (["--body", "x=NaN"], "is no JSON"),
        (["--body", "x={"], "is no JSON"),
        (["--body", "x=[1,"], "is no JSON"),
        (["--body", 'x="open'], "is no JSON"),
        (["--body", "x=True"], "is no JSON"),
        (["--body", "x=01"], "is no JSON"),
        (["--body", "x=1e999"], "is no JSON"),
        (["--body", "=1"], "name=JSON"),
        (["--body", "[1]"], "name=JSON"),
        (["--server-metrics", "foo"], "--server-metrics"),
        (["--server-metrics", "ftp://127.0.0.1/metrics"], "--server-metrics"),
        (["--otlp-listen", "nonsense"], "--otlp-listen"),
        (["--header", "no colon"], "--header"),
        (["--prompts", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["--trace", "no-such-file.csv"], "no-such-file.csv"),
        (["--contract", "no-such-file.yaml"], "no-such-file.yaml"),
        (["--tokenizer", "no-such-tokenizer"], "no-such-tokenizer"),
        (["--turns", "3", "--api", "openai.completions"], "--turns"),
        (["--rate", "inf", "--requests", "2000000000"], "file descriptors"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_sent(bench: Bench, options: list[str], word: str) -> None:
    with served() as server:
        refused(bench(server.url, *options), word)
        assert server.paths == []


def test_a_port_where_nothing_listens_is_said_as_such(bench: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused(bench(f"http://127.0.0.1:{port}"), "can't connect", str(port))


def test_a_host_without_an_address_is_said_as_such(bench: Bench) -> None:
    refused(bench("http://no-such-host.invalid:8000"), "no-such-host.invalid")


def test_an_address_that_is_none_is_said_as_such(bench: Bench) -> None:
    refused(bench("ftp://127.0.0.1/"), "ftp")
    refused(bench("http://"), "no host")


def test_a_path_that_is_no_api_is_told_in_the_servers_words(bench: Bench) -> None:
    with served() as server:
        refused(
            bench(f"{server.url}/nowhere/like/this", "--model", "tiny", "--api", "openai.responses"),
            "Not Found",
            "base URL",
        )
    with served(Behaviour(fault=lambda request: (404, '{"detail": "Not Found here"}'))) as server:
        refused(bench(server.url, "--model", "tiny"), "Not Found here", "/v1")


def test_a_web_page_under_200_is_no_api(bench: Bench) -> None:
    with served(Behaviour(fault=lambda request: (200, "<html><body>Welcome</body></html>"))) as server:
        refused(bench(server.url), "openai.chat", "Welcome")


def test_a_server_that_speaks_something_else_is_no_api(bench: Bench) -> None:
    with served(Behaviour(fault=lambda request: "not-http")) as server:
        refused(bench(server.url), "openai.chat")


def test_a_redirect_names_the_place_to_give_instead(bench: Bench) -> None:
    with served(Behaviour(fault=lambda request: (302, "moved"))) as server:
        refused(bench(server.url), "/elsewhere")


def test_a_model_that_is_not_listed_is_refused_with_the_list(bench: Bench) -> None:
    with served(Behaviour(models=("tiny", "large"))) as server:
        refused(bench(server.url, "--model", "huge"), "huge", "tiny, large")
        refused(bench(server.url), "which model", "tiny, large")


def test_a_server_without_a_list_refuses_an_unknown_model_in_its_own_words(bench: Bench) -> None:
    def unknown(request: object) -> tuple[int, str]:
        return 404, json.dumps({"error": {"message": "The model `huge` does not exist."}})

    with served(Behaviour(models=None, fault=unknown)) as server:
        refused(bench(server.url, "--model", "huge"), "The model `huge` does not exist.")
        refused(bench(server.url), "say --model NAME")


def test_a_refused_key_is_said_with_how_to_give_one(bench: Bench) -> None:
    with served(Behaviour(key="right")) as server:
        refused(bench(server.url, "--api-key", "wrong"), "401", "--api-key")
        refused(bench(server.url, "--model", "tiny"), "no such key", "OPENAI_API_KEY")


def test_a_field_that_the_server_refuses_and_a_person_asked_for_ends_the_run(bench: Bench) -> None:
    with served(Behaviour(refuses={"logit_bias": 400})) as server:
        refused(bench(server.url, "--body", "logit_bias={}"), "logit_bias")


def test_a_folder_that_exists_is_left_alone(bench: Bench, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with served() as server:
        ran = bench(server.url, output=there)
        assert ran.code == 2 and "exists already" in ran.err
        assert server.paths == [] and list(there.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said_before_the_run(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with served() as server:
        ran = bench(server.url, output=tmp_path / "file" / "run")
        assert ran.code == 2 and "-o/--output" in ran.err and server.measured == []


def test_folders_made_for_a_run_that_never_began_are_gone_too(bench: Bench, tmp_path: Path) -> None:
    with served() as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = bench(
            server.url, "--rate", "9", "--warmup", "1", "--otlp-listen", listen, output=tmp_path / "new" / "run"
        )
    assert ran.code == 2 and "--otlp-listen" in ran.err
    assert not (tmp_path / "new").exists() and server.measured == []


def test_a_faulty_trace_is_named_by_its_line_before_the_run(bench: Bench, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,10,4\nyesterday,10,4\n")
    with served() as server:
        refused(bench(server.url, "--trace", str(trace)), "trace.csv:3")
        assert server.paths == []


def test_a_faulty_prompt_file_is_named_by_its_line(bench: Bench, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello"}\n{"promt": "hello"}\n')
    with served() as server:
        refused(bench(server.url, "--prompts", str(prompts)), "prompts.jsonl:2", "promt")


def test_a_server_that_never_answers_the_probe_is_measured_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phasemeter.runs.probe_request.PATIENCE_S", 0.3)
    with served(Behaviour(fault=lambda request: "silence")) as server:
        ran = bench(server.url, "--concurrency", "2", "--requests", "2", "--timeout-first-byte", "300ms")
    assert ran.code == 1
    assert ran.outcomes["failed"] == {"timeout_first_byte": 2}
