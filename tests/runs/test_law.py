"""The law is found where it holds, and its error is seen where it doesn't."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.errors import Undefined
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.runs.demo import FEW_REQUESTS, LOADS, LONGEST_LOAD_S, explain, load_for
from phasemeter.runs.law import Law, Observation, errors, fit, observed


def row(ttft_ms: int, gap_ms: int, tokens: int, prompt: int, **more: object) -> RequestRow:
    times = tuple((ttft_ms + gap_ms * i) * 1_000_000 for i in range(tokens))
    return RequestRow(
        **{
            "request_id": "r", "outcome": "ok", "due_ns": 0, "send_start_ns": 0, "first_token_ns": times[0],
            "first_output_ns": times[0], "last_token_ns": times[-1], "stream_end_ns": times[-1], "input_tokens": prompt,
            "output_tokens": tokens, "output_tokens_source": "usage",
            "choices": (ChoiceTimes(times_ns=times, reads=tuple(range(tokens))),), **more,
        }
    )  # fmt: skip


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 50))
def test_an_exact_law_is_found_exactly(base_ms: int, per_token_ms: int, gap_ms: int) -> None:
    rows = [row(base_ms + per_token_ms * length, gap_ms, 10, length) for length in (8, 64, 64, 256)]
    law = fit(observed(rows))
    assert law.per_input_token_s == pytest.approx(per_token_ms / 1e3)
    assert law.base_s == pytest.approx(base_ms / 1e3, abs=1e-9)
    assert law.tpot_s == pytest.approx(gap_ms / 1e3)
    assert errors(law, observed([row(base_ms + per_token_ms * 100, gap_ms, 30, 100)])) == [pytest.approx(0, abs=1e-9)]


def test_one_disturbed_request_does_not_move_the_line() -> None:
    rows = [row(100 + length, 10, 8, length) for length in (10, 20, 40, 80, 160, 320)]
    assert fit(observed([*rows, row(5000, 10, 8, 40)])).per_input_token_s == pytest.approx(1e-3, rel=0.05)


def test_waiting_is_seen_as_the_law_being_too_low() -> None:
    law = fit(observed([row(100 + length, 10, 8, length) for length in (10, 20, 40)]))
    assert errors(law, observed([row(900, 10, 8, 20)]))[0] < -0.5


def test_failed_and_one_token_requests_say_nothing_about_the_law() -> None:
    rows = [row(100, 10, 1, 10), row(100, 10, 8, 10, outcome="failed"), row(100, 10, 8, 10, phase="warmup")]
    assert observed(rows) == []


def test_one_length_gives_no_line() -> None:
    one = Observation(input_tokens=5, output_tokens=5, ttft_s=1, tpot_s=1, e2e_s=5)
    with pytest.raises(Undefined):
        fit([one, one, one])


@pytest.mark.parametrize("slower", [1, 2, 8, 40])
def test_the_demo_asks_of_a_slow_machine_what_it_can_give_in_time(slower: int) -> None:
    law = Law(base_s=-0.1 * slower, per_input_token_s=0.003 * slower, tpot_s=0.01 * slower, n=16)
    rate, tokens_in, tokens_out = load_for(law)
    assert rate > 0 and (tokens_in, tokens_out) in LOADS
    assert rate * LONGEST_LOAD_S >= FEW_REQUESTS or (tokens_in, tokens_out) == LOADS[-1]


def test_a_load_is_told_against_single_requests_of_its_own_length_and_else_against_the_line() -> None:
    alone = observed(
        [row(ttft, 20, 8, prompt) for prompt, ttft in ((32, 80), (128, 800), (384, 4400)) for _ in range(3)]
    )
    law = fit(alone)
    assert law.base_s < 0  # a prompt twice as long takes more than twice: the line says nothing good of short ones
    loaded = observed([row(160, 30, 8, 32) for _ in range(9)])
    said = explain(law, alone, loaded, [])
    assert "TTFT 2.0 times and TPOT 1.5 times what single requests of 32 tokens take" in said[-1]
    assert "grows faster than the prompt" in said[0] and "-" not in said[0]
    other = explain(law, alone, observed([row(1000, 20, 8, 100)]), [])[-1]
    assert f"TTFT {1 / law.ttft_s(100):.1f} times" in other and "the law gives for their lengths" in other
