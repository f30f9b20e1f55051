"""Is this run sound? Each check: what was seen, against which threshold, and what to do about it.

Lives here: the checks and their thresholds. Must not live here: how the numbers were gathered (summary), or what the service
did well or badly: a slow server is a valid measurement.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from phasemeter.records.result import CheckVerdict, Validity, ValidityCheck, Verdict

REPLAY_S = 2e-3  # a replay places each request within this of its instant, or says that it could not


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run knows beside its rows. None: not known."""

    partial: bool = False  # cut off: a signal, a killed process, a full disk
    started_ns: int | None = None
    ended_ns: int | None = None
    planned_requests: int | None = None  # measured ones; more than the rows seen: the rest were never sent
    lost_workers: int = 0
    clock_step_s: float | None = None  # the largest jump of the wall clock against the monotonic one
    stamps: str | None = None  # kernel | user
    unique_prompts: bool | None = None  # prompts were meant to share nothing
    history: bool = False  # later turns carry what was said before them, beside the length that was asked
    file_descriptors: tuple[int, int] | None = None  # (needed, allowed)
    cache_counters: tuple[float, float] | None = (
        None  # tokens (found in the prefix cache, looked up): the server's, this run's window
    )


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that the checks look at, gathered over the measured rows. None: nothing to look at."""

    ok: int
    failed: dict[str, int]
    mode: str  # open | closed | inf | unknown
    replay: bool = False  # a trace's own instants
    asked_rate_per_s: float | None = None
    sent_rate_per_s: float | None = None
    due_rate_per_s: float | None = None
    asked_concurrency: int | None = None
    peak_concurrency: int | None = None
    lateness_p99_s: float | None = None
    ttft_p50_s: float | None = None
    lag_p99_s: float | None = None
    gap_p50_s: float | None = None
    coalesced_share: float | None = None
    token_pairs: int = 0
    token_mismatches: int = 0
    input_ratio: float | None = None  # realised over asked, means
    input_excess: float | None = None  # tokens, mean
    output_ratio: float | None = None
    cached_share: float | None = None
    template_share: float = 0.0  # of the input tokens: the chat template, which every prompt shares
    trend: float | None = None  # growth of time to first token over the run, in medians, where it is significant
    in_flight_late_share: float | None = None  # closed loop: requests in flight late in the run over early
    p95_all_s: float | None = None
    p95_without_first_wave_s: float | None = None


class _Found(msgspec.Struct, frozen=True):
    verdict: CheckVerdict
    evidence: str
    remedy: str = ""


def _by(value: float, suspect: float, invalid: float | None = None) -> CheckVerdict:
    if invalid is not None and value > invalid:
        return "invalid"
    return "suspect" if value > suspect else "ok"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _complete(seen: Seen, facts: RunFacts) -> _Found:
    if facts.lost_workers:
        return _Found(
            "suspect",
            f"{facts.lost_workers} worker process(es) ended early; what they captured is kept",
            "see the manifest's notes; repeat the run",
        )
    if facts.partial:
        return _Found(
            "suspect", "the run was cut off before its end", "repeat it, or read it as the partial run that it is"
        )
    return _Found("ok", "the run came to its end")


def _samples(seen: Seen, facts: RunFacts) -> _Found:
    if seen.ok == 0:
        return _Found("invalid", "no measured request succeeded", "see the failures; check URL, model and limits")
    if seen.ok < 30:
        return _Found(
            "suspect", f"{seen.ok} successful requests (30 wanted, 100 for a p99)", "raise --requests or --duration"
        )
    if seen.ok < 100:
        return _Found("ok", f"{seen.ok} successful requests: enough for p50 to p95, p99 is flagged (100 wanted)")
    return _Found("ok", f"{seen.ok} successful requests")


def _failures(seen: Seen, facts: RunFacts) -> _Found:
    failed = sum(seen.failed.values())
    if not failed:
        return _Found("ok", "no request failed")
    share = failed / (failed + seen.ok)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.failed.items(), key=lambda item: -item[1]))
    return _Found(
        _by(share, 0.01, 0.5),
        f"{share:.1%} of finished requests failed ({kinds}); latencies are of the survivors (threshold 1 %)",
        "read the failures in `report --csv requests`; lower the load or raise the limit that was hit",
    )


def _observer(seen: Seen, facts: RunFacts) -> _Found:
    if facts.stamps == "user" or seen.lag_p99_s is None:
        return _Found("unknown", "no kernel stamps: how late this client read can't be seen", "run on Linux over TCP")
    limit = max(1e-3, 0.5 * (seen.gap_p50_s or 0.0))
    text = (
        f"reads were up to {_ms(seen.lag_p99_s)} (p99 of requests) behind the kernel's stamps, threshold {_ms(limit)}"
    )
    return _Found(
        _by(seen.lag_p99_s, limit), text, "raise --processes, or free the machine: stamps hold, merged reads don't"
    )


def _coalescing(seen: Seen, facts: RunFacts) -> _Found:
    if seen.coalesced_share is None:
        return _Found("unknown", "no gaps were seen")
    text = f"{seen.coalesced_share:.1%} of gaps are 0 because one read brought several events (threshold 20 %)"
    return _Found(
        _by(seen.coalesced_share, 0.2),
        text,
        "a proxy or the server's own buffer may hold events back; read itl with care",
    )


def _lateness(seen: Seen, facts: RunFacts) -> _Found:
    if seen.mode != "open" or seen.lateness_p99_s is None:
        return _Found("ok" if seen.mode != "open" else "unknown", "no schedule to be late for")
    if seen.asked_concurrency and (seen.peak_concurrency or 0) >= seen.asked_concurrency:
        text = f"the cap of {seen.asked_concurrency} in flight held sends back: {_ms(seen.lateness_p99_s)} after due at p99"
        return _Found("ok", text + ", which client_queue and the metrics from due show")
    if seen.replay and seen.lateness_p99_s > REPLAY_S:
        text = f"the replay was not kept: sends left {_ms(seen.lateness_p99_s)} after due at p99 (threshold {_ms(REPLAY_S)})"
        return _Found("suspect", text, "raise --processes, or lower --rate-scale")
    base = seen.ttft_p50_s or 0.0
    suspect, invalid = max(1e-3, 0.1 * base), max(1e-2, 0.5 * base)
    text = (
        f"sends left {_ms(seen.lateness_p99_s)} after due at p99 (threshold {_ms(suspect)}, a tenth of the median ttft)"
    )
    return _Found(_by(seen.lateness_p99_s, suspect, invalid), text, "raise --processes, or lower the rate per process")


def _load(seen: Seen, facts: RunFacts) -> _Found:
    if seen.mode == "open":
        if not seen.sent_rate_per_s or not seen.due_rate_per_s:
            return _Found("unknown", "fewer than two requests were sent")
        share = seen.sent_rate_per_s / seen.due_rate_per_s
        text = f"sent {seen.sent_rate_per_s:.4g} of {seen.due_rate_per_s:.4g} req/s due ({share:.1%}, threshold 98 %)"
        return _Found(_by(1 - share, 0.02, 0.1), text, "raise --processes; see the check `send_lateness`")
    if seen.mode == "closed" and seen.asked_concurrency and seen.peak_concurrency is not None:
        text = f"at most {seen.peak_concurrency} requests were in flight, {seen.asked_concurrency} asked"
        if seen.peak_concurrency > seen.asked_concurrency:
            return _Found(
                "invalid", text, "the load was above what was asked: a fault of the sender's, please report it"
            )
        if seen.peak_concurrency < min(seen.asked_concurrency, seen.ok + sum(seen.failed.values())):
            return _Found("suspect", text, "see failures and this machine's limits; ask for more requests")
        return _Found("ok", text)
    return _Found("ok", "no rate or concurrency was asked for")


def _tokens(seen: Seen, facts: RunFacts) -> _Found:
    if not seen.token_pairs:
        return _Found(
            "unknown", "client and server token counts aren't both there", "give --tokenizer to count here too"
        )
    share = seen.token_mismatches / seen.token_pairs
    text = f"client and server counts differ by over 2 % in {share:.1%} of {seen.token_pairs} requests (threshold 1 %)"
    return _Found(_by(share, 0.01), text, "check that the tokenizer is the model's own")


def _input_lengths(seen: Seen, facts: RunFacts) -> _Found:
    if seen.input_ratio is None:
        return _Found("unknown", "asked or realised input lengths are not known")
    if facts.history and seen.input_ratio > 1:
        more = f"{seen.input_excess or 0:+.1f} tokens in the mean"
        return _Found("ok", f"asked is each turn's own message, realised holds what was said before it too ({more})")
    text = f"realised input tokens are {seen.input_ratio:.3f} of asked in the mean ({seen.input_excess or 0:+.1f} tokens, threshold 10 %)"
    return _Found(
        _by(abs(seen.input_ratio - 1), 0.1),
        text,
        "state the realised lengths, not the asked; a chat template adds some",
    )


def _output_lengths(seen: Seen, facts: RunFacts) -> _Found:
    if seen.output_ratio is None:
        return _Found("unknown", "asked or realised output lengths are not known")
    text = f"realised output tokens are {seen.output_ratio:.3f} of asked in the mean (threshold 10 %)"
    return _Found(
        _by(abs(seen.output_ratio - 1), 0.1),
        text,
        "--ignore-eos where the server knows it; else state realised lengths",
    )


def _clock(seen: Seen, facts: RunFacts) -> _Found:
    if facts.clock_step_s is None:
        return _Found("unknown", "no clock pairs: a step of the wall clock could not be seen")
    step = abs(facts.clock_step_s)
    text = f"the wall clock moved by {_ms(step)} against the monotonic one (threshold 1 ms)"
    return _Found(
        _by(step, 1e-3), text, "stamps near the step may be off: stop the time service from stepping, and repeat"
    )


def _limits(seen: Seen, facts: RunFacts) -> _Found:
    own = seen.failed.get("client_resource", 0)
    if own:
        return _Found(
            "invalid", f"{own} requests met this machine's own limits", "raise `ulimit -n` and the port range"
        )
    if facts.file_descriptors is None:
        return _Found("ok", "no request met a limit of this machine")
    needed, allowed = facts.file_descriptors
    return _Found(
        "ok" if needed <= allowed else "invalid", f"{needed} file descriptors needed, {allowed} allowed", "ulimit -n"
    )


def _cache(seen: Seen, facts: RunFacts) -> _Found:
    if facts.unique_prompts is False:
        return _Found("ok", "prompts were meant to share text")
    share, of = seen.cached_share, "input tokens"
    if share is None and facts.cache_counters is not None and facts.cache_counters[1] > 0:
        found, looked_up = facts.cache_counters
        share, of = max(0.0, found / looked_up - seen.template_share), "the tokens that the server's counters tell of"
    if share is None:
        return _Found("unknown", "the server reports no cached tokens")
    text = f"{share:.1%} of {of}, the chat template apart, came from a prefix cache (threshold 10 % for unique prompts)"
    return _Found(_by(share, 0.1), text, "another --seed; restart the server or switch its prefix cache off")


def _queue(seen: Seen, facts: RunFacts) -> _Found:
    if seen.mode != "open":
        return _Found("ok", "the load is not driven by a schedule")
    if seen.trend is None:
        return _Found("ok", "time to first token shows no trend over the run")
    text = f"time to first token grew by {seen.trend:.2g} of its median over the run: no steady state (threshold 0.5)"
    return _Found(_by(seen.trend, 0.5), text, "the rate is above what the service carries: lower it, or run longer")


def _attrition(seen: Seen, facts: RunFacts) -> _Found:
    if seen.mode != "closed" or seen.in_flight_late_share is None:
        return _Found("ok", "no clients that could leave")
    text = f"late in the run {seen.in_flight_late_share:.0%} of its early requests were in flight (threshold 80 %)"
    return _Found(
        "suspect" if seen.in_flight_late_share < 0.8 else "ok", text, "clients left: compare at equal offered load only"
    )


def _first_wave(seen: Seen, facts: RunFacts) -> _Found:
    if seen.p95_all_s is None or seen.p95_without_first_wave_s is None:
        return _Found("ok", "no first wave apart from the rest")
    text = f"ttft p95 is {_ms(seen.p95_all_s)}, {_ms(seen.p95_without_first_wave_s)} without the first wave (threshold 1.5 times)"
    ratio = seen.p95_all_s / seen.p95_without_first_wave_s if seen.p95_without_first_wave_s > 0 else 1.0
    return _Found(_by(ratio, 1.5), text, "read the numbers without the first wave, or ask for more requests")


CHECKS: dict[str, Callable[[Seen, RunFacts], _Found]] = {
    "complete": _complete,
    "samples": _samples,
    "failures": _failures,
    "achieved_load": _load,
    "send_lateness": _lateness,
    "observer_lag": _observer,
    "coalescing": _coalescing,
    "growing_queue": _queue,
    "first_wave_dominates_tail": _first_wave,
    "client_attrition": _attrition,
    "token_counts": _tokens,
    "input_lengths": _input_lengths,
    "output_lengths": _output_lengths,
    "prefix_cache": _cache,
    "clock_step": _clock,
    "client_limits": _limits,
}


def judge(seen: Seen, facts: RunFacts) -> Validity:
    """Every check, and the run's verdict: the worst of them. An unknown one neither helps nor hurts."""
    checks = []
    for name, look in CHECKS.items():
        found = look(seen, facts)
        remedy = found.remedy if found.verdict != "ok" else ""
        checks.append(ValidityCheck(id=name, verdict=found.verdict, evidence=found.evidence, remedy=remedy))
    verdicts = {check.verdict for check in checks}
    verdict: Verdict = "invalid" if "invalid" in verdicts else "suspect" if "suspect" in verdicts else "valid"
    return Validity(verdict=verdict, checks=tuple(checks))
