"""Every house metric on small requests whose right value is plain arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import EXCLUSIONS, GAPS, HOUSE, PER_REQUEST, value_or_reason
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from tests.metrics.rows import MS, row

settings.register_profile("bounded", deadline=None, max_examples=60)
settings.load_profile("bounded")


def ms(name: str, request: RequestRow) -> float:
    return PER_REQUEST[name](request) * 1e3


def gaps_ms(name: str, request: RequestRow) -> list[float]:
    return [round(float(gap) * 1e3, 9) for gap in GAPS[name](request)]


def reason(name: str, request: RequestRow) -> str | None:
    return value_or_reason(name, request)[1]


def test_the_first_gap_is_time_to_first_token_and_no_gap_between_tokens() -> None:
    request = row([500, 520, 540, 560])
    assert ms("ttft", request) == 500
    assert gaps_ms("itl", request) == [20, 20, 20]


def test_a_late_usage_chunk_is_in_the_stream_but_not_in_the_latency() -> None:
    request = row([100, 120, 140], end_ms=640)
    assert ms("e2e", request) == 140
    assert ms("tpot", request) == 20
    assert ms("stream_e2e", request) == 640


def test_a_bundled_first_chunk_leaves_tpot_as_the_field_has_it_and_decode_per_token_true() -> None:
    request = row([100, 120, 140], tokens=[8, 1, 1])
    assert ms("tpot", request) == pytest.approx(40 / 9)
    assert ms("decode_per_token", request) == 20
    assert gaps_ms("itl_spread", request) == [0] * 7 + [20, 20]
    with pytest.raises(Undefined, match="multi_token_chunks"):
        GAPS["itl"](request)


def test_tokens_of_a_chunk_share_its_gap_evenly() -> None:
    assert gaps_ms("itl_spread", row([40, 70, 100], tokens=[2, 1, 2])) == [0, 30, 15, 15]


def test_a_chunk_without_a_token_passes_its_gap_on() -> None:
    assert gaps_ms("itl_spread", row([40, 70, 100], tokens=[1, 0, 2])) == [30, 30]


def test_an_answer_in_one_arrival_has_no_cadence() -> None:
    request = row([4000], output_tokens=200, single_arrival=True)
    assert ms("ttft", request) == 4000
    assert ms("e2e", request) == 4000
    assert reason("tpot", request) == "single_arrival"
    assert reason("decode_per_token", request) == "unknown_tokens"


def test_one_token_has_no_time_per_token() -> None:
    assert reason("tpot", row([100])) == "fewer_than_2_tokens"


def test_unknown_tokens_are_never_the_number_of_chunks() -> None:
    request = row([100, 120], output_tokens=None)
    assert reason("tpot", request) == "unknown_tokens"
    with pytest.raises(Undefined, match="unknown_tokens"):
        GAPS["itl"](request)
    assert gaps_ms("inter_chunk", request) == [20]


def test_hidden_reasoning_makes_tpot_of_all_tokens_undefined_and_gives_the_visible_one() -> None:
    request = row([5000, 5020, 5040], output_tokens=103, reasoning_tokens=100, hidden_reasoning=True)
    assert reason("tpot", request) == "hidden_reasoning"
    assert ms("visible_tpot", request) == 20
    assert reason("visible_tpot", row([1, 2])) == "no_hidden_reasoning"


def test_impossible_usage_divides_nothing_unless_a_local_count_took_its_place() -> None:
    request = row([10, 20, 30, 40, 50], output_tokens=15, warnings=("usage_exceeds_max_tokens",))
    assert reason("tpot", request) == "impossible_usage"
    trusted = row(
        [10, 20, 30, 40, 50], warnings=("usage_exceeds_max_tokens",), output_tokens_source="tokenizer_full_text"
    )
    assert ms("tpot", trusted) == 10


def test_tokens_counted_here_divide_where_the_server_told_nothing() -> None:
    request = row([50, 165], output_tokens=24, output_tokens_source="tokenizer_full_text", asked_output_tokens=512)
    assert ms("tpot", request) == 5


def test_two_choices_never_make_a_gap_together() -> None:
    choices = tuple(
        ChoiceTimes(index=i, times_ns=tuple(at * MS for at in times), reads=(0, 1, 2), output_tokens=3)
        for i, times in enumerate([(100, 120, 140), (105, 125, 145)])
    )
    request = row([100, 145], n=2, choices=choices, output_tokens=6)
    assert ms("ttft", request) == 100
    assert ms("tpot", request) == 20
    assert gaps_ms("inter_chunk", request) == [20] * 4


def test_reasoning_without_a_final_output_has_no_time_to_first_output() -> None:
    request = row([40, 50, 60, 70], first_output_ns=None)
    assert ms("ttft", request) == 40
    assert reason("ttfo", request) == "no_final_output"


def test_a_reply_without_output_has_no_latency_of_output() -> None:
    request = row([], end_ms=48, output_tokens=1)
    for name in ("ttft", "ttfo", "e2e", "tpot"):
        assert reason(name, request) == "no_output", name
    assert ms("stream_e2e", request) == 48


def test_waiting_in_the_client_is_named_and_in_the_latency_from_due() -> None:
    served = [row([700], due_ms=k * 200, send_ms=k * 700) for k in range(6)]
    assert [ms("e2e", request) for request in served] == [700] * 6
    assert sum(ms("e2e_from_due", request) for request in served) / 6 == pytest.approx(1950)
    assert max(ms("e2e_from_due", request) for request in served) == pytest.approx(3200)
    assert sum(ms("client_queue", request) for request in served) / 6 == pytest.approx(1250)


def test_a_connection_opened_after_due_ends_the_client_queue() -> None:
    request = row(
        [100], send_ms=30, due_ms=0, connect_start_ns=10 * MS, dns_done_ns=12 * MS, tcp_connected_ns=20 * MS,
        connected_ns=29 * MS, sent_ns=31 * MS,
    )  # fmt: skip
    spans = {name: ms(name, request) for name in ("client_queue", "connect", "dns", "tcp", "tls", "upload")}
    assert spans == pytest.approx({"client_queue": 10, "connect": 20, "dns": 2, "tcp": 8, "tls": 9, "upload": 1})


def test_a_connection_that_was_open_costs_nothing() -> None:
    request = row([100], send_ms=30, due_ms=20, connect_start_ns=10 * MS, connected_ns=15 * MS)
    assert ms("client_queue", request) == 10
    assert reason("connect", request) == "connection_was_open"


def test_a_reply_that_was_not_streamed_has_no_first_token_but_an_end() -> None:
    request = row([900], stream=False)
    assert reason("ttft", request) == "not_streamed"
    assert ms("e2e", request) == 900


def test_a_gap_over_five_medians_is_a_stall_and_nothing_else_is() -> None:
    request = row([0, 10, 20, 30, 81, 91, 101, 151])
    assert gaps_ms("stall", request) == [51]
    with pytest.raises(Undefined, match="coalesced"):
        GAPS["stall"](row([10, 10, 10, 40]))


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=60), st.integers(0, 10**9))
def test_times_add_up_however_long_they_are(steps: list[int], first: int) -> None:
    times = [first]
    for step in steps:
        times.append(times[-1] + step)
    request = row([at / MS for at in times])
    ttft, e2e, generation = (PER_REQUEST[name](request) for name in ("ttft", "e2e", "generation"))
    assert ttft + generation == pytest.approx(e2e)
    assert sum(GAPS["inter_chunk"](request)) == pytest.approx(generation)
    assert sum(GAPS["itl_spread"](request)) == pytest.approx(generation)
    assert PER_REQUEST["tpot"](request) * len(steps) == pytest.approx(generation)
    assert PER_REQUEST["decode_per_token"](request) == pytest.approx(PER_REQUEST["tpot"](request))


@given(st.integers(-(10**18), 10**18))
def test_no_metric_knows_when_the_clock_began(shift: int) -> None:
    def moved(by: int) -> RequestRow:
        return RequestRow(
            request_id="r", outcome="ok", due_ns=by, send_start_ns=by + 5, sent_ns=by + 6, first_token_ns=by + 100,
            first_output_ns=by + 100, last_token_ns=by + 300, stream_end_ns=by + 310, output_tokens=3,
            choices=(ChoiceTimes(times_ns=(by + 100, by + 200, by + 300), reads=(0, 1, 2)),),
        )  # fmt: skip

    for name in PER_REQUEST:
        assert value_or_reason(name, moved(shift)) == value_or_reason(name, moved(0)), name


def test_each_row_names_only_exclusions_that_exist() -> None:
    for definition in HOUSE.values():
        assert set(definition.excluded) <= set(EXCLUSIONS)
        assert definition.words


def test_one_read_is_one_arrival_even_where_events_were_stamped_apart() -> None:
    assert reason("tpot", row([100, 130], single_arrival=True)) == "single_arrival"
