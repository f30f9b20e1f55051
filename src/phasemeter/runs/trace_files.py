"""Trace files on disk: opened (also gzipped), read line by line, summed up for a person.

Lives here: the reading and the figures of `phasemeter trace`. Must not live here: the rules of a trace
(workload/traces.py) or printing (cli/).
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from phasemeter.errors import FileError
from phasemeter.stats.quantiles import quantile
from phasemeter.workload.traces import Trace, TraceOptions, load_trace, spread_ns

BINS = 12
QUANTILES = (0.5, 0.9, 0.99)
SECOND = 10**9


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file (gzip is unpacked, whatever the name), line ends kept, one in memory at a time.

    Raises FileError for what can't be opened, unpacked or decoded, the latter with its line.
    """
    if path.is_dir():
        raise FileError(f"{path}: is a folder, not a trace")
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            for line in gzip.GzipFile(fileobj=raw) if packed else raw:
                number += 1
                yield line.decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path}:{number}: is no UTF-8 text ({error.reason}): save the file as UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileError(f"{path}: can't be read: {said}") from None


def load(path: str | Path, options: TraceOptions | None = None) -> Trace:
    """The trace in a file. Raises FileError and UserError as `load_trace` does."""
    return load_trace(lines_of(Path(path)), str(path), options)


def load_for_replay(path: str | Path, options: TraceOptions | None = None) -> Trace:
    """The trace, or FileError with the first fault when a row of it is in doubt."""
    trace = load(path, options)
    if not trace.accepted:
        first = trace.errors[0] if trace.errors else None
        more = f" (and {trace.error_count - 1} more)" if trace.error_count > 1 else ""
        where, what = (f":{first.line}", first.message) if first else ("", "no row is left to send")
        raise FileError(
            f"{path}{where}: {what}{more}: see `phasemeter trace {path}`, or --lenient to leave such rows out"
        )
    return trace


def _seconds(values: array[int] | None) -> list[float] | None:
    return None if values is None else [value / SECOND for value in values]


def document(trace: Trace, options: TraceOptions) -> dict[str, Any]:
    """`trace --json`: offsets in seconds from the first row, counts in tokens, every fault with its line."""
    answer: dict[str, Any] = {
        "phasemeter": 1,
        "file": trace.name,
        "format": trace.columns.format,
        "columns": trace.columns.read,
        "columns_unread": list(trace.columns.unread),
        "accepted": trace.accepted,
        "rows": len(trace.lines),
        "rows_read": trace.rows_read,
        "kept": len(trace.lines),
        "dropped_zero_output": trace.dropped_zero_output,
        "kept_zero_output": trace.kept_zero_output,
        "offsets_s": _seconds(trace.offsets_ns),
        "input_tokens": list(trace.input_tokens) if trace.input_tokens is not None else None,
        "output_tokens": list(trace.output_tokens) if trace.output_tokens is not None else None,
        "order_of_good_lines": list(trace.lines),
        "bad_lines": sorted({fault.line for fault in trace.errors}),
        "warnings": [{"line": f.line, "kind": f.kind, "message": f.message} for f in trace.warnings],
        "errors": [{"line": f.line, "kind": f.kind, "message": f.message} for f in trace.errors],
        "error_count": trace.error_count,
        "max_idle_s": options.max_idle_s,
        "rate_scale": options.rate_scale,
        "did": trace.did,
        "summary": summary(trace),
    }
    if trace.whole_seconds and trace.offsets_ns is not None and not options.spread_same_second:
        answer["spread_offsets_s"] = _seconds(spread_ns(trace.offsets_ns))
    if trace.client_queue_ns is not None:
        answer["injection_offsets_s"] = answer["offsets_s"]
        answer["client_queue_s"] = _seconds(trace.client_queue_ns)
    if trace.hash_spans is not None and trace.input_tokens is not None:
        size, bad = trace.block_tokens, set(trace.invalid_lines)
        answer["block_size"] = size
        answer["needed_blocks"] = [-(-tokens // size) for tokens in trace.input_tokens]
        answer["valid_rows"] = sorted(line for line in trace.lines if line not in bad)
        answer["invalid_rows"] = sorted(bad)
        answer["hash_ids"] = [list(trace.ids_of(row)) for row in range(len(trace.lines))]
    return answer


def refusal(path: str, message: str) -> dict[str, Any]:
    """`trace --json` for a file that is no trace at all."""
    line = message.removeprefix(f"{path}:").partition(":")[0]
    fault = {"line": int(line) if line.isdecimal() else None, "kind": "file", "message": message}
    empty: dict[str, Any] = {"offsets_s": None, "input_tokens": None, "output_tokens": None}
    return {"phasemeter": 1, "file": path, "accepted": False, "rows": 0, **empty, "warnings": [], "errors": [fault]}


def summary(trace: Trace) -> dict[str, Any]:
    """Rates over time, the CV of gaps, length quantiles, sharing. Undefined values are None."""
    return {
        "arrivals": _arrivals(trace),
        "input_tokens": _quantiles(trace.input_tokens),
        "output_tokens": _quantiles(trace.output_tokens),
        "sharing": _sharing(trace),
    }


def _arrivals(trace: Trace) -> dict[str, Any] | None:
    offsets = trace.offsets_ns
    if offsets is None or len(offsets) < 2 or not offsets[-1]:
        return None
    gaps = [(b - a) / SECOND for a, b in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    width = offsets[-1] // BINS + 1
    counts = [0] * BINS
    for offset in offsets:
        counts[offset // width] += 1
    return {
        "span_s": offsets[-1] / SECOND,
        "rate_per_s": len(gaps) / (offsets[-1] / SECOND),
        "gap_cv": deviation / mean,
        "longest_gap_s": max(gaps),
        "same_instant": sum(gap == 0 for gap in gaps),
        "bin_s": width / SECOND,
        "rates_per_s": [count / (width / SECOND) for count in counts],
    }


def _quantiles(values: array[int] | None) -> dict[str, Any] | None:
    if not values:
        return None
    found = {f"p{round(q * 100)}": float(quantile(values, q)) for q in QUANTILES}
    return {"mean": sum(values) / len(values), "min": min(values), **found, "max": max(values)}


def _sharing(trace: Trace) -> dict[str, Any] | None:
    """Blocks whose whole prefix was asked for before: what an unlimited prefix cache would hold."""
    if trace.hash_spans is None:
        return None
    seen: set[int] = set()
    blocks = reused = touched = 0
    for row in range(len(trace.lines)):
        ids = trace.ids_of(row)
        prefix = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        blocks, reused, touched = blocks + len(ids), reused + prefix, touched + (prefix > 0)
        seen.update(ids)
    return {
        "blocks": blocks,
        "distinct": len(seen),
        "reused_share": reused / blocks if blocks else None,
        "rows_with_shared_prefix": touched,
    }
