"""What a person asked of a measurement, as typed: text with units, nothing parsed yet. The Python API takes the same names.

Lives here: names and defaults. Must not live here: what they mean (settings.py).
"""

from __future__ import annotations

import msgspec

Text = str | None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `bench` (see `phasemeter bench --help` for each); None: not asked."""

    rate: Text = None
    concurrency: Text = None
    arrivals: Text = None
    think_time: Text = None
    trace: Text = None
    rate_scale: Text = None
    trace_slice: Text = None
    trace_sample: Text = None
    max_idle: Text = None
    lenient: bool = False
    trace_columns: Text = None
    spread_same_second: bool = False
    keep_zero_output: bool = False
    block_size: int | None = None
    sessions: bool = True
    requests: Text = None
    duration: Text = None
    warmup: Text = None
    seed: int = 0
    processes: int = 1
    real_time: bool = True
    repeat: int = 1
    resume: bool = False
    drain: Text = None
    input_tokens: Text = None
    output_tokens: Text = None
    prompts: Text = None
    prefix: Text = None
    turns: Text = None
    token_ids: bool = False
    tokenizer: Text = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: list[str] | None = None
    n: int = 1
    stream: bool | None = None
    model: Text = None
    api: Text = None
    api_key: Text = None
    header: list[str] | None = None
    body: list[str] | None = None
    insecure: bool = False
    ca_file: Text = None
    proxy: Text = None
    server_metrics: Text = None
    otlp_listen: Text = None
    timeout_connect: str = "10 s"
    timeout_first_byte: str = "600 s"
    timeout_idle: str = "120 s"
    timeout_total: Text = None
    contract: Text = None
    output: Text = None
    no_text: bool = False
    quiet: bool = False
    json: bool = False
