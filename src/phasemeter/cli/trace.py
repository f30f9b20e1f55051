"""`phasemeter trace`: look at a request trace."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.completed import FileName
from phasemeter.cli.numbers import NUMBER, WHOLE
from phasemeter.errors import FileError, UserError
from phasemeter.report.plain import plain
from phasemeter.units import duration_s

BARS = " ▁▂▃▄▅▆▇█"
SHOWN = 10


def trace(
    file: Annotated[
        FileName, Parameter(help="Azure, BurstGPT or Mooncake trace, or a CSV/JSONL with named columns (also .gz)")
    ],
    /,
    *,
    slice: Annotated[str | None, Parameter(help="keep A:B: times like 60s:5min, or rows like 100:200")] = None,
    rate_scale: Annotated[
        float, NUMBER, Parameter(help="play it this many times faster: gaps are divided by it")
    ] = 1.0,
    sample: Annotated[
        str | None, Parameter(help='keep N rows, or a share like "10 %" (stamps kept, so the rate falls)')
    ] = None,
    max_idle: Annotated[str | None, Parameter(help="shorten longer gaps to this, like 10s")] = None,
    spread_same_second: Annotated[
        bool, Parameter(negative="", help="whole-second stamps: spread rows over their second")
    ] = False,
    keep_zero_output: Annotated[bool, Parameter(negative="", help="keep rows without output, as 1 token")] = False,
    block_size: Annotated[
        int | None, WHOLE, Parameter(help="tokens in a block of hash_ids (512; 16 for a Bailian trace)")
    ] = None,
    lenient: Annotated[bool, Parameter(negative="", help="leave faulty rows out instead of refusing the file")] = False,
    columns: Annotated[
        str | None, Parameter(help="time=NAME,input=NAME,output=NAME (also hashes, session, send, unit)")
    ] = None,
    seed: Annotated[int, WHOLE, Parameter(help="which rows --sample takes")] = 0,
    json: Annotated[bool, Parameter(negative="", help="print one JSON document")] = False,
) -> int:
    """Show a request trace: arrivals and lengths, what it shares, and every fault with its line.

    Ends with 2 when a row is in doubt (so that nothing is replayed by guess); --lenient leaves such rows out.

    Examples:
        phasemeter trace azure_2023_code.csv
        phasemeter trace mooncake.jsonl.gz --slice 10min:20min --json
        phasemeter trace burst.csv --spread-same-second --max-idle 10s --rate-scale 2
        phasemeter trace mine.csv --columns time=when_ms,input=in,output=out,unit=ms
    """
    files = lazy.load("phasemeter.runs.trace_files")
    options = lazy.load("phasemeter.workload.traces").TraceOptions(
        slice=slice,
        rate_scale=rate_scale,
        sample=sample,
        max_idle_s=_seconds(max_idle),
        spread_same_second=spread_same_second,
        keep_zero_output=keep_zero_output,
        block_tokens=block_size,
        lenient=lenient,
        columns=columns,
        seed=seed,
    )
    try:
        loaded = files.load(file, options)
    except FileError as error:
        if not json:
            raise
        print(json_module.dumps(files.refusal(file, str(error)), indent=1))
        print(f"phasemeter: {plain(str(error))}", file=sys.stderr)
        return 2
    if json:
        print(json_module.dumps(files.document(loaded, options), allow_nan=False))
    else:
        lazy.load("phasemeter.report.fold").show(_view(loaded, files.summary(loaded)))
    refused = not loaded.accepted
    if refused:
        print(f"phasemeter: {file}: {loaded.error_count} rows in doubt: not to be replayed as it is", file=sys.stderr)
    return 2 if refused else 0


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)  # a bare number here is seconds
    except ValueError:
        value = duration_s(text)
    if not 0 <= value < float("inf"):
        raise UserError(f"longest idle {text!r}: write a time of 0 or more, like 10s")
    return value


def _view(loaded: Any, figures: dict[str, Any]) -> list[str]:
    """The person's view, line by line."""
    out = [f"{loaded.name}: {loaded.columns.format}, {len(loaded.lines)} of {loaded.rows_read} rows"]
    unread = loaded.columns.unread
    out += [f"  columns not read: {', '.join(unread)}"] if unread else []
    out += [f"  {text}" for text in loaded.did]
    arrivals = figures["arrivals"]
    if arrivals is None:
        out.append("  arrivals: " + ("no time stamps" if loaded.offsets_ns is None else "all at one instant"))
    else:
        out.append(
            f"  arrivals: {arrivals['rate_per_s']:.3g}/s over {arrivals['span_s']:.6g} s, CV of gaps {arrivals['gap_cv']:.2f}, "
            f"longest gap {arrivals['longest_gap_s']:.4g} s, {arrivals['same_instant']} at the instant of the one before"
        )
        top = max(arrivals["rates_per_s"])
        bars = "".join(BARS[round(rate / top * 8)] for rate in arrivals["rates_per_s"])
        out.append(f"  rate over time: |{bars}| a column is {arrivals['bin_s']:.3g} s, the highest {top:.3g}/s")
    for name in ("input_tokens", "output_tokens"):
        lengths = figures[name]
        if lengths is not None:
            values = ", ".join(f"{key} {value:.6g}" for key, value in lengths.items())
            out.append(f"  {name.replace('_', ' ')}: {values}")
    sharing = figures["sharing"]
    if sharing is not None and sharing["blocks"]:
        out.append(
            f"  sharing: {sharing['reused_share']:.1%} of {sharing['blocks']} blocks repeat a prefix seen before "
            f"({sharing['rows_with_shared_prefix']} rows), {sharing['distinct']} distinct"
        )
    for title, faults, total in (
        ("note", loaded.warnings, len(loaded.warnings)),
        ("ERROR", loaded.errors, loaded.error_count),
    ):
        out += [f"  {title} line {fault.line}: {fault.message}" for fault in faults[:SHOWN]]
        if total > SHOWN:
            out.append(f"  ... and {total - SHOWN} more")
    return out
