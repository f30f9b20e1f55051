"""From a run directory to a diagnosis.

Lives here: gathering. Must not live here: rules (phases/diagnosis.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from phasemeter.phases.budget import budgets_document
from phasemeter.phases.diagnosis import diagnose
from phasemeter.phases.features import features_of
from phasemeter.runs.server_view import ServerView, server_view, server_window


def diagnosis_of(run: Path | str) -> dict[str, Any]:
    """`{"steps": [...], "causes": [...], "missing": [...], "budget", "features", "warnings"}`, strict JSON."""
    return document_of(server_view(run))


def document_of(view: ServerView) -> dict[str, Any]:
    """The same from a view already read."""
    budgets = view.budgets()
    features = features_of(view.rows, budgets, server_window(view))
    document: dict[str, Any] = {"phasemeter": 1} | msgspec.to_builtins(diagnose(features))
    measured = [
        budgets[r.request_id]
        for r in view.rows
        if r.phase == "measured" and r.outcome == "ok" and r.request_id in budgets
    ]
    document |= {"budget": budgets_document(measured), "features": msgspec.to_builtins(features)}
    document["warnings"] = list(view.warnings)
    return document
