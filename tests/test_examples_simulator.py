"""Each simulator example prints what it printed when it was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples" / "simulator"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: str(path.stem))
def test_an_example_prints_its_golden_output(path: Path) -> None:
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == path.with_suffix(".txt").read_text(encoding="utf-8")
