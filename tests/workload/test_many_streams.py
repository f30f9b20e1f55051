"""Streams drawn together draw what each draws alone, to the last bit."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.workload.lengths import parse_lengths, sample
from phasemeter.workload.many_streams import FIRST, exponentials, normals, samples, uniforms
from phasemeter.workload.streams import Stream

MANY = 4 * FIRST  # beyond the first blocks


@given(st.integers(0, 2**40), st.text(max_size=12))
@settings(max_examples=40, deadline=None)
def test_uniforms_normals_and_exponentials_are_those_of_each_stream(seed: int, name: str) -> None:
    alone = [Stream(seed, name, index) for index in range(MANY)]
    assert list(islice(uniforms(seed, name), MANY)) == [(one.random(), one.random()) for one in alone]
    assert list(islice(normals(seed, name), MANY)) == [Stream(seed, name, i).normal() for i in range(MANY)]
    assert list(islice(exponentials(seed, name), MANY)) == [Stream(seed, name, i).exponential() for i in range(MANY)]


@pytest.mark.parametrize("text", ["64", "uniform:3:99", "normal:40:30", "lognormal:512:2048"])
def test_lengths_are_those_of_each_stream(text: str) -> None:
    lengths = parse_lengths(text)
    for seed in range(5):
        told = list(islice(samples(lengths, seed, "input_tokens"), MANY))
        assert told == [sample(lengths, Stream(seed, "input_tokens", index)) for index in range(MANY)]
