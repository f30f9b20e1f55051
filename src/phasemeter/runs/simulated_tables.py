"""The tables of a simulated run, from its columns.

Lives here: which truth goes into which column. Must not live here: the tables' form (tables.py), the run (simulate.py).
"""

from __future__ import annotations

from collections.abc import Callable
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
from phasemeter.runs.tables import TableWriter
from phasemeter.serving.ended import Ended, Refused, Served
from phasemeter.serving.events import Truth
from phasemeter.serving.simulate import phases_of, row_of

PHASES = ("queue", "prefill", "handoff", "decode", "stall_prefill", "stall_mixed", "stall_preempted")
ROW_COLUMNS = {
    "due_ns": "arrival_ns", "send_start_ns": "arrival_ns", "sent_ns": "arrival_ns", "headers_ns": "first_token_ns",
    "first_read_ns": "first_token_ns", "first_chunk_ns": "first_token_ns", "first_token_ns": "first_token_ns",
    "first_output_ns": "first_token_ns", "last_token_ns": "finish_ns", "stream_end_ns": "finish_ns",
    "asked_input_tokens": "prompt_tokens", "input_tokens": "prompt_tokens", "asked_output_tokens": "output_tokens",
    "output_tokens": "output_tokens", "cached_tokens": "cached_tokens",
}  # fmt: skip
INSTANTS = {
    "arrival": "arrival_ns", "queue_enter": "queue_enter_ns", "prefill_start": "prefill_start_ns",
    "prefill_end": "prefill_end_ns", "first_token": "first_token_ns", "decode_end": "finish_ns",
}  # fmt: skip
FURTHER = {
    "request_arrival_ts": "arrival_ns", "queue_enter_ts": "queue_enter_ns", "prefill_start_ts": "prefill_start_ns",
    "prefill_end_ts": "prefill_end_ns", "decode_end_ts": "finish_ns", "first_output_received_ts": "first_token_ns",
    "request_complete_ts": "finish_ns",
}  # fmt: skip
ROWS_A_PART, ROWS_A_PART_WITH_TOKENS = 25_000, 2_500
ClassName = Callable[[int], str | None]
Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def phases_s(ended: Ended, kept: Places) -> dict[str, Floats]:
    """Seconds of each phase (`phases_of` a request) of the requests at the places `kept`."""
    start, first = ended.column("prefill_start_ns", kept), ended.column("first_token_ns", kept)
    end = ended.column("prefill_end_ns", kept)
    found = {
        "queue": start - ended.column("queue_enter_ns", kept),
        "prefill": end - start,
        "handoff": first - end,
        "decode": ended.column("finish_ns", kept) - first,
    } | {name: ended.column(f"{name}_ns", kept) for name in PHASES if name.startswith("stall")}
    return {name: values / 1e9 for name, values in found.items()}


def write_simulated(directory: Path, ended: Ended, warmup: int, class_name: ClassName | None) -> None:
    """Both tables, the first `warmup` requests as cut; `class_name`: the kind of a request by number."""
    writer = TableWriter(directory, extra_columns=(*(f"{name}_s" for name in PHASES), "preemptions"))
    each = ROWS_A_PART_WITH_TOKENS if ended.has_tokens else ROWS_A_PART
    edges = sorted({0, warmup, len(ended), *range(0, len(ended), each)})
    places = ((np.arange(start, end), end <= warmup) for start, end in pairwise(edges))
    writer.add_frames(_part(writer, ended, own, class_name, warm=warm) for own, warm in places)
    writer.close()


def _instants(truth: Truth) -> dict[str, tuple[int, str]]:
    return {name: (getattr(truth, field), "client_monotonic") for name, field in INSTANTS.items()}


def _extra(truth: Truth) -> dict[str, float | None]:
    extra: dict[str, float | None] = {f"{name}_s": value for name, value in phases_of(truth).items()}
    return extra | {"preemptions": float(truth.preemptions)}


def _part(
    writer: TableWriter, ended: Ended, places: Places, class_name: ClassName | None, *, warm: bool
) -> polars.DataFrame:
    answered, numbers = ended.served(places), ended.numbers_of(places).tolist()
    served = places[answered]

    def row(at: int) -> tuple[RequestRow, Served | Refused]:
        one = ended[int(places[at])]
        kind = class_name(numbers[at]) if class_name is not None else None
        phase: Phase = "warmup" if warm else "measured"
        return msgspec.structs.replace(row_of(one), phase=phase, workload_class=kind), one

    refused = {at: row(at)[0] for at in np.flatnonzero(~answered).tolist()}
    if not len(served):
        return writer.frame(None, {}, others=refused)
    first, example = row(int(np.argmax(answered)))
    if isinstance(example, Refused):
        raise InternalError(f"{first.request_id} is no request that was served")
    own = ended.numbers_of(served).tolist()
    columns: dict[str, Any] = {"request_id": [f"r{number}" for number in own]}
    if class_name is not None:
        columns["workload_class"] = [class_name(number) for number in own]
    kept = {field: ended.column(field, served) for field in {*ROW_COLUMNS.values(), *FURTHER.values()}}
    columns |= {name: kept[field] for name, field in (ROW_COLUMNS | FURTHER).items()}
    columns |= {f"{name}_s": values for name, values in phases_s(ended, served).items()}
    columns["preemptions"] = ended.column("preemptions", served).astype(np.float64)
    times_ns, counts = ended.tokens(served)
    columns["choices"] = writer.one_token_events(np.flatnonzero(answered), counts, times_ns, first.finish_reason)
    return writer.frame(first, columns, instants=_instants(example.truth), extra=_extra(example.truth), others=refused)
