"""A run's server, as a diagnosis sees it: gauges as shares, evidence that is damaged or too much costs only itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.io import otlp_receiver
from phasemeter.io.emulator_spans import RequestSpan, encode
from phasemeter.records.evidence import EvidenceValue, Told
from phasemeter.records.request_row import Outcome, RequestRow
from phasemeter.runs import server_evidence
from phasemeter.runs.run_budget import RunBudget
from phasemeter.runs.server_evidence import Seen, ServerEvidence, cache_counters, scrapes_in
from phasemeter.runs.server_view import ServerView, server_window
from phasemeter.server.exposition import parse_page
from phasemeter.server.joins import Identity, SpanIndex
from phasemeter.server.otlp import decode
from phasemeter.server.prometheus import read_pages


@pytest.mark.parametrize(("told", "share"), [(0.43, 0.43), (43.0, 0.43), (1.0, 1.0), (4300.0, None)])
def test_a_usage_in_percent_is_no_full_cache(told: float, share: float | None) -> None:
    gauges = read_pages([parse_page(f"vllm:kv_cache_usage_perc {told}\n".encode())])
    window = server_window(ServerView(rows=[], values={}, instants={}, engines={}, gauges=(gauges,)))
    assert window is not None and window.kv_usage_max == (share if share is None else pytest.approx(share))


def test_a_caches_hits_are_those_of_the_window_and_of_every_engine_that_counts_its_look_ups() -> None:
    counters = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
    told = ((1000, 900, 5), (1400, 1000, 50))
    pages = ["".join(f"{name} {value}\n" for name, value in zip(counters, page, strict=True)) for page in told]
    assert cache_counters(read_pages([parse_page(page.encode()) for page in pages])) == (100, 400)
    assert cache_counters(read_pages([parse_page(b"sglang:cached_tokens_total 5\n")] * 2)) is None


def body(*request_ids: str, trace: str | None = None) -> bytes:
    spans = [
        RequestSpan(
            request_id=name, traceparent=trace, start_unix_ns=10, end_unix_ns=20, counts={},
            seconds={"gen_ai.latency.time_in_queue": 0.25},
        )
        for name in request_ids
    ]  # fmt: skip
    return encode(spans)


def seen(name: str) -> Seen:
    return Seen(RequestRow(request_id=name, outcome="ok", due_ns=0, response_id=f"chatcmpl-{name}"))


def page_at(count: int, tokens: int) -> bytes:
    phases = ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time")
    lines = [
        f'vllm:{name}_seconds_bucket{{le="+Inf"}} {count}\nvllm:{name}_seconds_count {count}\nvllm:{name}_seconds_sum {count}'
        for name in phases
    ]
    return "\n".join([*lines, f"vllm:generation_tokens_total {tokens}", ""]).encode()


@pytest.mark.parametrize(("outcome", "counted", "tokens"), [("cancelled", 2, 31), ("failed", 5, 50), ("ok", 8, 80)])
def test_a_window_with_choices_or_with_answers_cut_off_is_still_ours_alone(
    tmp_path: Path, outcome: Outcome, counted: int, tokens: int
) -> None:
    """vLLM counts each choice, an aborted request in some of its histograms, and every token that it made."""
    folder = tmp_path / "evidence"
    folder.mkdir()
    for name, told in (("before", page_at(0, 0)), ("after", page_at(counted, tokens))):
        (folder / f"metrics-{name}.http").write_bytes(b"HTTP/1.1 200 OK\r\n\r\n" + told)
    evidence = ServerEvidence(tmp_path)
    for number in range(4):
        ended: Outcome = "ok" if number < 1 or outcome == "ok" else outcome
        row = RequestRow(
            request_id=str(number), outcome=ended, due_ns=0, send_start_ns=1, n=2, asked_output_tokens=10,
            output_tokens=20, server_output_tokens=20,
        )  # fmt: skip
        evidence.of(Seen(row))
    assert evidence.closing_warnings(evidence.engines()) == []
    evidence.of(Seen(RequestRow(request_id="x", outcome="ok", due_ns=0, send_start_ns=1, server_output_tokens=90)))
    later = [text.split(":")[0] for text in evidence.closing_warnings(evidence.engines())]
    assert "server_token_mismatch" in later


def test_means_of_choices_are_no_means_of_requests(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    for name, told in (("before", page_at(0, 0)), ("after", page_at(4, 80))):
        (folder / f"metrics-{name}.http").write_bytes(b"HTTP/1.1 200 OK\r\n\r\n" + told)
    for n, reason in ((1, "server_count_mismatch"), (2, "choices_apart")):
        evidence, budget = ServerEvidence(tmp_path), RunBudget()
        for number in range(2):
            stamps = {"due_ns": 0, "send_start_ns": 1, "first_token_ns": 5, "last_token_ns": 9, "stream_end_ns": 9}
            row = RequestRow(request_id=str(number), outcome="ok", phase="measured", n=n, **stamps)
            budget.add(Seen(row), evidence.of(Seen(row)))
        document = budget.document(evidence)
        assert document is not None
        told_of = document["aggregate"]["vllm"]
        assert told_of["mean"] is None and told_of["reason"].startswith(reason) and told_of["told"]["queue_s"] == 1.0


@pytest.mark.parametrize(("arrived_ns", "held"), [(30, True), (74, True), (75, False), (100, False), (0, True)])
def test_text_that_was_held_back_is_said_where_the_server_tells_how_long_it_took(
    tmp_path: Path, arrived_ns: int, held: bool
) -> None:
    """Tokens made before the first text are in TPOT's divisor: 60 tokens that took 1.6 s looked like 11 ms each (vLLM, a named tool)."""
    evidence, budget = ServerEvidence(tmp_path), RunBudget()
    for n, hidden in ((9, False), (9, True), (3, False)):
        row = RequestRow(
            request_id="r", outcome="ok", phase="measured", due_ns=0, send_start_ns=0, first_token_ns=200,
            first_output_ns=200, last_token_ns=200 + (arrived_ns if n == 9 and not hidden else 1), stream_end_ns=400,
            output_tokens=n, hidden_reasoning=hidden, stream=True,
        )  # fmt: skip
        decode = EvidenceValue(
            phase="decode", value_s=100e-9, start="first_token", end="decode_end", clock="engine_monotonic", source="s",
            definition="",
        )  # fmt: skip
        budget.add(Seen(row), Told(values=(decode,)))
    document = budget.document(evidence)
    assert document is not None
    assert [text.split(":")[0] for text in document["warnings"]] == ["text_held_back"] * held


def test_a_request_of_several_choices_has_spans_of_its_choices_only_and_that_is_said_so(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    (folder / "spans-000001.pb").write_bytes(body("chatcmpl-0_a", "chatcmpl-1_a", trace=parent))
    evidence = ServerEvidence(tmp_path, [parent])
    row = RequestRow(request_id="a", outcome="ok", due_ns=0, n=2)
    assert evidence.of(Seen(row, traceparent=parent)).values == ()
    assert [text.split(":")[0] for text in evidence.closing_warnings({})] == ["choices_apart"]


def test_a_damaged_body_of_spans_or_scrape_costs_only_itself_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "spans-000001.pb").write_bytes(b"\xff\xfe no protobuf")
    (folder / "spans-000002.pb").write_bytes(body("chatcmpl-a"))
    (folder / "metrics-before.http").write_bytes(b"HTTP/1.1 200 OK\r\n\r\n<html></html>")
    evidence = ServerEvidence(tmp_path)
    told = evidence.of(seen("a"))
    assert [value.value_s for value in told.values] == [0.25] and evidence.joined == 1
    assert sorted(text.split(":")[0] for text in evidence.warnings) == ["damaged_scrape", "damaged_spans"]


def test_of_too_many_spans_the_first_are_joined_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_evidence, "MAX_SPANS", 3)
    (tmp_path / "evidence").mkdir()
    for number in range(3):
        (tmp_path / "evidence" / f"spans-{number:06}.pb").write_bytes(
            body(f"chatcmpl-{number}a", f"chatcmpl-{number}b")
        )
    evidence = ServerEvidence(tmp_path)
    assert [bool(evidence.of(seen(name)).values) for name in ("0a", "1a", "1b", "2a")] == [True, True, False, False]
    assert evidence.warnings[0].startswith("too_many_spans")


def test_a_flood_of_copies_keeps_no_later_span_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_evidence, "MAX_SPANS", 3)
    (tmp_path / "evidence").mkdir()
    again = body("chatcmpl-a")
    for number in range(5):
        (tmp_path / "evidence" / f"spans-{number:06}.pb").write_bytes(again)
    (tmp_path / "evidence" / "spans-000009.pb").write_bytes(body("chatcmpl-b"))
    evidence = ServerEvidence(tmp_path)
    assert [bool(evidence.of(seen(name)).values) for name in ("a", "b")] == [True, True] and not evidence.warnings


def test_a_receiver_takes_only_so_many_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_receiver, "MAX_BODIES", 2)
    receiver = otlp_receiver.OtlpReceiver(tmp_path)
    assert [receiver.keep(b"x", "pb") for _ in range(4)] == [True, True, False, False]
    assert (receiver.bodies, receiver.refused) == (2, 2)


def test_a_server_that_gives_every_answer_one_id_is_joined_to_no_second_request() -> None:
    index = SpanIndex(decode(body("chatcmpl-x"), "spans"))
    first, second = (index.of(Identity(request_id=name, response_id="chatcmpl-x")) for name in "ab")
    assert (first[0], len(first[1]), first[2]) == ("request_id", 1, False)
    assert second == ("", (), True)


def test_a_long_runs_scrapes_are_thinned_evenly_with_both_edges_kept(tmp_path: Path) -> None:
    for name in ("metrics-after", "metrics-before", *(f"metrics-during-{n:05}" for n in range(100))):
        (tmp_path / f"{name}.http").write_bytes(b"")
    names = [path.stem for path in scrapes_in(tmp_path, 10)]
    assert (names[0], names[-1], len(names)) == ("metrics-before", "metrics-after", 12)
    assert names[1:-1] == [f"metrics-during-{n:05}" for n in range(0, 100, 10)]
