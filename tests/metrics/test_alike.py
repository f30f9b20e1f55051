"""Columns of alike rows give the very result that the rows give."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.errors import InternalError
from phasemeter.metrics.alike import Events, add_alike
from phasemeter.metrics.columns import Alike
from phasemeter.metrics.summary import Summary
from phasemeter.records.request_row import ChoiceTimes, RequestRow

NUMBERS = (
    "due_ns", "send_start_ns", "sent_ns", "first_token_ns", "first_output_ns", "last_token_ns", "stream_end_ns",
    "input_tokens", "output_tokens", "asked_input_tokens", "asked_output_tokens", "cached_tokens",
)  # fmt: skip


def answered(random: Random, number: int, *, tokens: int, events: bool, warm: bool) -> RequestRow:
    due = random.randrange(10**9) if number % 3 else 10**8  # some are due at one instant
    times = [due + random.randrange(1, 10**9)]
    while len(times) < tokens:
        times.append(times[-1] + random.choice((10**6, 10**7, 10**9)))
    inputs = random.randrange(1, 900)
    numbers = (due, due, due, times[0], times[0], times[-1], times[-1], inputs, tokens, inputs, tokens, 0)
    choice = ChoiceTimes(
        times_ns=tuple(times), reads=tuple(range(tokens)), tokens=(1,) * tokens, output_tokens=tokens
    )  # fmt: skip
    return RequestRow(
        request_id=str(number),
        outcome="ok",
        phase="warmup" if warm else "measured",
        output_tokens_source="simulated",
        choices=(choice,) if events else (),
        **dict(zip(NUMBERS, numbers, strict=True)),
    )


def refused(random: Random, number: int, *, warm: bool) -> RequestRow:
    due = random.randrange(10**9)
    return RequestRow(
        request_id=str(number),
        outcome="failed",
        phase="warmup" if warm else "measured",
        failure="rejected",
        failure_text=f"too long by {random.randrange(3)}",
        due_ns=due,
        send_start_ns=due,
        asked_input_tokens=random.randrange(9000),
    )


def parts_of(rows: list[RequestRow]) -> tuple[list[Alike], Events]:
    """Rows in order as parts: alike are those that have and lack the same."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        own = row.request_id if row.outcome == "failed" else None
        groups[row.phase, own, (row.output_tokens or 0) > 1, bool(row.choices)].append(place)
    parts = []
    for places in groups.values():
        example = rows[places[0]]
        fields = NUMBERS if example.outcome == "ok" else ()
        numbers = {field: np.array([getattr(rows[place], field) for place in places]) for field in fields}
        parts.append(Alike(example, numbers, np.array(places)))
    owners = [place for place, row in enumerate(rows) if row.choices]
    times = [rows[place].choices[0].times_ns for place in owners]
    flat = [instant for own in times for instant in own]
    return parts, Events(
        np.array(owners, np.int64), np.array([len(own) for own in times], np.int64), np.array(flat, np.int64)
    )


KINDS = st.tuples(st.integers(0, 12), st.booleans(), st.booleans())  # tokens (0: refused), events, warm-up


@settings(deadline=None, max_examples=60)
@given(st.lists(KINDS, min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_columns_and_rows_give_one_result(kinds: list[tuple[int, bool, bool]], seed: int) -> None:
    random, by_row, by_column = Random(seed), Summary(), Summary()
    rows = [
        answered(random, number, tokens=tokens, events=events, warm=warm)
        if tokens
        else refused(random, number, warm=warm)
        for number, (tokens, events, warm) in enumerate(kinds)
    ]
    half = len(rows) // 2
    for row in rows:
        by_row.add(row)
    for some in (rows[:half], rows[half:]):
        add_alike(by_column, *parts_of(some))
    assert msgspec.to_builtins(by_column.result()) == msgspec.to_builtins(by_row.result())


def test_many_correlated_requests_give_one_result() -> None:
    random, by_row, by_column = Random(3), Summary(), Summary()
    rows = [
        answered(random, number, tokens=2 + number % 9, events=number % 2 > 0, warm=number < 40)
        for number in range(900)
    ]
    rows.sort(key=lambda row: (row.first_token_ns or 0) - row.due_ns)
    for row in rows:
        by_row.add(row)
    add_alike(by_column, *parts_of(rows))
    assert msgspec.to_builtins(by_column.result()) == msgspec.to_builtins(by_row.result())


def test_where_too_many_events_are_let_go_columns_let_go_the_same() -> None:
    random, by_row, by_column = Random(4), Summary(), Summary()
    by_row.timeline._limit = by_column.timeline._limit = 400
    rows = [answered(random, number, tokens=9, events=True, warm=False) for number in range(300)]
    for row in rows:
        by_row.add(row)
    add_alike(by_column, *parts_of(rows))
    assert by_row.timeline.step > 2 and by_row.timeline.let_go > 200
    assert msgspec.to_builtins(by_column.result()) == msgspec.to_builtins(by_row.result())


def test_rows_without_events_say_that_others_stand_for_them() -> None:
    rows = [answered(Random(5), number, tokens=4, events=number < 5, warm=False) for number in range(20)]
    summary = Summary()
    add_alike(summary, *parts_of(rows), without_gaps="sampled_out")
    assert summary.result().metrics["itl"].excluded == {"sampled_out": 15}


def test_rows_unlike_their_example_are_no_columns() -> None:
    row = answered(Random(1), 1, tokens=5, events=False, warm=False)
    numbers = {name: np.array([getattr(row, name)]) for name in NUMBERS}
    other = msgspec.structs.replace(row, connect_start_ns=row.due_ns)
    with pytest.raises(InternalError, match="can't be added as columns"):
        add_alike(Summary(), [Alike(other, numbers, np.array([0]))])
    numbers["last_token_ns"] = numbers["last_token_ns"] + 10**9
    with pytest.raises(InternalError, match="over columns"):
        add_alike(Summary(), [Alike(row, numbers, np.array([0]))])
