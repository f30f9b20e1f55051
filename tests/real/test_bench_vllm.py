"""`phasemeter bench` against a real vLLM: whatever is asked, every request is accounted for and every token is the server's."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from phasemeter.records.request_row import RequestRow
from phasemeter.runs.analysis import rows
from tests.real.conftest import RealServer
from tests.real.tools import bench, phasemeter

INPUT, OUTPUT, REQUESTS = 48, 16, 8
PROBE_TOKENS = 2  # what one of the probe's requests asks for
SHAPES = {
    "chat": (),
    "chat, whole answers": ("--no-stream",),
    "completions": ("--api", "openai.completions"),
    "completions, whole answers": ("--api", "openai.completions", "--no-stream"),
    "token ids": ("--api", "openai.completions", "--token-ids"),
    "responses": ("--api", "openai.responses"),
    "messages": ("--api", "anthropic.messages"),
    "two choices": ("--n", "2"),
    "logprobs": ("--body", "logprobs=true", "--body", "top_logprobs=1"),
    "completions with logprobs": ("--api", "openai.completions", "--body", "logprobs=1"),
    "echo": ("--api", "openai.completions", "--body", "echo=true", "--body", "logprobs=1"),
    "token ids on every chunk": ("--body", "return_token_ids=true"),
    "usage on every chunk": ("--body", 'stream_options={"include_usage": true, "continuous_usage_stats": true}'),
    "two processes": ("--processes", "2"),
    "constant rate": ("--rate", "8/s", "--arrivals", "constant", "--processes", "2"),
}


def generated(server: RealServer) -> float:
    """All tokens that the server counts as generated, ever."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


def told(run: Path) -> Iterator[RequestRow]:
    return iter(list(rows(run)))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_request_and_every_token_is_accounted_for(vllm: RealServer, tmp_path: Path, shape: str) -> None:
    options = SHAPES[shape]
    before = generated(vllm)
    loop = () if "--rate" in options else ("--concurrency", "3")
    asked = ("--requests", str(REQUESTS), "--input-tokens", str(INPUT), "--output-tokens", str(OUTPUT))
    result = bench(vllm.url, tmp_path / "run", *loop, *asked, *options)
    outcomes = result["outcomes"]
    assert (outcomes["scheduled"], outcomes["ok"]) == (REQUESTS, REQUESTS), outcomes
    assert not any("server_" in words for words in result["budget"]["warnings"])  # the window holds ours alone
    seen = list(told(tmp_path / "run"))
    choices = 2 if "--n" in options else 1
    assert all(row.output_tokens == OUTPUT * choices and row.output_tokens_source == "usage" for row in seen)
    probed = generated(vllm) - before - sum(row.output_tokens or 0 for row in seen)
    assert 0 < probed <= 7 * PROBE_TOKENS * choices and probed % PROBE_TOKENS == 0  # the probe's own, and nobody else's
    realised = result["workload"]["realised"]["input_tokens"]
    assert abs(realised["mean"] - INPUT) <= (0 if "--token-ids" in options else 0.15 * INPUT)
    assert result["metrics"]["stream_e2e"]["n"] == REQUESTS
    if "--no-stream" in options:
        assert result["metrics"]["ttft"]["reason"] == "not_streamed"
    else:
        spoken = [row for row in seen if row.first_token_ns is not None and row.phase == "measured"]
        assert result["metrics"]["ttft"]["n"] == len(spoken) > 0  # half characters may make an answer without any text
        for row in spoken:
            stamps = (row.send_start_ns, row.first_token_ns, row.last_token_ns, row.stream_end_ns)
            assert list(stamps) == sorted(stamp or 0 for stamp in stamps)


@pytest.mark.parametrize("shape", ["logprobs", "usage on every chunk", "token ids on every chunk", "echo"])
def test_tokens_per_chunk_are_known_where_the_server_tells_them(vllm: RealServer, tmp_path: Path, shape: str) -> None:
    bench(vllm.url, tmp_path / "run", "--requests", "4", "--output-tokens", "24", *SHAPES[shape])
    counts = [choice.tokens for row in told(tmp_path / "run") for choice in row.choices]
    assert counts and all(tokens is not None and min(tokens) >= 1 for tokens in counts)
    assert all(sum(tokens or ()) <= 24 for tokens in counts)  # tokens whose text never came are in no chunk


def test_answers_that_a_drain_limit_cut_off_are_nobody_elses(vllm: RealServer, tmp_path: Path) -> None:
    """vLLM counts their first tokens and all that it made, and leaves them out of the histograms of what ended."""
    load = ("--rate", "6/s", "--duration", "2s", "--drain", "100 ms", "--output-tokens", "200", "--ignore-eos")
    done = phasemeter("bench", vllm.url, *load, "-o", str(tmp_path / "run"), "--json", "--quiet")
    assert done.returncode in {0, 1}, done.stderr
    rows_seen = [row for row in told(tmp_path / "run") if row.phase == "measured"]
    assert sum(row.outcome == "cancelled" for row in rows_seen) > 0
    told_budget = json.loads(done.stdout)["budget"] or {"warnings": []}
    assert not any("mismatch" in words for words in told_budget["warnings"])


def test_asked_lengths_are_realised_over_their_distribution(vllm: RealServer, tmp_path: Path) -> None:
    result = bench(
        vllm.url, tmp_path / "run", "--concurrency", "4", "--requests", "16", "--input-tokens", "uniform:32:200",
        "--output-tokens", "uniform:4:20",
    )  # fmt: skip
    asked, realised = result["workload"]["asked"], result["workload"]["realised"]
    assert realised["output_tokens"]["mean"] == asked["output_tokens"]["mean"]
    assert abs(realised["input_tokens"]["mean"] / asked["input_tokens"]["mean"] - 1) < 0.1


@pytest.mark.parametrize(
    "options, words",
    [
        (("--model", "nope"), "no model `nope` there: it lists tiny"),
        (("--api", "openai.completions", "--path-is-wrong"), "path-is-wrong"),
        (("--output-tokens", "5000"), "its context holds 4096"),
        (("--body", "temperature=-3"), "temperature"),
        (("--body", "logprobs=true", "--body", "top_logprobs=50"), "logprobs"),
    ],
)
def test_a_mistake_is_one_line_in_the_servers_words_and_leaves_nothing(
    vllm: RealServer, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done = phasemeter("bench", vllm.url, "--requests", "2", *options, "-o", str(tmp_path / "run"), "--quiet")
    assert done.returncode == 2 and words in done.stderr.replace("\n", " "), done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


def test_a_small_vocabulary_is_found_by_the_probe_and_noted(vllm: RealServer, tmp_path: Path) -> None:
    result = bench(vllm.url, tmp_path / "run", "--requests", "3", "--output-tokens", "4", *SHAPES["token ids"])
    assert any("vocabulary" in note for note in result["run"]["notes"])
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["engine"] == "vllm"
