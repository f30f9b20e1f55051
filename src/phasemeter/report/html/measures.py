"""Each request's metrics as columns, for drawing.

Lives here: which rows and metrics are drawn. Must not live here: formulas (metrics/definitions), statistics that the result
already carries.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import PER_REQUEST
from phasemeter.records.request_row import RequestRow
from phasemeter.report.html.run_tables import RunTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

METRICS = ("ttft", "ttft_from_due", "ttfo", "tpot", "e2e")
SEVERAL_AT_MOST = 20_000  # requests with several choices whose events are read


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Measured, successful requests in due order. `values[name]`: seconds, nan where undefined. `due_s` from the first due."""

    numbers: Ints
    due_s: Floats
    input_tokens: Floats
    values: dict[str, Floats]
    origin_ns: int

    def of(self, name: str) -> Floats:
        """A metric's defined values."""
        column = self.values[name]
        defined: Floats = column[~np.isnan(column)]
        return defined


def measures_of(tables: RunTables) -> Measures:
    """Reads every request once."""
    rows = [(i, row) for i, row in enumerate(tables.rows()) if row.outcome == "ok" and row.phase == "measured"]
    rows.sort(key=lambda pair: pair[1].due_ns)
    several = [i for i, row in rows if row.n > 1][:SEVERAL_AT_MOST]
    whole = tables.rows_at(several) if several else {}
    columns: dict[str, list[float]] = {name: [] for name in METRICS}
    for number, row in rows:
        for name in METRICS:
            columns[name].append(_value(name, whole.get(number, row)))
    origin = int(tables.requests["due_ns"].min() or 0) if len(tables.requests) else 0  # type: ignore[arg-type]
    return Measures(
        numbers=np.array([i for i, _ in rows], dtype=np.int64),
        due_s=np.array([(row.due_ns - origin) / 1e9 for _, row in rows], dtype=np.float64),
        input_tokens=np.array(
            [np.nan if row.input_tokens is None else row.input_tokens for _, row in rows], dtype=np.float64
        ),
        values={name: np.array(column, dtype=np.float64) for name, column in columns.items()},
        origin_ns=origin,
    )


def _value(name: str, row: RequestRow) -> float:
    try:
        return PER_REQUEST[name](row)
    except Undefined:
        return float("nan")
