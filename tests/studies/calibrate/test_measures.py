"""What is suggested can be typed."""

from __future__ import annotations

import shlex

import pytest

from phasemeter.cli.app import build_app
from phasemeter.studies.calibrate.measures import Load, measure

LOAD = Load(url="http://127.0.0.1:8000", input_tokens=300, output_tokens=40, concurrency=1)


@pytest.mark.parametrize("what", ["decode", "batches", "contexts", "lengths", "prompts", "server"])
def test_each_suggested_measurement_is_a_command_that_bench_takes(what: str) -> None:
    words = shlex.split(measure(what, LOAD))
    assert words[:3] == ["phasemeter", "bench", LOAD.url]
    build_app("bench").parse_args(words[1:], exit_on_error=False, print_error=False)


def test_a_batch_is_told_by_more_requests_at_a_time_than_there_were() -> None:
    assert "--concurrency 16 " in measure("batches", Load(url=None, input_tokens=1, output_tokens=1, concurrency=4))
