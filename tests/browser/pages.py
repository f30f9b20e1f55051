"""The runs behind the pages under test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from phasemeter.comparison.comparable import Run
from phasemeter.comparison.report import values_of
from phasemeter.io.run_directory import RunDirectory
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.manifest import Manifest
from phasemeter.runs.analysis import write_result
from phasemeter.runs.tables import TableWriter
from tests.report.html_runs import rows, write_run


def simulated(path: Path) -> Path:
    """A run whose tables hold the server's own instants and durations, as a simulation writes them."""
    directory = RunDirectory.create(path)
    told = Manifest(kind="simulated", model="model-8b", engine="phasemeter simulator", rate_per_s=20.0)
    directory.write_manifest(told)
    writer, kept = TableWriter(path, extra_columns=("queue_s", "prefill_s", "decode_s")), []
    for row in rows(60):
        kept.append(row)
        if row.first_token_ns is None or row.send_start_ns is None or row.last_token_ns is None:
            writer.add(row)
            continue
        arrival, start = row.send_start_ns, row.send_start_ns + (row.first_token_ns - row.send_start_ns) // 4
        instants = {"arrival": arrival, "queue_enter": arrival, "prefill_start": start, "prefill_end": row.first_token_ns,
                    "decode_end": row.last_token_ns}  # fmt: skip
        extra: dict[str, float | None] = {
            "queue_s": (start - arrival) / 1e9, "prefill_s": (row.first_token_ns - start) / 1e9,
            "decode_s": (row.last_token_ns - row.first_token_ns) / 1e9,
        }  # fmt: skip
        writer.add(row, {name: (at, "client_monotonic") for name, at in instants.items()}, extra)
    writer.close()
    write_result(path, analyse_rows(kept, told))
    return path


def series(folder: Path) -> Path:
    """A sweep over three rates with its index, and a goodput search beside it."""
    rates = (10.0, 20.0, 40.0)
    for rate in rates:
        write_run(folder / f"rate-{rate:g}", rows(80, rate=rate, seed=int(rate)), rate_per_s=rate)
    index = {"phasemeter": 1, "runs": [{"run": f"rate-{rate:g}", "rate": f"{rate:g}"} for rate in rates], "planned": 3}
    (folder / "index.json").write_text(json.dumps(index))
    probes = [
        {
            "rate_per_s": rate,
            "attainment": {"value": 1 - rate / 200, "ci95": [1 - rate / 150, 1 - rate / 300]},
            "stable": True,
            "run": None,
        }
        for rate in rates
    ]
    search = {
        "goodput_per_s": {"value": 18.0, "ci95": [16.0, None]},
        "binding": "ttft",
        "probes": probes,
        "target": 0.9,
    }
    (folder / "goodput.json").write_text(json.dumps(search))
    return folder


def sides(folder: Path) -> tuple[Sequence[Run], Sequence[Run]]:
    """Two comparable sides that differ in their rate."""
    found = []
    for name, rate in (("before", 10.0), ("after", 40.0)):
        path = write_run(folder / name, rows(120, rate=rate), rate_per_s=rate)
        values, lengths = values_of(rows(120, rate=rate))
        found.append(
            [Run(name=name, document=json.loads((path / "result.json").read_bytes()), values=values, lengths=lengths)]
        )
    return found[0], found[1]
