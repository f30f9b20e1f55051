"""The demo: the embedded engine, measured alone at several input lengths, then under a small load, and what the numbers say.

Lives here: the two measurements and the sentences about them. Must not live here: printing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phasemeter.io.embedded_engine import EmbeddedEngine, embedded_engine
from phasemeter.runs.analysis import Rows
from phasemeter.runs.asked import Asked
from phasemeter.runs.law import Law, Observation, errors, fit, observed
from phasemeter.runs.measure import RUNS, Measured, Watchers, bench

SINGLE = ((32, 6), (128, 6), (384, 4))  # (input tokens, requests), one at a time
SINGLE_OUTPUT = 24
LOADS = ((64, 32), (64, 16), (32, 8))  # (input, output tokens) of the load: the first of which enough fit into its time
FEW_REQUESTS, LOADED_REQUESTS = 32, 40  # fewer and the run is suspect
LOAD_SHARE = 0.6  # of what one request at a time would carry
LONGEST_LOAD_S = 40.0


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """Both measurements and what they say. `single` has one run for each input length."""

    folder: Path
    engine: EmbeddedEngine
    single: tuple[Measured, ...]
    loaded: Measured
    rate_per_s: float
    sentences: tuple[str, ...]


def demo(output: Path | None = None, watchers: Watchers | None = None) -> Demo:
    """Start the engine, measure it twice, end it.

    Raises UserError when the engine is not installed or `output` exists, KeyboardInterrupt when one of the single requests' runs
    was interrupted: what it captured is kept. An interrupted load is told as far as it came.
    """
    watch = watchers or Watchers()
    folder = output or RUNS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-demo"
    with embedded_engine() as engine:
        watch.note(f"embedded engine: llama.cpp with {engine.weights}, 1 thread, {engine.slots} slots, on {engine.url}")
        single = []
        for length, requests in SINGLE:
            watch.note(f"single requests, {length} input tokens")
            asked = Asked(
                concurrency="1", requests=str(requests), warmup="1", input_tokens=str(length),
                output_tokens=str(SINGLE_OUTPUT), output=str(folder / f"single-{length}"),
            )  # fmt: skip
            single.append(bench(engine.url, asked, watch))
            if single[-1].interrupted:
                watch.note(f"what was captured is in {folder}")
                raise KeyboardInterrupt
        alone = [one for run in single for one in observed(Rows(run.path))]
        law = fit(alone)
        rate, tokens_in, tokens_out = load_for(law)
        requests = max(FEW_REQUESTS, min(LOADED_REQUESTS, round(rate * LONGEST_LOAD_S)))
        watch.note(f"open-loop load: {rate:.2f} requests/s, Poisson, {tokens_in} tokens in, {tokens_out} out")
        asked = Asked(
            rate=f"{rate:.3f}/s", requests=str(requests), warmup="1", input_tokens=str(tokens_in),
            output_tokens=str(tokens_out), output=str(folder / "loaded"),
        )  # fmt: skip
        loaded = bench(engine.url, asked, watch)
    sentences = explain(law, alone, observed(Rows(loaded.path)), server_distances_ms([run.path for run in single]))
    return Demo(folder=folder, engine=engine, single=tuple(single), loaded=loaded, rate_per_s=rate, sentences=sentences)


def load_for(law: Law) -> tuple[float, int, int]:
    """(requests/s, input tokens, output tokens) that a machine of that law can carry, and see enough of, in the time there is."""
    for tokens_in, tokens_out in LOADS:
        rate = LOAD_SHARE / max(law.e2e_s(tokens_in, tokens_out), tokens_out * law.tpot_s)  # a line may start below 0
        if rate * LONGEST_LOAD_S >= FEW_REQUESTS:
            break
    return rate, tokens_in, tokens_out


def server_distances_ms(paths: Sequence[Path]) -> list[float]:
    """Client TTFT − the engine's own prompt time, for each single request that tells it, in ms."""
    found = []
    for path in paths:
        for row, exchange in Rows(path).with_exchanges():
            told = (exchange.timings.get("timings") if exchange else None) or {}
            if row.phase == "measured" and row.outcome == "ok" and row.first_token_ns and row.send_start_ns:
                prompt_ms = told.get("prompt_ms")
                if isinstance(prompt_ms, int | float):
                    found.append((row.first_token_ns - row.send_start_ns) / 1e6 - prompt_ms)
    return found


def explain(
    law: Law, alone: Sequence[Observation], loaded: Sequence[Observation], distances_ms: Sequence[float]
) -> tuple[str, ...]:
    """A few lines on where prefill ends, the cadence of decode, the law, and what a load changes."""
    per_second = f", about {1 / law.per_input_token_s:.0f} tokens/s" if law.per_input_token_s > 0 else ""
    each = f"{1e3 * law.per_input_token_s:.2f} ms for each input token{per_second}"
    grows = (
        f"with the prompt: {1e3 * law.base_s:.0f} ms + {each}"
        if law.base_s >= 0
        else f"faster than the prompt: by {each}"
    )
    lines = [f"prefill: alone, time to first token grows {grows}."]
    if distances_ms:
        below = sum(value < 0 for value in distances_ms)
        lines.append(
            f"where it ends: the engine says its own prompt time; the client's TTFT is {statistics.median(distances_ms):.2f} ms "
            f"above it at the median ({min(distances_ms):.2f} to {max(distances_ms):.2f} ms; {below} of {len(distances_ms)} below): "
            "sending, queueing and delivery."
        )
    lines.append(
        f"decode: one token each {1e3 * law.tpot_s:.1f} ms alone, {1 / law.tpot_s:.0f} tokens/s for one reader."
    )
    off = [abs(error) for error in errors(law, alone)]
    lines.append(
        f"the law e2e = ttft + (n−1)·tpot, with ttft from the prompt's length alone: off by {100 * statistics.median(off):.1f} % "
        f"at the median over {len(off)} single requests."
    )
    if loaded:
        lines.append(under_load(law, alone, loaded))
    return tuple(lines)


def under_load(law: Law, alone: Sequence[Observation], loaded: Sequence[Observation]) -> str:
    """What the load changes: against single requests of the same input length, else against the law's line."""
    lengths = {one.input_tokens for one in loaded}
    same = [one for one in alone if one.input_tokens in lengths]
    measured = len(lengths) == 1 and bool(same)
    ttft_s = (
        statistics.median(one.ttft_s for one in same)
        if measured
        else statistics.median(law.ttft_s(one.input_tokens) for one in loaded)
    )
    tpot_s = statistics.median(one.tpot_s for one in same) if measured else law.tpot_s
    ttft = statistics.median(one.ttft_s for one in loaded) / ttft_s
    tpot = statistics.median(one.tpot_s for one in loaded) / tpot_s
    against = f"single requests of {min(lengths)} tokens take" if measured else "the law gives for their lengths"
    missed = [abs(error) for error in errors(law, loaded)]
    return (
        f"under load: TTFT {ttft:.1f} times and TPOT {tpot:.1f} times what {against} (medians); the law fitted on "
        f"single requests is off by {100 * statistics.median(missed):.0f} %: requests share slots and steps."
    )
