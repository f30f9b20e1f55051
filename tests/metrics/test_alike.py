"""Columns of alike rows give the very result that the rows give."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest

from phasemeter.errors import InternalError
from phasemeter.metrics.alike import add_alike
from phasemeter.metrics.summary import Summary
from phasemeter.records.request_row import ChoiceTimes, RequestRow

NUMBERS = (
    "due_ns", "send_start_ns", "sent_ns", "first_token_ns", "first_output_ns", "last_token_ns", "stream_end_ns",
    "input_tokens", "output_tokens", "asked_input_tokens", "asked_output_tokens", "cached_tokens",
)  # fmt: skip


def rows(random: Random, many: int, phase: str) -> list[RequestRow]:
    found = []
    for i in range(many):
        due = random.randrange(10**12)
        first = due + random.randrange(1, 10**9)
        last = first + random.randrange(1, 10**10)
        inputs, outputs = random.randrange(1, 900), random.randrange(2, 900)
        numbers = (due, due, due, first, first, last, last, inputs, outputs, inputs, outputs, 0)
        known = dict(zip(NUMBERS, numbers, strict=True))
        one = {"request_id": str(i), "outcome": "ok", "phase": phase, "output_tokens_source": "simulated", **known}
        found.append(msgspec.convert(one, RequestRow))
    return found


def test_columns_and_rows_give_one_result() -> None:
    random = Random(3)
    by_row, by_column = Summary(), Summary()
    for phase, many in (("warmup", 30), ("measured", 400)):
        found = rows(random, many, phase)
        for row in found:
            by_row.add(row)
        add_alike(by_column, found[0], {n: np.array([getattr(row, n) for row in found]) for n in NUMBERS})
    assert msgspec.to_builtins(by_column.result()) == msgspec.to_builtins(by_row.result())


def test_a_row_with_events_is_no_column() -> None:
    row = msgspec.structs.replace(rows(Random(1), 1, "measured")[0], choices=(ChoiceTimes(times_ns=(1,), reads=(0,)),))
    with pytest.raises(InternalError, match="can't be added as columns"):
        add_alike(Summary(), row, {"due_ns": np.array([row.due_ns])})
