"""Each request's metrics as columns, for drawing.

Lives here: which rows and metrics are drawn. Must not live here: formulas (metrics/definitions), statistics that the result
already carries.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars
from numpy.typing import NDArray

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import HOUSE, PER_REQUEST
from phasemeter.records.request_row import RequestRow
from phasemeter.report.html.run_tables import RunTables
from phasemeter.report.html.table_values import completed, floats_of, values_of

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
    """Reads the table's columns; of requests with several choices, each choice's events."""
    ended = completed(tables.requests).filter((polars.col("outcome") == "ok") & (polars.col("phase") == "measured"))
    ended = ended.sort("due_ns", maintain_order=True)
    values = {name: values_of(HOUSE[name], ended) for name in METRICS}
    several = np.flatnonzero(ended["n"].to_numpy() > 1)
    if len(several):
        whole = tables.rows_at(ended["number"].gather(several[:SEVERAL_AT_MOST]).to_list())
        bare = zip(
            several.tolist(), ended["number"].gather(several).to_list(), tables.rows(ended[several]), strict=True
        )
        for place, number, row in bare:
            for name in METRICS:
                values[name][place] = _value(name, whole.get(number, row))
    origin = int(tables.requests["due_ns"].min() or 0) if len(tables.requests) else 0  # type: ignore[arg-type]
    return Measures(
        numbers=ended["number"].to_numpy().astype(np.int64),
        due_s=(ended["due_ns"].to_numpy() - origin) / 1e9,
        input_tokens=floats_of(ended["input_tokens"]),
        values=values,
        origin_ns=origin,
    )


def _value(name: str, row: RequestRow) -> float:
    try:
        return PER_REQUEST[name](row)
    except Undefined:
        return float("nan")
