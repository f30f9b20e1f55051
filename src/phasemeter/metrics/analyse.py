"""Rows to a result, under the house's definitions or as another tool would print them.

Lives here: one pass that feeds what is asked. Must not live here: where rows come from (runs/).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phasemeter.metrics.dialects import dialect
from phasemeter.metrics.dialects.model import Dialect
from phasemeter.metrics.dialects.reading import Printed, Reading
from phasemeter.metrics.summary import Summary
from phasemeter.metrics.validity import RunFacts
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import RequestRow
from phasemeter.records.result import Result


def analyse_rows(
    rows: Iterable[RequestRow],
    manifest: Manifest | None = None,
    facts: RunFacts | None = None,
    tool: str | None = None,
) -> Result:
    """One pass over `rows`. `tool` ("vllm", "vllm@0.33"): its rows, names and units in place of ours.

    Raises UserError for a tool that isn't known.
    """
    summary = Summary()
    if tool is None:
        for row in rows:
            summary.add(row)
        return summary.result(manifest, facts)
    reading = Reading(dialect(tool))
    for row in rows:
        summary.add(row)
        reading.add(row)
    return retold(summary.result(manifest, facts), reading.dialect, reading.printed())


def retold(house: Result, other: Dialect, printed: Printed) -> Result:
    """`house` with another tool's metrics and throughput. Outcomes, validity and workload stay ours: they are the run's own.

    `workload.as_tool` holds what the tool would have printed, key by key, and what of its numbers can't be re-created.
    """
    labels = {label for _, label in other.throughput}
    return msgspec.structs.replace(
        house,
        definitions=other.id,
        metrics=printed.metrics,
        throughput={label: value for label, value in printed.values.items() if label in labels}
        | {"window": {"kind": other.window, "rule": other.window_words}},
        workload=house.workload
        | {
            "as_tool": {
                "tool": other.title,
                "printed": printed.values,
                "cannot_recreate": list(other.distortions),
                "first_token": other.first_token,
                "counted": other.counted,
                "aggregation": other.aggregation,
                "goodput": other.goodput,
                "source": other.source,
            }
        },
    )
