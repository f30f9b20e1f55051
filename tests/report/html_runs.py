"""Run directories for pages: small ones of known rows, and one whose every text is hostile."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from phasemeter.io.run_directory import RunDirectory
from phasemeter.metrics.analyse import analyse_rows
from phasemeter.records.manifest import Manifest
from phasemeter.records.request_row import ChoiceTimes, RequestRow
from phasemeter.runs.analysis import write_result
from phasemeter.runs.tables import write_tables

MS = 1_000_000
SCRIPT = "<script>window.pwned = 1</script>"
HOSTILE = (
    SCRIPT,
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror=window.pwned=3>",
    '" onmouseover="window.pwned=4" autofocus onfocus="window.pwned=5" x="',
    "' onclick='window.pwned=6' '",
    "<!--<script>",
    "]]>--></style></title></textarea><svg onload=window.pwned=7>",
    "javascript:window.pwned=8",
    "&lt;script&gt;window.pwned=9&lt;/script&gt;",
    "\u202egnp.exe\u2066 \x00\x1b[31m\ud800",
)


def rows(n: int, events: int = 20, seed: int = 1, rate: float = 20.0) -> Iterator[RequestRow]:
    """`n` requests of a plausible run: most ok, some failed, TTFT growing with the input, some stalls."""
    rng = random.Random(seed)
    at = 10**12
    for i in range(n):
        at += int(rng.expovariate(rate) * 1e9)
        send = at + int(rng.expovariate(1 / 2e5))
        common: dict[str, Any] = {"request_id": f"r-{i}", "due_ns": at, "send_start_ns": send, "sent_ns": send + 50_000}
        if i % 29 == 7:
            yield RequestRow(**common, outcome="failed", failure="http_5xx", failure_text="upstream said no", http_status=503,
                             stream_end_ns=send + 3 * MS)  # fmt: skip
            continue
        length = int(rng.lognormvariate(5.5, 0.6)) + 8
        first = send + int((40 * MS + length * 0.2 * MS) * (1.3 + math.sin(i / n * 9)))
        times = [first]
        for _ in range(events - 1):
            gap = 22 * MS * rng.lognormvariate(0, 0.15) * (9 if rng.random() < 0.01 else 1)
            times.append(times[-1] + int(gap))
        yield RequestRow(
            **common, outcome="ok", phase="warmup" if i < n * 0.03 else "measured", http_status=200, first_token_ns=first,
            first_output_ns=first, last_token_ns=times[-1], stream_end_ns=times[-1] + MS, input_tokens=length,
            output_tokens=events, output_tokens_source="usage", asked_input_tokens=length, asked_output_tokens=events,
            finish_reason="length", observer_lag_ns=45_000,
            choices=(ChoiceTimes(0, tuple(times), tuple(range(events)), None, 0, "length", events),),
        )  # fmt: skip


def write_run(path: Path, of: Iterable[RequestRow], **manifest: Any) -> Path:
    """A run directory with tables and result, as a finished run leaves it."""
    directory = RunDirectory.create(path)
    told = Manifest(
        **{"model": "small-1b", "engine": "vllm", "engine_version": "0.11.0", "url": "http://127.0.0.1:8000", "rate_per_s": 20.0,
           "api": "openai.chat", "streaming": True, "stamps": "kernel", "run_id": path.name} | manifest
    )  # fmt: skip
    directory.write_manifest(told)
    kept = list(of)
    write_tables(path, kept)
    write_result(path, analyse_rows(kept, told))
    return path


def hostile_run(path: Path) -> Path:
    """A run whose server, model and manifest are all out to break the page."""
    found = []
    for i, row in enumerate(rows(60, events=8)):
        text = HOSTILE[i % (len(HOSTILE) - 1)]
        changed: dict[str, Any] = {"request_id": f"{i}{text}", "warnings": (text,), "workload_class": text}
        if row.outcome == "failed":
            changed |= {"failure": text, "failure_text": text * 3}
        else:
            changed |= {"finish_reason": text, "response_id": text, "output_tokens_source": text}
        found.append(type(row)(**{name: getattr(row, name) for name in row.__struct_fields__} | changed))
    return write_run(
        path, found, model=HOSTILE[1], engine=HOSTILE[2], engine_version=HOSTILE[3], url="http://127.0.0.1/" + HOSTILE[0],
        notes=HOSTILE[:-1], sources={HOSTILE[0]: HOSTILE[1], "model": HOSTILE[2]}, body={HOSTILE[0]: HOSTILE[3]},
        network_path=HOSTILE[6],
    )  # fmt: skip
