"""The one document that `bench --json`, `report --json` and `simulate --json` print, and result.json holds.

Times in seconds. Undefined is null beside a `reason`. Strict JSON: never NaN or Infinity.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

CheckVerdict = Literal["ok", "suspect", "invalid", "unknown"]
Verdict = Literal["valid", "suspect", "invalid"]


class ValidityCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a run's own soundness: what was seen, against which threshold, and what to do about it."""

    id: str
    verdict: CheckVerdict
    evidence: str
    remedy: str = ""


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    checks: tuple[ValidityCheck, ...] = ()


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """`scheduled = ok + sum(failed) + cancelled + unsent`, always."""

    scheduled: int
    ok: int
    failed: dict[str, int]  # kind: how many
    cancelled: int
    unsent: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One distinct way in which measured requests failed, with the server's (or the system's) own words."""

    kind: str
    status: int | None
    message: str | None
    count: int


class Percentile(msgspec.Struct, frozen=True, kw_only=True):
    value: float | None
    ci95: tuple[float | None, float | None] = (None, None)
    flag: str | None = None  # e.g. few_samples


class Metric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """A distribution of one named metric under one definition. `percentiles` keys: p50, p90, p95, p99, p99.9."""

    definition: str
    unit: str
    n: int
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    std: float | None = None
    percentiles: dict[str, Percentile] = msgspec.field(default_factory=dict)
    reason: str | None = None  # why it is null
    excluded: dict[str, int] = msgspec.field(default_factory=dict)  # reason: how many requests it left out


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """In JSON a metric's percentiles stand flat beside `mean` (`"p50": {"value", "ci95"}`): report/ flattens them."""

    phasemeter: int = 1
    run: dict[str, Any]
    partial: bool = False
    validity: Validity
    outcomes: Outcomes
    errors: tuple[Failure, ...] = ()  # distinct failures, most frequent first
    definitions: str = "phasemeter/1"
    metrics: dict[str, Metric]
    throughput: dict[str, Any] = msgspec.field(default_factory=dict)
    goodput: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    workload: dict[str, Any] = msgspec.field(default_factory=dict)  # asked and realised
    warnings: dict[str, int] = msgspec.field(default_factory=dict)
    reason: str | None = None
