"""The approximate law e2e ≈ ttft + (n−1)·tpot, fitted on single requests and held against others.

Lives here: the fit and its error. A request's own tpot makes the law an identity; the law says something only when ttft comes
from the prompt's length and tpot from the population, as here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from phasemeter.errors import Undefined
from phasemeter.metrics.definitions import PER_REQUEST
from phasemeter.records.request_row import RequestRow


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What the law needs of one finished request; times in seconds."""

    input_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float
    e2e_s: float


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """ttft = base_s + per_input_token_s·L_in; then one token each tpot_s."""

    base_s: float
    per_input_token_s: float
    tpot_s: float
    n: int

    def ttft_s(self, input_tokens: float) -> float:
        return self.base_s + self.per_input_token_s * input_tokens

    def e2e_s(self, input_tokens: float, output_tokens: float) -> float:
        return self.ttft_s(input_tokens) + (output_tokens - 1) * self.tpot_s


def observed(rows: Iterable[RequestRow]) -> list[Observation]:
    """The measured, finished requests for which every term is defined."""
    found = []
    for row in rows:
        if row.phase != "measured" or row.outcome != "ok" or row.input_tokens is None or row.output_tokens is None:
            continue
        try:
            ttft_s, tpot_s, e2e_s = (PER_REQUEST[name](row) for name in ("ttft", "tpot", "e2e"))
        except Undefined:
            continue
        found.append(
            Observation(
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                e2e_s=e2e_s,
            )
        )
    return found


def fit(single: Sequence[Observation]) -> Law:
    """A line through (L_in, ttft) by Theil and Sen's medians, which a few disturbed requests don't move; tpot's median.

    Raises Undefined with fewer than 3 requests or a single input length.
    """
    lengths = {one.input_tokens for one in single}
    if len(single) < 3 or len(lengths) < 2:
        raise Undefined("needs at least 3 requests at 2 input lengths")
    slopes = [
        (b.ttft_s - a.ttft_s) / (b.input_tokens - a.input_tokens)
        for i, a in enumerate(single)
        for b in single[i + 1 :]
        if a.input_tokens != b.input_tokens
    ]
    slope = statistics.median(slopes)
    base = statistics.median(one.ttft_s - slope * one.input_tokens for one in single)
    return Law(
        base_s=base,
        per_input_token_s=slope,
        tpot_s=statistics.median(one.tpot_s for one in single),
        n=len(single),
    )


def errors(law: Law, others: Sequence[Observation]) -> list[float]:
    """(law − measured) / measured e2e for each request, sorted."""
    return sorted((law.e2e_s(one.input_tokens, one.output_tokens) - one.e2e_s) / one.e2e_s for one in others)
