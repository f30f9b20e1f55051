"""Segments add up exactly, whatever the evidence says; a negative remainder is said and kept."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phasemeter.errors import Undefined
from phasemeter.phases.budget import (
    SEGMENTS,
    Budget,
    Means,
    aggregate_budget,
    budget_of,
    budgets_document,
    metric_ns,
    stalled_gaps,
    totals_of,
)
from phasemeter.records.evidence import EvidenceValue
from phasemeter.records.request_row import ChoiceTimes, RequestRow

BOUNDS = {
    "queue": ("queue_enter", "prefill_start"),
    "prefill": ("prefill_start", "prefill_end"),
    "handoff": ("prefill_end", "first_token"),
    "ttft": ("arrival", "first_token"),
    "decode": ("first_token", "decode_end"),
    "inference": ("prefill_start", "decode_end"),
}


def told(phase: str, seconds: float, **more: object) -> EvidenceValue:
    start, end = BOUNDS[phase]
    fields = {
        "clock": "engine_monotonic",
        "source": f"test {phase}",
        "definition": "",
        "start": start,
        "end": end,
    } | more
    return EvidenceValue(phase=phase, value_s=seconds, **fields)  # type: ignore[arg-type]


def row(
    waits: tuple[int, ...] = (5, 10, 3, 100), gaps: tuple[int, ...] = (20, 20, 20, 200), tail: int = 7, **more: object
) -> RequestRow:
    """A streamed request from due 1000: connect_start, send_start, sent, first token after `waits`; then output gaps."""
    at = [1000]
    for step in (*waits, *gaps):
        at.append(at[-1] + step)
    outputs = tuple(at[4:])
    fields: dict[str, object] = {
        "request_id": "r", "outcome": "ok", "due_ns": 1000, "connect_start_ns": at[1], "send_start_ns": at[2], "sent_ns": at[3],
        "first_token_ns": outputs[0], "first_output_ns": outputs[0], "last_token_ns": outputs[-1],
        "stream_end_ns": outputs[-1] + tail, "choices": (ChoiceTimes(times_ns=outputs, reads=tuple(range(len(outputs)))),),
    }  # fmt: skip
    return RequestRow(**(fields | more))  # type: ignore[arg-type]


step = st.integers(0, 10**10)
maybe = st.none() | step


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_segments_add_up_exactly_for_every_request(data: st.DataObject) -> None:
    waits = tuple(data.draw(st.tuples(step, step, step, step)))
    gaps = tuple(data.draw(st.lists(step, max_size=12)))
    seconds = st.floats(-10, 1e9)
    values = [
        told(phase, data.draw(seconds)) for phase in data.draw(st.lists(st.sampled_from(sorted(BOUNDS)), max_size=8))
    ]
    lost = data.draw(
        st.sets(
            st.sampled_from(
                ["connect_start_ns", "sent_ns", "send_start_ns", "first_token_ns", "last_token_ns", "choices"]
            )
        )
    )
    request = row(
        waits,
        gaps,
        data.draw(step),
        stream=data.draw(st.booleans()),
        **{n: () if n == "choices" else None for n in lost},
    )
    found = budget_of(request, values)
    assert request.stream_end_ns is not None
    assert sum(found.segments.values()) == request.stream_end_ns - request.due_ns == found.total_ns
    assert set(found.segments) == set(SEGMENTS)


def test_each_segment_is_where_it_belongs() -> None:
    found = budget_of(row(), [told("queue", 30e-9), told("prefill", 50e-9), told("handoff", 4e-9)])
    assert found.segments == {
        "client_queue": 5, "connect": 10, "upload": 3, "queue": 30, "prefill": 50, "first_token": 4, "ingress_delivery": 16,
        "reasoning": 0, "decode": 60, "stalls": 200, "tail": 7, "unattributed": 0,
    }  # fmt: skip


def test_a_wait_without_evidence_of_queue_and_prefill_is_unattributed() -> None:
    assert budget_of(row()).segments["unattributed"] == 100
    only_prefill = budget_of(row(), [told("prefill", 40e-9)]).segments
    assert (only_prefill["unattributed"], only_prefill["prefill"], only_prefill["ingress_delivery"]) == (60, 40, 0)


def test_a_negative_remainder_is_reported_and_not_clamped() -> None:
    found = budget_of(row(), [told("queue", 90e-9), told("prefill", 50e-9)])
    assert found.segments["ingress_delivery"] == -40
    assert [w for w in found.warnings if w.startswith("negative_remainder")]


def test_a_server_that_began_before_the_last_byte_was_stamped_makes_upload_and_delivery_one_lump() -> None:
    found = budget_of(row(), [told("queue", 52e-9), told("prefill", 50e-9)])
    assert (found.segments["upload"], found.segments["ingress_delivery"]) == (0, 1)
    assert [w.split(":")[0] for w in found.warnings] == ["upload_overlap"]


def test_an_implausible_value_is_refused_and_the_monotonic_clock_goes_first() -> None:
    wild = told("queue", 1.7e9, warnings=("implausible: two clocks",))
    wall = told("queue", 99e-9, clock="engine_wall", source="wall")
    found = budget_of(row(), [wild, wall, told("queue", 30e-9), told("prefill", 50e-9)])
    assert (found.segments["queue"], found.evidence["queue"]) == (30, "test queue")


def test_a_connection_made_before_the_due_instant_is_no_connect_time() -> None:
    found = budget_of(row(connect_start_ns=500))
    assert (found.segments["client_queue"], found.segments["connect"]) == (15, 0)


def test_reasoning_stands_before_decode() -> None:
    base = row(gaps=(20, 20, 20, 20))
    assert base.first_token_ns is not None
    found = budget_of(row(gaps=(20, 20, 20, 20), first_output_ns=base.first_token_ns + 40)).segments
    assert (found["reasoning"], found["decode"]) == (40, 40)
    only_reasoning = budget_of(row(gaps=(20, 20), first_output_ns=None)).segments
    assert (only_reasoning["reasoning"], only_reasoning["decode"]) == (40, 0)


def test_an_answer_in_one_piece_holds_its_decode_in_the_wait() -> None:
    found = budget_of(
        row(gaps=(), stream=False), [told("queue", 10e-9), told("prefill", 20e-9), told("decode", 60e-9)]
    ).segments
    assert (found["decode"], found["ingress_delivery"]) == (60, 10)


def test_the_decode_of_a_stream_that_came_in_one_piece_lies_in_its_wait_for_the_first_token() -> None:
    one = row(gaps=())
    found = budget_of(one, [told("queue", 10e-9), told("prefill", 20e-9), told("decode", 40e-9)])
    wait = (one.first_token_ns or 0) - (one.send_start_ns or 0)
    assert found.segments["decode"] == 40 and metric_ns(found, "ttft") == wait == 103
    totals = totals_of([found, budget_of(row())])
    assert totals.mean("ttft")["decode"] == pytest.approx(20e-9)
    for metric in ("ttft", "e2e"):
        assert sum(totals.mean(metric).values()) * 2e9 == pytest.approx(
            metric_ns(found, metric) + metric_ns(budget_of(row()), metric)
        )


def test_a_visible_piece_that_came_before_the_decode_ended_takes_no_decode_into_its_wait() -> None:
    told_all = [told("queue", 10e-9), told("prefill", 20e-9), told("decode", 90e-9)]
    found = budget_of(row(gaps=()), told_all)
    assert (found.segments["decode"], found.segments["ingress_delivery"]) == (0, 70)
    assert [w.split(":")[0] for w in found.warnings] == ["decode_not_placed"]


def test_a_stall_is_a_gap_over_five_times_the_median() -> None:
    assert stalled_gaps([10, 10, 10, 50]) == []
    assert stalled_gaps([10, 10, 10, 51]) == [51]
    assert stalled_gaps([0, 0, 0, 51]) == [] and stalled_gaps([1, 900]) == []


@given(
    st.lists(st.lists(st.one_of(st.integers(0, 30), st.integers(0, 10**9)), max_size=12), min_size=1, max_size=2),
    st.integers(-5, 10**9),
)
def test_stalls_are_those_of_all_choices_events_in_one_line(choices: list[list[int]], begins: int) -> None:
    events = sorted(at for one in choices for at in one)
    assume(events)
    row = RequestRow(
        request_id="x", outcome="ok", due_ns=0, send_start_ns=0, first_token_ns=events[0], last_token_ns=events[-1],
        first_output_ns=begins, stream_end_ns=events[-1], choices=tuple(ChoiceTimes(times_ns=tuple(sorted(one))) for one in choices),
    )  # fmt: skip
    start = min(max(begins, events[0]), events[-1])
    line = sorted({start, *(at for at in events if at >= start)})
    gaps = [later - earlier for earlier, later in itertools.pairwise(line)]
    long = [gap for gap in gaps if len(gaps) > 2 and gap > 5 * statistics.median(gaps)]
    segments = budget_of(row).segments
    assert (segments["stalls"], segments["decode"]) == (sum(long), events[-1] - start - sum(long))


def test_a_request_that_never_ended_has_no_budget() -> None:
    with pytest.raises(Undefined, match="not_ended"):
        budget_of(row(stream_end_ns=None))


def many(n: int) -> list[Budget]:
    return [
        budget_of(row((5, 10, 3, 1000 + 7 * i)), [told("queue", 7e-9 * i), told("prefill", 900e-9)]) for i in range(n)
    ]


def test_a_tail_budget_sums_to_its_band_mean_and_says_how_far_that_is_from_the_percentile() -> None:
    found = totals_of(many(2000)).tail("ttft", 95)
    assert found["verdict"] == "decided" and found["n"] == 40
    assert sum(found["segments_s"].values()) == pytest.approx(found["band_mean_s"], abs=1e-15)
    assert found["value_s"] == pytest.approx((1003 + 7 * 0.95 * 1999) / 1e9)
    assert found["segments_s"]["prefill"] == pytest.approx(900e-9)
    assert found["segments_s"]["queue"] == pytest.approx(7e-9 * 1900, rel=0.01)


def test_too_few_requests_near_the_percentile_leave_it_undecided() -> None:
    found = totals_of(many(300)).tail("ttft", 99)
    assert found["verdict"] == "undecided" and "segments_s" not in found
    assert totals_of(many(found["needs_requests"])).tail("ttft", 99)["verdict"] == "decided"


def test_a_small_run_takes_the_twenty_nearest_within_five_points() -> None:
    found = totals_of(many(240)).tail("ttft", 50)
    assert found["verdict"] == "decided" and 20 <= found["n"] <= 24 and found["band"][1] - found["band"][0] <= 10
    assert totals_of(many(100)).tail("ttft", 50)["verdict"] == "undecided"


def test_means_add_to_the_mean_of_the_metric() -> None:
    budgets = many(10)
    assert sum(totals_of(budgets).mean("e2e").values()) == pytest.approx(
        sum(metric_ns(b, "e2e") for b in budgets) / 10 / 1e9
    )
    document = budgets_document(budgets)
    assert document is not None and document["with_server_evidence"] == 10 and document["negative_remainders"] == 0


def test_aggregates_split_the_mean_and_say_nothing_of_tails() -> None:
    budgets = [budget_of(row()) for _ in range(4)]
    found = aggregate_budget(totals_of(budgets), Means(queue_s=30e-9, prefill_s=50e-9, n=4))
    assert found["mean"]["ingress_delivery"] == pytest.approx(20e-9) and found["tails"] is None
    assert aggregate_budget(totals_of(budgets), Means(queue_s=1.0, n=5))["mean"] is None
