"""The verb end to end: kinds of files are told apart by content, and one strict document comes out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from phasemeter.cli.main import run
from tests.server.pages import INF, hist
from tests.server.test_spans import body

SHARED = Path(__file__).resolve().parents[3] / "shared"
QUEUE = "vllm:request_queue_time_seconds"


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = run(["evidence", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "NaN" not in out and "Infinity" not in out
    document: dict[str, Any] = json.loads(out)
    return document


def handed(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared is not here: {name}")
    return path


def case(number: str) -> tuple[Path, dict[str, Any]]:
    found = sorted(handed("cases/inputs").glob(f"{number}-*.json"))
    return found[0].with_suffix(""), json.loads(found[0].read_text())["expected"]


def test_one_page_is_a_lifetime_and_two_are_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a", tmp_path / "b"
    before.write_text(hist(QUEUE, {0.3: 1, INF: 2}, 1.0))
    after.write_text(hist(QUEUE, {0.3: 3, INF: 6}, 3.0))
    lifetime, window = answer(capsys, after)["engines"]["vllm"], answer(capsys, before, after)["engines"]["vllm"]
    assert (lifetime["queue"]["n"], window["queue"]["n"], window["queue"]["sum"]) == (6, 4, 2.0)
    assert (lifetime["window"], window["window"]) == (False, True)
    assert {"source", "clock", "unit", "definition", "n", "sum", "mean", "quantiles"} <= set(window["queue"])
    assert window["queue"]["quantiles"]["p50"] == {"low": 0.0, "high": 0.3}


@pytest.mark.parametrize(
    ("content", "engine", "phase", "seconds"),
    [
        (json.dumps({"id": "x", "metrics": {"queue_time_ms": 4, "time_to_first_token_ms": 9}}).encode(), "vllm", "queue", 0.004),
        (b'data: {"choices": []}\n\ndata: {"timings": {"prompt_ms": 7, "predicted_ms": 1, "predicted_n": 1}}\n\ndata: [DONE]\n\n',
         "llamacpp", "prefill", 0.007),
        (b"HTTP/1.1 200 OK\r\nX-Queue-Time: 3\r\nContent-Type: application/json\r\n\r\n{}", "tgi", "queue", 0.003),
        (b"x-queue-time: 3\nx-request-id: a b\n", "tgi", "queue", 0.003),
        (b'{"e2e_latency": 2.0, "rid": "a", "queue_time": 0.5}\n{"e2e_latency": 2.0, "queue_time": 0.5}\n', "sglang", "queue", 0.5),
        (b"\xef\xbb\xbf" + json.dumps({"metrics": {"queue_time_ms": 4}}).encode(), "vllm", "queue", 0.004),
        (json.dumps(body(**{"gen_ai.latency.time_in_queue": 0.25})).encode(), "vllm", "queue", 0.25),
        (gzip.compress(json.dumps({"usage": {"queue_time": 0.5}}).encode()), "groq", "queue", 0.5),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\nvllm:num_requests_running \r\n2\r\n4\n\r\n0\r\n\r\n",
         "vllm", "running_requests", 4),
    ],
)  # fmt: skip
def test_a_file_is_known_by_its_content(
    content: bytes, engine: str, phase: str, seconds: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").write_bytes(content)
    block = answer(capsys, tmp_path / "f")["engines"][engine][phase]
    assert block.get("mean", block.get("value")) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html></html>", b'{"a": 1}', b'{"a": 1}\n{bad', b"go_goroutines 7\n", b"HTTP/1.1 500 Oops\r\n\r\nno",
     b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nvllm:num_requests_running 1\n", b"Server: x\n", b"\x00\x01\x02"],
)  # fmt: skip
def test_a_file_without_evidence_is_one_clear_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").write_bytes(content)
    assert run(["evidence", str(tmp_path / "f"), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1 and "f:" in err


def test_a_stream_that_tells_its_timings_with_every_token_is_one_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def event(name: str | None, predicted: int) -> bytes:
        about = {"id": name} if name else {}
        timings = {"prompt_ms": 7, "predicted_ms": 10 * predicted, "predicted_n": predicted}
        return b"data: " + json.dumps(about | {"timings": timings}).encode() + b"\n\n"

    for name in ("x", None):  # the engine's own API names no response
        streams = [b"".join(event(name, n) for n in range(1, last)) + b"data: [DONE]\n\n" for last in (4, 6)]
        (tmp_path / "f").write_bytes(b"".join(streams))
        found = answer(capsys, tmp_path / "f")["engines"]["llamacpp"]
        assert (found["prefill"]["n"], found["decode"]["n"]) == (2, 2)
        assert found["decode"]["sum"] == pytest.approx(0.03 + 0.05)


def test_usage_in_two_places_of_one_answer_is_one_observation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = {"queue_time": 0.1, "prompt_time": 0.2, "completion_time": 0.3}
    chunks = [{"id": "x", "x_groq": {"usage": usage}}, {"id": "x", "usage": usage}]
    (tmp_path / "f").write_bytes(b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks))
    assert answer(capsys, tmp_path / "f")["engines"]["groq"]["queue"]["n"] == 1


def test_spans_sent_again_count_once_over_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(body(**{"gen_ai.latency.time_in_queue": 0.25}))
    (tmp_path / "a").write_text(text + "\n" + text + "\n")
    (tmp_path / "b").write_text(text)
    found = answer(capsys, tmp_path / "a", tmp_path / "b")
    assert found["engines"]["vllm"]["queue"]["n"] == 1
    assert found["warnings"] == ["duplicate_span: 2 spans came more than once and count once"]


def test_a_file_that_is_still_being_written_is_read_to_its_last_whole_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(body(**{"gen_ai.latency.time_in_queue": 0.25}))
    (tmp_path / "f").write_text(text + "\n" + text[:50])
    found = answer(capsys, tmp_path / "f")
    assert found["engines"]["vllm"]["queue"]["n"] == 1 and "unterminated_last_line" in found["warnings"][0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"resourceMetrics": []}, "metrics as OTLP"),
        ({"status": "success", "data": {"result": []}}, "Prometheus or Jaeger API"),
        ({"resourceSpans": []}, "without one span"),
    ],
)
def test_what_is_met_instead_of_evidence_is_called_by_its_name(
    content: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f").write_text(json.dumps(content))
    assert run(["evidence", str(tmp_path / "f")]) == 2
    assert words in capsys.readouterr().err


def test_nothing_named_or_nothing_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["evidence"]) == 2
        and run(["evidence", str(tmp_path / "none")]) == 2
        and run(["evidence", str(tmp_path)]) == 2
    )
    assert "Traceback" not in capsys.readouterr().err


def test_the_table_names_what_is_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text(hist(QUEUE, {0.3: 3, INF: 6}, 3.0))
    assert run(["evidence", str(tmp_path / "f")]) == 0
    out = capsys.readouterr().out
    assert "queue" in out and "absent:" in out and "> 700 ms" in out  # (3.0 − 3 · 0.3) / 3


def test_outputs_and_tokens_give_two_paces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "vllm:inter_token_latency_seconds"
    for file, n, total, tokens in (("a", 10, 1.0, 500), ("b", 1010, 31.0, 3500)):
        (tmp_path / file).write_text(hist(name, {0.1: n, INF: n}, total) + f"vllm:generation_tokens_total {tokens}\n")
    found = answer(capsys, tmp_path / "a", tmp_path / "b")["engines"]["vllm"]
    assert (found["itl"]["mean"], found["itl"]["name"]) == (pytest.approx(0.03), "inter_output")
    assert found["per_token"]["mean"] == pytest.approx(0.01) and found["per_token"][
        "tokens_per_output"
    ] == pytest.approx(3)


def test_counts_other_than_ours_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, n in (("a", 0), ("b", 6)):
        (tmp_path / file).write_text(hist("vllm:request_prefill_time_seconds", {0.3: n, INF: n}, n * 0.1))
    found = answer(capsys, tmp_path / "a", tmp_path / "b", "--requests", 5)["engines"]["vllm"]
    assert any(text.startswith("server_count_mismatch") for text in found["warnings"])


def test_handed_renamed_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    stem, expected = case("116")
    for kind in ("old", "new", "both"):
        found = answer(capsys, f"{stem}.{kind}.prom")["engines"]["vllm"]["itl"]
        assert (found["canonical"], found["n"], found["mean"]) == (
            expected["canonical"],
            expected["count"],
            pytest.approx(expected["mean_s"]),
        )


def test_handed_spellings_and_several_engines(capsys: pytest.CaptureFixture[str]) -> None:
    stem, expected = case("118")
    for kind in ("colon", "underscore"):
        assert (
            answer(capsys, f"{stem}.{kind}.prom")["engines"]["sglang"]["running_requests"]["value"]
            == expected["running_requests"]
        )
    stem, expected = case("119")
    found = answer(capsys, f"{stem}.before.prom", f"{stem}.after.prom", "--seconds", 10)["engines"]["vllm"]
    assert found["running_requests"]["value"] == expected["running"]
    assert (found["generated_tokens"]["delta"], found["generated_tokens"]["per_s"]) == (
        expected["generated_tokens_delta"],
        expected["tok_s"],
    )
    assert (
        found["kv_cache_usage"]["mean"] == pytest.approx(expected["kv_usage_mean"])
        and found["kv_cache_usage"]["max"] == expected["kv_usage_max"]
    )


def test_handed_open_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    stem, expected = case("122")
    found = answer(capsys, f"{stem}.hist.prom")["engines"]["vllm"]["inference"]
    assert found["mean"] == expected["mean"] and found["quantiles"]["p50"]["high"] == expected["p50"]
    assert [found["quantiles"]["p25"]["low"], found["quantiles"]["p25"]["high"]] == expected["p25_between"]
    for name in ("p90", "p99"):
        assert (
            found["quantiles"][name]["low"] >= expected[name]["gt"]
            and found["quantiles"][name]["flag"] == "open_bucket"
        )


def test_handed_absent_changed_and_implausible(capsys: pytest.CaptureFixture[str]) -> None:
    stem, expected = case("124")
    found = answer(capsys, f"{stem}.page.prom", *(word for name in expected for word in ("--want", name)))["wanted"]
    assert {name: {k: found[name][k] for k in ("value", "status")} for name in expected} == expected
    stem, expected = case("127")
    llama = answer(capsys, f"{stem}.before.prom", f"{stem}.after.prom")["engines"]["llamacpp"]
    assert llama["decode_rate"]["value"] == expected["tok_s"]
    gauge = llama["predicted_tokens_seconds"]
    assert (gauge["value"], gauge["status"]) == (expected["server_reported_gauge"], "server_reported_only")
    stem, expected = case("128")
    ttft = answer(capsys, f"{stem}.page.prom")["engines"]["vllm"]["ttft"]
    assert (ttft["n"], ttft["status"], ttft["quantiles"]) == (expected["count"], expected["status"], {})


def test_the_public_page_gives_what_its_sums_prove(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, handed("recordings/published/vllm_qwen3_0.6b_metrics.txt"))["engines"]["vllm"]["queue"][
        "quantiles"
    ]
    assert found["p50"]["high"] <= 0.00089 and found["p99"]["high"] <= 0.0178


def test_real_spans_decode_the_same_from_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    lines = handed("recordings/vllm/otlp/traces.jsonl")
    raw = sorted(lines.parent.glob("*.pb.*"))
    found, again = answer(capsys, lines)["engines"]["vllm"], answer(capsys, *raw)["engines"]["vllm"]
    assert found["queue"]["n"] == again["queue"]["n"] > 200 and found["ttft"]["quantiles"] == again["ttft"]["quantiles"]
