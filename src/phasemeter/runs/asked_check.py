"""Options that would be taken without a word and mean nothing: refused before anything is sent.

Lives here: empty values, numbers out of range, options that need another one. Must not live here: what an option means
(settings.py).
"""

from __future__ import annotations

import math

import msgspec

from phasemeter.errors import UserError
from phasemeter.io.otlp_receiver import address_of
from phasemeter.io.proxy import parsed
from phasemeter.io.target import target_of
from phasemeter.runs.asked import Asked

MOST_PROCESSES = 256
MOST_SEED = 2**62  # repetitions count on from it, and a manifest holds 64 bits
OF_A_TRACE = (
    "rate_scale",
    "trace_slice",
    "trace_sample",
    "max_idle",
    "lenient",
    "trace_columns",
    "spread_same_second",
    "keep_zero_output",
    "block_size",
)


def refuse(asked: Asked) -> None:
    """Raises UserError for the first option of `asked` that can't be meant. `asked` holds the contract's trace already."""
    for name in msgspec.structs.fields(Asked):
        value = getattr(asked, name.name)
        if name.name != "api_key" and isinstance(value, str) and not value.strip():
            raise UserError(f'{_option(name.name)} "": is empty: give it a value or leave it out')
    if asked.trace is None:
        for each in OF_A_TRACE:
            if getattr(asked, each):
                raise UserError(f"{_option(each)}: only a replayed trace has that: give --trace too")
    if asked.think_time is not None and asked.rate is not None and asked.turns is None:
        raise UserError(
            "--think-time: a closed loop has that, or the turns of conversations: leave out --rate, or give --turns"
        )
    if not 1 <= asked.processes <= MOST_PROCESSES:
        raise UserError(f"--processes {asked.processes}: has to be 1 or more, up to {MOST_PROCESSES}")
    if asked.n < 1:
        raise UserError(f"--n {asked.n}: has to be 1 or more")
    if abs(asked.seed) > MOST_SEED:
        raise UserError(f"--seed {asked.seed}: has to lie within 2^62 of 0")
    if asked.temperature is not None and not (math.isfinite(asked.temperature) and asked.temperature >= 0):
        raise UserError(f"--temperature {asked.temperature}: has to be a number of 0 or more")
    if asked.top_p is not None and not 0 <= asked.top_p <= 1:
        raise UserError(f"--top-p {asked.top_p}: has to be a number from 0 to 1")
    if asked.server_metrics is not None and asked.server_metrics.strip().lower() != "none":
        try:
            target_of(asked.server_metrics.strip())
        except UserError as wrong:
            raise UserError(f'--server-metrics {wrong} ("none": leave the server\'s own page alone)') from wrong
    if asked.proxy is not None and asked.proxy not in {"env", "none"}:
        parsed(asked.proxy)  # also where it will not be used: the next host would meet it
    if asked.otlp_listen is not None:
        address_of(asked.otlp_listen.rpartition("://")[2].partition("/")[0], asked.otlp_listen)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
