"""What was asked is what is sent: warm-up, traces, prompts, bodies, mixes, contracts."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.runs.served import Behaviour, Request, served
from tests.runs.whole import Bench, Ran


def text_of(request: Request) -> str:
    body = request.body
    return str(body["prompt"]) if "prompt" in body else str(body["messages"][-1]["content"])


def phases(bench: Bench, ran: Ran) -> Counter[str]:
    header, *lines = bench.report(ran.path, "--csv", "requests").out.strip().splitlines()
    at = header.split(",").index("phase")
    return Counter(line.split(",")[at] for line in lines)


# ---- warm-up


@pytest.mark.parametrize(
    "load", [["--rate", "100", "--requests", "6"], ["--concurrency", "2", "--requests", "6"]], ids=["open", "closed"]
)
def test_warm_up_requests_have_records_of_their_own_and_no_place_in_the_result(bench: Bench, load: list[str]) -> None:
    with served() as server:
        ran = bench(server.url, *load, "--warmup", "3")
        sent = len(server.requests) - 2  # the probe's own two
    assert ran.outcomes["scheduled"] == 6 and ran.result["metrics"]["ttft"]["n"] == 6
    assert phases(bench, ran) == {"warmup": 3, "measured": 6}
    assert sent == 9


def test_a_warm_up_by_time_is_the_head_of_the_same_arrivals(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--rate", "50", "--arrivals", "constant", "--duration", "200ms", "--warmup", "100ms")
        assert len(server.measured) == 15
    assert ran.outcomes["scheduled"] == 10
    assert phases(bench, ran) == {"warmup": 5, "measured": 10}


def test_a_warm_up_by_time_needs_a_rate(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--concurrency", "2", "--warmup", "2 s")
    assert ran.code == 2 and "--warmup" in ran.err


# ---- traces


def trace_file(folder: Path, rows: list[tuple[float | None, int, int]]) -> Path:
    path = folder / "trace.csv"
    stamps = any(stamp is not None for stamp, _, _ in rows)
    head = "timestamp,input_tokens,output_tokens\n" if stamps else "input_tokens,output_tokens\n"
    lines = [f"{stamp},{i},{o}\n" if stamps else f"{i},{o}\n" for stamp, i, o in rows]
    path.write_text(head + "".join(lines))
    return path


ROWS: list[tuple[float | None, int, int]] = [(0.0, 30, 3), (0.4, 40, 5), (0.8, 50, 2), (4.0, 60, 1)]


def test_a_trace_is_replayed_row_by_row_at_its_scale(bench: Bench, tmp_path: Path) -> None:
    with served() as server:
        ran = bench(server.url, "--trace", str(trace_file(tmp_path, ROWS)), "--rate-scale", "10", "--max-idle", "1 s")
        assert [request.tokens for request in server.in_order] == [3, 5, 2, 1]
        asked = [request.words + 5 for request in server.in_order]
    assert asked == [30, 40, 50, 60]
    assert ran.outcomes["ok"] == 4
    header, *lines = bench.report(ran.path, "--csv", "requests").out.strip().splitlines()
    at = header.split(",").index("due_ns") if "due_ns" in header.split(",") else None
    if at is not None:
        dues = sorted(int(float(line.split(",")[at])) for line in lines)
        assert [due - dues[0] for due in dues] == [0, 40_000_000, 80_000_000, 180_000_000]


def test_a_slice_and_a_sample_of_a_trace_leave_the_rest_out(bench: Bench, tmp_path: Path) -> None:
    trace = str(trace_file(tmp_path, ROWS))
    with served() as server:
        assert bench(server.url, "--trace", trace, "--trace-slice", "1:3").outcomes["ok"] == 2
        assert [request.tokens for request in server.in_order] == [5, 2]
        assert bench(server.url, "--trace", trace, "--trace-sample", "1", "--requests", "1").outcomes["ok"] == 1


def test_a_trace_without_stamps_needs_a_rate_and_then_gives_its_lengths(bench: Bench, tmp_path: Path) -> None:
    trace = str(trace_file(tmp_path, [(None, 30, 3), (None, 31, 4), (None, 32, 5)]))
    with served() as server:
        ran = bench(server.url, "--trace", trace)
        assert ran.code == 2 and "--rate" in ran.err and not ran.path.exists() and server.measured == []
        assert bench(server.url, "--trace", trace, "--rate", "100").outcomes["ok"] == 3
        assert bench(server.url, "--trace", trace, "--concurrency", "2").outcomes["ok"] == 3
        assert Counter(request.tokens for request in server.measured) == {3: 2, 4: 2, 5: 2}


def test_stamps_that_a_rate_replaces_are_said_to_be_left_out(bench: Bench, tmp_path: Path) -> None:
    with served() as server:
        ran = bench(server.url, "--trace", str(trace_file(tmp_path, ROWS)), "--rate", "100")
    assert ran.outcomes["ok"] == len(ROWS) and "its own time stamps are left out" in ran.err


def test_rows_that_a_trace_loses_and_a_count_beyond_its_rows_are_on_the_runs_record(
    bench: Bench, tmp_path: Path
) -> None:
    trace = str(trace_file(tmp_path, [(0.0, 30, 3), (0.01, 31, 0), (0.02, 32, 5)]))
    with served() as server:
        ran = bench(server.url, "--trace", trace, "--requests", "9")
    assert ran.outcomes == {"scheduled": 2, "ok": 2, "failed": {}, "cancelled": 0, "unsent": 0}
    assert ["1 of 3 rows have no output" in ran.manifest["notes"][0], "2 of the trace's 2" in ran.err] == [True, True]


def test_conversations_without_a_user_are_left_out_with_a_note(bench: Bench, tmp_path: Path) -> None:
    talks = [[{"from": "gpt", "value": "x"}], [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]]
    (tmp_path / "talks.json").write_text(json.dumps([{"conversations": talk} for talk in talks]))
    with served() as server:
        ran = bench(server.url, "--prompts", str(tmp_path / "talks.json"))
    assert ran.outcomes["ok"] == 1 and "1 of 2 conversations (the first: 1) are left out" in ran.err


# ---- prompts


def test_prompts_are_as_long_as_asked_by_the_servers_own_count_and_all_different(bench: Bench) -> None:
    with served(Behaviour(template_tokens=11)) as server:
        ran = bench(server.url, "--requests", "8", "--input-tokens", "uniform:40:60")
        texts = [text_of(request) for request in server.measured]
    assert 40 <= ran.result["workload"]["realised"]["input_tokens"]["mean"] <= 60
    assert all(29 <= len(text.split()) <= 49 for text in texts)
    assert len({text.split()[0] for text in texts}) == 8


def test_prefixes_are_shared_within_a_group_and_differ_between_groups(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--requests", "20", "--prefix", "2:30", "--input-tokens", "10")
        heads = Counter(" ".join(text_of(request).split()[:30]) for request in server.measured)
        texts = {text_of(request) for request in server.measured}
    assert len(heads) == 2 and sum(heads.values()) == 20
    assert len(texts) == 20
    assert checked(ran)["prefix_cache"]["evidence"] == "prompts were meant to share text"


def checked(ran: Ran) -> dict[str, dict[str, str]]:
    return {check["id"]: check for check in ran.result["validity"]["checks"]}


def test_a_history_that_was_asked_for_is_no_fault_of_a_run(bench: Bench) -> None:
    with served() as server:
        checks = checked(bench(server.url, "--turns", "3", "--requests", "6", "--input-tokens", "20"))
        alone = checked(bench(server.url, "--requests", "6", "--input-tokens", "20"))
    assert checks["prefix_cache"]["evidence"] == "prompts were meant to share text"
    assert checks["input_lengths"]["verdict"] == "ok" and "said before" in checks["input_lengths"]["evidence"]
    assert "meant to share" not in alone["prefix_cache"]["evidence"]


def test_token_ids_are_sent_as_such(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--api", "openai.completions", "--token-ids", "--requests", "3", "--input-tokens", "17")
        bodies = [request.body["prompt"] for request in server.measured]
    assert ran.outcomes["ok"] == 3
    assert all(len(ids) == 17 and all(isinstance(one, int) for one in ids) for ids in bodies)
    assert ran.manifest["body"]["prompts"] == "generated, token ids"


def tokenizer_file(folder: Path) -> Path:
    """Every character is a token: no count of words agrees with it."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    document: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {c: n for n, c in enumerate(letters)} | {"?": 99}, "unk_token": "?"},
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def test_with_a_tokenizer_prompts_have_exactly_the_asked_length(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with served() as server:
        ran = bench(server.url, "--tokenizer", str(tokenizer_file(tmp_path)), "--requests", "4", "--input-tokens", "73")
        assert {len(text_of(request)) for request in server.measured} == {73}
    assert ran.outcomes["ok"] == 4 and ran.manifest["tokenizer"]


def test_a_tokenizer_that_is_none_is_said_before_the_run(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with served() as server:
        ran = bench(server.url, "--tokenizer", str(tmp_path))
    assert ran.code == 2 and "tokenizer" in ran.err and "Traceback" not in ran.err and not ran.path.exists()


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('{"prompt": "one"}\n{"prompt": "two"}\n', ["one", "two"]),
        ('{"messages": [{"role": "user", "content": "one"}]}\n', ["one"]),
        ('[{"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "x"}]}]', ["one"]),
        ("one\ntwo\nthree\n", ["one", "two", "three"]),
    ],
)
def test_a_file_of_prompts_is_sent_as_it_is_each_row_once(
    bench: Bench, tmp_path: Path, content: str, texts: list[str]
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(content)
    with served() as server:
        ran = bench(server.url, "--prompts", str(path), "--concurrency", "1")
        assert [text_of(request) for request in server.measured] == texts
    assert ran.outcomes["ok"] == len(texts)
    assert ran.manifest["body"]["prompts"] == f"{len(texts)} from a file"


def test_the_prompt_set_has_an_identity_that_the_salt_does_not_change(bench: Bench, tmp_path: Path) -> None:
    def hashed(*words: str) -> str:
        ran = bench(server.url, "--requests", "1", *words)
        return str(ran.manifest["prompt_set_hash"])

    with served() as server:
        assert hashed() == hashed("--concurrency", "2") != hashed("--seed", "5")
        assert hashed() != hashed("--input-tokens", "25")
        assert text_of(server.measured[0]) != text_of(server.measured[1])


# ---- bodies


def test_body_fields_headers_and_sampling_are_sent_and_recorded(bench: Bench) -> None:
    with served() as server:
        ran = bench(
            server.url, "--requests", "1", "--body", "logit_bias={}", "--body", '{"user": "u1", "top_k": 4}', "--body", "tag=x y",
            "--header", "X-Route: blue", "--temperature", "0", "--top-p", "0.9", "--stop", "###", "--n", "1", "--no-ignore-eos",
        )  # fmt: skip
        [request] = server.measured
    assert request.body | {"logit_bias": {}, "user": "u1", "top_k": 4, "tag": "x y", "temperature": 0.0} == request.body
    assert request.body["top_p"] == 0.9 and request.body["stop"] == ["###"] and "ignore_eos" not in request.body
    assert request.headers["x-route"] == "blue"
    assert ran.manifest["sampling"]["temperature"] == 0.0 and ran.manifest["body"]["extra"]["tag"] == "x y"


def test_answers_may_come_whole(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--requests", "2", "--no-stream")
        assert all(request.body["stream"] is False for request in server.requests)
    assert ran.outcomes["ok"] == 2 and ran.result["metrics"]["ttft"]["reason"] == "not_streamed"


@pytest.mark.parametrize(
    ("field", "left"), [("stream_options", None), ("ignore_eos", None), ("max_tokens", "max_completion_tokens")]
)
def test_a_refused_field_is_left_out_after_one_probe_with_a_note(bench: Bench, field: str, left: str | None) -> None:
    with served(Behaviour(refuses={field: 400})) as server:
        ran = bench(server.url, "--requests", "3")
        assert all(field not in request.body for request in server.measured)
        assert left is None or all(request.body[left] == 4 for request in server.measured)
        assert sum(field in request.body for request in server.requests) <= 2  # both lengths go out at once
    assert ran.outcomes["ok"] == 3
    assert any(field in note for note in ran.manifest["notes"]) and field in ran.err


def test_models_are_mixed_by_weight_and_by_seed(bench: Bench) -> None:
    with served(Behaviour(models=("base", "adapter"))) as server:
        bench(server.url, "--model", "base=3,adapter=1", "--requests", "60", "--concurrency", "8")
        seen = Counter(request.body["model"] for request in server.measured)
    assert set(seen) == {"base", "adapter"} and 30 <= seen["base"] <= 56


# ---- contracts

CONTRACT = """
phasemeter: 1
workload:
  input_tokens: {fixed: 40}
  output_tokens: {fixed: 6}
  arrivals: {constant: 100 req/s}
latency_slo:
  ttft: {p50: %s}
service:
  accelerator: 1x test card
  dtype: bf16
"""


@pytest.mark.parametrize(("limit", "verdict", "code"), [("30 s", "met", 0), ("1 us", "missed", 1)])
def test_a_contract_gives_the_workload_and_its_verdict_the_exit_code(
    bench: Bench, tmp_path: Path, limit: str, verdict: str, code: int
) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(CONTRACT % limit)
    with served() as server:
        ran = bench(
            server.url, "--contract", str(path), "--requests", "240"
        )  # enough to decide where neighbours are alike
        assert all(request.tokens == 6 and request.words == 35 for request in server.measured)
    found = ran.result["contract"]["verdict"]
    if ran.result["validity"]["verdict"] != "invalid":  # a busy machine sends late, and then nothing is decided
        assert found == verdict, ran.result["contract"]
        assert ran.code == code
    assert ran.code == {"met": 0, "missed": 1, "undecided": 3}[found]
    assert ran.manifest["accelerator"] == "1x test card" and ran.manifest["sources"]["dtype"] == "contract"
    assert ran.manifest["rate_per_s"] == 100


def test_too_few_samples_for_a_contract_end_with_3(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text((CONTRACT % "30 s").replace("p50", "p99"))
    with served() as server:
        ran = bench(server.url, "--contract", str(path), "--requests", "5")
    assert ran.code == 3 and ran.result["contract"]["verdict"] == "undecided"


def test_classes_of_a_contract_are_a_mix(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text("""
phasemeter: 1
workload:
  arrivals: {concurrency: 3}
  classes:
    short: {share: 50 %, input_tokens: {fixed: 20}, output_tokens: {fixed: 2}}
    long: {share: 50 %, input_tokens: {fixed: 50}, output_tokens: {fixed: 9}}
latency_slo:
  ttft: {p50: 10 s}
""")
    with served() as server:
        ran = bench(server.url, "--contract", str(path), "--requests", "40")
        pairs = Counter((request.words + 5, request.tokens) for request in server.measured if request.headers)
    assert ran.manifest["concurrency"] == 3
    assert set(pairs) == {(20, 2), (50, 9)} and min(pairs.values()) > 8


def test_a_contract_may_name_a_trace_beside_it(bench: Bench, tmp_path: Path) -> None:
    trace_file(tmp_path, [(0.0, 30, 3), (0.05, 40, 5)])
    path = tmp_path / "contract.yaml"
    path.write_text("phasemeter: 1\nworkload:\n  arrivals: {trace: trace.csv}\nlatency_slo:\n  ttft: {p50: 10 s}\n")
    with served() as server:
        ran = bench(server.url, "--contract", str(path))
        assert [request.tokens for request in server.in_order] == [3, 5]
    assert ran.manifest["arrivals"].startswith("trace")


def test_a_warm_up_before_a_trace_has_the_lengths_of_its_first_rows(bench: Bench, tmp_path: Path) -> None:
    with served() as server:
        ran = bench(server.url, "--trace", str(trace_file(tmp_path, ROWS[:2])), "--warmup", "1")
        warm = server.requests[2]
    assert ran.outcomes["ok"] == 2
    assert warm.number is None and warm.words + 5 == 30 and warm.tokens == 3


def test_a_warm_up_takes_the_last_prompts_of_a_file(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\n")
    with served() as server:
        bench(server.url, "--prompts", str(path), "--warmup", "1", "--rate", "100")
        warm = [text_of(request) for request in server.requests if request.number is None]
    assert warm[-1] == "three"


def test_a_null_takes_a_field_of_the_runs_own_out_of_the_body(bench: Bench) -> None:
    with served() as server:
        ran = bench(server.url, "--requests", "1", "--body", "max_tokens=null", "--body", 'stream_options={"more": 1}')
    (request,) = server.measured
    assert "max_tokens" not in request.body and request.body["stream_options"] == {"include_usage": True, "more": 1}
    assert ran.code == 0


@pytest.mark.parametrize("load", [["--rate", "100"], ["--concurrency", "2"], ["--concurrency", "2", "--turns", "3"]])
def test_every_request_goes_out_under_an_id_that_is_on_record(bench: Bench, load: list[str]) -> None:
    """So that a server's log can be joined: the warm-up's too, and those of a conversation's later turns."""
    with served() as server:
        ran = bench(server.url, "--requests", "6", "--warmup", "2", *load)
        again = bench(server.url, "--requests", "6", "--warmup", "2", *load)
    heads = [request.headers.get("x-request-id") for request in server.requests]
    probes, sent = heads.count(None), [one for one in heads if one]
    assert probes in (2, 4) and len(set(sent)) == len(sent) == 16  # of two runs, none twice
    table = list(csv.DictReader(bench.report(ran.path, "--csv", "requests").out.splitlines()))
    rows = {row["sent_id"] for row in table if row["phase"] == "measured"}
    assert len(rows) == 6 and rows < set(sent) and again.code == 0
    assert all(one.startswith("run-1-") for one in rows)


def test_a_request_id_of_the_persons_own_is_sent_and_no_other(bench: Bench) -> None:
    with served() as server:
        bench(server.url, "--requests", "2", "--header", "X-Request-ID: mine")
    assert {request.headers["x-request-id"] for request in server.requests} == {"mine"}
    assert all(request.raw for request in server.requests)


def test_the_warm_up_takes_nothing_of_a_closed_loops_duration(bench: Bench) -> None:
    """Answers of 60 ms: 48 warm-up requests in 2 slots take 1440 ms, and 1500 ms are left for 2 x 25 measured ones."""
    with served(Behaviour(ttft_s=0.06)) as server:
        ran = bench(server.url, "--concurrency", "2", "--duration", "1500ms", "--warmup", "48", "--output-tokens", "1")
    dues = sorted(float(row["scheduled_s"]) for row in csv.DictReader(
        bench.report(ran.path, "--csv", "requests").out.splitlines()) if row["phase"] == "measured")  # fmt: skip
    assert dues[-1] - dues[0] > 0.5  # counted from the command's start at most 60 ms were left


def test_what_a_duration_leaves_of_a_trace_and_a_length_that_does_not_count_are_on_record(
    bench: Bench, tmp_path: Path
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp,input_tokens,output_tokens\n0,20,2\n0.05,21,2\n0.1,22,2\n9,23,2\n")
    with served() as server:
        ran = bench(server.url, "--trace", str(trace), "--duration", "200ms", "--input-tokens", "999")
    assert ran.outcomes["scheduled"] == 3
    assert "--duration 200ms: 3 of the trace's 4 rows are due by then" in ran.manifest["notes"]
    assert any(note.startswith("--input-tokens: the trace's rows say their own") for note in ran.manifest["notes"])


def test_prompts_that_are_sent_again_are_on_the_runs_record(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("one\ntwo\n")
    with served() as server:
        ran = bench(server.url, "--prompts", str(path), "--requests", "5", "--concurrency", "2")
        again = "5 requests take the 2 prompts of the file in turn, again from the first"
        assert again in ran.err and any(again in note for note in ran.result["run"]["notes"])
        once = bench(server.url, "--prompts", str(path), "--concurrency", "2")
    assert "again from the first" not in once.err and once.outcomes["ok"] == 2
