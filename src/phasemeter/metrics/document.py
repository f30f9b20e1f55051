"""A result as one strict JSON document: percentiles flat beside the mean, never NaN or Infinity.

Lives here: the shape that others rely on (result.json, `--json`). Must not live here: any computing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from phasemeter.records.result import Metric, Outcomes, Result

PERCENTILE = re.compile(r"p\d+(\.\d+)?")


def document(result: Result) -> dict[str, Any]:
    """The result as plain data in the documented shape; every number finite or null."""
    plain: dict[str, Any] = msgspec.to_builtins(result, str_keys=True)
    plain["metrics"] = {name: flat(metric) for name, metric in result.metrics.items()}
    plain["outcomes"]["error_rate"] = error_rate(result.outcomes)
    if plain["reason"] is None:
        del plain["reason"]
    finite: dict[str, Any] = strict(plain)
    return finite


def dumps(result: Result) -> str:
    """`document` as text; raises nothing for a value that JSON can't hold, for there is none left."""
    return json.dumps(document(result), ensure_ascii=False, allow_nan=False)


def flat(metric: Metric) -> dict[str, Any]:
    """A metric with its percentiles beside its mean: `"p50": {"value": …, "ci95": [low, high]}`."""
    plain: dict[str, Any] = msgspec.to_builtins(metric)
    for name, percentile in plain.pop("percentiles").items():
        if percentile["flag"] is None:
            del percentile["flag"]
        plain[name] = percentile
    if plain["reason"] is None:
        del plain["reason"]
    return plain


def result_in(plain: Mapping[str, Any]) -> Result:
    """The result that a document of that shape holds. Raises msgspec.ValidationError with the place of what is wrong there."""
    metrics = {name: _folded(metric) for name, metric in plain["metrics"].items()}
    return msgspec.convert({**plain, "metrics": metrics}, Result)


def _folded(metric: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    percentiles = {name: value for name, value in metric.items() if PERCENTILE.fullmatch(name)}
    return {**{name: value for name, value in metric.items() if name not in percentiles}, "percentiles": percentiles}


def error_rate(outcomes: Outcomes) -> float | None:
    """Failed over finished; what the run's end cancelled is no error."""
    failed = sum(outcomes.failed.values())
    return failed / (failed + outcomes.ok) if failed + outcomes.ok else None


def strict(value: Any) -> Any:
    """`value` with every number JSON can hold; NaN and infinities become null, an infinite rate stays the text "inf"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {
            str(key): "inf" if key in RATES and inner == math.inf else strict(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    return value


RATES = frozenset({"rate_per_s", "request_rate"})
