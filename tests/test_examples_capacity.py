"""The example of choosing a deployment prints what it printed when it was written, and the page shows the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "capacity"


def test_the_example_prints_its_golden_output() -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (EXAMPLE / "run.txt").read_text(encoding="utf-8")


def test_the_page_has_the_examples_plan() -> None:
    plan = (EXAMPLE / "plan.yaml").read_text(encoding="utf-8").partition("\n")[2]
    assert plan.strip() in (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
