"""Windows and what came in them, by arithmetic that can be done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.metrics import throughput
from phasemeter.metrics.summary import Summary
from phasemeter.metrics.throughput import Received, Window
from phasemeter.records.manifest import Manifest
from tests.metrics.rows import row

SECOND = 10**9


def received(events: list[tuple[float, float]]) -> Received:
    none = np.empty(0, dtype=np.int64)
    return Received(
        completed_ns=none,
        event_ns=np.array([round(at * SECOND) for at, _ in events], dtype=np.int64),
        event_tokens=np.array([tokens for _, tokens in events], dtype=np.float64),
        spread_start_ns=none,
        spread_end_ns=none,
        spread_tokens=np.empty(0),
        prompts_ns=none,
        prompts=np.empty(0),
    )


def window(start_s: float, end_s: float) -> Window:
    return Window(kind="whole_run", start_ns=round(start_s * SECOND), end_ns=round(end_s * SECOND), rule="as asked")


def test_the_longest_interval_at_peak_concurrency_is_steady_and_ramp_and_drain_are_not() -> None:
    spans = [(0, 100), (10, 110), (20, 120), (30, 130), (100, 200), (110, 210), (120, 220), (130, 230)]
    summary = Summary()
    for start, end in spans:  # 100 tokens spread evenly over each request
        summary.add(row([], send_ms=start * 1e3, end_ms=(end - start) * 1e3, first_token_ns=start * SECOND,
                        last_token_ns=end * SECOND, output_tokens=100, output_tokens_source="usage"))  # fmt: skip
    found = summary.result(Manifest(concurrency=4)).throughput
    assert found["whole_run"]["window"]["length_s"] == 230
    assert found["whole_run"]["output_tokens_per_s"] == pytest.approx(800 / 230)
    steady = found["steady"]["window"]
    assert (steady["start_s"], steady["end_s"]) == (30, 200)
    assert found["steady"]["output_tokens_per_s"] == pytest.approx(4.0)
    assert found["output_tokens_per_s"] == found["steady"]["output_tokens_per_s"]


def test_a_closed_loops_peak_that_was_short_is_shown_and_is_no_headline() -> None:
    """Two requests together for 10 of 110 s, then one alone: the tenth at peak doesn't stand for the run."""
    summary = Summary()
    for start, end in ((0, 110), (0, 10)):
        summary.add(row([], send_ms=start * 1e3, end_ms=(end - start) * 1e3, first_token_ns=start * SECOND,
                        last_token_ns=end * SECOND, output_tokens=100, output_tokens_source="usage"))  # fmt: skip
    found = summary.result(Manifest(concurrency=2)).throughput
    assert found["steady"]["window"]["length_s"] == 10
    assert found["window"] == found["whole_run"]["window"] and found["requests_per_s"] == 2 / 110


def test_what_a_run_that_was_cut_off_never_offered_is_no_part_of_its_window() -> None:
    """Cut off after 5 of 20 s at one a second: it carried one a second, not a quarter of that."""
    summary = Summary()
    for second in range(6):
        summary.add(row([200], send_ms=second * 1e3, output_tokens=1))
    for second in range(6, 20):
        summary.add(row([], due_ms=second * 1e3, outcome="unsent", send_start_ns=None, sent_ns=None))
    steady = summary.result(Manifest(rate_per_s=1.0, requests=20)).throughput["steady"]
    assert (steady["window"]["start_s"], steady["window"]["end_s"]) == (0, 5)
    assert steady["requests_per_s"] == 1


def test_a_slot_between_two_requests_does_not_end_the_steady_window() -> None:
    starts = np.array([0, 0, 100, 101, 200, 205]) * 10**7
    ends = np.array([99, 100, 199, 200, 300, 305]) * 10**7
    found = throughput.steady_closed(starts, ends)
    assert found is not None
    assert (found.start_ns, found.end_ns) == (0, 300 * 10**7)
    strict = throughput.steady_closed(starts, ends, bridge_ns=0)
    assert strict is not None
    assert strict.end_ns - strict.start_ns < 101 * 10**7


def test_a_peak_counts_tokens_and_not_chunks() -> None:
    chunks = [(0.25 * k, 4.0) for k in range(1, 17)]
    grid = throughput.buckets(received(chunks), window(0, 4))
    assert grid.tolist() == [12, 16, 16, 16, 4]
    assert throughput.peak(received(chunks), window(0, 4))["peak_output_tokens_per_s"] == 16
    assert throughput.rates(received(chunks), window(0, 4))["output_tokens_per_s"] == 16


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0.001, 20), st.integers(0, 9).map(float)), min_size=1, max_size=50))
def test_the_peak_is_never_below_the_mean_of_its_own_grid(events: list[tuple[float, float]]) -> None:
    found = throughput.peak(received(events), window(0, max(1.0, *(at for at, _ in events))))
    assert found["peak_output_tokens_per_s"] >= found["grid_mean"] - 1e-9


def test_events_are_put_into_buckets_alike_however_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = received([(at / 7, 1 / 3) for at in range(100)])
    whole = throughput.buckets(events, window(1, 9))
    monkeypatch.setattr(throughput, "AT_ONCE", 7)
    assert (throughput.buckets(events, window(1, 9)) == whole).all() and whole.sum() > 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=40), st.floats(0.1, 9.9))
def test_two_adjoining_windows_hold_what_the_whole_one_holds(times: list[float], cut: float) -> None:
    came = received([(at, 1.0) for at in times])
    parts = throughput.output_tokens_in(came, window(0, cut)) + throughput.output_tokens_in(came, window(cut, 10))
    assert parts == throughput.output_tokens_in(came, window(0, 10)) == len(times)


def test_tokens_of_cancelled_failed_and_warm_up_requests_count_in_the_window() -> None:
    summary = Summary()
    summary.add(row([100, 900], request_id="warm", phase="warmup", due_ms=0))
    summary.add(row([100, 1000], request_id="a", send_ms=500))
    summary.add(row([200, 300], request_id="b", send_ms=600, outcome="failed", failure="transport", output_tokens=None))
    summary.add(row([500, 800], request_id="c", send_ms=1000, outcome="cancelled", output_tokens=None))
    found = summary.result(Manifest(rate_per_s=2.0)).throughput
    whole = found["whole_run"]
    # 0.5 s to 1.8 s: one token of the warm-up (0.9), two each of a, b and c; the cut ones at the run's own token an event
    assert whole["window"]["length_s"] == pytest.approx(1.3)
    assert whole["output_tokens_per_s"] == pytest.approx(7 / 1.3)
    assert found["estimated_tokens"] == pytest.approx(4)
    assert whole["requests_per_s"] == pytest.approx(1 / 1.3 + 1 / 1.3)  # the warm-up one ended in it, too


def test_a_window_without_length_has_no_rate() -> None:
    assert throughput.rates(received([(1, 1.0)]), window(1, 1))["reason"] == "zero_length_window"
    assert throughput.rates(received([]), None)["requests_per_s"] is None


def test_many_users_at_once_get_a_throughput_that_is_no_inverse_of_their_time_per_token() -> None:
    summary = Summary()
    for k in range(16):
        summary.add(row([500 + 20 * i for i in range(101)], request_id=str(k)))
    result = summary.result(Manifest(rate_per_s="inf"))
    assert result.metrics["tpot"].mean == pytest.approx(0.020)
    assert result.throughput["whole_run"]["output_tokens_per_s"] == pytest.approx(646.4)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.floats(1, 50), st.integers(2, 60))
def test_for_a_single_stream_time_per_token_is_the_inverse_of_its_decode_rate(
    each: int, gap: float, chunks: int
) -> None:
    times = [50 + gap * i for i in range(chunks + 1)]
    request = row(times, tokens=[1] + [each] * chunks)
    summary = Summary()
    summary.add(request)
    tpot = summary.result().metrics["tpot"].mean
    assert tpot is not None
    decode = window(times[0] / 1e3, times[-1] / 1e3)
    rate = throughput.output_tokens_in(summary.received(), decode) / decode.length_s
    assert tpot * rate == pytest.approx(1, rel=1e-4)
