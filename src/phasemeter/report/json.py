"""`--json`: the result as one strict JSON document on one line.

Lives here: the name that verbs print by. The shape is metrics/document, which result.json follows, too.
"""

from __future__ import annotations

from phasemeter.metrics.document import document, dumps, error_rate, flat, strict

__all__ = ["document", "dumps", "error_rate", "flat", "strict"]
