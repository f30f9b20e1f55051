"""The runs behind the pages under test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from phasemeter.cli.main import run
from phasemeter.comparison.comparable import Run
from phasemeter.comparison.report import values_of
from phasemeter.io.run_directory import RunDirectory
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.phases.budget import budget_of, budgets_document
from phasemeter.records.manifest import Manifest
from phasemeter.runs.analysis import write_result
from phasemeter.runs.tables import TableWriter
from tests.report.html_runs import HOSTILE, SCRIPT, rows, write_run
from tests.runs.served import Behaviour, served


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
        "attainment_target": 0.9,
    }
    (folder / "goodput.json").write_text(json.dumps(search))
    return folder


def searched(folder: Path) -> Path:
    """A goodput search as the verb leaves it: an answer, and a run for each look."""
    probes = []
    for rate in (10.0, 20.0, 40.0):
        write_run(folder / f"rate-{rate:g}" / "look-1", rows(60, rate=rate, seed=int(rate)), rate_per_s=rate)
        probes.append({
            "rate_per_s": rate, "attainment": {"value": 1 - rate / 200, "ci95": [None, None], "n": 60}, "stable": None,
            "standing": "undecided", "why": "its interval holds the target", "run": f"elsewhere/rate-{rate:g}/look-1",
        })  # fmt: skip
    answer = {
        "goodput_per_s": {"value": 18.0, "ci95": [16.0, 20.5]}, "binding": "tpot", "reason": "out_of_time", "attainment_target": 0.9,
        "objectives_s": {"ttft": 0.2, "tpot": 0.03}, "probes": probes, "curve": {"a": 2.0, "b": -4.0, "centre_per_s": 18.0},
        "sensitivity": {"0.9": 15.0, "1.1": None}, "single": {"ttft": None, "tpot": 18.5}, "warnings": [SCRIPT],
    }  # fmt: skip
    (folder / "goodput.json").write_text(json.dumps(answer))
    return folder


def measured_hostile(folder: Path) -> Path:
    """A run of the verb against a server whose names, words and errors are markup, from a file whose name is, with such a header."""
    folder.mkdir()
    prompts = folder / "<img src=x onerror=window.pwned=12>.jsonl"
    prompts.write_text(json.dumps({"prompt": SCRIPT, "output_tokens": 3}) + "\n")
    bad = (500, SCRIPT)
    behaviour = Behaviour(
        models=(f"m{SCRIPT}",), answer=lambda r: [SCRIPT, HOSTILE[2], HOSTILE[6]], fault=lambda r: bad if (r.number or 1) % 3 == 0 else None
    )  # fmt: skip
    words = [
        "--prompts",
        str(prompts),
        "--header",
        f"X-A: {SCRIPT}",
        "--warmup",
        "0",
        "--requests",
        "9",
        "-o",
        str(folder / "run"),
    ]
    with served(behaviour) as server:
        run(["bench", server.url, *words, "--quiet"])
    return folder / "run" / "report.html"


def sides(folder: Path) -> tuple[Sequence[Run], Sequence[Run]]:
    """Two comparable sides that differ in their rate."""
    found = []
    for name, rate in (("before", 10.0), ("after", 40.0)):
        path = write_run(folder / name, rows(120, rate=rate), rate_per_s=rate)
        values, lengths = values_of(rows(120, rate=rate))
        spent = budgets_document([budget_of(row) for row in rows(120, rate=rate) if row.outcome == "ok"])
        document = json.loads((path / "result.json").read_bytes()) | {"budget": spent}
        found.append([Run(name=name, document=document, values=values, lengths=lengths)])
    return found[0], found[1]
