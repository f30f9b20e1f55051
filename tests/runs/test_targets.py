"""Every API, scheme and kind of address; what a server tells of itself is on record with its source."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from phasemeter.io.target import Limits
from phasemeter.runs import gather, identify
from phasemeter.runs.asked import Asked
from phasemeter.runs.settings import settings_of
from tests.runs.served import HANGS, Behaviour, served
from tests.runs.whole import Bench

APIS = (
    "openai.chat", "openai.completions", "openai.responses", "anthropic.messages", "ollama.chat", "ollama.generate",
    "llamacpp.completion", "tgi.generate_stream", "sglang.generate",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "api", "path"),
    [
        ("completions", "openai.completions", "/v1/completions"),
        ("messages", "anthropic.messages", "/v1/messages"),
        ("tgi", "tgi.generate_stream", "/generate_stream"),
    ],
)
def test_an_api_may_be_asked_for_by_its_short_name(bench: Bench, name: str, api: str, path: str) -> None:
    with served() as server:
        ran = bench(server.url, "--api", name, "--requests", "1", "--concurrency", "1")
        assert server.measured[0].path == path
    assert ran.manifest["api"] == api


@pytest.mark.parametrize("api", APIS)
def test_each_api_is_measured_with_its_own_words_and_counts(bench: Bench, api: str) -> None:
    with served(Behaviour(gap_s=0.002)) as server:
        ran = bench(server.url, "--api", api, "--requests", "4", "--concurrency", "2", "--output-tokens", "6")
        assert all(request.tokens == 6 for request in server.measured)
    assert ran.outcomes["ok"] == 4, ran.err
    result = ran.result
    assert result["workload"]["realised"]["output_tokens"]["mean"] == 6, result["workload"]
    assert result["workload"]["output_tokens_sources"] == {"usage": 4}
    assert result["metrics"]["ttft"]["n"] == 4 and result["metrics"]["tpot"]["n"] >= 1
    assert result["run"]["api"] == api
    assert result["warnings"].keys() <= {"stream_not_incremental"}


def test_a_whole_endpoint_says_its_api(bench: Bench) -> None:
    with served() as server:
        ran = bench(f"{server.url}/v1/messages", "--requests", "1")
    assert ran.outcomes["ok"] == 1 and ran.manifest["api"] == "anthropic.messages"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_the_base_url_may_be_written_with_or_without_its_version(bench: Bench, path: str) -> None:
    with served() as server:
        assert bench(server.url + path, "--requests", "1").outcomes["ok"] == 1
        assert {request.path for request in server.requests} == {"/v1/chat/completions"}


# ---- addresses


def test_an_ipv6_address_is_measured(bench: Bench) -> None:
    with served(host="::1") as server:
        ran = bench(f"http://[::1]:{server.port}", "--requests", "2")
        assert any(f"host: [::1]:{server.port}".encode() in head.lower() for head in server.heads)
    assert ran.outcomes["ok"] == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_localhost_is_found_on_either_loopback_address(
    bench: Bench, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def ipv6_first(name: object, port: object, *rest: object, **more: object) -> list[tuple[object, ...]]:
        return sorted(real(name, port, *rest, **more), key=lambda one: one[0] != socket.AF_INET6)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", ipv6_first)
    with served(host=host) as server:
        assert bench(f"http://localhost:{server.port}", "--requests", "2").outcomes["ok"] == 2


def test_a_proxy_in_the_environment_is_not_used_and_that_is_said_where_it_matters(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with served() as server:
        ran = bench(server.url, "--requests", "1")
    assert ran.outcomes["ok"] == 1 and ran.manifest["proxy"] == "none"
    assert "HTTP_PROXY is set but not used" in bench("http://service.invalid", "--requests", "1").err


@pytest.mark.parametrize(("status", "words"), [(407, "USER:PASSWORD"), (None, "through the proxy http://127.0.0.1:")])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_or_is_not_there_is_told_from_the_server(
    bench: Bench, status: int | None, words: str, scheme: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

        if status is None:
            listener.close()
        else:
            threading.Thread(target=refuse, daemon=True).start()
        ran = bench(f"{scheme}://service.test", "--requests", "1", "--proxy", f"http://127.0.0.1:{port}")
    assert ran.code == 2 and words in ran.err and len(ran.err.splitlines()) == 1


def test_a_server_that_closes_after_each_answer_is_measured(bench: Bench) -> None:
    with served(Behaviour(keep_alive=False)) as server:
        ran = bench(server.url, "--requests", "6", "--concurrency", "2")
    assert ran.outcomes["ok"] == 6, ran.err


# ---- https


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def context(authority: trustme.CA) -> Iterator[ssl.SSLContext]:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(found)
    yield found


def test_a_certificate_that_nobody_vouches_for_is_refused_with_what_to_do(
    bench: Bench, context: ssl.SSLContext
) -> None:
    with served(tls=context) as server:
        ran = bench(server.url, "--requests", "2")
        assert ran.code == 2 and not ran.path.exists()
        assert "--ca-file" in ran.err and "--insecure" in ran.err and "certificate" in ran.err.lower()
        assert bench(server.url, "--requests", "2", "--insecure").outcomes["ok"] == 2


def test_a_certificate_of_a_given_authority_is_trusted(
    bench: Bench, context: ssl.SSLContext, authority: trustme.CA, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with served(tls=context) as server:
        ran = bench(server.url, "--requests", "3", "--ca-file", str(file), "--api-key", "sk-abcdef")
        assert ran.outcomes["ok"] == 3
        assert ran.manifest["protocol"] == "https/1.1"
        wrong = bench(server.url, "--ca-file", str(tmp_path / "none.pem"))
        assert wrong.code == 2 and "none.pem" in wrong.err
        (tmp_path / "empty.pem").write_text("nothing here")
        empty = bench(server.url, "--ca-file", str(tmp_path / "empty.pem"))
        assert empty.code == 2 and "empty.pem" in empty.err and "Traceback" not in empty.err


def test_the_page_beside_the_api_is_read_under_the_same_certificate_and_with_the_same_key(
    bench: Bench, context: ssl.SSLContext, authority: trustme.CA, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    page = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    with (
        served(Behaviour(key="sk-abcdef", pages={"/metrics": (200, page)}), tls=context) as server,
        served(Behaviour(pages={"/metrics": (200, page)})) as other,
    ):
        asked = ("--requests", "2", "--ca-file", str(file), "--api-key", "sk-abcdef")
        beside = bench(server.url, *asked)
        named = bench(server.url, *asked, "--server-metrics", f"{server.url}/metrics")
        elsewhere = bench(server.url, *asked, "--server-metrics", f"{other.url}/metrics")
        assert other.heads and not any(b"sk-abcdef" in head for head in other.heads)
    for ran in (beside, named, elsewhere):
        kept = {path.name for path in (ran.path / "evidence").iterdir()}
        assert {"metrics-before.http", "metrics-after.http"} <= kept and "gather.json" not in kept
        assert not any(b"sk-abcdef" in path.read_bytes() for path in ran.path.rglob("*") if path.is_file())


# ---- keys


def test_a_key_goes_to_an_engine_that_speaks_anthropics_api_in_both_its_headers_and_to_anthropic_in_its_own() -> None:
    def names(url: str) -> set[str]:
        settings = settings_of(url, Asked(api="anthropic.messages", api_key="k", requests="1"))
        return {name.lower() for name, _ in settings.target.secret_headers}

    assert names("http://127.0.0.1:1") == {"x-api-key", "authorization"}
    assert names("https://api.anthropic.com") == {"x-api-key"}


def test_a_key_that_is_refused_is_not_asked_for_again(bench: Bench) -> None:
    with served(Behaviour(key="sk-abcdef")) as server:
        for model in ([], ["--model", "tiny"]):
            without, wrong = bench(server.url, *model), bench(server.url, "--api-key", "sk-wrong", *model)
            assert without.code == wrong.code == 2
            assert "give a key" in without.err and "not with this key" in wrong.err and "sk-wrong" not in wrong.err


def test_a_base_path_that_lacks_its_version_is_told_what_to_write(bench: Bench) -> None:
    with served(Behaviour(models=None)) as server:
        assert f"is it {server.url}/svc/v1?" in bench(f"{server.url}/svc", "--requests", "1").err
        assert "is it" not in bench(server.url, "--requests", "1").err


# ---- what a server tells


def listed(owner: str, **more: object) -> str:
    return json.dumps({"data": [{"id": "tiny", "owned_by": owner, **more}]})


def test_a_vllm_tells_its_version_and_its_cache(bench: Bench) -> None:
    page = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",num_gpu_blocks="77"} 1.0\n'
    pages = {
        "/v1/models": (200, listed("vllm", max_model_len=2048)),
        "/version": (200, '{"version": "0.11.0"}'),
        "/metrics": (200, page),
    }
    with served(Behaviour(pages=pages)) as server:
        manifest = bench(server.url, "--requests", "1", "--server-metrics", "none").manifest
        assert (manifest["engine"], manifest["engine_version"], manifest["prefix_cache"]) == ("vllm", "0.11.0", "on")
        assert manifest["kv_policy"] == "paged: block_size 16, cache_dtype auto, num_gpu_blocks 77"
        assert manifest["sources"]["engine_version"] == "GET /version"
        ran = bench(server.url, "--input-tokens", "2000", "--output-tokens", "64")
        assert ran.code == 2 and "2048" in ran.err


def test_a_llama_cpp_tells_its_build_slots_and_quantisation(bench: Bench) -> None:
    props = {"build_info": "b6800-abc", "total_slots": 4, "model_path": "/models/tiny.Q4_K_M.gguf"}
    with served(
        Behaviour(pages={"/v1/models": (200, listed("llamacpp")), "/props": (200, json.dumps(props))})
    ) as server:
        manifest = bench(server.url, "--requests", "1", "--server-metrics", "none").manifest
    assert manifest["engine"] == "llama.cpp" and manifest["engine_version"] == "b6800-abc"
    assert manifest["quantisation"] == "Q4_K_M" and manifest["batching"].startswith("4 slots")


def test_an_sglang_tells_its_parallelism_and_schedule(bench: Bench) -> None:
    told = {"version": "0.5.4", "tp_size": 2, "dp_size": 1, "schedule_policy": "fcfs", "attention_backend": "fa3"}
    pages = {"/v1/models": (200, listed("sglang")), "/get_server_info": (200, json.dumps(told))}
    with served(Behaviour(pages=pages)) as server:
        manifest = bench(server.url, "--requests", "1", "--server-metrics", "none").manifest
    assert manifest["engine_version"] == "0.5.4" and manifest["tensor_parallel"] == 2
    assert manifest["scheduling"] == "fcfs" and manifest["sources"]["scheduling"] == "GET /get_server_info"


def test_what_nobody_tells_stays_unrecorded(bench: Bench) -> None:
    with served() as server:
        manifest = bench(server.url, "--requests", "1").manifest
    for name in ("engine", "engine_version", "accelerator", "dtype", "quantisation", "weights_hash", "tensor_parallel"):
        assert manifest[name] is None
    assert manifest["client"]["cores"] >= 1 and manifest["prompt_set_hash"] and manifest["model"] == "tiny"


def test_tensorrt_llm_is_asked_for_its_own_page_and_its_queue_of_iterations_is_left_alone(bench: Bench) -> None:
    """`/metrics` of trtllm-serve empties a queue for whoever else reads it (tensorrt_llm/serve/openai_server.py)."""
    pages = {
        "/v1/models": (200, listed("tensorrt_llm")),
        "/version": (200, '{"version": "1.2.0"}'),
        "/metrics": (200, "[]"),
        "/prometheus/metrics": (200, 'trtllm_request_success_total{finished_reason="length"} 1\n'),
    }
    with served(Behaviour(pages=pages)) as server:
        ran = bench(server.url, "--requests", "2")
        assert "/metrics" not in server.paths and "/prometheus/metrics" in server.paths
    assert ran.manifest["engine"] == "tensorrt-llm" and ran.manifest["engine_version"] == "1.2.0"
    assert (ran.path / "evidence" / "metrics-after.http").exists()


def test_a_queue_of_iterations_that_a_person_names_is_read_once_and_that_is_said(bench: Bench) -> None:
    with served(Behaviour(pages={"/metrics": (200, '[{"iter": 1}]')})) as server:
        ran = bench(server.url, "--requests", "2", "--server-metrics", f"{server.url}/metrics")
        assert server.paths.count("/metrics") == 1
    assert ran.err.count("/prometheus/metrics") == 1 and ran.outcomes["ok"] == 2


@pytest.mark.parametrize("owner", ["vllm", "somebody"])
@pytest.mark.parametrize("named", [False, True])
def test_a_metrics_page_that_never_answers_is_asked_a_moment_and_said_in_one_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: str, named: bool
) -> None:
    monkeypatch.setattr(gather, "LOOK_S", 1.0)
    monkeypatch.setattr(identify, "BRIEF", Limits(total_s=1.0))
    pages = {"/v1/models": (200, listed(owner)), "/version": (200, '{"version": "1"}'), "/metrics": (HANGS, "")}
    with served(Behaviour(pages=pages)) as server:
        ran = bench(server.url, "--requests", "2", *(("--server-metrics", f"{server.url}/metrics") if named else ()))
        assert server.paths.count("/metrics") == 1
    assert ran.outcomes["ok"] == 2 and ran.err.count("is left out of this run") == ran.err.count("/metrics:") == 1
    assert "left out" in (ran.path / "evidence" / gather.NOTES).read_text()


def test_a_metrics_page_is_kept_from_before_and_after(bench: Bench) -> None:
    pages = {"/metrics": (200, "# TYPE up gauge\nup 1\n")}
    with served(Behaviour(pages=pages)) as server:
        ran = bench(server.url, "--requests", "2", "--server-metrics", f"{server.url}/metrics")
        kept = sorted(path.name for path in (ran.path / "evidence").iterdir())
    assert "metrics-before.http" in kept and "metrics-after.http" in kept


def test_http_said_to_an_https_port_is_told_what_to_write(bench: Bench, context: ssl.SSLContext) -> None:
    with served(tls=context) as server:
        for model in ([], ["--model", "tiny"]):
            ran = bench(f"http://127.0.0.1:{server.port}", *model)
            assert ran.code == 2 and ran.out == "" and not ran.path.exists()
            assert f"write https://127.0.0.1:{server.port}" in ran.err.splitlines()[-1]
        assert server.requests == []


def test_https_said_to_an_http_port_is_told_what_to_write(bench: Bench) -> None:
    with served() as server:
        ran = bench(f"https://127.0.0.1:{server.port}", "--model", "tiny")
        assert ran.code == 2 and ran.out == "" and not ran.path.exists()
        assert f"write http://127.0.0.1:{server.port}" in ran.err.splitlines()[-1]
        assert server.requests == []


@pytest.mark.parametrize("last_words", [b"", b"220 mail.example ESMTP\r\n"])
def test_a_port_that_speaks_no_http_is_said_to(bench: Bench, last_words: bytes) -> None:
    """Whether it closes without a word or says something of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            while True:
                try:
                    conn, _ = listener.accept()
                except OSError:
                    return
                with conn, suppress(OSError):
                    conn.sendall(last_words)

        threading.Thread(target=hang_up, daemon=True).start()
        ran = bench(f"http://127.0.0.1:{port}", "--model", "tiny")
        listener.shutdown(socket.SHUT_RDWR)
    assert ran.code == 2 and ran.out == "" and not ran.path.exists()
    assert "HTTP" in ran.err.splitlines()[-1] or "openai.chat" in ran.err.splitlines()[-1]


def test_a_base_path_under_which_anything_is_answered_is_noted(bench: Bench) -> None:
    with served(Behaviour(models=None, under="/nope")) as server:
        assert (
            "is `/nope/v1` the server's base path?"
            in bench(f"{server.url}/nope/v1", "--model", "m", "--requests", "1").err
        )
        assert "base path" not in bench(server.url, "--model", "m", "--requests", "1").err
    with served(Behaviour(under="/nope")) as server:
        server.behaviour.pages["/no-such-path/models"] = (404, "")
        assert "base path" not in bench(f"{server.url}/nope/v1", "--requests", "1").err
        server.behaviour.pages["/no-such-path/models"] = (200, "hello")
        assert "the server answers under any path" in bench(f"{server.url}/nope/v1", "--requests", "1").err
