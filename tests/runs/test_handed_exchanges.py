"""Every exchange handed over beside the repository (cases and recordings), where it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from phasemeter.runs.exchange_file import read_file
from phasemeter.runs.inspect import inspect, json_document
from phasemeter.wire.exchange import read_exchange

SHARED = Path(__file__).parents[3] / "shared"
CASES = [
    path
    for path in sorted((SHARED / "cases" / "inputs").glob("*.json"))
    if "events" in json.loads(path.read_text("utf-8"))
]
PATHS = (b"completions HTTP", b"/v1/responses HTTP", b"/v1/messages HTTP")
RECORDINGS = [
    path
    for path in sorted((SHARED / "recordings").glob("*/*.recv.jsonl"))
    if any(name in path.read_bytes()[:200] for name in PATHS)
]


def differences(expected: Any, found: Any, path: str = "$") -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            line
            for key, value in expected.items()
            for line in differences(value, found.get(key.lstrip("_"), "missing"), f"{path}.{key}")
        ]
    return [] if expected == found else [f"{path}: {expected!r} expected, {found!r} found"]


@pytest.mark.skipif(not CASES, reason="../shared is not here: cases")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_recorded_exchange_has_its_expected_values_and_exact_warnings(path: Path) -> None:
    document = json.loads(path.read_text("utf-8"))
    found = json.loads(msgspec.json.encode(json_document(inspect(str(path)))))
    assert differences(document["expected"], found) == []


@pytest.mark.skipif(not RECORDINGS, reason="../shared is not here: recordings")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_recording_reads_the_same_fast_and_in_full_and_agrees_with_its_status(path: Path) -> None:
    asked, received = read_file(path)
    fast, slow = read_exchange(asked, received), read_exchange(asked, received, fast=False)
    assert (fast.outcome, fast.failure, fast.warnings) == (slow.outcome, slow.failure, slow.warnings)
    assert [(c.reads, c.texts, c.cumulative, c.token_counts) for c in fast.choices] == [
        (c.reads, c.texts, c.cumulative, c.token_counts) for c in slow.choices
    ]
    if fast.status is not None and fast.status >= 400:
        assert fast.failure == "http_error"
    elif path.name.startswith(("err_too_long", "conc3_0", "conc3_1")):
        assert fast.outcome == "failed"
    else:
        assert fast.outcome == "ok" and fast.warnings <= {"missing_done", "no_output"}
        assert fast.data_events == 0 or fast.finish_reason
