"""What an engine says will come at a step's end is what it then tells: the emulator writes it before asking."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.serving.deploy import build, coming
from phasemeter.serving.events import Tokens
from phasemeter.serving.plan import parse_plan
from phasemeter.serving.sequence import Request

PLAN = """
workload: {{input_tokens: 3, output_tokens: {{fixed: 8}}, arrivals: {{poisson: 1/s}}}}
deployment:
  model: llama-3.1-8b
  hardware: H100
  policy: {policy}
  kv_tokens: 640
  max_model_len: 300
  max_num_seqs: 6
  max_num_batched_tokens: 320
  step_time: {{linear: {{prefill_s: [0.01, 0.0001, 0], decode_s: [0.005, 0.00001, 0]}}}}
"""
POLICIES = ("vllm_v0", "vllm_v1", "sarathi", "sglang", "orca", "request_level")
Asked = tuple[int, int, int, bool]  # ms after the one before, prompt tokens, output tokens, called off half-way


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 200), st.integers(1, 60), st.booleans()), min_size=1, max_size=12
    )
)
def test_the_tokens_that_are_coming_are_the_tokens_that_come(policy: str, asked: list[Asked]) -> None:
    serving = build(parse_plan(PLAN.format(policy=policy)), tokens=True)
    at, calls = 0, []
    for i, (gap_ms, prompt, output, leaves) in enumerate(asked):
        at += gap_ms * 1_000_000
        calls.append((at, i, prompt, output, leaves))
    now = steps = 0
    while calls or serving.due_ns() is not None:
        due = serving.due_ns()
        if calls and (due is None or calls[0][0] <= due):
            now, i, prompt, output, leaves = calls.pop(0)
            serving.advance(now)
            serving.submit(now, Request(request_id=f"r{i}", prompt_tokens=prompt, output_tokens=output, arrival_ns=now))
            if leaves and i:
                serving.abort(now, f"r{i - 1}")
            continue
        assert due is not None
        told = coming(serving)
        events = [event for event in serving.advance(due) if isinstance(event, Tokens)]
        now = due
        if told is None:
            assert not events
            continue
        steps += 1
        assert [(event.at_ns, event.first, event.more) for event in events] == [told]
    assert steps
