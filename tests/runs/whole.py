"""One `phasemeter bench`, as a person runs it, and what it left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phasemeter.cli.main import run

Capture = pytest.CaptureFixture[str]


@dataclass
class Ran:
    code: int
    out: str
    err: str
    path: Path

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def outcomes(self) -> dict[str, Any]:
        """The five ways to end, the share of failures apart."""
        found: dict[str, Any] = dict(self.result["outcomes"])
        found.pop("error_rate", None)
        return found

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "manifest.json").read_bytes())
        return found


class Bench:
    """Runs the verb with --json into a fresh folder each time. Short, and without a warm-up unless one is asked for."""

    def __init__(self, folder: Path, capsys: Capture) -> None:
        self.folder, self.capsys, self.runs = folder, capsys, 0

    def __call__(self, url: str, *words: str, output: Path | None = None) -> Ran:
        self.runs += 1
        path = output or self.folder / f"run-{self.runs}"
        given = ["bench", url, *words, "-o", str(path), "--json"]
        for option, value in (("--warmup", "0"), ("--output-tokens", "4"), ("--input-tokens", "24")):
            if (
                not any(word.startswith(option) for word in words)
                and "--prompts" not in words
                and "--contract" not in words
            ):
                given += [option, value]
        self.capsys.readouterr()
        code = run(given)
        told = self.capsys.readouterr()
        return Ran(code, told.out, told.err, path)

    def report(self, path: Path, *words: str) -> Ran:
        self.capsys.readouterr()
        code = run(["report", str(path), *words])
        told = self.capsys.readouterr()
        return Ran(code, told.out, told.err, path)


def accounted(outcomes: dict[str, Any]) -> bool:
    """The law of accounting: every scheduled request has one end."""
    parts = outcomes["ok"] + sum(outcomes["failed"].values()) + outcomes["cancelled"] + outcomes["unsent"]
    return bool(outcomes["scheduled"] == parts)
