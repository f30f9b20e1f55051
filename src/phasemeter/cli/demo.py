"""`phasemeter demo`: see it work on a bare laptop."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.bench import beside
from phasemeter.cli.numbers import WHOLE


def demo(
    *,
    output: Annotated[Path | None, Parameter(alias="-o", help="folder for its runs (default runs/<utc>-demo)")] = None,
    quiet: Annotated[bool, Parameter(negative="", help="no progress line")] = False,
    json: Annotated[bool, Parameter(negative="", help="print the load's result as one JSON document")] = False,
    serve: Annotated[
        bool, Parameter(negative="", help="only start the engine, and keep it until Ctrl-C: a server to try things on")
    ] = False,
    port: Annotated[int, WHOLE, Parameter(help="with --serve: where it listens; 0 takes a free port")] = 8000,
) -> int:
    """Start the embedded engine (llama.cpp with SmolLM2-135M), measure it, and say what the numbers mean.

    First single requests at several input lengths, then a small open-loop load. Takes about a minute and no network.

    Examples:
        phasemeter demo
        phasemeter demo -o runs/my-laptop
        phasemeter demo --json > result.json
        phasemeter demo --serve --port 8000
    """
    if serve:
        return keep(port)
    live = lazy.load("phasemeter.report.live")
    with live.view(quiet=quiet) as watchers:
        done = lazy.load("phasemeter.runs.demo").demo(output, watchers)
    if json:
        print(lazy.load("phasemeter.report.json").dumps(done.loaded.result))
    else:
        lazy.load("phasemeter.report.demo").show(done)
    page = beside(done.loaded.path)
    print(f"runs: {done.folder} (to look at: {page})", file=sys.stderr)
    return int(done.loaded.exit_code)


def keep(port: int) -> int:
    """Serve until interrupted: 0, because that is how it is meant to end."""
    with lazy.load("phasemeter.io.embedded_engine").embedded_engine(port=port) as engine:
        print(
            f"serving {engine.model} at {engine.url}/v1 ({engine.slots} slots; Ctrl-C ends it)",
            file=sys.stderr,
            flush=True,
        )
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0
