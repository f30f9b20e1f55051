"""The tables of a simulated run, from its columns where they have all there is to say, else row by row.

Lives here: which truth goes into which column. Must not live here: the tables' form (tables.py), the run (simulate.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars

from phasemeter.errors import InternalError
from phasemeter.records.request import Phase
from phasemeter.records.request_row import RequestRow
from phasemeter.runs.tables import Extra, TableWriter, Told
from phasemeter.serving.ended import Ended, Refused, Served
from phasemeter.serving.events import Truth
from phasemeter.serving.simulate import phases_of, row_of

PHASES = ("queue", "prefill", "decode", "stall_prefill", "stall_mixed", "stall_preempted")
ROW_COLUMNS = {
    "due_ns": "arrival_ns", "send_start_ns": "arrival_ns", "sent_ns": "arrival_ns", "headers_ns": "first_token_ns",
    "first_read_ns": "first_token_ns", "first_chunk_ns": "first_token_ns", "first_token_ns": "first_token_ns",
    "first_output_ns": "first_token_ns", "last_token_ns": "finish_ns", "stream_end_ns": "finish_ns",
    "asked_input_tokens": "prompt_tokens", "input_tokens": "prompt_tokens", "asked_output_tokens": "output_tokens",
    "output_tokens": "output_tokens", "cached_tokens": "cached_tokens",
}  # fmt: skip
INSTANTS = {
    "arrival": "arrival_ns", "queue_enter": "queue_enter_ns", "prefill_start": "prefill_start_ns",
    "prefill_end": "prefill_end_ns", "decode_end": "finish_ns",
}  # fmt: skip
FURTHER = {
    "request_arrival_ts": "arrival_ns", "queue_enter_ts": "queue_enter_ns", "prefill_start_ts": "prefill_start_ns",
    "prefill_end_ts": "prefill_end_ns", "decode_end_ts": "finish_ns", "first_output_received_ts": "first_token_ns",
    "request_complete_ts": "finish_ns",
}  # fmt: skip
ROWS_A_PART = 25_000
ClassName = Callable[[int], str | None]
Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def phases_s(ended: Ended, kept: Places) -> dict[str, Floats]:
    """Seconds of each phase (`phases_of` a request) of the requests at the places `kept`."""
    start, first = ended.column("prefill_start_ns", kept), ended.column("first_token_ns", kept)
    found = {
        "queue": start - ended.column("queue_enter_ns", kept),
        "prefill": ended.column("prefill_end_ns", kept) - start,
        "decode": ended.column("finish_ns", kept) - first,
    } | {name: ended.column(f"{name}_ns", kept) for name in PHASES if name.startswith("stall")}
    return {name: values / 1e9 for name, values in found.items()}


def write_simulated(
    directory: Path, ended: Ended, rows: Iterable[RequestRow], warmup: int, class_name: ClassName | None
) -> None:
    """Both tables. `rows`: all of them, in order of arrival, of which `warmup` are cut; `class_name`: the kind of a request by number."""
    writer = TableWriter(directory, extra_columns=(*(f"{name}_s" for name in PHASES), "preemptions"))
    if ended.has_tokens:
        _write_rows(writer, ended, rows)
    else:
        edges = sorted({0, warmup, len(ended), *range(0, len(ended), ROWS_A_PART)})
        places = ((np.arange(start, end), end <= warmup) for start, end in pairwise(edges))
        writer.add_frames(_part(writer, ended, own, class_name, warm=warm) for own, warm in places)
    writer.close()


def _write_rows(writer: TableWriter, ended: Ended, rows: Iterable[RequestRow]) -> None:
    for one, row in zip(ended, rows, strict=True):
        if isinstance(one, Refused):
            writer.add(row)
        else:
            writer.add(row, _instants(one.truth), _extra(one.truth))


def _instants(truth: Truth) -> dict[str, tuple[int, str]]:
    return {name: (getattr(truth, field), "client_monotonic") for name, field in INSTANTS.items()}


def _extra(truth: Truth) -> dict[str, float | None]:
    extra: dict[str, float | None] = {f"{name}_s": value for name, value in phases_of(truth).items()}
    return extra | {"preemptions": float(truth.preemptions)}


def _part(
    writer: TableWriter, ended: Ended, places: Places, class_name: ClassName | None, *, warm: bool
) -> polars.DataFrame:
    plain, numbers = ended.served(places) & ~ended.is_sampled(places), ended.numbers_of(places).tolist()
    served = places[plain]

    def row(at: int, one: Served | Refused) -> RequestRow:
        kind = class_name(numbers[at]) if class_name is not None else None
        phase: Phase = "warmup" if warm else "measured"
        return msgspec.structs.replace(row_of(one), phase=phase, workload_class=kind)

    others: dict[int, tuple[RequestRow, Told, Extra]] = {}
    for at in np.flatnonzero(~plain).tolist():
        one = ended[int(places[at])]
        told = (None, None) if isinstance(one, Refused) else (_instants(one.truth), _extra(one.truth))
        others[at] = (row(at, one), *told)
    if not len(served):
        return writer.frame(None, {}, others=others)
    example = ended[int(served[0])]
    if isinstance(example, Refused):
        raise InternalError(f"{example.request.request_id} is no request that was served")
    own = ended.numbers_of(served).tolist()
    columns: dict[str, Any] = {"request_id": [f"r{number}" for number in own]}
    if class_name is not None:
        columns["workload_class"] = [class_name(number) for number in own]
    kept = {field: ended.column(field, served) for field in {*ROW_COLUMNS.values(), *FURTHER.values()}}
    columns |= {name: kept[field] for name, field in (ROW_COLUMNS | FURTHER).items()}
    columns |= {f"{name}_s": values for name, values in phases_s(ended, served).items()}
    columns["preemptions"] = ended.column("preemptions", served).astype(np.float64)
    first = row(int(np.flatnonzero(plain)[0]), example)
    return writer.frame(first, columns, instants=_instants(example.truth), extra=_extra(example.truth), others=others)
