"""Where other tools part from us, each on one small request."""

from __future__ import annotations

import pytest

from phasemeter.errors import UserError
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.metrics.definitions import BOUNDARIES, DIVISORS, EXCLUSIONS, GAP_FUNCTIONS
from phasemeter.metrics.dialects import DIALECTS, dialect
from phasemeter.metrics.dialects.reading import Reading
from phasemeter.records.request_row import RequestRow
from tests.metrics.rows import MS, row


def printed(tool: str, *rows: RequestRow) -> dict[str, float | int | None]:
    reading = Reading(dialect(tool))
    for request in rows:
        reading.add(request)
    return reading.printed().values


def test_a_late_usage_chunk_moves_only_the_tools_that_wait_for_it() -> None:
    request = row([100, 120, 140], end_ms=640, usage_ns=640 * MS)
    assert printed("vllm", request)["mean_tpot_ms"] == pytest.approx(20)
    assert printed("aiperf", request)["inter_token_latency.avg"] == pytest.approx(20)
    assert printed("sglang", request)["mean_tpot_ms"] == pytest.approx(270)
    assert printed("evalscope", request)["TPOT (ms) Avg"] == pytest.approx(270)
    assert printed("guidellm", request)["request_latency.mean"] == pytest.approx(0.640)


def test_guidellm_has_the_first_token_in_its_time_per_output_token_and_weighs_by_tokens() -> None:
    short, long = row([100, 200]), row([100 + 10 * k for k in range(101)], request_id="b")
    values = printed("guidellm", short, long)
    assert values["time_per_output_token_ms.mean"] == pytest.approx((200 + 1100) / 103)
    assert values["inter_token_latency_ms.mean"] == pytest.approx((100 + 1000) / 101)
    counts = {name: values[f"{name}_ms.count"] for name in ("time_per_output_token", "inter_token_latency")}
    assert counts == {"time_per_output_token": 103, "inter_token_latency": 101}  # tokens and gaps, as in its file
    assert values["time_to_first_token_ms.count"] == 2


def test_guidellm_takes_the_first_value_that_reaches_the_level_where_others_interpolate() -> None:
    rows = [row([100.0 * k], request_id=str(k)) for k in range(1, 5)]
    assert printed("guidellm", *rows)["time_to_first_token_ms.p50"] == pytest.approx(200)
    assert printed("vllm", *rows)["p50_ttft_ms"] == pytest.approx(250)


def test_vllm_stamps_an_empty_content_chunk_and_misses_reasoning_content() -> None:
    empty = row([370, 590], first_silent_chunk_ns=90 * MS, last_silent_chunk_ns=90 * MS, silent_chunks=1)
    assert printed("vllm", empty)["mean_ttft_ms"] == pytest.approx(90)
    assert printed("aiperf", empty)["time_to_first_token.avg"] == pytest.approx(370)
    thinking = row([100, 200, 300], first_output_ns=300 * MS, reasoning_field="reasoning_content")
    assert printed("vllm", thinking)["mean_ttft_ms"] == pytest.approx(300)
    assert printed("sglang", thinking)["mean_ttft_ms"] == pytest.approx(100)
    assert printed("inference-perf", thinking)["latency.time_to_first_token.mean"] == pytest.approx(0.3)


def test_vllm_before_0_33_starts_at_the_role_chunk_and_ends_at_the_finish_chunk() -> None:
    request = row([100, 200, 300], bare_times_ns=(90 * MS, 340 * MS), silent_times_ns=(250 * MS,), silent_chunks=1,
                  first_silent_chunk_ns=250 * MS, last_silent_chunk_ns=250 * MS)  # fmt: skip
    older, newer = printed("vllm@0.32", request), printed("vllm", request)
    assert (older["mean_ttft_ms"], older["mean_e2el_ms"]) == (pytest.approx(90), pytest.approx(340))
    assert older["mean_tpot_ms"] == pytest.approx(250 / 2)
    assert older["mean_itl_ms"] == pytest.approx(250 / 5)  # 90, 100, 200, 250, 300, 340
    assert (newer["mean_ttft_ms"], newer["mean_e2el_ms"]) == (pytest.approx(100), pytest.approx(300))
    assert newer["mean_itl_ms"] == pytest.approx(200 / 3)  # the empty chunk splits a gap, the bare ones do not


def test_opening_a_connection_is_in_the_numbers_of_the_tools_that_start_before_it() -> None:
    request = row([170], send_ms=30, due_ms=0, connect_start_ns=10 * MS, connected_ns=29 * MS)
    assert printed("vllm", request)["mean_ttft_ms"] == pytest.approx(190)
    assert printed("guidellm", request)["time_to_first_token_ms.mean"] == pytest.approx(170)


def test_without_usage_sglang_credits_the_length_asked_for_and_guidellm_counts_chunks() -> None:
    request = row([50, 100, 165], output_tokens=24, output_tokens_source="tokenizer_full_text", asked_output_tokens=512)
    assert printed("vllm", request)["mean_tpot_ms"] == pytest.approx(115 / 23)
    assert printed("sglang", request)["mean_tpot_ms"] == pytest.approx(115 / 511)
    assert printed("guidellm", request)["inter_token_latency_ms.mean"] == pytest.approx(115 / 2)
    assert printed("guidellm", row([50, 165], output_tokens=24))["inter_token_latency_ms.mean"] == pytest.approx(
        115 / 23
    )


def test_an_error_inside_a_stream_is_a_success_to_some() -> None:
    broken = row([100, 120], outcome="failed", failure="server_error_in_stream")
    assert printed("vllm", broken)["completed"] == 1
    assert printed("evalscope", broken)["Success Requests"] == 0
    silent = row([], outcome="failed", failure="server_error_in_stream")
    assert printed("vllm", silent)["completed"] == 0


def test_one_token_has_no_time_per_token_in_any_tool_but_guidellm() -> None:
    for name, tool in DIALECTS.items():
        reading = Reading(tool)
        reading.add(row([100]))
        for own in tool.rows:
            if own.definition.divisor == "output_tokens − 1":
                metric = reading.printed().metrics[own.key]
                assert metric.mean is None, name
                assert metric.reason == "fewer_than_2_tokens"


def test_warm_up_and_unsent_requests_are_in_no_tools_numbers() -> None:
    rows = [row([100, 120], phase="warmup"), row([], outcome="unsent", send_start_ns=None)]
    assert printed("vllm", *rows)["completed"] == 0
    assert printed("vllm", *rows)["request_throughput"] is None


@pytest.mark.parametrize("name", DIALECTS)
def test_every_row_names_boundaries_and_rules_that_exist(name: str) -> None:
    tool = DIALECTS[name]
    for own in tool.rows:
        row_of = own.definition
        if row_of.kind == "gap":
            assert row_of.special in GAP_FUNCTIONS
        else:
            assert row_of.start in BOUNDARIES
            assert row_of.end in BOUNDARIES
        assert row_of.divisor is None or row_of.divisor in DIVISORS
        assert own.weight is None or own.weight in DIVISORS
        assert set(row_of.excluded) <= set(EXCLUSIONS)
    assert tool.source
    assert tool.distortions


@pytest.mark.parametrize("name", DIALECTS)
def test_a_run_read_as_a_tool_keeps_its_own_outcomes_and_says_what_is_lost(name: str) -> None:
    result = analyse_rows([row([100, 120, 140])], tool=name)
    assert result.definitions == DIALECTS[name].id
    assert result.outcomes.ok == 1
    assert set(result.metrics) == {own.key for own in DIALECTS[name].rows}
    assert result.workload["as_tool"]["cannot_recreate"]


def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    assert dialect("vllm@0.33") is dialect("vLLM")
    assert dialect("vllm@0.32").version == "0.32"
    for wrong in ("vlm", "vllm@0.1"):
        with pytest.raises(UserError, match=r"guidellm@0\.8"):
            dialect(wrong)
