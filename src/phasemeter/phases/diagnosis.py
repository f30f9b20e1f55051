"""Six steps from "it is slow" to a cause, each with its evidence, its strength, and the measurement to take next.

Lives here: the steps. Must not live here: a cause's rule (causes.py), computing features (features.py).
"""

from __future__ import annotations

import msgspec

from phasemeter.phases.causes import FEW, Cause, Strength, as_share, as_time, causes_of
from phasemeter.phases.features import Features


class Step(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    question: str
    finding: str
    evidence: str
    strength: Strength
    next: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...]
    causes: tuple[Cause, ...]  # strongest first; empty: cannot say
    missing: tuple[str, ...]  # what is not on record and would decide


def missing_in(f: Features) -> list[str]:
    """What is not on record and would decide more."""
    needs = []
    if not f.with_evidence:
        needs.append("queue and prefill per request: spans (--otlp-listen), or timings in the response")
    if f.alone_ttft_s is None:
        needs.append("single requests without load, at three input lengths")
    if f.server is None:
        needs.append("the server's counters and gauges (--server-metrics)")
    elif f.server.preemptions is None or f.server.kv_usage_max is None:
        needs.append("preemptions and KV cache use on the server's metrics page")
    return needs


def diagnose(f: Features) -> Diagnosis:
    """The six steps. Each finding stands on what is on record; a step without its numbers cannot say."""
    causes = causes_of(f)
    steps = (_apart(f), _queue_or_prefill(f), _lengths(f), _tails(f), _slo(f), _cause(f, causes))
    return Diagnosis(steps=steps, causes=tuple(causes), missing=tuple(missing_in(f)))


def _apart(f: Features) -> Step:
    question = "Is it the wait for the first token, or the cadence after it?"
    if f.ttft_p50_s is None or f.e2e_p50_s is None or f.e2e_p50_s <= 0:
        return Step(step=1, question=question, finding="cannot say", evidence="no request with output", strength="cannot say",
                    next="a run in which requests succeed")  # fmt: skip
    share = min(1.0, f.ttft_p50_s / f.e2e_p50_s)
    finding = "the wait for the first token" if share > 0.6 else "the output's cadence" if share < 0.3 else "both"
    evidence = f"TTFT p50 {as_time(f.ttft_p50_s)}, from due to last token p50 {as_time(f.e2e_p50_s)}, TPOT p50 {as_time(f.tpot_p50_s)}"
    return Step(step=1, question=question, finding=finding, evidence=evidence, strength="certain" if f.requests >= FEW else "weak",
                next="step 2" if share > 0.3 else "TPOT at three concurrencies")  # fmt: skip


def _queue_or_prefill(f: Features) -> Step:
    question = "Does it wait in a queue, or in prefill?"
    if f.queue_share is not None and f.prefill_share is not None:
        finding = "queue" if f.queue_share > f.prefill_share else "prefill"
        if (f.lump_share or 0.0) > max(0.5, f.queue_share, f.prefill_share):
            finding = "neither: before the queue, or after the first token"
        shares = (as_share(f.queue_share), as_share(f.prefill_share), as_share(f.lump_share))
        evidence = "of the mean TTFT: queue {}, prefill {}, the rest {}".format(*shares)
        if f.front_end_share is not None:
            evidence += f" ({as_share(f.front_end_share)} inside the server's own TTFT)"
        return Step(step=2, question=question, finding=finding, evidence=evidence, strength="certain" if f.with_evidence >= FEW else "weak",
                    next="single requests against loaded ones")  # fmt: skip
    if f.alone_ttft_s is not None and f.ttft_p50_s is not None:
        ratio = f.ttft_p50_s / f.alone_ttft_s if f.alone_ttft_s > 0 else 1.0
        finding = "it appears under load" if ratio > 1.5 else "it is there without load too"
        evidence = f"alone {as_time(f.alone_ttft_s)}, loaded p50 {as_time(f.ttft_p50_s)}; queue and prefill can't be told apart by this"
        return Step(
            step=2, question=question, finding=finding, evidence=evidence, strength="weak", next="server evidence"
        )
    return Step(step=2, question=question, finding="cannot say", evidence="neither queue with prefill, nor single requests",
                strength="cannot say", next="spans, timings in the response, or single requests")  # fmt: skip


def _lengths(f: Features) -> Step:
    question = "Does it follow the input's length?"
    seen = f.input_to_prefill if f.input_to_prefill is not None else f.input_to_ttft
    if seen is None:
        return Step(step=3, question=question, finding="cannot say", evidence="input lengths don't vary, or are not on record",
                    strength="cannot say", next="single requests at three input lengths")  # fmt: skip
    what = "prefill" if f.input_to_prefill is not None else "TTFT"
    finding = "yes" if seen > 0.6 else "no" if seen < 0.3 else "partly"
    return Step(step=3, question=question, finding=finding, evidence=f"rank correlation of input tokens with {what}: {seen:.2f}",
                strength="likely" if f.requests >= FEW else "weak", next="single requests at three input lengths")  # fmt: skip


def _tails(f: Features) -> Step:
    question = "Is it everyone, or the tail?"
    if f.ttft_p50_s is None or f.ttft_p99_s is None or f.requests < FEW:
        return Step(step=4, question=question, finding="cannot say", evidence=f"{f.requests} requests", strength="cannot say",
                    next=f"at least {FEW} requests; 100 for a p99")  # fmt: skip
    ratio = f.ttft_p99_s / f.ttft_p50_s if f.ttft_p50_s > 0 else 1.0
    finding = "the tail" if ratio > 3 else "everyone"
    return Step(step=4, question=question, finding=finding, evidence=f"TTFT p50 {as_time(f.ttft_p50_s)}, p99 {as_time(f.ttft_p99_s)}",
                strength="likely" if f.requests >= 100 else "weak", next="the tail budget at p99")  # fmt: skip


def _slo(f: Features) -> Step:
    question = "Does it matter under the objectives?"
    failed = f"{as_share(f.failed_share)} of requests failed"
    if f.attainment is None:
        return Step(step=5, question=question, finding="cannot say", evidence=f"{failed}; no contract given", strength="cannot say",
                    next="diagnose RUN --contract c.yaml")  # fmt: skip
    wanted = 0.99 if f.attainment_wanted is None else f.attainment_wanted
    broken = ", ".join(
        f"{name} by {share:.0%}" for name, share in sorted(f.breaches.items(), key=lambda kv: -kv[1]) if share > 0
    )
    evidence = f"{f.attainment:.1%} of requests keep every objective, {wanted:.1%} are wanted; broken: {broken or 'none'}; {failed}"
    return Step(step=5, question=question, finding="no" if f.attainment >= wanted else "yes", evidence=evidence,
                strength="likely" if f.requests >= FEW else "weak", next="check RUN --contract c.yaml")  # fmt: skip


def _cause(f: Features, causes: list[Cause]) -> Step:
    question = "What is the cause?"
    if not causes or causes[0].strength == "weak":
        missing = missing_in(f)
        words = "nothing on record stands out" + ("; not on record: " + "; ".join(missing) if missing else "")
        if causes:
            words += f"; weakly {causes[0].cause}: {causes[0].evidence}"
        return Step(step=6, question=question, finding="cannot say", evidence=words, strength="cannot say",
                    next=missing[0] if missing else "a run nearer to the load that is slow")  # fmt: skip
    first = causes[0]
    return Step(
        step=6,
        question=question,
        finding=first.cause,
        evidence=first.evidence,
        strength=first.strength,
        next=first.next,
    )
