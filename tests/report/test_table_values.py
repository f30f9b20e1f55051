"""What the page reads off a table's columns is what the definitions say of each row."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.metrics.definitions import value_or_reason
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.report.html.measures import METRICS, measures_of
from phasemeter.report.html.run_tables import RunTables, open_tables
from phasemeter.runs.tables import write_tables

NOW = 10**15
INSTANT = st.sampled_from((None, *(NOW + 7 * k for k in range(9))))  # few of them: equal ones are not rare
COUNT = st.sampled_from((None, 0, 1, 2, 2, 3, 3, 4, 9))
SELDOM = st.sampled_from((False,) * 5 + (True,))


@st.composite
def a_row(draw: st.DrawFn) -> RequestRow:
    n = 1 + draw(SELDOM)
    times = tuple(sorted(draw(st.lists(st.integers(NOW, NOW + 50), max_size=4))))
    choices = tuple(
        ChoiceTimes(index, times, tuple(range(len(times))), (1,) * len(times), output_tokens=draw(COUNT))
        for index in range(n)
    )
    return RequestRow(
        request_id="r",
        outcome="failed" if draw(SELDOM) else "ok",
        phase="warmup" if draw(SELDOM) else "measured",
        stream=not draw(SELDOM),
        warnings=tuple(draw(st.lists(st.sampled_from(("usage_exceeds_max_tokens", "odd")), max_size=2))),
        n=n,
        due_ns=draw(st.integers(NOW, NOW + 50)),
        send_start_ns=draw(INSTANT),
        first_token_ns=draw(INSTANT),
        first_output_ns=draw(INSTANT),
        last_token_ns=draw(INSTANT),
        input_tokens=draw(COUNT),
        output_tokens=draw(COUNT),
        output_tokens_source=draw(st.sampled_from((None, "usage", "logprobs"))),
        hidden_reasoning=draw(SELDOM),
        single_arrival=draw(SELDOM),
        choices=choices if draw(st.booleans()) else (),
    )


@settings(deadline=None, max_examples=40)
@given(st.lists(a_row(), max_size=60))
def test_columns_say_of_each_request_what_its_row_says(rows: list[RequestRow]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder), rows)
        with open_tables(Path(folder)) as tables:
            measures = measures_of(tables)
    kept = sorted(
        ((i, row) for i, row in enumerate(rows) if row.outcome == "ok" and row.phase == "measured"),
        key=lambda pair: pair[1].due_ns,
    )
    assert measures.numbers.tolist() == [i for i, _ in kept]
    for name in METRICS:
        for value, (_, row) in zip(measures.values[name].tolist(), kept, strict=True):
            told, _ = value_or_reason(name, row)
            assert math.isnan(value) if told is None else value == told, (name, row)
    lengths = [math.nan if row.input_tokens is None else row.input_tokens for _, row in kept]
    np.testing.assert_array_equal(measures.input_tokens, lengths)


def test_an_older_run_s_table_lacks_what_was_added_since(tmp_path: Path) -> None:
    row = RequestRow(
        request_id="r", outcome="ok", due_ns=0, send_start_ns=5, first_token_ns=10, last_token_ns=30, output_tokens=3
    )
    write_tables(tmp_path, [row])
    with open_tables(tmp_path) as tables:
        old = RunTables(tables.requests.drop("number", "hidden_reasoning", "warnings", "n"), tables.events)
    assert measures_of(old).values["tpot"].tolist() == [pytest.approx(1e-8)]
