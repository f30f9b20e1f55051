"""Known constants come back, from every scheduler, with and without the server's word; and a prediction with them is the run."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from phasemeter.serving.step_time import LinearCoefficients
from phasemeter.studies.calibrate.constants import Constant
from phasemeter.studies.calibrate.observed import Run
from phasemeter.studies.calibrate.study import Calibration, calibrate
from tests.studies.calibrate.known import DEARER, TRUTH, plan_of, run_of

LOADS = {
    "open loop": ("{poisson: 3 req/s}", "policy: vllm_v1", TRUTH),
    "open loop, prefill dearer than decode": ("{poisson: 3 req/s}", "policy: vllm_v1", DEARER),
    "closed loop": ("{concurrency: 8}", "policy: vllm_v1", TRUTH),
    "prompts in chunks": ("{poisson: 3 req/s}", "policy: vllm_v1, max_num_batched_tokens: 512", TRUTH),
    "prompts first": ("{poisson: 3 req/s}", "policy: vllm_v0", TRUTH),
    "prompts first, in a closed loop": ("{concurrency: 8}", "policy: sglang", DEARER),
    "whole prompts beside decodes": ("{poisson: 3 req/s}", "policy: orca", TRUTH),
    "stall-free chunks": ("{poisson: 3 req/s}", "policy: sarathi, max_num_batched_tokens: 256", TRUTH),
}


def fitted(*runs: Run, held_out: tuple[Run, ...] = ()) -> Calibration:
    found = calibrate(runs, held_out)
    assert isinstance(found, Calibration)
    return found


@cache
def fitted_load(load: str, told: bool) -> Calibration:
    arrivals, deployment, truth = LOADS[load]
    return fitted(run_of(plan_of(arrivals, deployment=deployment, truth=truth), told=told))


def truth_of(name: str, truth: LinearCoefficients) -> float:
    where, _, what = name.partition(".")
    values = truth.prefill_s if where == "prefill" else truth.decode_s
    order = ("constant", "per_token", "per_token_squared") if where == "prefill" else (
        "constant", "per_context_token", "per_sequence"
    )  # fmt: skip
    return values[order.index(what)]


def holds(one: Constant, true: float) -> bool:
    """Whether the truth lies in the interval, but for what instants in whole ns can't tell."""
    low, high = one.ci95
    assert one.value is not None
    grain = 1e-5 * true
    if low is None or high is None:
        return abs(one.value - true) <= grain
    return low - grain <= true <= high + grain


@pytest.mark.parametrize("told", [True, False], ids=["told by the server", "seen by the client alone"])
@pytest.mark.parametrize("load", LOADS)
def test_the_constants_that_a_run_identifies_are_those_it_was_made_with(load: str, told: bool) -> None:
    truth, found = LOADS[load][2], fitted_load(load, told).model
    for one in found.constants:
        if one.status == "identified" and one.name != "outside":
            assert one.value == pytest.approx(truth_of(one.name, truth), rel=2e-4), one
            assert holds(one, truth_of(one.name, truth)), one
    identified = {one.name for one in found.constants if one.status == "identified"}
    assert identified >= {
        "decode.constant", "decode.per_context_token", "decode.per_sequence", "prefill.per_token", "prefill.per_token_squared",
    }  # fmt: skip
    assert (found.constant("outside").value or 0.0) == pytest.approx(0, abs=1e-6)
    assert found.constant("prefill.constant").value is not None


@pytest.mark.parametrize("load", LOADS)
def test_a_run_predicted_with_its_own_constants_is_the_run(load: str) -> None:
    deployment, found = LOADS[load][1], fitted_load(load, told=True)
    if not any(word in deployment for word in ("orca", "sarathi", "max_num")):  # what no run shows of its scheduler
        for one in found.predictions:
            for metric in ("ttft", "tpot", "e2e"):
                assert one.errors[metric].n > 20
                assert one.errors[metric].mean == pytest.approx(0, abs=1e-4), (one.fitted_on, metric)
                assert one.errors[metric].p95 == pytest.approx(0, abs=1e-3), (one.fitted_on, metric)


def test_an_engine_that_got_slower_is_seen_where_its_first_half_predicts_its_second() -> None:
    run = run_of(plan_of("{concurrency: 1}"), told=True)
    turn = run.requests[len(run.requests) // 2].sent_s

    def slower(at: float) -> float:
        return at if at < turn else turn + 1.2 * (at - turn)

    requests = [
        msgspec.structs.replace(
            one, sent_s=slower(one.sent_s), first_s=slower(one.first_s), last_s=slower(one.last_s),
            times_s=tuple(slower(at) for at in one.times_s), prefill_s=slower(one.first_s) - slower(one.sent_s),
        )
        for one in run.requests
    ]  # fmt: skip
    _, half = fitted(msgspec.structs.replace(run, requests=tuple(requests))).predictions
    assert half.fitted_on == "its first half"
    assert half.errors["tpot"].mean == pytest.approx(1 / 1.2 - 1, abs=0.01)


def test_a_fresh_load_is_predicted_from_two_others() -> None:
    alone = run_of(plan_of("{concurrency: 1}"), told=True, name="alone")
    loaded = run_of(plan_of("{concurrency: 6}"), told=True, name="loaded")
    fresh = run_of(plan_of("{poisson: 5 req/s}", "input_tokens: 700, output_tokens: 20"), told=False, name="fresh")
    error = fitted(alone, loaded, held_out=(fresh,)).predictions[-1]
    assert (error.run, error.fitted_on) == ("fresh", "other runs")
    assert error.errors["ttft"].median == pytest.approx(0, abs=1e-3)
    assert error.errors["e2e"].p95 == pytest.approx(0, abs=1e-3)


def test_one_request_at_a_time_cannot_tell_the_cost_of_a_sequence() -> None:
    found = fitted(run_of(plan_of("{concurrency: 1}"), told=True)).model
    sequence, constant = found.constant("decode.per_sequence"), found.constant("decode.constant")
    assert (sequence.status, sequence.value, sequence.measure) == ("unidentified", None, "batches")
    assert constant.value == pytest.approx(TRUTH.decode_s[0] + TRUTH.decode_s[2], rel=1e-6), "it is in the constant"


def test_one_request_at_a_time_without_the_servers_word_cannot_tell_what_is_outside() -> None:
    run = run_of(plan_of("{concurrency: 1}"), told=False)
    found = fitted(run).model
    assert found.constant("outside").status == "unidentified"
    assert found.constant("prefill.constant").status == "assumed"
    assert found.constant("prefill.constant").measure == "server"


@pytest.mark.parametrize("told", [True, False])
def test_prompts_of_one_length_leave_the_lines_slope_and_bend_open(told: bool) -> None:
    lengths = "input_tokens: {fixed: 512}, output_tokens: {fixed: 48}"
    found = fitted(run_of(plan_of("{concurrency: 1}", lengths), told=told))
    model = found.model
    assert model.constant("prefill.per_token_squared").status == "unidentified"
    assert model.constant("prefill.per_token").status == "assumed"
    assert model.constant("prefill.constant").measure == "lengths"
    assert model.linear is not None
    constant, each, _ = model.linear.prefill_s
    whole = TRUTH.prefill_s[0] + 512 * TRUTH.prefill_s[1] + 512**2 * TRUTH.prefill_s[2]
    assert constant + 512 * each == pytest.approx(whole, rel=1e-4), "prompts of that length cost what they cost"
    assert found.predictions[0].errors["e2e"].p95 == pytest.approx(0, abs=1e-3)


def test_what_is_outside_the_engine_is_found_by_the_servers_word_and_by_meeting_it_idle_and_busy() -> None:
    delay_s = 0.004
    run = run_of(plan_of("{poisson: 1.5 req/s}", truth=DEARER), told=True)
    late = msgspec.structs.replace(
        run,
        requests=tuple(msgspec.structs.replace(one, sent_s=max(0.0, one.sent_s) - delay_s) for one in run.requests),
    )
    assert fitted(late).model.constant("outside").value == pytest.approx(delay_s, rel=1e-3)
    silent = msgspec.structs.replace(
        late, requests=tuple(msgspec.structs.replace(one, prefill_s=None, queue_s=None) for one in late.requests)
    )
    model = fitted(silent).model
    assert model.constant("outside").value == pytest.approx(delay_s, rel=0.02)
    assert model.constant("prefill.constant").value == pytest.approx(DEARER.prefill_s[0], rel=1e-3)


def test_answers_of_one_token_tell_no_decode() -> None:
    lengths = "input_tokens: {uniform: [32, 512]}, output_tokens: {uniform: [1, 2]}"
    run = run_of(plan_of("{concurrency: 1}", lengths), told=True)
    only = msgspec.structs.replace(
        run,
        requests=tuple(
            msgspec.structs.replace(one, output_tokens=1, last_s=one.first_s, times_s=one.times_s[:1])
            for one in run.requests
        ),
    )
    found = fitted(only)
    assert found.model.linear is None, "a plan needs both"
    assert found.model.constant("decode.constant").status == "unidentified"
    assert found.model.constant("prefill.per_token").value == pytest.approx(TRUTH.prefill_s[1], rel=1e-3)
    assert {one.reason for one in found.predictions} == {"what it is fitted on tells no whole step time"}


def test_what_a_prefix_cache_held_costs_nothing_to_compute_and_all_to_attend() -> None:
    lengths = "input_tokens: {uniform: [700, 1500]}, output_tokens: {uniform: [8, 64]}, shared_prefix: {tokens: 640}"
    run = run_of(plan_of("{concurrency: 2}", lengths, "policy: vllm_v1, prefix_cache: true"), told=True)
    assert sum(one.cached_tokens >= 640 for one in run.requests) > 90
    model = fitted(run).model
    for name in ("decode.constant", "decode.per_context_token", "prefill.per_token", "prefill.per_token_squared"):
        assert model.constant(name).value == pytest.approx(truth_of(name, TRUTH), rel=1e-3), name
