"""`phasemeter emulate`: a server without a GPU."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from phasemeter import lazy
from phasemeter.cli.completed import FileName
from phasemeter.cli.numbers import WHOLE


def emulate(
    plan: FileName,
    *,
    port: Annotated[int, WHOLE, Parameter(help="the port to listen on; 0: a free one, which is printed")] = 8000,
    host: Annotated[str, Parameter(help="where to listen")] = "127.0.0.1",
    truth: Annotated[
        FileName | None, Parameter(help="append the truth of each request to this file, a JSON line each")
    ] = None,
    otlp: Annotated[str | None, Parameter(help="send spans to this OTLP/HTTP endpoint")] = None,
    real_time: Annotated[
        bool,
        Parameter(help="take real-time priority where that is allowed: steps stay on time on a busy machine"),
    ] = True,
    model: Annotated[
        list[str] | None, Parameter(negative="", help="name under which the plan's model is served (repeatable)")
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", help="once it serves, print one JSON document: its address and its model")
    ] = False,
) -> int:
    """Run a server without a GPU: the plan's engine in real time, behind an OpenAI-compatible port.

    Serves /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics (vLLM's names). A prompt's tokens are its
    words; an answer is as long as the plan draws it, at most max_tokens, and exactly that with ignore_eos. A request's body may
    ask for faults: "emulate": {"stall_after_tokens": 5, "stall_s": 2}, truncate_after_tokens, error_after_tokens,
    error_status, delay_s, bytes_per_s, role_early, tokens_per_chunk, reasoning_tokens; so may the header X-Emulate (JSON).

    Parameters
    ----------
    plan
        a plan: its `deployment` serves, its `workload.output_tokens` sets how long answers are

    Examples:
        phasemeter emulate plan.yaml --port 8000
        phasemeter emulate plan.yaml --port 0 --truth truth.jsonl --json
        phasemeter emulate plan.yaml --otlp http://127.0.0.1:4318/v1/traces
    """
    read = lazy.load("phasemeter.cli.simulate").read_plan(plan)
    server = lazy.load("phasemeter.runs.emulate").emulator(read, plan, host=host, port=port, models=tuple(model or ()))
    if truth is not None:
        server.truth = lazy.load("phasemeter.io.emulator_truth").TruthFile(lazy.load("pathlib").Path(truth))
    if otlp is not None:
        server.spans = lazy.load("phasemeter.io.emulator_spans").SpanExporter(otlp)

    server.precedence = lazy.load("phasemeter.io.precedence").Precedence(1, real_time)
    server.complain = lambda words: print(f"phasemeter: {words}", file=sys.stderr, flush=True)

    def stop(number: int, frame: Any) -> None:
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    where = f"[{host}]" if ":" in host else host
    url, models = f"http://{where}:{server.server.port}/v1", server.settings.models
    print(f"serving {', '.join(models)} at {url}", file=sys.stderr, flush=True)
    if json:
        told = {"phasemeter": 1, "url": url, "models": list(models), "truth": truth and str(truth), "otlp": otlp}
        print(lazy.load("json").dumps(told, ensure_ascii=False), flush=True)
    server.run()
    start_s, end_s = server.lag.p99_s()
    print(
        f"served {server.served} requests in {server.lag.steps} steps; at p99 a step's first write came {start_s * 1e3:.2f} ms "
        f"after plan, its last {end_s * 1e3:.2f} ms",
        file=sys.stderr,
    )
    if (complaint := server.lag.complaint()) is not None and not server.complained:
        print(f"phasemeter: {complaint}", file=sys.stderr)
    return 0
