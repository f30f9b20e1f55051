"""Definitions read over a table's columns: a page of 100,000 requests and more makes no row object of each.

Lives here: what a boundary, a divisor and an exclusion are in a table's columns. Must not live here: the definitions
(metrics/definitions), which say of a row what these say of a column (a test holds them to it).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import polars
from numpy.typing import NDArray

from phasemeter.metrics.definitions import IMPOSSIBLE_USAGE, Definition
from phasemeter.records.request_row import RequestRow

INSTANTS = ("due", "send_start", "sent", "headers", "first_read", "first_chunk", "first_token", "first_output", "last_token",
            "stream_end")  # fmt: skip
Floats = NDArray[np.float64]
_col = polars.col
DIVISORS: Mapping[str, polars.Expr] = {
    "output_tokens": _col("output_tokens"),
    "output_tokens − 1": _col("output_tokens") - 1,
}
EXCLUSIONS: Mapping[str, polars.Expr] = {
    "not_streamed": ~_col("stream"),
    "no_output": _col("first_token_ns").is_null(),
    "unknown_tokens": _col("output_tokens").is_null(),
    "fewer_than_2_tokens": _col("output_tokens") < 2,
    "hidden_reasoning": _col("hidden_reasoning"),
    "impossible_usage": (_col("output_tokens_source") == "usage")
    & _col("warnings").list.eval(polars.element().is_in(sorted(IMPOSSIBLE_USAGE))).list.any(),
    "single_arrival": _col("single_arrival") | (_col("first_token_ns") == _col("last_token_ns")),
}
_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(RequestRow)
    if isinstance(field.default, bool | int | str) or field.default is None
}


def values_of(definition: Definition, requests: polars.DataFrame) -> Floats:
    """Seconds of each request that has one choice; nan where the definition leaves it out.

    Of plain differences between INSTANTS, over one of DIVISORS; `requests`: a `completed` table.
    """
    span_ns = _col(f"{definition.end}_ns") - _col(f"{definition.start}_ns")
    divisor = polars.lit(1) if definition.divisor is None else DIVISORS[definition.divisor]
    left_out = [EXCLUSIONS[reason].fill_null(False) for reason in definition.excluded]
    counted = polars.all_horizontal(divisor > 0, *(~one for one in left_out))
    read = requests.select(span_ns=polars.when(counted).then(span_ns), divisor=divisor)
    return (
        floats_of(read["span_ns"]) / 1e9 / floats_of(read["divisor"])
    )  # polars multiplies by 1 / 1e9, which rounds twice


def floats_of(column: polars.Series) -> Floats:
    """A column as floats, nan where it has none."""
    return column.cast(polars.Float64).fill_null(float("nan")).to_numpy().copy()


def completed(requests: polars.DataFrame) -> polars.DataFrame:
    """The table with every column that these expressions read: an older run lacks what was added since."""
    asked = {"stream", "hidden_reasoning", "single_arrival", "output_tokens_source", "output_tokens", "n"}
    asked |= {f"{name}_ns" for name in INSTANTS}
    absent = [polars.lit(_DEFAULTS[name]).alias(name) for name in sorted(asked - set(requests.columns))]
    if "warnings" not in requests.columns:
        absent.append(polars.lit([], polars.List(polars.String)).alias("warnings"))
    return requests.with_columns(absent)
