"""Every option of `bench`, as typed on the command line: text with units, nothing parsed yet.

Lives here: names, defaults and one line of help each; `goodput` and the Python API take the same. Must not live here:
what an option means (runs/settings.py reads it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from phasemeter.cli.completed import Api, FileName
from phasemeter.cli.numbers import NUMBER, WHOLE

LOAD = Group("Load", sort_key=1)
WORK = Group("Workload", sort_key=2)
SERVICE = Group("Service", sort_key=3)
SERVER_SIDE = Group("Server side", sort_key=4)
LIMITS = Group("Limits", sort_key=5)
OUTPUT = Group("Output", sort_key=6)

Text = str | None
File = FileName | None


@dataclass(kw_only=True)
class BenchOptions:
    """What `bench` can be told. Lengths: `64`, `uniform:32:128`, `normal:512:64`, `lognormal:512:2048` (median:p95)."""

    rate: Annotated[
        Text, Parameter(group=LOAD, help='offered load, like "4/s" or "120/min"; "inf": all at once; "1,2,4": a sweep')
    ] = None
    concurrency: Annotated[
        Text,
        Parameter(
            group=LOAD,
            help='closed loop with this many in flight; with --rate a cap (the wait is shown as client_queue); "1,4,16": a sweep',
        ),
    ] = None
    arrivals: Annotated[
        Text,
        Parameter(
            group=LOAD,
            help="with --rate: poisson (default), constant, gamma:CV, burst:N, ramp:1/s:8/s (over the run, or :60s) or"
            " steps:1/s:30s:4/s:30s",
        ),
    ] = None
    think_time: Annotated[
        Text,
        Parameter(
            group=LOAD,
            help='closed loop: pause before a slot sends again (with --turns: before a next turn), like "500 ms",'
            " exponential:2s, uniform:1s:3s or lognormal:2s:10s",
        ),
    ] = None
    trace: Annotated[
        File, Parameter(group=LOAD, help="replay a request trace (Azure, BurstGPT, Mooncake, CSV, JSONL)")
    ] = None
    rate_scale: Annotated[
        Text, Parameter(group=LOAD, help="with --trace: play it this many times faster (gaps are scaled)")
    ] = None
    trace_slice: Annotated[
        Text, Parameter(group=LOAD, help='with --trace: only "60s:5min" of its time, or rows "100:200"')
    ] = None
    trace_sample: Annotated[Text, Parameter(group=LOAD, help='with --trace: "100" rows or "10 %" of them')] = None
    max_idle: Annotated[Text, Parameter(group=LOAD, help='with --trace: shorten longer gaps to this, like "10 s"')] = (
        None
    )
    lenient: Annotated[bool, Parameter(group=LOAD, negative="", help="with --trace: leave faulty rows out")] = False
    trace_columns: Annotated[
        Text,
        Parameter(group=LOAD, help="with --trace: which column is what, as `phasemeter trace --columns` takes it"),
    ] = None
    spread_same_second: Annotated[
        bool, Parameter(group=LOAD, negative="", help="with --trace: whole-second stamps are spread over their second")
    ] = False
    keep_zero_output: Annotated[
        bool, Parameter(group=LOAD, negative="", help="with --trace: keep rows without output, as 1 token")
    ] = False
    block_size: Annotated[
        int | None,
        WHOLE,
        Parameter(group=LOAD, help="with --trace: tokens in a block of hash_ids (512; 16 for a Bailian trace)"),
    ] = None
    sessions: Annotated[
        bool,
        Parameter(
            group=LOAD,
            help="with --trace: a session's later rows wait for the answer before them, and carry the history",
        ),
    ] = True
    requests: Annotated[Text, Parameter(group=LOAD, help="how many requests are measured")] = None
    duration: Annotated[Text, Parameter(group=LOAD, help='or for how long requests are offered, like "60s"')] = None
    warmup: Annotated[
        Text,
        Parameter(
            group=LOAD,
            help='requests (or a time like "10 s") sent first and kept apart; default 2, or one for each slot',
        ),
    ] = None
    seed: Annotated[
        int, WHOLE, Parameter(group=LOAD, help="of arrivals, lengths and prompts: the same seed repeats them")
    ] = 0
    processes: Annotated[int, WHOLE, Parameter(group=LOAD, help="worker processes that send and stamp")] = 1
    real_time: Annotated[
        bool,
        Parameter(
            group=LOAD,
            help="give the workers real-time priority where that is allowed and a core is left: sends stay on time on a busy machine",
        ),
    ] = True
    repeat: Annotated[
        int,
        WHOLE,
        Parameter(group=LOAD, help="measure this many times: one run directory each, and the spread between them"),
    ] = 1
    resume: Annotated[
        bool, Parameter(group=LOAD, negative="", help="with a sweep or --repeat: skip the runs that are complete")
    ] = False
    drain: Annotated[
        Text,
        Parameter(
            group=LOAD,
            help='after the last send, wait for "all" answers (default), or cancel the rest after a time like "30 s"',
        ),
    ] = None
    input_tokens: Annotated[
        Text, Parameter(group=WORK, help="length of the generated prompts in tokens (default 256)")
    ] = None
    output_tokens: Annotated[
        Text, Parameter(group=WORK, help="output length to ask for, as max_tokens (default 64)")
    ] = None
    prompts: Annotated[
        File, Parameter(group=WORK, help="a JSONL file of prompts: {prompt}, {messages}, or ShareGPT {conversations}")
    ] = None
    prefix: Annotated[
        Text,
        Parameter(group=WORK, help='shared prefixes "GROUPS:TOKENS", like 4:512; default none: every prompt is unique'),
    ] = None
    turns: Annotated[
        Text,
        Parameter(group=WORK, help="multi-turn conversations of this many turns, with the real answers as history"),
    ] = None
    token_ids: Annotated[bool, Parameter(group=WORK, negative="", help="prompts as token ids (/v1/completions)")] = (
        False
    )
    tokenizer: Annotated[
        File,
        Parameter(
            group=WORK,
            help="a local tokenizer.json or its folder, for exact prompt lengths and local counts (extra `tokenizers`)",
        ),
    ] = None
    ignore_eos: Annotated[
        bool | None,
        Parameter(
            group=WORK,
            help="ask the server to generate up to max_tokens; default: for generated prompts, where the server accepts it",
        ),
    ] = None
    temperature: Annotated[float | None, NUMBER, Parameter(group=WORK, help="sampling temperature")] = None
    top_p: Annotated[float | None, NUMBER, Parameter(group=WORK, help="nucleus sampling")] = None
    stop: Annotated[list[str] | None, Parameter(group=WORK, negative="", help="stop string (repeatable)")] = None
    n: Annotated[int, WHOLE, Parameter(group=WORK, help="choices per request")] = 1
    stream: Annotated[bool | None, Parameter(group=WORK, help="stream the answers (default)")] = None

    model: Annotated[
        Text,
        Parameter(
            group=SERVICE, help='model name; default: the only one that the server lists; "a=3,b=1": a mix by weight'
        ),
    ] = None
    api: Annotated[
        Api | None,
        Parameter(
            group=SERVICE,
            show_choices=False,
            help="openai.chat (default), openai.completions, openai.responses, anthropic.messages, ollama.chat, "
            "ollama.generate, llamacpp.completion, tgi.generate_stream, sglang.generate; short: chat, completions, ...",
        ),
    ] = None
    api_key: Annotated[
        Text,
        Parameter(
            group=SERVICE, help="bearer key; default: OPENAI_API_KEY from the environment; never written to disk"
        ),
    ] = None
    header: Annotated[
        list[str] | None, Parameter(group=SERVICE, negative="", help='extra header "Name: value" (repeatable)')
    ] = None
    body: Annotated[
        list[str] | None,
        Parameter(group=SERVICE, negative="", help="extra body fields, name=JSON or a JSON object (repeatable)"),
    ] = None
    insecure: Annotated[bool, Parameter(group=SERVICE, negative="", help="don't check the server's certificate")] = (
        False
    )
    ca_file: Annotated[File, Parameter(group=SERVICE, help="certificates to trust (PEM)")] = None
    proxy: Annotated[
        Text,
        Parameter(group=SERVICE, help='send through this proxy ("env": the one in the environment; default: "none")'),
    ] = None

    server_metrics: Annotated[
        Text,
        Parameter(
            group=SERVER_SIDE,
            help='a Prometheus page to read before, during and after the run; "none": not even the server\'s own',
        ),
    ] = None
    otlp_listen: Annotated[
        Text,
        Parameter(
            group=SERVER_SIDE,
            help='receive the server\'s spans here during the run: ":4318" over HTTP, "grpc://:4317" over gRPC'
            " (extra `grpc`)",
        ),
    ] = None

    timeout_connect: Annotated[str, Parameter(group=LIMITS, help="time to connect")] = "10 s"
    timeout_first_byte: Annotated[
        str, Parameter(group=LIMITS, help="time from the request sent to the first byte of the answer")
    ] = "600 s"
    timeout_idle: Annotated[str, Parameter(group=LIMITS, help="time between two reads")] = "120 s"
    timeout_total: Annotated[Text, Parameter(group=LIMITS, help="time for a whole request (default: no limit)")] = None

    contract: Annotated[
        File, Parameter(group=OUTPUT, help="a contract file: its workload is offered, its promises are checked")
    ] = None
    output: Annotated[File, Parameter(group=OUTPUT, alias="-o", help="run directory (default runs/<utc>-<model>)")] = (
        None
    )
    no_text: Annotated[
        bool,
        Parameter(name="--no-text", group=OUTPUT, negative="", help="keep times and sizes, drop prompts and outputs"),
    ] = False
    quiet: Annotated[bool, Parameter(group=OUTPUT, negative="", help="no progress line")] = False
    json: Annotated[bool, Parameter(group=OUTPUT, negative="", help="print the result as one JSON document")] = False
