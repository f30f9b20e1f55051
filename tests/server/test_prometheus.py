"""Windows are differences per full label set, added up; a window that can't be trusted is rejected and says why."""

from __future__ import annotations

import pytest

from phasemeter.server.engines import ENGINES, UNPREFIXED
from phasemeter.server.prometheus import Reading, read_pages
from phasemeter.server.windows import Room, baseline_index, is_idle, window_mismatches
from tests.server.pages import INF, hist, page, read, windows

QUEUE = "vllm:request_queue_time_seconds"
NEW, OLD = "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
E1 = 'engine="1",model_name="m"'


def queue(low: float, all_: float, total: float, labels: str = 'engine="0",model_name="m"') -> str:
    return hist(QUEUE, {0.3: low, INF: all_}, total, labels)


def test_a_window_is_the_difference_of_each_engine_added_up() -> None:
    found = windows([queue(1, 2, 1.0), queue(5, 5, 1.0, E1)], [queue(4, 6, 5.0), queue(7, 8, 3.5, E1)]).readings[
        "queue"
    ]
    assert (found.status, found.n, found.mean) == ("present", 7, pytest.approx(6.5 / 7))
    assert sorted(found.parts.values()) == [3, 4]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ([queue(3, 4, 1.0)], [queue(2, 5, 2.0)], "fell"),
        ([queue(3, 4, 1.0)], [hist(QUEUE, {0.5: 4, INF: 5}, 2.0)], "edges"),
        ([queue(3, 4, 1.0), queue(1, 1, 0.1, E1)], [queue(4, 5, 2.0)], "labels changed"),
        ([queue(3, 4, 1.0)], [queue(4, 5, 2.0), queue(1, 1, 0.1, E1)], "engine=1 is new"),
        ([queue(3, 4, 1.0)], [queue(3, 4, 1.0, 'engine="0",model_name="other"')], "labels changed"),
        (
            ["process_start_time_seconds 100\n", queue(3, 4, 1)],
            ["process_start_time_seconds 200\n", queue(9, 9, 2)],
            "restart",
        ),
        (
            [queue(3, 4, 1), f'{QUEUE}_created{{engine="0",model_name="m"}} 1.0\n'],
            [queue(9, 9, 2), f'{QUEUE}_created{{engine="0",model_name="m"}} 9.0\n'],
            "created anew",
        ),
    ],
)
def test_a_window_across_a_change_is_rejected(before: list[str], after: list[str], why: str) -> None:
    found = windows(before, after).readings["queue"]
    assert found.status == "rejected" and why in (found.reason or "") and found.n is None


def test_a_restart_seen_only_between_is_rejected_too() -> None:
    pages = [page(queue(*at), name=str(i)) for i, at in enumerate([(5, 5, 1.0), (1, 1, 0.1), (9, 9, 2.0)])]
    assert read(*pages).readings["queue"].status == "rejected"


def test_a_series_that_appears_on_a_server_that_was_up_counts_from_zero() -> None:
    running = 'vllm:num_requests_running{engine="0",model_name="m"} 0\n'
    found = windows([running], [running, queue(2, 3, 1.0)]).readings["queue"]
    assert found.n == 3 and "new_series" in found.warnings[0]


def test_a_process_that_had_counted_nothing_yet_counts_from_zero() -> None:
    start = "process_start_time_seconds 100\n"
    found = windows([start], [start, queue(2, 3, 1.0)])
    assert found.window and found.readings["queue"].n == 3
    other = windows(["process_start_time_seconds 90\n"], [start, queue(2, 3, 1.0)])
    assert not other.window and any("lifetime_only" in text for text in other.warnings)


def test_renamed_metrics_count_once_whichever_is_there() -> None:
    old = hist(OLD, {0.01: 0, 0.025: 100, INF: 100}, 2.0)
    new = hist(NEW, {0.01: 0, 0.025: 100, INF: 100}, 2.0)
    for texts in ((old,), (new,), (old, new), (new, old)):
        found = read(page(*texts)).readings["itl"]
        assert (found.n, found.mean) == (100, pytest.approx(0.02))
    assert read(page(old, new)).readings["itl"].metric == NEW


def test_both_spellings_of_a_name_are_one_metric() -> None:
    colon, low = 'sglang:num_running_reqs{model_name="m"} 7\n', 'sglang_num_running_reqs{model_name="m",worker="w"} 7\n'
    for text in (colon, low, colon + low, low + colon):
        assert read(page(text), engine="sglang").readings["running_requests"].value == 7


def test_counts_are_summed_and_shares_are_averaged_over_engines() -> None:
    engines = ((0, 3, 0.2), (1, 5, 0.6))
    text = "".join(f'vllm:num_requests_running{{engine="{e}"}} {running}\n' for e, running, _ in engines)
    text += "".join(f'vllm:kv_cache_usage_perc{{engine="{e}"}} {share}\n' for e, _, share in engines)
    found = read(page(text)).readings
    assert found["running_requests"].value == 8
    assert found["kv_cache_usage"].value == pytest.approx(0.4) and max(found["kv_cache_usage"].parts.values()) == 0.6
    assert is_idle(read(page(text))) is False


def test_ranks_of_one_engine_count_its_requests_once_and_data_parallel_ones_add_up() -> None:
    name = "sglang:num_running_reqs"
    shards = page(*(f'{name}{{dp_rank="{d}",tp_rank="{t}"}} {3 + d}\n' for d in (0, 1) for t in (0, 10, 2)))
    found = read(shards, engine="sglang")
    assert found.readings["running_requests"].value == 7
    assert any(text.startswith("shards") for text in found.warnings)
    queue = [
        hist("sglang:queue_time_seconds", {0.1: n, INF: n}, n * 0.05, f'tp_rank="{t}"') for t in (0, 1) for n in (4,)
    ]
    assert read(page(*queue), engine="sglang").readings["queue"].n == 4
    assert not read(page(f'{name}{{tp_rank="0"}} 3\n'), engine="sglang").warnings


def test_a_gauge_of_minus_one_or_nan_is_no_count() -> None:
    for bad in ("-1", "NaN"):
        found = read(page(f"vllm:num_requests_running {bad}\n")).readings["running_requests"]
        assert (found.status, found.value) == ("implausible", None)


def test_absent_is_not_zero() -> None:
    found = read(page("vllm:num_requests_running 0\n")).readings
    assert (found["running_requests"].value, found["running_requests"].status) == (0, "present")
    assert (found["swapped_requests"].value, found["swapped_requests"].status) == (None, "absent")
    assert (found["queue"].n, found["queue"].status) == (None, "absent")


def test_a_histogram_of_zeros_is_implausible_but_a_queue_may_be_empty() -> None:
    zeros = {0.3: 150.0, INF: 150.0}
    found = read(page(hist("vllm:time_to_first_token_seconds", zeros, 0.0), hist(QUEUE, zeros, 0.0))).readings
    assert (found["ttft"].status, found["ttft"].n, found["ttft"].mean) == ("implausible", 150, None)
    assert (found["queue"].status, found["queue"].mean) == ("present", 0)


def test_what_rounding_leaves_of_zeros_is_no_time_either() -> None:
    found = read(page(hist("vllm:time_to_first_token_seconds", {0.001: 150, INF: 150}, 0.00012))).readings["ttft"]
    assert found.status == "implausible" and found.mean is None


def test_a_rate_since_the_last_log_line_is_shown_and_never_used() -> None:
    found = read(page("vllm:avg_generation_throughput_toks_per_s 60\n")).readings["generated_tokens_per_s"]
    assert (found.status, found.value) == ("server_reported_only", 60)


def test_a_gauge_that_changed_meaning_is_shown_and_never_used() -> None:
    text = "llamacpp:tokens_predicted_total {}\nllamacpp:tokens_predicted_seconds_total {}\nllamacpp:predicted_tokens_seconds {}\n"
    found = read(page(text.format(4000, 50, 80)), page(text.format(9000, 150, 60)), engine="llamacpp").readings
    assert found["predicted_tokens_seconds"].status == "server_reported_only"
    assert (found["generated_tokens"].value, found["decode"].total, found["decode"].mean) == (5000, 100, None)


def test_streaming_and_non_streaming_ttft_of_sglang_stay_apart() -> None:
    name, buckets = "sglang:time_to_first_token_seconds", {0.1: 1.0, INF: 2.0}
    found = read(
        page(*(hist(name, buckets, 1.0, f'is_streaming="{s}"') for s in ("true", "false"))), engine="sglang"
    ).readings
    assert found["ttft"].n == 2 and found["ttft_non_streaming"].n == 2


def test_one_model_of_several_can_be_chosen() -> None:
    both = page(queue(1, 1, 0.1), queue(3, 3, 0.3, 'engine="0",model_name="b"'))
    assert read(both).readings["queue"].n == 4 and any("several_models" in w for w in read(both).warnings)
    assert read(both, model="b").readings["queue"].n == 3
    assert read(both, model="none").readings["queue"].status == "rejected"


def test_buckets_in_any_order_with_exemplars_and_stamps_read_the_same() -> None:
    a = hist(QUEUE, {0.3: 2, 0.5: 3, INF: 4}, 2.0)
    b = hist(QUEUE, {INF: 4, 0.5: 3, 0.3: 2}, 2.0, tail=' 1700000000 # {trace_id="x"} 0.2 1.0') + "# EOF\n"
    assert read(page(a)).readings["queue"].hist == read(page(b)).readings["queue"].hist


def test_a_summary_has_a_mean_and_no_bounds() -> None:
    text = f'{QUEUE}{{quantile="0.5"}} 0.1\n{QUEUE}_sum 3\n{QUEUE}_count 6\n'
    found = read(page(text)).readings["queue"]
    assert (found.n, found.mean, found.hist) == (6, 0.5, None) and "no_buckets" in (found.reason or "")


def test_a_histogram_cut_off_before_its_end_is_rejected() -> None:
    assert (
        read(page(queue(1, 2, 3).split(',le="+Inf"')[0].rsplit("\n", 1)[0] + "\n")).readings["queue"].status
        == "rejected"
    )


def test_milliseconds_and_microseconds_become_seconds() -> None:
    kv = hist("sglang:kv_transfer_latency_ms", {100: 1.0, INF: 1.0}, 50.0, 'a="b"')
    assert read(page(kv), engine="sglang").readings["kv_transfer"].mean == pytest.approx(0.05)
    triton = "nv_inference_request_success 4\nnv_inference_queue_duration_us 8000\n"
    assert read(page(triton), engine="triton").readings["queue"].mean == pytest.approx(0.002)


def test_the_baseline_waits_for_the_warm_up_to_be_booked() -> None:
    scrapes = [{"prefill": 0.0, "ttft": 1.0}, {"prefill": 1.0, "ttft": 1.0}, {"prefill": 6.0, "ttft": 6.0}]
    assert baseline_index(scrapes, 1) == 1
    assert baseline_index([{"prefill": None, "ttft": 1.0}], 1) is None


def test_a_server_that_counted_something_else_is_named() -> None:
    found = windows([queue(1, 1, 0.1)], [queue(7, 7, 0.7)])
    assert window_mismatches(found, 6, None) == []
    assert "server_count_mismatch" in window_mismatches(found, 5, None)[0]


@pytest.mark.parametrize(("room", "fits"), [(Room(requests=3), True), (Room(requests=1), True), (Room(), False)])
def test_choices_and_requests_cut_off_may_be_counted_or_not(room: Room, fits: bool) -> None:
    found = windows([queue(1, 1, 0.1)], [queue(7, 7, 0.7)])
    told = window_mismatches(found, 5, None, room)
    assert (told == []) is fits
    assert window_mismatches(found, 7, None, room), "what ended well is counted, whatever else was sent"


@pytest.mark.parametrize(
    ("room", "fits"), [(Room(tokens=400), True), (Room(tokens=None), True), (Room(tokens=399), False)]
)
def test_tokens_of_answers_that_were_cut_off_are_no_strangers(room: Room, fits: bool) -> None:
    page_of = "vllm:generation_tokens_total {}\n".format
    found = windows([page_of(100)], [page_of(747)])
    assert (window_mismatches(found, None, 247, room) == []) is fits
    assert window_mismatches(found, None, 648, room)[0].startswith("server_token_mismatch")


def test_an_engine_on_one_page_of_two_has_a_lifetime_only() -> None:
    found = read(page("sglang:num_running_reqs 1\n"), page(queue(1, 1, 0.1)))
    assert not found.window and any("lifetime_only" in w for w in found.warnings)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_of_an_engine_is_found_under_each_alias(engine: str) -> None:
    for row in ENGINES[engine]:
        for alias in row.aliases:
            text = hist(alias, {1.0: 1, INF: 2}, 3.0, 'a="b"') if row.kind == "histogram" else f"{alias} 1\n"
            if engine in UNPREFIXED and alias != ENGINES[engine][0].aliases[0]:  # known by a histogram beside the rest
                text += hist(ENGINES[engine][0].aliases[0], {1.0: 1, INF: 2}, 3.0, 'a="b"')
            found = {r.row.key: r for r in read(page(text), engine=engine).readings.values() if r.status != "absent"}
            assert isinstance(found.get(row.key), Reading), alias


def triton(requests: dict[str, int], request_us: int = 100_000) -> str:
    """Triton's counters: each of these models served so many requests."""
    lines = []
    for model, count in requests.items():
        lines.append(f'nv_inference_request_success{{model="{model}",version="1"}} {count}')
        lines.append(f'nv_inference_request_duration_us{{model="{model}",version="1"}} {count * request_us}')
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("served", "counted"),
    [
        ({"ensemble": 59, "preprocessing": 59, "tensorrt_llm": 59, "postprocessing": 59}, 59),
        ({"ensemble": 0, "tensorrt_llm_bls": 7, "preprocessing": 7, "tensorrt_llm": 7}, 7),
        ({"ensemble": 2, "tensorrt_llm_bls": 3, "tensorrt_llm": 5, "mine": 4}, 9),
        ({"ensemble": 0, "tensorrt_llm": 5}, 5),  # asked without its ensemble
    ],
)
def test_a_request_that_triton_counts_for_each_step_counts_once(served: dict[str, int], counted: int) -> None:
    found = read(page(triton(served)), engine="triton")
    assert found.readings["requests_finished"].value == counted
    assert found.readings["e2e"].n == counted and found.readings["e2e"].total == pytest.approx(0.1 * counted)
    left_out = any(warning.startswith("steps_left_out") for warning in found.warnings)
    assert left_out == (counted < sum(served.values()))
    assert (
        read(page(triton(served)), engine="triton", model="tensorrt_llm").readings["requests_finished"].value
        == served["tensorrt_llm"]
    )


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_"])
def test_what_ray_serves_under_its_own_prefix_is_the_engines(prefix: str) -> None:
    wrapped = page(hist(f"{prefix}request_queue_time_seconds", {0.3: 2, INF: 4}, 2.0))
    assert read(wrapped).readings["queue"].n == 4
    assert read_pages([page(hist("ray_serve_request_queue_time_seconds", {0.3: 2, INF: 4}, 2.0))], None) == {}


def test_names_without_a_prefix_are_nims_where_its_histograms_are_there() -> None:
    counters = "prompt_tokens_total 70\ngeneration_tokens_total 30\nnum_requests_running 3\n"
    ttft = hist("time_to_first_token_seconds", {0.3: 2, INF: 4}, 2.0, 'model_name="m"')
    found = read(page(ttft, counters), engine="nim")
    assert (found.readings["ttft"].n, found.readings["prompt_tokens"].value) == (4, 70)
    assert found.readings["running_requests"].value == 3
    assert found.readings["tpot"].status == "absent"
    assert read_pages([page(counters)], None) == {}
