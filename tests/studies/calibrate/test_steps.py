"""Steps read off arrivals, equations made of them, and runs replayed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.studies.calibrate.observed import Observed, Run, in_order
from phasemeter.studies.calibrate.replay import errors, predecessors, replayed
from phasemeter.studies.calibrate.rows import COLUMNS, KINDS, met_nobody, rows_of
from phasemeter.studies.calibrate.scheduling import engine_of, seen_in
from phasemeter.studies.calibrate.steps import Steps, prefill_starts, steps_of
from phasemeter.studies.calibrate.study import Calibration, calibrate
from tests.studies.calibrate.known import TRUTH, plan_of, run_of

LOAD = "{poisson: 3 req/s}"


def steps(run: Run) -> Steps:
    found = steps_of(run)
    assert found is not None
    return found


def column(run: Run, found: Steps, name: str) -> float:
    rows = rows_of(run, found, prefill_starts(run, found, None))
    return float(rows.x[:, COLUMNS.index(name)].sum())


@pytest.mark.parametrize("policy", ["vllm_v1", "vllm_v0", "orca"])
def test_every_token_is_in_one_step_and_every_prompt_in_one_equation(policy: str) -> None:
    run = run_of(plan_of(LOAD, deployment=f"policy: {policy}"), told=True)
    found = steps(run)
    later = sum(one.output_tokens - 1 for one in run.requests)
    assert found.decodes.sum() == later
    assert found.firsts.sum() == len(run.requests)
    assert column(run, found, "sequences") == later
    assert column(run, found, "tokens") == sum(one.prompt_tokens for one in run.requests)


def test_equations_take_no_more_time_than_the_run_had() -> None:
    run = run_of(plan_of(LOAD), told=True)
    found = steps(run)
    rows = rows_of(run, found, prefill_starts(run, found, None))
    assert rows.y.sum() <= found.ends_s[-1] - run.requests[0].sent_s + 1e-9
    assert (rows.y > 0).all()
    assert (np.diff(rows.at_s) >= 0).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_arrivals_that_are_a_little_late_are_the_same_steps(seed: int) -> None:
    run = run_of(plan_of("{concurrency: 4}"), told=True)
    generator = np.random.default_rng(seed)

    def late(one: Observed) -> Observed:
        times = np.asarray(one.times_s) + generator.random(len(one.times_s)) * 0.002  # of steps of 20 ms
        return msgspec.structs.replace(
            one, times_s=tuple(times.tolist()), first_s=float(times[0]), last_s=float(times[-1])
        )

    moved = msgspec.structs.replace(run, requests=tuple(late(one) for one in run.requests))
    before, after = steps(run), steps(moved)
    assert after.decodes.tolist() == before.decodes.tolist()
    assert after.contexts.tolist() == before.contexts.tolist()
    assert after.first_at.tolist() == before.first_at.tolist()


def test_arrivals_of_several_tokens_are_no_steps() -> None:
    run = run_of(plan_of(LOAD), told=True)
    bundled = msgspec.structs.replace(
        run, requests=tuple(msgspec.structs.replace(one, times_s=one.times_s[::4]) for one in run.requests)
    )
    assert not bundled.single_steps
    assert steps_of(bundled) is None


def test_an_answer_whose_last_token_has_no_text_is_no_bundle() -> None:
    run = run_of(plan_of(LOAD), told=True)
    ended = msgspec.structs.replace(
        run, requests=tuple(msgspec.structs.replace(one, times_s=one.times_s[:-1]) for one in run.requests)
    )
    assert ended.single_steps


def test_without_the_servers_word_long_steps_before_a_first_token_hold_its_prompt() -> None:
    plan = plan_of(LOAD, deployment="policy: vllm_v1, max_num_batched_tokens: 256")
    told, silent = run_of(plan, told=True), run_of(plan, told=False)
    found = steps(told)
    usual = TRUTH.decode_s[0] + TRUTH.decode_s[1] * found.contexts + TRUTH.decode_s[2] * found.decodes
    by_server, by_length = prefill_starts(told, found, None), prefill_starts(silent, found, usual)
    chunked = by_server < found.first_at
    assert chunked.sum() > 20
    assert (by_server == by_length).mean() > 0.7, (
        "the others lie in one chain of prompts, which is one equation either way"
    )


def request(name: str, sent: float, first: float, last: float) -> Observed:
    return Observed(
        request_id=name,
        sent_s=sent,
        first_s=first,
        last_s=last,
        prompt_tokens=10,
        output_tokens=2,
        times_s=(first, last),
    )


def test_a_request_that_met_another_one_did_not_meet_an_idle_engine() -> None:
    run = Run(
        name="r",
        requests=in_order(
            [
                request("long", 0.0, 0.1, 5.0),
                request("short", 1.0, 1.1, 1.2),
                request("alone", 6.0, 6.1, 6.2),
                request("met later", 7.0, 7.3, 7.4),
                request("too soon", 7.1, 7.35, 7.5),
            ]
        ),
    )
    assert met_nobody(run).tolist() == [True, False, True, False, False]


def test_a_run_begins_with_its_first_request_whichever_was_read_first() -> None:
    first, second = in_order([request("b", 0.5, 0.6, 0.7), request("a", -1.5, -1.0, 0.9)])
    assert (first.request_id, first.sent_s, first.times_s) == ("a", 0.0, (0.5, 2.4))
    assert (second.sent_s, second.first_s, second.last_s) == pytest.approx((2.0, 2.1, 2.2))


def test_in_a_closed_loop_each_end_lets_one_request_go() -> None:
    run = run_of(plan_of("{concurrency: 5}"), told=True)
    found = predecessors(run)
    named = [one for one in found if one is not None]
    assert len(set(named)) == len(named) == len(run.requests) - 5
    for number, before in enumerate(found):
        assert before is None or run.requests[before].last_s <= run.requests[number].sent_s
    assert predecessors(msgspec.structs.replace(run, concurrency=None)) == [None] * len(run.requests)


def test_the_scheduler_is_seen_as_far_as_it_shows() -> None:
    mixed = run_of(plan_of(LOAD), told=True)
    apart = run_of(plan_of(LOAD, deployment="policy: vllm_v0"), told=True)
    seated = run_of(plan_of("{poisson: 30 req/s}", deployment="policy: vllm_v1, max_num_seqs: 6"), told=True)
    assert [seen_in(run, steps_of(run)).policy for run in (mixed, apart, seated)] == ["vllm_v1", "vllm_v0", "vllm_v1"]
    assert [seen_in(run, steps_of(run)).seats for run in (mixed, apart, seated)] == [None, None, 6]


def test_a_step_time_that_is_too_long_is_predicted_too_long_and_a_closed_loop_does_not_pile_it_up() -> None:
    run = run_of(plan_of("{concurrency: 4}"), told=True)
    slow = msgspec.structs.replace(
        TRUTH, decode_s=tuple(1.1 * each for each in TRUTH.decode_s), prefill_s=tuple(1.1 * each for each in TRUTH.prefill_s)
    )  # fmt: skip
    truths = replayed(run, engine_of(seen_in(run, steps_of(run)), slow, None), 0.0)
    assert len(truths) == len(run.requests)
    found = errors(run, truths, 0.0)
    assert found["tpot"].mean == pytest.approx(0.1, abs=0.01)
    assert found["e2e"].mean == pytest.approx(0.1, abs=0.01)
    assert found["e2e"].p95 is not None and found["e2e"].p95 < 0.3


def test_only_what_was_measured_is_scored_and_only_from_when_it_is_asked() -> None:
    run = run_of(plan_of(LOAD), told=True)
    truths = replayed(run, engine_of(seen_in(run, steps_of(run)), TRUTH, None), 0.0)
    scored = sum(one.scored for one in run.requests)
    assert 0 < scored < len(run.requests), "the warm-up is replayed, and not scored"
    assert errors(run, truths, 0.0)["ttft"].n == scored
    late = run.requests[-1].sent_s
    assert errors(run, truths, 0.0, late)["ttft"].n == 1
    assert errors(run, {}, 0.0)["ttft"].n == 0


def test_kinds_of_rows_are_columns_of_their_own() -> None:
    assert COLUMNS[: len(KINDS) - 1] == KINDS[:-1]


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.3))
def test_reads_that_were_merged_cost_no_constant(seed: int, share: float) -> None:
    """A stretch of reads that a busy machine took late holds several tokens of every stream, all under the last one's stamp."""
    run = run_of(plan_of("{concurrency: 3}"), told=True)
    ends = steps(run).ends_s
    merged = np.random.default_rng(seed).random(len(ends)) < share
    merged[-1] = False
    stamp = np.array(ends)
    for at in range(len(ends) - 2, -1, -1):
        stamp[at] = stamp[at + 1] if merged[at] else stamp[at]

    def late(one: Observed) -> Observed:
        times = stamp[np.searchsorted(ends, np.asarray(one.times_s) - 1e-6)]
        return msgspec.structs.replace(one, times_s=(one.first_s, *times[1:].tolist()), last_s=float(times[-1]))

    taken_late = msgspec.structs.replace(run, requests=tuple(late(one) for one in run.requests))
    seen = steps(taken_late)
    assert (seen.depth > 1).sum() > 0.02 * len(ends)
    assert seen.decodes.sum() == pytest.approx(sum(one.output_tokens - 1 for one in run.requests), rel=0.05)
    found = calibrate([taken_late], [])
    assert isinstance(found, Calibration)
    assert found.left_out < 0.1 * sum(found.rows.values()), "several steps at once are equations like others"
    values = [found.model.constant(f"decode.{name}").value for name in ("constant", "per_context_token")]
    assert values == pytest.approx(TRUTH.decode_s[:2], rel=0.03)
