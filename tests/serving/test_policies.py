"""A policy reads what a scheduler may know, and nothing that lies ahead."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import phasemeter.serving.policies

FILES = sorted(Path(phasemeter.serving.policies.__path__[0]).glob("*.py"))


def looks_ahead(text: str) -> list[str]:
    """Attributes that only the engine may read: its own, and the length of an answer."""
    names = [node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    return [
        n
        for n in names
        if n == "output_tokens" or (n.startswith("_") and not n.startswith("__")) or n in {"heap", "next_finish"}
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_policy_looks_ahead(path: Path) -> None:
    assert looks_ahead(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "cheat", ["s._left", "s._request.output_tokens", "state.decodes.next_finish()", "s._finish_at"]
)
def test_a_policy_that_sees_the_future_is_caught(cheat: str) -> None:
    assert looks_ahead(f"x = {cheat}\n")
