"""How long prompts are in a server's tokens: found by the probe whatever a word costs, or said."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.records.request import PlannedRequest
from phasemeter.runs import probe_lengths, probe_request
from phasemeter.runs.asked import Asked
from phasemeter.runs.settings import settings_of
from phasemeter.workload.length_model import LengthModel
from phasemeter.workload.prompts import PromptOptions, prompt_for
from phasemeter.workload.words import WORDS
from tests.runs.served import Behaviour, served
from tests.runs.whole import Bench

Count = Callable[[str], int]


def counting(seed: int, most: int, template: int) -> Count:
    """A tokenizer of which nothing is known but that words cost 1 to `most` tokens each."""
    random_ = random.Random(seed)
    cost = {word: random_.randint(1, most) for word in WORDS}
    return lambda text: template + sum(cost[word] for word in text.split())


def fitted(count: Count, wanted: int, monkeypatch: pytest.MonkeyPatch) -> tuple[LengthModel, probe_request.State]:
    """What the probe finds of a server that counts by `count`."""

    def send(of: object, state: probe_request.State, said: probe_request.Said) -> tuple[Any, int | None]:
        content, words = said(state)
        state.sent += 1
        return SimpleNamespace(outcome="ok", prompt_tokens=count(content.text or "")), words

    monkeypatch.setattr(probe_lengths, "send", send)
    asked = settings_of("http://127.0.0.1:1", Asked(input_tokens=str(wanted), model="m"))
    state = probe_request.State(body=asked.body, ignore_eos=False)
    twice = probe_lengths.Twice(asked, state)
    probe_lengths.keep(state, *send(asked, state, probe_lengths.once(asked)))
    twice.take(state)
    return probe_lengths.fitted(asked, state), state


def mean_of_prompts(count: Count, wanted: int, lengths: LengthModel, prompts: int = 60) -> float:
    options = PromptOptions(salt="run")
    planned = [
        PlannedRequest(
            request_id=f"r{n}", index=n, api="openai.chat", stream=True, phase="measured", input_tokens=wanted
        )
        for n in range(prompts)
    ]
    return statistics.fmean(count(prompt_for(one, options, lengths).text or "") for one in planned)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), most=st.integers(1, 6), template=st.integers(0, 90), own=st.integers(30, 2000)
)  # fmt: skip
def test_prompts_come_out_as_long_as_asked_whatever_a_word_costs(seed: int, most: int, template: int, own: int) -> None:
    count, wanted = counting(seed, most, template), template + own
    with pytest.MonkeyPatch.context() as monkeypatch:
        lengths, state = fitted(count, wanted, monkeypatch)
    words = own / ((1 + most) / 2)
    whole_words = most / 2  # a prompt ends with a word
    spread = 4 * most / 3 * (words / 60) ** 0.5  # of 60 prompts' mean
    assert state.notes or abs(mean_of_prompts(count, wanted, lengths) - wanted) <= 0.1 * own + spread + whole_words
    assert state.sent <= 2 + probe_lengths.CHECKS


@settings(max_examples=30, deadline=None)
@given(template=st.integers(0, 90), wanted=st.integers(100, 2000))
def test_a_word_a_token_is_exact_and_takes_no_check(template: int, wanted: int) -> None:
    count = counting(1, 1, template)
    with pytest.MonkeyPatch.context() as monkeypatch:
        lengths, state = fitted(count, wanted, monkeypatch)
    assert mean_of_prompts(count, wanted, lengths, prompts=3) == wanted
    assert state.sent == 1 and not state.notes  # beside the one that is asked at the same time


def test_lengths_that_follow_no_line_are_corrected_where_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(text: str) -> int:
        words = len(text.split())
        return 3 * words if words < 350 else 3 * words + 300

    lengths, state = fitted(count, 1000, monkeypatch)
    assert abs(count(" ".join(["word"] * lengths.words_for(1000))) - 1000) <= 50 and not state.notes


def test_a_server_that_counts_at_random_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(3)
    _, state = fitted(lambda text: 3 * len(text.split()) * drawn.choice([1, 9]), 300, monkeypatch)
    assert [note for note in state.notes if "300 tokens" in note and "realised" in note]


def test_the_longer_probe_may_be_refused_without_ending_the_run(bench: Bench) -> None:
    """A context too small for it is found by the lengths that were asked, not by ours."""
    with served(
        Behaviour(fault=lambda request: (400, '{"error": "too long"}') if request.words > 100 else None)
    ) as server:
        ran = bench(server.url, "--requests", "3", "--input-tokens", "32")
        assert ran.code == 0 and ran.outcomes["ok"] == 3
