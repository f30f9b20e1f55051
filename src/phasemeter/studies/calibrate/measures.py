"""The measurement that would tell a constant that the runs at hand don't.

Lives here: which load identifies what. Must not live here: the fit.
"""

from __future__ import annotations

import msgspec


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load that the runs had: what a suggestion starts from."""

    url: str | None
    input_tokens: int
    output_tokens: int
    concurrency: int | None


def measure(what: str, load: Load) -> str:
    """A command to run, then to hand its run to `calibrate` beside the others; `what` as Constant.measure names it."""
    start = f"phasemeter bench {load.url or 'URL'}"
    longest = max(64, load.input_tokens)
    spread = f"--input-tokens uniform:{max(1, longest // 8)}:{2 * longest}"
    length = f"--output-tokens {max(32, load.output_tokens)} --ignore-eos"
    most = max(8, 4 * (load.concurrency or 1))
    return {
        "decode": f"{start} --concurrency 4 --requests 40 {length}",
        "batches": f"{start} --concurrency {most} --requests {6 * most} {spread} {length}",
        "contexts": f"{start} --concurrency 4 --requests 60 {spread} {length}",
        "lengths": f"{start} --concurrency 2 --requests 60 {spread} {length}",
        "prompts": f"{start} --concurrency 1 --requests 40 {spread} --output-tokens 8 --ignore-eos",
        "server": f"{start} --otlp-listen :4318 --concurrency 2 --requests 60 {spread} {length}",
    }[what]
